//! Second moments of few rows.

use ndarray::Array2;

/// From this number of rows on, moments are taken as they are: below, what is taken off fades to
/// nothing.
const ENOUGH_ROWS: f64 = 64.0;

/// With this number of rows, a product of two inputs counts half.
const FEW_ROWS_FOR_PRODUCTS: f64 = 4.0;

/// With this number of rows, the mean square of an input counts as much as that of all inputs.
const FEW_ROWS_FOR_SQUARES: f64 = 3.0;

/// Shrinks the mean moments of few rows: products of inputs towards 0, and squares towards their
/// mean. Integers that make good each other's errors on few rows do not on others, where products
/// are other ones, and an input that is small in all of them may be large in others. Source: Ledoit
/// and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", Journal of
/// Multivariate Analysis 88, 2004; the weights here depend on the number of rows alone.
pub(super) fn shrink(moments: &mut Array2<f64>, rows: f64) {
    if rows >= ENOUGH_ROWS {
        return;
    }
    let trust = |few: f64| rows * rows / (rows * rows + few * few);
    let (products, squares) = (trust(FEW_ROWS_FOR_PRODUCTS), trust(FEW_ROWS_FOR_SQUARES));
    let mean = moments.diag().mean().unwrap_or(0.0);
    for ((row, column), moment) in moments.indexed_iter_mut() {
        if row == column {
            *moment = squares * *moment + (1.0 - squares) * mean;
        } else {
            *moment *= products;
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn few_rows_say_little_and_many_all() {
        let seen = array![[6.0, 2.0], [2.0, 2.0]];
        let shrunk = |rows: f64| {
            let mut moments = seen.clone();
            shrink(&mut moments, rows);
            moments
        };
        assert_eq!(shrunk(3.0), array![[5.0, 0.72], [0.72, 3.0]]);
        assert_eq!(shrunk(64.0), seen);
        let nearly = shrunk(63.0);
        assert!(nearly.iter().zip(&seen).all(|(one, other)| (one - other).abs() < 0.01));
    }
}
