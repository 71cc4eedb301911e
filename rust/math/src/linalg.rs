//! The linear algebra of weight rounding, on `ndarray`'s matrix products.

use std::sync::atomic::{AtomicBool, Ordering};

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};

/// Rows of a step of the factorization: long enough for the products to dominate, short enough for
/// the rest to stay in the cache.
const STEP: usize = 64;

/// `to += factor · a · b`.
pub(crate) fn add_product(
    factor: f64,
    a: &ArrayView2<'_, f64>,
    b: &ArrayView2<'_, f64>,
    mut to: ArrayViewMut2<'_, f64>,
) {
    if a.ncols() > 0 {
        general_mat_mul(factor, a, b, 1.0, &mut to);
    }
}

/// The Cholesky factor `L` of a symmetric matrix, `a = L · Lᵀ`, in the lower triangle of `a`. What
/// is above the diagonal has no meaning. Returns `None` if `a` is not positive definite, or once
/// `stop` is set.
///
/// Blocked, right-looking: the columns of a step are factored, and their product is subtracted from
/// the rest (Golub and Van Loan, "Matrix Computations", 4.2.6).
pub(crate) fn cholesky(mut a: Array2<f64>, stop: &AtomicBool) -> Option<Array2<f64>> {
    let size = a.nrows();
    for start in (0..size).step_by(STEP) {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let end = (start + STEP).min(size);
        for column in start..end {
            let (head, mut rest) = a.view_mut().split_at(ndarray::Axis(0), column + 1);
            let row = head.row(column);
            let known = row.slice(s![start..column]);
            let pivot = row[column] - known.dot(&known);
            if !(pivot > 0.0 && pivot.is_finite()) {
                return None;
            }
            let pivot = pivot.sqrt();
            let factors = known.to_owned();
            for mut lower in rest.rows_mut() {
                let sum = lower.slice(s![start..column]).dot(&factors);
                lower[column] = (lower[column] - sum) / pivot;
            }
            a[[column, column]] = pivot;
        }
        // Only the lower triangle of the rest is needed: one strip of rows at a time.
        for strip in (end..size).step_by(STEP) {
            let last = (strip + STEP).min(size);
            let (left, right) = a.view_mut().split_at(ndarray::Axis(1), end);
            let left = left.slice(s![.., start..end]);
            let rows = left.slice(s![strip..last, ..]);
            let columns = left.slice(s![end..last, ..]);
            let target = right.slice_move(s![strip..last, ..last - end]);
            add_product(-1.0, &rows, &columns.t(), target);
        }
    }
    Some(a)
}

/// Solves `x · a = b` for each row `b` of `rows` in place, with the Cholesky factor of the
/// symmetric matrix `a`.
///
/// Blocked: within a step row by row, and what follows from earlier steps as products.
pub(crate) fn solve_rows(factor: &Array2<f64>, rows: &mut Array2<f64>) {
    let size = factor.nrows();
    // x · L · Lᵀ = b: first y · Lᵀ = b, from the first column to the last.
    for start in (0..size).step_by(STEP) {
        let end = (start + STEP).min(size);
        let (known, mut rest) = rows.view_mut().split_at(ndarray::Axis(1), start);
        let mut step = rest.slice_mut(s![.., ..end - start]);
        let left = factor.slice(s![start..end, ..start]);
        add_product(-1.0, &known.view(), &left.t(), step.view_mut());
        for mut row in step.rows_mut() {
            for column in 0..end - start {
                let own = factor.row(start + column);
                let sum: f64 = (0..column).map(|before| row[before] * own[start + before]).sum();
                row[column] = (row[column] - sum) / own[start + column];
            }
        }
    }
    // Then x · L = y, from the last column to the first.
    let first = size.saturating_sub(1) / STEP * STEP;
    for start in (0..=first).rev().step_by(STEP) {
        let end = (start + STEP).min(size);
        let (mut until, known) = rows.view_mut().split_at(ndarray::Axis(1), end);
        let mut step = until.slice_mut(s![.., start..]);
        let below = factor.slice(s![end.., start..end]);
        add_product(-1.0, &known.view(), &below, step.view_mut());
        for mut row in step.rows_mut() {
            for column in (0..end - start).rev() {
                let sum: f64 = (column + 1..end - start)
                    .map(|after| row[after] * factor[[start + after, start + column]])
                    .sum();
                row[column] = (row[column] - sum) / factor[[start + column; 2]];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    /// `XᵀX + 0.01 I` of pseudo-random rows.
    fn positive(size: usize) -> Array2<f64> {
        let mut state = 1_u64;
        let x = Array2::from_shape_fn((size + 3, size), |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 24) - 0.5
        });
        x.t().dot(&x) + Array2::<f64>::eye(size) * 0.01
    }

    #[test]
    fn the_factor_times_its_transpose_is_the_matrix() {
        for size in [1, 2, 63, 64, 65, 200] {
            let a = positive(size);
            let mut factor = cholesky(a.clone(), &GO_ON).unwrap();
            for row in 0..size {
                for column in row + 1..size {
                    factor[[row, column]] = 0.0;
                }
            }
            let largest =
                (factor.dot(&factor.t()) - &a).fold(0.0, |most: f64, e| most.max(e.abs()));
            assert!(largest < 1e-12 * size as f64, "{size}: {largest}");
        }
    }

    #[test]
    fn rows_are_solved() {
        for size in [1, 2, 63, 64, 65, 200] {
            let a = positive(size);
            let x = Array2::from_shape_fn((3, size), |(row, at)| (row * 7 + at * 3) as f64 % 5.0);
            let mut rows = x.dot(&a);
            solve_rows(&cholesky(a, &GO_ON).unwrap(), &mut rows);
            let largest = (&rows - &x).fold(0.0, |most: f64, e| most.max(e.abs()));
            assert!(largest < 1e-8, "{size}: {largest}");
        }
    }

    #[test]
    fn a_singular_matrix_has_no_factor() {
        let mut a = positive(70);
        a.row_mut(66).fill(0.0);
        a.column_mut(66).fill(0.0);
        assert!(cholesky(a, &GO_ON).is_none());
        assert!(cholesky(Array2::from_elem((2, 2), f64::NAN), &GO_ON).is_none());
    }
}
