//! A few columns side by side, so that one row of the moments serves all of them.

use ndarray::Array2;

use super::WeightColumns;
use crate::{Params, QSpec};

/// Columns of a panel that is multiplied by a matrix.
pub(super) const WIDE: usize = 64;

/// Columns that are changed at the same time: a row of the moments is read from memory for all of
/// them.
pub(super) const LANES: usize = 16;

/// Some columns of a part, element by element: row `k` holds element `k` of each column.
pub(super) struct Panel {
    /// The first column.
    pub(super) first: usize,
    pub(super) weight: Array2<f64>,
    /// The scale and the zero point of each block and column.
    pub(super) scale: Array2<f64>,
    pub(super) zero: Array2<f64>,
}

impl Panel {
    /// The columns from `first` on, up to `lanes` of them. Lanes without a column are 0.
    pub(super) fn of(part: &WeightColumns, params: &[Params], first: usize, lanes: usize) -> Panel {
        let mut weight = Array2::zeros((part.depth, lanes));
        let mut scale = Array2::from_elem((part.blocks(), lanes), 1.0);
        let mut zero = Array2::zeros((part.blocks(), lanes));
        for lane in 0..lanes.min(part.width() - first) {
            let mut at = 0;
            for (block, (values, group)) in part.column_blocks(first + lane).enumerate() {
                scale[[block, lane]] = f64::from(params[group].scale);
                zero[[block, lane]] = f64::from(params[group].zero_point);
                for value in values {
                    weight[[at, lane]] = f64::from(*value);
                    at += 1;
                }
            }
        }
        Panel { first, weight, scale, zero }
    }
}

/// The panels of a part: their first columns.
pub(super) fn panels(part: &WeightColumns, lanes: usize) -> Vec<usize> {
    (0..part.width()).step_by(lanes).collect()
}

/// The smallest and the largest integer of the grid.
pub(super) fn grid(spec: &QSpec) -> (f64, f64) {
    let (low, high) = spec.grid();
    (f64::from(low), f64::from(high))
}
