//! What the weights of a layer should be if its inputs carry the errors of the layers before it.

use std::sync::atomic::AtomicBool;

use ndarray::{Array2, ArrayView2, Axis};
use rayon::prelude::*;

use super::WeightColumns;
use crate::linalg::{add_product, cholesky, solve_rows};

/// What is added to the diagonal of both matrices, as a fraction of its mean: it draws targets to
/// the weights where the rows say little.
const DAMPING: f64 = 0.01;

/// Columns that are solved together.
const TOGETHER: usize = 64;

/// The columns whose outputs for the inputs `X` of a quantized model are the nearest to those of
/// `part` for the inputs `F` of the float model: the least squares solution of `X · W' = F · W`,
/// drawn to `W`.
///
/// `part` has `XᵀX` as its moments, and `cross` is `XᵀF` of the same rows. Returns `None` if the
/// moments are singular, or once `stop` is set.
///
/// With targets like these each layer makes good a part of what the layers before it lost.
pub fn corrected_targets(
    part: &WeightColumns,
    cross: &ArrayView2<'_, f64>,
    stop: &AtomicBool,
) -> Option<Vec<f32>> {
    let (depth, width) = (part.depth, part.width());
    let mean = part.moments.diag().sum() / depth.max(1) as f64;
    if !(mean > 0.0 && mean.is_finite()) || cross.dim() != (depth, depth) {
        return None;
    }
    let added = DAMPING * mean;
    let mut moments = part.moments.clone();
    moments.diag_mut().iter_mut().for_each(|x| *x += added);
    let factor = cholesky(moments, stop)?;
    let mut targets = vec![0.0_f32; depth * width];
    let solved = targets
        .par_chunks_mut(TOGETHER * depth.max(1))
        .zip(part.values.par_chunks(TOGETHER * depth.max(1)));
    solved.for_each(|(targets, values)| {
        let columns = values.len() / depth;
        let values = values.iter().copied().map(f64::from).collect();
        let Ok(values) = Array2::from_shape_vec((columns, depth), values) else { return };
        // Each row of these is a column of the weight.
        let mut rows = &values * added;
        add_product(1.0, &values.view(), &cross.t(), rows.view_mut());
        solve_rows(&factor, &mut rows);
        for (row, targets) in rows.axis_iter(Axis(0)).zip(targets.chunks_mut(depth)) {
            targets.iter_mut().zip(row).for_each(|(target, x)| *target = *x as f32);
        }
    });
    targets.iter().all(|target| target.is_finite()).then_some(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn numbers(count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 24) - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn targets_make_good_a_linear_error_of_the_inputs() {
        const DEPTH: usize = 70;
        const ROWS: usize = 400;
        let float = Array2::from_shape_vec((ROWS, DEPTH), numbers(ROWS * DEPTH, 1)).unwrap();
        // The quantized model has every channel 20 % too large.
        let inputs = &float * 1.2;
        let values: Vec<f32> = numbers(DEPTH * 130, 2).into_iter().map(|x| x as f32).collect();
        let part = WeightColumns {
            depth: DEPTH,
            values: values.clone(),
            block: DEPTH,
            groups: (0..130).collect(),
            moments: inputs.t().dot(&inputs),
        };
        let cross = inputs.t().dot(&float);
        let targets = corrected_targets(&part, &cross.view(), &GO_ON).unwrap();
        for (target, value) in targets.iter().zip(&values) {
            assert!((target - value / 1.2).abs() < 0.01, "{target} {value}");
        }
        let same = WeightColumns { moments: float.t().dot(&float), ..part.clone() };
        let kept = corrected_targets(&same, &same.moments.view(), &GO_ON).unwrap();
        for (target, value) in kept.iter().zip(&values) {
            assert!((target - value).abs() < 1e-6, "without an error nothing changes");
        }
        let empty = WeightColumns { moments: Array2::zeros((DEPTH, DEPTH)), ..part };
        assert_eq!(corrected_targets(&empty, &cross.view(), &GO_ON), None);
    }
}
