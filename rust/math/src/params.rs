//! From a range to a scale and a zero point. No other module computes them.

use half::f16;
use serde::{Deserialize, Serialize};

use crate::rounding::round_ties_even;
use crate::{QSpec, QType};

/// The smallest and the largest value of a group of elements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// The smallest value; `+inf` (in JSON, null) for an empty range.
    #[serde(deserialize_with = "crate::stats::null_is_inf")]
    pub min: f32,
    /// The largest value; `-inf` (in JSON, null) for an empty range.
    #[serde(deserialize_with = "crate::stats::null_is_negative_inf")]
    pub max: f32,
}

impl Range {
    /// The range of no elements: merging it changes nothing.
    pub const EMPTY: Range = Range { min: f32::INFINITY, max: f32::NEG_INFINITY };

    /// Whether the range is empty.
    pub fn is_empty(self) -> bool {
        self.min > self.max
    }

    /// The smallest range that contains both.
    #[must_use]
    pub fn merge(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// The smallest range that contains this one and 0, which every grid must represent exactly
    /// (padding, `Relu`).
    #[must_use]
    #[inline]
    pub fn widened_to_zero(self) -> Range {
        Range { min: self.min.min(0.0), max: self.max.max(0.0) }
    }

    /// The range with 0, and with its upper end raised where it is narrower than `width`.
    ///
    /// ```
    /// use quantize_rs_math::Range;
    /// let range = Range { min: -0.25, max: -0.25 };
    /// assert_eq!(range.widened_to_width(1.0), Range { min: -0.25, max: 0.75 });
    /// ```
    #[must_use]
    pub fn widened_to_width(self, width: f32) -> Range {
        let Range { min, max } = self.widened_to_zero();
        Range { min, max: max.max(min + width) }
    }

    /// The largest magnitude in the range.
    #[inline]
    pub fn absmax(self) -> f32 {
        self.min.abs().max(self.max.abs())
    }

    /// The range with finite ends: infinities become the largest finite number, NaN and empty
    /// ranges become 0.
    #[inline]
    pub(crate) fn finite(self) -> Range {
        if self.is_empty() {
            return Range { min: 0.0, max: 0.0 };
        }
        let Range { min, max } = self.widened_to_zero();
        Range { min: min.max(-f32::MAX), max: max.min(f32::MAX) }
    }
}

/// The scale and the zero point of a group of elements: `x = (q - zero_point) · scale`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// The value of one unit of the type; for integers, the distance between neighbours. It is
    /// finite, not denormal, and positive unless the spec
    /// [`allows_negative_scale`](QSpec::allows_negative_scale).
    pub scale: f32,
    /// The integer that represents 0; 0 for floats.
    pub zero_point: i32,
}

impl Params {
    /// The largest error of a value inside the representable range: half of the largest step.
    pub fn error_bound(self, qtype: QType) -> f32 {
        self.scale.abs() * qtype.largest_step() as f32 / 2.0
    }

    /// The values at the two ends of the grid.
    pub fn representable(self, spec: &QSpec) -> Range {
        let value =
            |q: i32| ((f64::from(q) - f64::from(self.zero_point)) * f64::from(self.scale)) as f32;
        let (lo, hi) = spec.grid();
        let (lo, hi) = (value(lo), value(hi));
        Range { min: lo.min(hi), max: lo.max(hi) }
    }

    /// Rounds the scale to float16, for weights that are dequantized to float16. The result is the
    /// smallest float16 not less than the scale, so that nothing is clipped, unless the ends would
    /// become infinite.
    ///
    /// ```
    /// use quantize_rs_math::{Granularity, Params, QSpec, QType};
    /// let spec = QSpec::new(QType::UInt4, true, Granularity::PerTensor);
    /// let halves = |scale| Params { scale, zero_point: 8 }.in_halves(&spec).scale;
    /// assert_eq!([0.5, 1.0001, -1e-30].map(halves), [0.5, 1.000_976_6, -5.960_464_5e-8]);
    /// ```
    #[must_use]
    pub fn in_halves(self, spec: &QSpec) -> Params {
        let with = |bits: u16| {
            let scale = f16::from_bits(bits).to_f32().copysign(self.scale);
            Params { scale, ..self }
        };
        let near = f16::from_f32(self.scale.abs());
        let short = near.to_f32() < self.scale.abs();
        let mut bits = (near.to_bits() + u16::from(short)).clamp(1, f16::MAX.to_bits());
        while bits > 1 && with(bits).representable(spec).absmax() > f16::MAX.to_f32() {
            bits -= 1;
        }
        with(bits)
    }
}

/// The scale and zero point that map `range` to the grid of `spec`.
///
/// The range is widened to contain 0, and all intermediate results are f64:
/// - asymmetric: `scale = (rmax - rmin) / (qmax - qmin)`,
///   `zero_point = clamp(round_half_even(qmin - rmin / scale))`, as in ONNX's
///   `DynamicQuantizeLinear`;
/// - symmetric: the zero point is [`QSpec::zero_point_midpoint`]. With `below = midpoint - qmin`
///   and `above = qmax - midpoint`, `scale = max(rmax / above, -rmin / below)`, which clips
///   nothing. Up to 4 bits, when the element of the largest magnitude is negative,
///   `scale = -rmin / below`, even if that clips the largest positive value by less than a step:
///   eight steps instead of seven reduce the total error. When it is positive and the spec
///   [`allows_negative_scale`](QSpec::allows_negative_scale), `scale = -rmax / below`. Floats are
///   always symmetric: `scale = absmax / largest value`.
///
/// Every input has a result. An empty, all-zero or NaN range gives scale 1 and the zero point 0
/// (symmetric: the midpoint). Infinite ends count as the largest finite number. A scale below the
/// smallest normal f32 becomes that number, because runtimes flush denormals to zero. If an end of
/// the grid would overflow, the scale is the largest with which it does not.
#[inline]
pub fn params(range: Range, spec: &QSpec) -> Params {
    let range = range.finite();
    if range.absmax() == 0.0 || !spec.qtype.is_scaled() {
        return Params {
            scale: 1.0,
            zero_point: if spec.symmetric { spec.zero_point_midpoint() } else { 0 },
        };
    }
    if !spec.symmetric {
        let (qmin, qmax) = spec.grid();
        let (scale, zero_point) = asymmetric(range, (f64::from(qmin), f64::from(qmax)));
        return Params { scale, zero_point: zero_point as i32 };
    }
    let grid = Symmetric::of(spec);
    // Clipping a few elements among hundreds costs less than coarser steps for all, but only while
    // steps are coarse.
    let longer = grid.turns || -range.min >= range.max;
    let above = if lopsided(spec) && longer { grid.below } else { grid.above };
    Params { scale: grid.scale(range, above), zero_point: grid.zero_point }
}

/// Whether a symmetric grid has few steps, and one more below than above, so that the side with the
/// additional step matters.
pub(crate) fn lopsided(spec: &QSpec) -> bool {
    let (below, above) = reach(spec, spec.zero_point_midpoint());
    spec.symmetric && spec.qtype.bits() <= 4 && below > above
}

/// A symmetric grid: its steps below and above the zero point.
#[derive(Clone, Copy)]
pub(crate) struct Symmetric {
    below: f64,
    above: f64,
    pub(crate) zero_point: i32,
    /// Whether the scale may be negative, so that the larger magnitude is on the longer side.
    turns: bool,
}

impl Symmetric {
    pub(crate) fn of(spec: &QSpec) -> Symmetric {
        let zero_point = spec.zero_point_midpoint();
        let (below, above) = reach(spec, zero_point);
        Symmetric { below, above, zero_point, turns: spec.allows_negative_scale && lopsided(spec) }
    }

    /// To how many steps candidates map the shorter side. The longer side is never clipped; the
    /// largest element of the shorter one is off by less than a step, by half a step, or not at
    /// all.
    pub(crate) fn reaches(self) -> [f64; 3] {
        [self.below, self.above + 0.5, self.above]
    }

    /// The scale for a range that is finite and contains 0, with the shorter side at `above` steps.
    /// It has no branches, so that loops over it compile to vector code.
    #[inline(always)]
    pub(crate) fn scale(self, range: Range, above: f64) -> f32 {
        let (lowest, highest) = (-f64::from(range.min), f64::from(range.max));
        let turned = self.turns && highest > lowest;
        let (far, near) = if turned { (highest, lowest) } else { (lowest, highest) };
        let scale = normal((far / self.below).max(near / above));
        let scale = without_overflow(scale, self.below.max(above));
        let scale = if turned { -scale } else { scale };
        if lowest.max(highest) == 0.0 { 1.0 } else { scale }
    }
}

/// The scale and the zero point of the grid between two integers for a range that is finite and
/// contains 0. It has no branches, so that loops over it compile to vector code.
#[inline(always)]
pub(crate) fn asymmetric(range: Range, (qmin, qmax): (f64, f64)) -> (f32, f64) {
    let (rmin, rmax) = (f64::from(range.min), f64::from(range.max));
    let scale = normal((rmax - rmin) / (qmax - qmin));
    let zero_point = round_ties_even(qmin - rmin / f64::from(scale)).max(qmin).min(qmax);
    let scale = without_overflow(scale, (zero_point - qmin).max(qmax - zero_point));
    if rmax - rmin == 0.0 { (1.0, 0.0) } else { (scale, zero_point) }
}

/// How many steps the grid has below and above the zero point.
#[inline]
fn reach(spec: &QSpec, zero_point: i32) -> (f64, f64) {
    let (qmin, qmax) = spec.grid();
    (f64::from(zero_point) - f64::from(qmin), f64::from(qmax) - f64::from(zero_point))
}

#[inline(always)]
pub(crate) fn normal(scale: f64) -> f32 {
    (scale as f32).max(f32::MIN_POSITIVE)
}

/// The scale, or the largest scale for which `steps · scale` is finite.
#[inline(always)]
fn without_overflow(scale: f32, steps: f64) -> f32 {
    let steps = steps as f32;
    let largest = f32::MAX / steps;
    let below = f32::from_bits(largest.to_bits().wrapping_sub(1));
    let largest = if (steps * largest).is_finite() { largest } else { below };
    if (steps * scale).is_finite() { scale } else { largest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Granularity;

    fn of(min: f32, max: f32, qtype: QType, symmetric: bool) -> Params {
        params(Range { min, max }, &QSpec::new(qtype, symmetric, Granularity::PerTensor))
    }

    fn int8_max() -> f32 {
        QType::Int8.max() as f32
    }

    #[test]
    fn the_range_is_widened_to_include_zero() {
        let positive = of(10.0, 11.0, QType::UInt8, false);
        assert_eq!(positive, Params { scale: 11.0 / QType::UInt8.max() as f32, zero_point: 0 });
        let negative = of(-5.0, -4.0, QType::Int8, false);
        assert_eq!(negative.zero_point, QType::Int8.max());
    }

    #[test]
    fn symmetric_8_and_16_bits_are_narrow() {
        assert_eq!(
            of(-1.0, 0.5, QType::Int8, true),
            Params { scale: 1.0 / int8_max(), zero_point: 0 }
        );
        assert_eq!(of(-0.5, 1.0, QType::Int16, true).scale, 1.0 / QType::Int16.max() as f32);
    }

    #[test]
    fn symmetric_unsigned_types_have_the_midpoint_as_zero_point() {
        let cases =
            [(QType::UInt8, 128), (QType::UInt4, 8), (QType::UInt16, 32768), (QType::UInt2, 2)];
        for (qtype, middle) in cases {
            assert_eq!(of(-1.0, 1.0, qtype, true).zero_point, middle);
        }
        assert_eq!(of(-1.0, 1.0, QType::UInt8, true).scale, 1.0 / int8_max());
    }

    #[test]
    fn types_of_few_bits_use_the_longer_side() {
        assert_eq!(of(-8.0, 7.9, QType::Int4, true).scale, 1.0);
        assert_eq!(of(-2.0, 7.0, QType::Int4, true).scale, 1.0);
        assert_eq!(of(-7.9, 8.0, QType::Int4, true).scale, 8.0 / 7.0);
        assert_eq!(of(-2.0, 2.0, QType::Int2, true).scale, 1.0);
        assert_eq!(of(-1.0, 2.0, QType::Int2, true).scale, 2.0);
    }

    #[test]
    fn a_negative_scale_maps_the_largest_element_to_the_longer_side() {
        let narrow =
            [(QType::Int4, 8.0), (QType::UInt4, 8.0), (QType::Int2, 2.0), (QType::UInt2, 2.0)];
        for (qtype, below) in narrow {
            let spec = QSpec {
                allows_negative_scale: true,
                ..QSpec::new(qtype, true, Granularity::PerTensor)
            };
            for (min, max, scale) in
                [(-3.0, 2.9, 3.0), (-3.0, 3.0, 3.0), (-2.9, 3.0, -3.0), (0.0, 3.0, -3.0)]
            {
                let found = params(Range { min, max }, &spec);
                assert_eq!(found.scale, scale / below, "{qtype} {min} {max}");
                let ends = found.representable(&spec);
                assert_eq!(if scale < 0.0 { ends.max } else { -ends.min }, 3.0, "{qtype}");
            }
            let narrow = QSpec { narrow: true, ..spec };
            let found = params(Range { min: -1.0, max: 3.0 }, &narrow);
            assert_eq!(found.scale, 3.0 / (below - 1.0), "{qtype}");
        }
        for qtype in [QType::Int8, QType::UInt8, QType::Int16] {
            let spec = QSpec {
                allows_negative_scale: true,
                ..QSpec::new(qtype, true, Granularity::PerTensor)
            };
            assert!(params(Range { min: -1.0, max: 2.0 }, &spec).scale > 0.0, "{qtype}");
        }
    }

    #[test]
    fn float_grids_cover_the_range_symmetric_or_not() {
        for (qtype, largest) in [(QType::Float8E4M3FN, 448.0), (QType::Float8E5M2, 57344.0)] {
            for symmetric in [false, true] {
                let expected = Params { scale: 3.0 / largest, zero_point: 0 };
                assert_eq!(of(-1.0, 3.0, qtype, symmetric), expected);
                assert_eq!(of(-3.0, 0.0, qtype, symmetric), expected);
            }
        }
    }

    #[test]
    fn empty_zero_and_nan_ranges_have_params() {
        for range in
            [Range::EMPTY, Range { min: 0.0, max: -0.0 }, Range { min: f32::NAN, max: f32::NAN }]
        {
            for &qtype in QType::ALL {
                for symmetric in [false, true] {
                    let spec = QSpec::new(qtype, symmetric, Granularity::PerTensor);
                    let middle = if symmetric { spec.zero_point_midpoint() } else { 0 };
                    assert_eq!(params(range, &spec), Params { scale: 1.0, zero_point: middle });
                }
            }
        }
    }

    #[test]
    fn every_range_gives_a_normal_scale_and_finite_values() {
        let ends = [0.0, 1e-45, f32::MIN_POSITIVE, 1e-12, 1.0, 3e38, f32::MAX, f32::INFINITY];
        for &qtype in QType::ALL {
            for symmetric in [false, true] {
                for (min, max) in ends.iter().flat_map(|&min| ends.map(|max| (-min, max))) {
                    let spec = QSpec::new(qtype, symmetric, Granularity::PerTensor);
                    let found = params(Range { min, max }, &spec);
                    assert!(
                        found.scale.is_normal() && found.scale > 0.0,
                        "{qtype} {min} {max} {found:?}"
                    );
                    let ends = found.representable(&spec);
                    assert!(
                        ends.min.is_finite() && ends.max.is_finite(),
                        "{qtype} {min} {max} {found:?}"
                    );
                    let (lo, hi) = spec.grid();
                    assert!((lo..=hi).contains(&found.zero_point));
                }
            }
        }
    }

    #[test]
    fn tiny_ranges_keep_their_proportions() {
        let (large, small) =
            (of(-1.0, 3.0, QType::Int8, false), of(-1e-12, 3e-12, QType::Int8, false));
        assert_eq!(large.zero_point, small.zero_point);
        assert!((small.scale / large.scale / 1e-12 - 1.0).abs() < 1e-6);
    }
}
