//! From a range to a scale and a zero point, computed as in PyTorch's observers.

use crate::{Granularity, MathError, Params, QSpec, QType, Range};

/// The grid of an observer.
///
/// It differs from [`params`](crate::params()), which follows ONNX runtimes, as PyTorch does: a
/// symmetric scale is `absmax / ((qmax - qmin) / 2)`, with which the error of the largest value can
/// be half a step, and no scale is below `eps`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheme {
    /// The type of the integers.
    pub qtype: QType,
    /// Whether the zero point is the midpoint of the grid.
    pub symmetric: bool,
    /// The smallest and the largest integer.
    pub grid: (i32, i32),
    /// The smallest scale.
    pub eps: f32,
    /// Whether the grid was set by the caller and is not that of the type.
    own: bool,
}

impl Scheme {
    /// The full grid of a type, with the machine epsilon of float32 as the smallest scale.
    pub fn new(qtype: QType, symmetric: bool) -> Scheme {
        let (grid, eps) = ((qtype.min(), qtype.max()), f32::EPSILON);
        Scheme { qtype, symmetric, grid, eps, own: false }
    }

    /// The scheme with one bit less.
    #[must_use]
    pub fn reduced(self) -> Scheme {
        // Rounded down, as Python's `//` does.
        Scheme { grid: (self.grid.0.div_euclid(2), self.grid.1.div_euclid(2)), ..self }
    }

    /// The scheme with a custom grid.
    ///
    /// # Errors
    ///
    /// The grid does not contain 0, contains only 0, or exceeds the type.
    pub fn with_grid(self, quant_min: i32, quant_max: i32) -> Result<Scheme, MathError> {
        let setting = |name, found: i32, expected| {
            Err(MathError::Setting { name, found: found.to_string(), expected })
        };
        if quant_min > 0 || quant_min < self.qtype.min() {
            return setting("quant_min", quant_min, "a value of the type that is not above 0");
        }
        if quant_max < 0 || quant_max > self.qtype.max() || quant_max == quant_min {
            return setting(
                "quant_max",
                quant_max,
                "a value of the type above quant_min, not below 0",
            );
        }
        Ok(Scheme { grid: (quant_min, quant_max), own: true, ..self })
    }

    /// The spec of a tensor with this scheme.
    pub fn spec(&self, granularity: Granularity) -> QSpec {
        QSpec { narrow: false, ..QSpec::new(self.qtype, self.symmetric, granularity) }
    }

    /// The scale and the zero point of a range, which is widened to contain 0:
    ///
    /// - symmetric: `scale = max(-min, max) / ((qmax - qmin) / 2)`; the zero point is 0, or the
    ///   midpoint for unsigned types;
    /// - asymmetric: `scale = (max - min) / (qmax - qmin)`,
    ///   `zero_point = clamp(qmin - round_half_even(min / scale))`.
    ///
    /// Computed in float32, except where the width of the range overflows it.
    pub fn params(&self, range: Range) -> Params {
        let Range { min, max } = range.widened_to_zero();
        let (lo, hi) = self.grid;
        let steps = hi as f32 - lo as f32;
        if self.symmetric {
            let scale = (max.max(-min) / (steps / 2.0)).max(self.eps);
            let middle = match (self.qtype.signed(), self.own) {
                (true, _) => 0,
                (false, true) => (lo + hi).div_euclid(2),
                (false, false) => (lo + hi + 1) / 2,
            };
            return Params { scale, zero_point: middle };
        }
        let width = max - min;
        let scale = if width.is_finite() {
            width / steps
        } else {
            ((f64::from(max) - f64::from(min)) / f64::from(steps)) as f32
        };
        let scale = scale.max(self.eps);
        let zero_point = f64::from(lo) - f64::from((min / scale).round_ties_even());
        Params { scale, zero_point: zero_point.clamp(f64::from(lo), f64::from(hi)) as i32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: f32, max: f32) -> Range {
        Range { min, max }
    }

    #[test]
    fn affine_and_symmetric_grids_equal_hand_computed_ones() {
        // (4 - -1) / 255 = 0.019608; 0 - round(-1 / 0.019608) = 51
        let found = Scheme::new(QType::UInt8, false).params(range(-1.0, 4.0));
        assert_eq!(found, Params { scale: 5.0 / 255.0, zero_point: 51 });
        // -128 + 51
        let found = Scheme::new(QType::Int8, false).params(range(-1.0, 4.0));
        assert_eq!(found, Params { scale: 5.0 / 255.0, zero_point: -77 });
        // 4 / 127.5 = 0.031373
        let found = Scheme::new(QType::Int8, true).params(range(-1.0, 4.0));
        assert_eq!(found, Params { scale: 4.0 / 127.5, zero_point: 0 });
        let found = Scheme::new(QType::UInt8, true).params(range(-1.0, 4.0));
        assert_eq!(found, Params { scale: 4.0 / 127.5, zero_point: 128 });
        // A range without 0 is widened: 3 / 255.
        let found = Scheme::new(QType::UInt8, false).params(range(1.0, 3.0));
        assert_eq!(found, Params { scale: 3.0 / 255.0, zero_point: 0 });
    }

    #[test]
    fn a_reduced_grid_has_one_bit_less_and_a_custom_grid_its_own_midpoint() {
        let reduced = |qtype, symmetric| Scheme::new(qtype, symmetric).reduced();
        assert_eq!(reduced(QType::UInt8, false).grid, (0, 127));
        assert_eq!(reduced(QType::Int8, false).grid, (-64, 63));
        assert_eq!(reduced(QType::UInt8, true).params(range(-1.0, 1.0)).zero_point, 64);
        let own = Scheme::new(QType::UInt8, true).with_grid(0, 15).unwrap();
        assert_eq!(own.params(range(-1.5, 1.0)), Params { scale: 1.5 / 7.5, zero_point: 7 });
        for (quant_min, quant_max, name) in
            [(1, 5, "quant_min"), (-1, 5, "quant_min"), (0, 256, "quant_max"), (0, 0, "quant_max")]
        {
            let found = Scheme::new(QType::UInt8, true).with_grid(quant_min, quant_max);
            assert!(found.unwrap_err().to_string().starts_with(name));
        }
    }

    #[test]
    fn a_scale_is_not_below_eps_and_finite() {
        let scheme = Scheme::new(QType::Int8, false);
        assert_eq!(scheme.params(range(0.0, 0.0)).scale, f32::EPSILON);
        let widest = scheme.params(range(-f32::MAX, f32::MAX));
        assert!(widest.scale.is_finite());
        // 2 · 3.4e38 / 255, with the zero point -128 - round(-127.5) = 0.
        assert_eq!(widest.zero_point, 0);
    }
}
