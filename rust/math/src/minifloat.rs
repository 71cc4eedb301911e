//! Floats of 16 bits and fewer: conversion between codes and numbers.

/// A float format with a sign, an exponent and a mantissa of few bits, as ONNX defines them.
///
/// Among codes of one sign, a larger code represents a larger number. The step within a binade is
/// constant, and continues from the last number of a binade to the first of the next. The numbers
/// below the lowest binade have the same step as those in it. So the code of a number is the number
/// in units of the step of its binade, plus the count of codes below that binade.
///
/// ```
/// use quantize_rs_math::QType;
/// let format = QType::Float8E4M3FN.format().unwrap();
/// assert_eq!([1.0, 1.0625, -1.1875, 1e9].map(|x| format.encode(x)), [0x38, 0x38, 0xba, 0x7e]);
/// assert_eq!([0x38, 0xba, 0x7e].map(|code| format.decode(code)), [1.0, -1.25, 448.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minifloat {
    /// The sign bit, above all others.
    sign: u16,
    /// The number of mantissa bits.
    mantissa: u32,
    /// The exponent of the lowest binade.
    least: i32,
    /// The code of the largest finite number.
    top: u16,
}

/// The exponent bias of float32, and its number of mantissa bits.
const BIAS: i32 = f32::MAX_EXP - 1;
const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;

/// From here on neighbouring f32 values are 1 apart: adding this to a small number rounds it to an
/// integer, half to even, and leaves the integer in the low bits. Without SSE4.1, `round_ties_even`
/// would be a function call per element.
const MAGIC: f32 = (1 << MANTISSA) as f32;

impl Minifloat {
    pub(crate) const fn new(bits: u32, mantissa: u32, least: i32, top: u16) -> Minifloat {
        Minifloat { sign: 1 << (bits - 1), mantissa, least, top }
    }

    /// The code of the nearest number; ties go to the even code. Numbers beyond the largest,
    /// infinities included, saturate. NaN stays NaN, or becomes -0 in formats without NaN. Zero,
    /// and numbers that round to it, keep their sign.
    #[inline]
    pub fn encode(self, x: f32) -> u16 {
        let size = if self.cuts_float32() { self.cut(x) } else { self.steps(x) };
        let nan = if self.top == self.sign - 1 { self.sign } else { self.sign - 1 };
        let size = if x.is_nan() { nan } else { size };
        size | if x.is_sign_negative() { self.sign } else { 0 }
    }

    /// The code of a magnitude, counted in steps of its binade.
    #[inline]
    fn steps(self, x: f32) -> u16 {
        let (size, max) = (x.abs(), self.max());
        let size = if size < max { size } else { max };
        let least = (self.least + BIAS) as u32;
        let exponent = (size.to_bits() >> MANTISSA).max(least);
        // Powers of two: the product is exact.
        let steps = size * power(BIAS + self.mantissa as i32 - (exponent as i32 - BIAS));
        let steps = (steps + MAGIC).to_bits() - MAGIC.to_bits();
        (((exponent - least) << self.mantissa) + steps) as u16
    }

    /// Whether the exponents are those of float32, so that the number is its upper half (bfloat16).
    /// The powers of two of its steps would be outside float32.
    const fn cuts_float32(self) -> bool {
        self.least + BIAS == 1
    }

    /// The code of a magnitude whose lower half is rounded off, half to even.
    #[inline]
    fn cut(self, x: f32) -> u16 {
        let spare = MANTISSA - self.mantissa;
        let bits = x.abs().to_bits();
        let half = (1 << (spare - 1)) - 1 + (bits >> spare & 1);
        // The caller excludes NaN, and nothing else overflows.
        let size = (bits.wrapping_add(half) >> spare) as u16;
        if size < self.top { size } else { self.top }
    }

    /// The number that a code represents.
    #[inline]
    pub fn decode(self, code: u16) -> f32 {
        let size = u32::from(code & (self.sign - 1));
        let value = if self.cuts_float32() {
            f32::from_bits(size << (MANTISSA - self.mantissa))
        } else {
            let binade = (size >> self.mantissa).max(1) - 1;
            let steps = (size - (binade << self.mantissa)) as f32;
            let value = steps * power(BIAS + self.least - self.mantissa as i32 + binade as i32);
            if size <= u32::from(self.top) { value } else { self.beyond(size) }
        };
        let sign = if code & self.sign == 0 { 0 } else { 1 << (u32::BITS - 1) };
        f32::from_bits(value.to_bits() | sign)
    }

    /// The value of a code above that of the largest number: infinity if its mantissa bits are all
    /// 0, NaN otherwise.
    #[inline]
    fn beyond(self, size: u32) -> f32 {
        let infinite = size == u32::from(self.top) + 1 && size.trailing_zeros() >= self.mantissa;
        if infinite { f32::INFINITY } else { f32::NAN }
    }

    /// The largest number.
    #[inline]
    pub fn max(self) -> f32 {
        if self.cuts_float32() { self.decode(self.top) } else { self.max_integer() as f32 }
    }

    /// The largest number as an integer; that of bfloat16 becomes the largest `i32`.
    pub(crate) const fn max_integer(self) -> i32 {
        if self.cuts_float32() {
            return i32::MAX;
        }
        let top = self.top as i32;
        let binade = (top >> self.mantissa) - 1;
        (top - (binade << self.mantissa)) << (binade + self.least - self.mantissa as i32)
    }

    /// The distance between the two largest numbers, which is the largest step.
    pub(crate) const fn largest_step(self) -> i32 {
        if self.cuts_float32() {
            return i32::MAX;
        }
        1 << ((self.top as i32 >> self.mantissa) - 1 + self.least - self.mantissa as i32)
    }

    /// The number of finite codes, of which two are 0.
    pub(crate) const fn levels(self) -> u64 {
        2 * self.top as u64 + 1
    }

    /// All finite numbers, in ascending order.
    pub(crate) fn values(self) -> impl Iterator<Item = f32> {
        let below = (1..=self.top).rev().map(move |code| code | self.sign);
        below.chain(0..=self.top).map(move |code| self.decode(code))
    }
}

/// The power of two with this exponent in float32's biased form ([`BIAS`]).
#[inline]
fn power(biased: i32) -> f32 {
    f32::from_bits((biased as u32) << MANTISSA)
}

#[cfg(test)]
mod tests {
    use crate::QType;

    use super::*;

    fn formats() -> impl Iterator<Item = Minifloat> {
        QType::ALL.iter().filter_map(|qtype| qtype.format())
    }

    /// The definition: compares every code.
    fn nearest(format: Minifloat, x: f32) -> u16 {
        let sign = if x.is_sign_negative() { format.sign } else { 0 };
        let size = f64::from(x.abs());
        let distance = |code: u16| (f64::from(format.decode(code)) - size).abs();
        let best = (0..=format.top).min_by(|a, b| {
            let even = |code: u16| code % 2;
            distance(*a).total_cmp(&distance(*b)).then(even(*a).cmp(&even(*b)))
        });
        best.unwrap_or(0) | sign
    }

    #[test]
    fn values_from_the_onnx_documentation() {
        let [e4m3fn, e5m2] = [QType::Float8E4M3FN, QType::Float8E5M2].map(|q| q.format().unwrap());
        let known = [(0x00, 0.0), (0x01, 0.001_953_125), (0x07, 0.013_671_875), (0x08, 0.015_625)];
        for (code, value) in known.into_iter().chain([(0x38, 1.0), (0x7e, 448.0), (0xfe, -448.0)]) {
            assert_eq!(e4m3fn.decode(code), value);
        }
        let known = [(0x00, 0.0), (0x01, 1.525_878_9e-5), (0x03, 4.577_636_7e-5)];
        let more = [(0x04, 6.103_515_6e-5), (0x3c, 1.0), (0x7b, 57344.0), (0xfb, -57344.0)];
        for (code, value) in known.into_iter().chain(more) {
            assert_eq!(e5m2.decode(code), value);
        }
        assert!([0x7f, 0xff].iter().all(|code| e4m3fn.decode(*code).is_nan()));
        assert!([0x7d, 0x7e, 0x7f, 0xfd].iter().all(|code| e5m2.decode(*code).is_nan()));
        assert_eq!([0x7c, 0xfc].map(|code| e5m2.decode(code)), [f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!((e4m3fn.max(), e5m2.max()), (448.0, 57344.0));
        assert_eq!((e4m3fn.largest_step(), e5m2.largest_step()), (32, 8192));
        assert_eq!((e4m3fn.levels(), e5m2.levels()), (253, 247));
        let e2m1: Vec<f32> =
            (0..16).map(|code| QType::Float4E2M1.format().unwrap().decode(code)).collect();
        let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(e2m1[..8], sizes);
        assert_eq!(e2m1[8..], sizes.map(|x| -x));
    }

    #[test]
    fn every_finite_code_is_that_of_its_number() {
        for format in formats() {
            for code in 0..=format.sign | (format.sign - 1) {
                let value = format.decode(code);
                if value.is_finite() {
                    assert_eq!(format.encode(value), code, "{value}");
                }
            }
        }
    }

    #[test]
    fn numbers_round_to_the_nearest_and_ties_to_even() {
        for format in formats() {
            let values: Vec<f32> = format.values().collect();
            assert!(values.is_sorted() && values.len() as u64 == format.levels());
            if values.len() > 1000 {
                continue; // too many to compare with each: see below
            }
            for (a, b) in values.iter().zip(&values[1..]) {
                let middle = a.midpoint(*b);
                for x in [middle.next_down(), middle, middle.next_up(), a.next_up(), b.next_down()]
                {
                    assert_eq!(format.encode(x), nearest(format, x), "{x}");
                }
            }
            for x in [1e-45, -1e-45, f32::MIN_POSITIVE, -0.0, format.max() * 1.5, 1e9] {
                assert_eq!(format.encode(x), nearest(format, x), "{x}");
            }
        }
    }

    #[test]
    fn overflow_saturates_and_nan_stays() {
        for format in formats() {
            assert_eq!([f32::MAX, f32::INFINITY].map(|x| format.encode(x)), [format.top; 2]);
            assert_eq!(format.encode(f32::NEG_INFINITY), format.top | format.sign);
            let nan = format.decode(format.encode(f32::NAN));
            assert!(if format.sign == 8 { nan.to_bits() == 1 << 31 } else { nan.is_nan() });
        }
    }

    #[test]
    fn float16_equals_that_of_the_half_crate() {
        let [half, brain] = [QType::Float16, QType::BFloat16].map(|q| q.format().unwrap());
        assert_eq!((half.max(), brain.max()), (65504.0, half::bf16::MAX.to_f32()));
        for code in 0..=u16::MAX {
            let (a, b) =
                (half::f16::from_bits(code).to_f32(), half::bf16::from_bits(code).to_f32());
            assert!(half.decode(code) == a || a.is_nan() && half.decode(code).is_nan());
            assert!(brain.decode(code) == b || b.is_nan() && brain.decode(code).is_nan());
            for x in [a, a.next_up(), a.next_down(), b, b.next_up(), b.next_down()] {
                // Each is near a number of one format, or near the midpoint of two numbers of the
                // other.
                for x in [x, x.midpoint(x * 1.001), f32::from_bits(x.to_bits() ^ 0x1000)] {
                    if x.abs() < 65520.0 {
                        assert_eq!(half.encode(x), half::f16::from_f32(x).to_bits(), "{x}");
                    }
                    if half::bf16::from_f32(x).is_finite() {
                        assert_eq!(brain.encode(x), half::bf16::from_f32(x).to_bits(), "{x}");
                    }
                }
            }
        }
    }
}
