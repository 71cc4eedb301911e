//! GPTQ: each rounding error is made good in the elements that are rounded later.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use ndarray::{Array2, s};
use rayon::prelude::*;

use super::panel::{Panel, WIDE, grid, panels};
use super::{ColumnIntegers, WeightColumns, stopped};
use crate::linalg::{add_product, cholesky};
use crate::rounding::round_ties_even;
use crate::simd::{SimdLoop, vectorized};
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
        let sums = sums.as_slice_mut().expect("in C order");
        let integers = &mut integers[..];
        let errors = errors.as_slice_mut().expect("in C order");
        let factor = factor.as_slice().expect("in C order");
        let rows = start..end;
        let (block, grid) = (part.block, grid(spec));
        vectorized(Step { panel, block, grid, factor, order, rows, sums, errors, integers });
    }
    integers
}

/// Rounds some rows of a panel.
struct Step<'a> {
    panel: &'a Panel,
    /// The length of a block of the part.
    block: usize,
    grid: (f64, f64),
    factor: &'a [f64],
    order: &'a [usize],
    rows: Range<usize>,
    /// What the errors of earlier rows add to these rows.
    sums: &'a mut [f64],
    errors: &'a mut [f64],
    integers: &'a mut [i16],
}

impl SimdLoop for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Step { panel, block, grid: (low, high), factor, order, rows, sums, errors, integers } =
            self;
        let (depth, lanes) = panel.weight.dim();
        let all = [&panel.weight, &panel.scale, &panel.zero];
        let [weight, scale, zero] = all.map(|all| all.as_slice().expect("in C order"));
        for at in rows.clone().rev() {
            let element = order[at];
            let pivot = factor[at * depth + at];
            let weight = &weight[element * lanes..][..lanes];
            let scale = &scale[element / block * lanes..][..lanes];
            let zero = &zero[element / block * lanes..][..lanes];
            let errors = &mut errors[at * lanes..][..lanes];
            let (others, own) = sums.split_at_mut((at - rows.start) * lanes);
            for lane in 0..lanes {
                let (weight, scale, zero) = (weight[lane], scale[lane], zero[lane]);
                // Zeros stay, also those of pruned weights.
                let target = if weight == 0.0 { 0.0 } else { weight - own[lane] / pivot };
                let steps = round_ties_even((target / scale).clamp(-1e6, 1e6));
                let integer = (steps + zero).clamp(low, high);
                errors[lane] = (integer - zero) * scale - weight;
                integers[lane * depth + element] = integer as i16;
            }
            let factors = &factor[at * depth..][rows.start..at];
            for (sums, factor) in others.chunks_exact_mut(lanes).zip(factors) {
                sums.iter_mut().zip(&*errors).for_each(|(sum, error)| *sum += factor * error);
            }
        }
    }
}
