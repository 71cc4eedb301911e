//! GPTQ: each rounding error is made good in the elements that are rounded later.

use std::sync::atomic::AtomicBool;

use ndarray::{Array2, s};
use rayon::prelude::*;

use super::panel::{Panel, WIDE, grid, panels};
use super::{ColumnIntegers, WeightColumns, stopped};
use crate::linalg::{add_product, cholesky};
use crate::rounding::round_ties_even;
use crate::{Params, QSpec};

/// What is added to the diagonal of the moments, relative to its mean: 1 %, as in the paper.
const DAMPING: f64 = 0.01;

/// If the damped matrix is still not positive definite, the damping is raised by this factor.
const MORE: f64 = 10.0;

/// Rows that are rounded before their errors are made good in the rest.
const LAZY: usize = 64;

/// The integers of a part for given scales, from the input with the largest mean square to that
/// with the smallest ("act order").
///
/// With `H = U·Uᵀ`, `U` upper triangular in the order of rounding, the error of a column `e` is
/// `|Uᵀe|²`. Row `k` of `Uᵀe` depends on the errors up to `k`, and is 0 for the element
/// `w_k - Σ_{j<k} U_jk e_j / U_kk`, which is rounded. This is GPTQ without the inverse of `H`: its
/// updates give the same elements (Chen et al., "The Geometry of LLM Quantization: GPTQ as Babai's
/// Nearest Plane Algorithm", 2025). The factor is the Cholesky factor of `H` in the reverse order.
pub(super) fn round(
    part: &WeightColumns,
    params: &[Params],
    spec: &QSpec,
    stop: &AtomicBool,
) -> ColumnIntegers {
    let depth = part.depth;
    // The last to be rounded first, as the factorization needs it.
    let mut order: Vec<usize> = (0..depth).collect();
    let squares = part.moments.diag();
    order.sort_by(|a, b| squares[*a].total_cmp(&squares[*b]).then(b.cmp(a)));
    let Some(factor) = factor(&part.moments, &order, stop) else {
        return super::scales::nearest(part, params, spec);
    };
    let of_panel = |first: &usize| {
        let lanes = WIDE.min(part.width() - first);
        if stopped(stop) {
            return vec![0; lanes * depth];
        }
        rounded(part, &Panel::of(part, params, *first, lanes), &factor, &order, spec)
    };
    panels(part, WIDE).par_iter().flat_map_iter(of_panel).collect()
}

/// The Cholesky factor of the damped moments in an order.
fn factor(moments: &Array2<f64>, order: &[usize], stop: &AtomicBool) -> Option<Array2<f64>> {
    let mean = moments.diag().mean().filter(|mean| *mean > 0.0 && mean.is_finite())?;
    let mut damping = DAMPING;
    // At 100 times the mean the matrix is diagonally dominant but for rounding errors.
    while damping <= 100.0 && !stopped(stop) {
        let damped = Array2::from_shape_fn(moments.dim(), |(row, column)| {
            let more = if row == column { damping * mean } else { 0.0 };
            moments[[order[row], order[column]]] + more
        });
        if let Some(factor) = cholesky(damped, stop) {
            return Some(factor);
        }
        damping *= MORE;
    }
    None
}

/// The integers of the columns of a panel, one column after the other.
fn rounded(
    part: &WeightColumns,
    panel: &Panel,
    factor: &Array2<f64>,
    order: &[usize],
    spec: &QSpec,
) -> ColumnIntegers {
    let (depth, lanes) = panel.weight.dim();
    let (low, high) = grid(spec);
    let mut errors = Array2::<f64>::zeros((depth, lanes));
    let mut integers = vec![0; depth * lanes];
    let mut start = depth.next_multiple_of(LAZY);
    while start > 0 {
        let end = start.min(depth);
        start -= LAZY;
        // What the errors of the rows before add to these rows.
        let mut sums = Array2::<f64>::zeros((end - start, lanes));
        let before = factor.slice(s![end.., start..end]);
        add_product(1.0, &before.t(), &errors.slice(s![end.., ..]), sums.view_mut());
        for at in (start..end).rev() {
            let element = order[at];
            let block = element / part.block;
            let pivot = factor[[at, at]];
            for lane in 0..lanes {
                let weight = panel.weight[[element, lane]];
                let target = weight - sums[[at - start, lane]] / pivot;
                let (scale, zero) = (panel.scale[[block, lane]], panel.zero[[block, lane]]);
                let integer =
                    (round_ties_even((target / scale).clamp(-1e6, 1e6)) + zero).clamp(low, high);
                errors[[at, lane]] = (integer - zero) * scale - weight;
                integers[lane * depth + element] = integer as i16;
            }
            for row in start..at {
                let factor = factor[[at, row]];
                for lane in 0..lanes {
                    sums[[row - start, lane]] += factor * errors[[at, lane]];
                }
            }
        }
    }
    integers
}
