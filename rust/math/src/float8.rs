//! Floats of 8 bits: their codes, and the numbers that these stand for.

/// A sign, an exponent and a mantissa in 8 bits, as ONNX has them.
///
/// Codes of one sign count upward with the numbers they stand for: within a binade by one step, from the last of a
/// binade to the first of the next, and from the numbers below the least binade, which are as far apart as those in
/// it. So a number in units of the step of its binade, plus the codes below that binade, is its code.
///
/// ```
/// use quantize_rs_math::QType;
/// let format = QType::Float8E4M3FN.format().unwrap();
/// assert_eq!([1.0, 1.0625, -1.1875, 1e9].map(|x| format.encode(x)), [0x38, 0x38, 0xba, 0x7e]);
/// assert_eq!([0x38, 0xba, 0x7e].map(|code| format.decode(code)), [1.0, -1.25, 448.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float8 {
    /// Bits of the mantissa.
    mantissa: u32,
    /// The exponent of the least binade.
    least: i32,
    /// The code of the largest number. Beyond it is what is not finite.
    top: u8,
}

/// What float32 adds to an exponent, and the bits of its mantissa.
const BIAS: i32 = f32::MAX_EXP - 1;
const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;

/// From here on neighbouring f32 are 1 apart: adding this to a small number rounds it to an integer, half to even, and
/// leaves the integer in the low bits. `round_ties_even` would be a call per element without SSE4.1.
const MAGIC: f32 = (1 << MANTISSA) as f32;

const SIGN: u8 = 1 << 7;

impl Float8 {
    pub(crate) const fn new(mantissa: u32, least: i32, top: u8) -> Float8 {
        Float8 { mantissa, least, top }
    }

    /// The code of the nearest number; of two that are as near, the even code. What is beyond the largest number, and
    /// infinite, becomes that; NaN stays NaN. Zero and what rounds to it keep their sign.
    #[inline]
    pub fn encode(self, x: f32) -> u8 {
        let (size, max) = (x.abs(), self.max());
        let size = if size < max { size } else { max };
        let least = (self.least + BIAS) as u32;
        let exponent = (size.to_bits() >> MANTISSA).max(least);
        // Powers of two: the product is exact.
        let steps = size * power(BIAS + self.mantissa as i32 - (exponent as i32 - BIAS));
        let steps = (steps + MAGIC).to_bits() - MAGIC.to_bits();
        let code = ((exponent - least) << self.mantissa) + steps;
        let code = if x.is_nan() { u32::from(!SIGN) } else { code };
        code as u8 | (x.to_bits() >> (u32::BITS - u8::BITS)) as u8 & SIGN
    }

    /// The number that a code stands for.
    #[inline]
    pub fn decode(self, code: u8) -> f32 {
        let size = u32::from(code & !SIGN);
        let binade = (size >> self.mantissa).max(1) - 1;
        let steps = (size - (binade << self.mantissa)) as f32;
        let value = steps * power(BIAS + self.least - self.mantissa as i32 + binade as i32);
        let value = if size <= u32::from(self.top) { value } else { self.beyond(size) };
        f32::from_bits(value.to_bits() | u32::from(code & SIGN) << (u32::BITS - u8::BITS))
    }

    /// What a code above that of the largest number stands for: where the mantissas of a binade begin anew, infinity.
    #[inline]
    fn beyond(self, size: u32) -> f32 {
        let infinite = size == u32::from(self.top) + 1 && size.trailing_zeros() >= self.mantissa;
        if infinite { f32::INFINITY } else { f32::NAN }
    }

    /// The largest number.
    #[inline]
    pub const fn max(self) -> f32 {
        self.max_integer() as f32
    }

    /// The same, which is an integer.
    pub(crate) const fn max_integer(self) -> i32 {
        let top = self.top as i32;
        let binade = (top >> self.mantissa) - 1;
        (top - (binade << self.mantissa)) << (binade + self.least - self.mantissa as i32)
    }

    /// The distance between the two largest numbers: no two neighbours are further apart.
    pub(crate) const fn largest_step(self) -> i32 {
        1 << ((self.top as i32 >> self.mantissa) - 1 + self.least - self.mantissa as i32)
    }

    /// How many finite numbers there are, of which 0 has two codes.
    pub(crate) const fn levels(self) -> u64 {
        2 * self.top as u64 + 1
    }

    /// All finite numbers, the smallest first.
    pub(crate) fn values(self) -> impl Iterator<Item = f32> {
        let below = (1..=self.top).rev().map(|code| code | SIGN);
        below.chain(0..=self.top).map(move |code| self.decode(code))
    }
}

/// The power of two with this exponent, as float32 writes it: with [`BIAS`].
#[inline]
fn power(biased: i32) -> f32 {
    f32::from_bits((biased as u32) << MANTISSA)
}

#[cfg(test)]
mod tests {
    use crate::QType;

    use super::*;

    fn formats() -> impl Iterator<Item = Float8> {
        QType::ALL.iter().filter_map(|qtype| qtype.format())
    }

    /// The definition, code by code.
    fn nearest(format: Float8, x: f32) -> u8 {
        let sign = if x.is_sign_negative() { SIGN } else { 0 };
        let size = f64::from(x.abs());
        let distance = |code: u8| (f64::from(format.decode(code)) - size).abs();
        let best = (0..=format.top).min_by(|a, b| {
            let even = |code: u8| code % 2;
            distance(*a).total_cmp(&distance(*b)).then(even(*a).cmp(&even(*b)))
        });
        best.unwrap_or(0) | sign
    }

    #[test]
    fn the_numbers_of_the_onnx_page() {
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
    }

    #[test]
    fn every_finite_code_is_that_of_its_number() {
        for format in formats() {
            for code in 0..=u8::MAX {
                let value = format.decode(code);
                if value.is_finite() {
                    assert_eq!(format.encode(value), code, "{value}");
                }
            }
        }
    }

    #[test]
    fn numbers_between_go_to_the_nearest_and_ties_to_even() {
        for format in formats() {
            let values: Vec<f32> = format.values().collect();
            assert!(values.is_sorted() && values.len() as u64 == format.levels());
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
    fn what_is_beyond_saturates_and_nan_stays() {
        for format in formats() {
            assert_eq!([f32::MAX, f32::INFINITY].map(|x| format.encode(x)), [format.top; 2]);
            assert_eq!(format.encode(f32::NEG_INFINITY), format.top | SIGN);
            assert!(format.decode(format.encode(f32::NAN)).is_nan());
        }
    }
}
