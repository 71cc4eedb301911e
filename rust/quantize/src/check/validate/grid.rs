//! The grids of integers and narrow floats, and the distance of numbers to them.

// Steps of scales, whose digits matter little.
#![allow(clippy::cast_possible_truncation)]

use quantize_rs_math::{Codebook, Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use crate::options::HalfType;

/// The tolerance beyond half a step: one more rounding in float32.
const SLACK: f64 = 1e-3;

/// The largest relative error of rounding to a 16-bit type.
fn epsilon(half: HalfType) -> f64 {
    match half {
        HalfType::Float16 => 1.0 / 2048.0,
        HalfType::BFloat16 => 1.0 / 256.0,
    }
}

/// The largest relative error of a number that was rounded to a 16-bit type: very small ones have
/// fewer digits.
fn error_of(rounded: f32, half: HalfType) -> f64 {
    let middle = f64::from(half.smallest()) / 2.0;
    epsilon(half).max(middle / (f64::from(rounded.abs()) - middle))
}

/// The largest relative error of an element in units of its scale, in float32: a pass multiplied
/// the element by a factor, the scale is a quotient or a product, and they were divided.
const QUOTIENT_EPSILON: f64 = 4.0 * (f32::EPSILON as f64);

/// The largest gap between numbers that codes stand for, between 2/3 and 1 in `fp4`; errors are
/// counted in it.
const CODE_STEP: f64 = 1.0 / 3.0;

/// The tolerance of a code: the limits between codes are rounded to float32.
const CODE_SLACK: f64 = 1e-6;

/// The grid of stored numbers.
pub(super) struct Grid {
    qtype: QType,
    /// The smallest and the largest integer.
    ends: (f64, f64),
    /// The type of the scales.
    scales: Option<DataType>,
    /// A 16-bit type that holds all scales: they may have been rounded to it after the integers
    /// were chosen.
    rounded: Option<HalfType>,
    /// The largest relative error of the factors that elements were multiplied by.
    factors: f64,
    /// The numbers that codes stand for, if they are not the integers themselves.
    codebook: Option<Codebook>,
}

impl Grid {
    /// The grid of integers, given the smallest and the largest one that are `written`.
    ///
    /// A symmetric grid may be equally wide in both directions, a reduced range has one bit less,
    /// and 4-bit integers may be stored in a byte each. Of the grids that contain all written
    /// integers, the smallest one that is fully used is taken. The end next to a zero point may be
    /// missed by one.
    ///
    /// `used_bits` of the type are used; 0 stands for all.
    pub(super) fn of(
        qtype: QType,
        used_bits: u32,
        written: (f64, f64),
        scales: Option<DataType>,
    ) -> Grid {
        let widened = (qtype == QType::Int8 && used_bits == 0).then_some(QType::Int4);
        let spec = |qtype, reduced, narrow| {
            let spec = QSpec::new(qtype, true, Granularity::PerTensor);
            QSpec { reduce_range: reduced, narrow, used_bits, ..spec }
        };
        let ways = [(true, true), (true, false), (false, true), (false, false)];
        let all = widened.into_iter().chain([qtype]);
        let mut all = all
            .flat_map(|qtype| ways.map(|(reduced, narrow)| spec(qtype, reduced, narrow)))
            .map(|spec| (spec.qtype, spec.grid()))
            .map(|(qtype, (lo, hi))| (qtype, (f64::from(lo), f64::from(hi))));
        let (least, most) = written;
        let used = |(lo, hi): (f64, f64)| {
            lo <= least && most <= hi && (least <= lo + 1.0 || most >= hi - 1.0)
        };
        let (lo, hi) = QSpec { used_bits, ..spec(qtype, false, false) }.grid();
        let full = (qtype, (f64::from(lo), f64::from(hi)));
        let (qtype, ends) = all.find(|(_, ends)| used(*ends)).unwrap_or(full);
        Grid { qtype, ends, scales, rounded: None, factors: 0.0, codebook: None }
    }

    /// The grid, with scales that were perhaps rounded to a 16-bit type.
    pub(super) fn with_rounded_scales(self, rounded: Option<HalfType>) -> Grid {
        Grid { rounded, ..self }
    }

    /// The grid of elements that were multiplied by factors, which are rounded to a type.
    pub(super) fn with_rounded_factors(self, rounded: Option<HalfType>) -> Grid {
        Grid { factors: rounded.map_or(0.0, epsilon), ..self }
    }

    /// The grid, with the numbers that codes stand for.
    pub(super) fn with_codebook(self, codebook: Option<Codebook>) -> Grid {
        Grid { codebook, ..self }
    }

    /// The largest relative error of elements in units of this scale, if it or the factors of the
    /// elements were rounded after the integers were chosen.
    pub(super) fn relative_error(&self, scale: f32) -> f64 {
        self.factors + self.rounded.map_or(0.0, |half| error_of(scale, half))
    }

    /// Whether elements from the `least` to the `most` need a scale that the 16-bit type of the
    /// scales may have rounded to 0. Scales with the least error clip up to half of them.
    pub(super) fn may_vanish(&self, (least, most): (f64, f64), half: HalfType) -> bool {
        let (lo, hi) = match self.qtype.format() {
            _ if self.codebook.is_some() => (-1.0, 1.0),
            Some(format) => (-f64::from(format.max()), f64::from(format.max())),
            None => self.ends,
        };
        most.max(0.0) - least.min(0.0) <= (hi - lo) * f64::from(half.smallest())
    }

    /// The distance in steps between the exact and the written value of an element, both in units
    /// of the scale, and whether no closer value could have been written. `relative_error` is the
    /// largest one of the exact value.
    pub(super) fn distance(
        &self,
        exact: f64,
        there: f64,
        zero_point: f64,
        relative_error: f64,
    ) -> (f64, bool) {
        if let Some(codebook) = self.codebook {
            let values = codebook.values().iter().map(|value| f64::from(*value));
            let nearest = values.map(|value| (exact - value).abs()).fold(f64::INFINITY, f64::min);
            let distance = (exact - there).abs();
            // Scales with the least error clip up to a third.
            let right = distance <= nearest + CODE_SLACK && exact.abs() <= 1.5;
            return (distance / CODE_STEP, right);
        }
        if let Some(format) = self.qtype.format() {
            let nearest = f64::from(format.decode(format.encode(exact as f32)));
            let largest = f64::from(self.qtype.largest_step());
            let distance = (exact - there).abs();
            // Below the power of two after the largest float, the specification rounds a scale
            // down.
            let max = f64::from(format.max());
            let powers = self.scales == Some(DataType::Float8E8M0);
            let end = if powers { max.log2().floor().exp2() * 2.0 } else { max + largest / 2.0 };
            let bound = (exact - nearest).abs() * (1.0 + SLACK) + exact.abs() * 1e-6;
            return (distance / largest, distance <= bound && exact.abs() <= end);
        }
        // The quotient of element and scale is a float32, to which the zero point is added as an
        // integer: its error depends on the quotient, however close to 0 the sum is.
        let rounded = exact.abs() * (QUOTIENT_EPSILON + relative_error);
        let (exact, code) = (exact + zero_point, (there + zero_point).round());
        let (lo, hi) = self.ends;
        let beyond = exact > hi && code >= hi || exact < lo && code <= lo;
        let allowed = if beyond { cut(self.qtype) } else { 0.5 };
        ((exact - code).abs(), (exact - code).abs() <= allowed + SLACK + rounded)
    }

    /// Whether there is another integer on the side of the element, both in units of the scale.
    pub(super) fn may_move(&self, exact: f64, there: f64, zero_point: f64) -> bool {
        let (code, (lo, hi)) = ((there + zero_point).round(), self.ends);
        exact != 0.0 && (there > exact && code > lo || there < exact && code < hi)
    }

    /// Whether elements, in units of the scale, use the grid: whether the scale is not larger than
    /// needed. At least one of them comes half as close to an end as it could; for 8-bit scales,
    /// which are twice as far apart, a quarter.
    pub(super) fn is_used(&self, (least, most): (f64, f64), zero_point: f64) -> bool {
        if self.codebook.is_some() {
            return most.max(-least) >= 0.5;
        }
        if let Some(format) = self.qtype.format() {
            let narrow = matches!(self.scales, Some(DataType::Float8E8M0 | DataType::Float8E4M3FN));
            let part = if narrow { 4.0 } else { 2.0 };
            return most.max(-least) >= f64::from(format.max()) / part;
        }
        let (lo, hi) = self.ends;
        // A zero point may be half a step off, and in blocks lie outside of the grid.
        let middle = zero_point.clamp(lo, hi);
        most + zero_point >= f64::midpoint(middle, hi + 0.5)
            || least + zero_point <= f64::midpoint(middle, lo - 0.5)
    }
}

/// The maximum error in steps of an element beyond the end of the grid.
///
/// Scales with the least error clip 1.2 steps at an end, in steps of the wider grid that would
/// reach it; with few bits a symmetric grid misses one end by one more step. Half a step each is
/// for the rounding of the element and of the zero point. Elements inside the grid still have an
/// error of at most half a step, so that a wrong scale is found.
fn cut(qtype: QType) -> f64 {
    match qtype.bits() {
        ..=2 => 3.5,
        3..=4 => 3.0,
        5..=8 => 2.25,
        _ => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(qtype: QType, written: (f64, f64)) -> (QType, (f64, f64)) {
        let found = Grid::of(qtype, 0, written, None);
        (found.qtype, found.ends)
    }

    #[test]
    fn the_grid_is_the_smallest_that_is_made_use_of() {
        for (qtype, written, expected) in [
            (QType::Int8, (-128.0, 90.0), (QType::Int8, (-128.0, 127.0))),
            (QType::Int8, (-127.0, 90.0), (QType::Int8, (-127.0, 127.0))),
            (QType::Int8, (-90.0, 126.0), (QType::Int8, (-127.0, 127.0))),
            (QType::Int8, (-64.0, 20.0), (QType::Int8, (-64.0, 63.0))),
            (QType::Int8, (-20.0, 63.0), (QType::Int8, (-63.0, 63.0))),
            (QType::Int8, (-20.0, 40.0), (QType::Int8, (-128.0, 127.0))),
            (QType::Int8, (-7.0, 3.0), (QType::Int4, (-7.0, 7.0))),
            (QType::Int8, (-3.0, 4.0), (QType::Int8, (-128.0, 127.0))),
            (QType::Int8, (0.0, 0.0), (QType::Int8, (-128.0, 127.0))),
            (QType::UInt8, (0.0, 255.0), (QType::UInt8, (0.0, 255.0))),
            (QType::UInt8, (1.0, 200.0), (QType::UInt8, (1.0, 255.0))),
            (QType::Int4, (-8.0, 7.0), (QType::Int4, (-8.0, 7.0))),
            (QType::UInt4, (2.0, 15.0), (QType::UInt4, (1.0, 15.0))),
        ] {
            assert_eq!(grid(qtype, written), expected, "{qtype} {written:?}");
        }
    }

    #[test]
    fn what_lies_beyond_the_end_in_use_may_be_cut() {
        let narrow = Grid::of(QType::Int8, 0, (-127.0, 127.0), None);
        for (exact, there, right) in [
            (-128.2, -127.0, true),
            (-126.2, -127.0, false),
            (128.2, 127.0, true),
            (129.9, 127.0, false),
            (5.4, 5.0, true),
            (5.6, 5.0, false),
        ] {
            assert_eq!(narrow.distance(exact, there, 0.0, 0.0).1, right, "{exact} {there}");
        }
        let full = Grid::of(QType::Int8, 0, (-128.0, 127.0), None);
        assert!(!full.distance(-128.2, -127.0, 0.0, 0.0).1);
    }

    #[test]
    fn a_quotient_may_be_rounded_to_float32() {
        let wide = Grid::of(QType::UInt16, 0, (0.0, 65535.0), None);
        for (exact, there, right) in [
            (-32_760.504, -32_760.0, true),
            (-32_760.55, -32_760.0, false),
            (-20.502, -20.0, false),
            (32_700.504, 32_700.0, true),
        ] {
            assert_eq!(wide.distance(exact, there, 32_768.0, 0.0).1, right, "{exact} {there}");
        }
    }

    #[test]
    fn a_scale_may_be_too_small_for_its_type() {
        let grid = Grid::of(QType::UInt4, 0, (0.0, 15.0), None);
        let smallest = f64::from(HalfType::Float16.smallest());
        for (largest, vanishes) in [(7.0, true), (15.0, true), (16.0, false), (1e3, false)] {
            let ends = (0.0, largest * smallest);
            assert_eq!(grid.may_vanish(ends, HalfType::Float16), vanishes, "{largest}");
            assert!(!grid.may_vanish(ends, HalfType::BFloat16));
        }
        let rounded = grid.with_rounded_scales(Some(HalfType::Float16));
        assert_eq!(
            (rounded.relative_error(1.0), rounded.relative_error(smallest as f32)),
            (1.0 / 2048.0, 1.0)
        );
    }

    #[test]
    fn a_scale_is_no_larger_than_elements_need() {
        let int8 = Grid::of(QType::Int8, 0, (-127.0, 127.0), None);
        assert!(int8.is_used((-3.0, 127.0), 0.0) && int8.is_used((-64.0, 3.0), 0.0));
        assert!(!int8.is_used((-63.0, 63.0), 0.0) && !int8.is_used((0.0, 0.0), 0.0));
        // All on one side of 0: the whole grid, or the half that is theirs.
        let uint8 = Grid::of(QType::UInt8, 0, (0.0, 255.0), None);
        for zero_point in [0.0, 128.0] {
            assert!(uint8.is_used((1.0, 255.0 - zero_point), zero_point));
            assert!(!uint8.is_used((0.0, 60.0), zero_point), "{zero_point}");
        }
        // A zero point outside of the grid, as blocks may have.
        let uint4 = Grid::of(QType::UInt4, 0, (0.0, 15.0), None);
        assert!(uint4.is_used((50.0, 65.0), -50.0) && !uint4.is_used((50.0, 52.0), -50.0));
        let float = Grid::of(QType::Float8E4M3FN, 0, (0.0, 0.0), None);
        assert!(float.is_used((-448.0, 1.0), 0.0) && !float.is_used((-200.0, 1.0), 0.0));
    }
}
