//! Exact sums of floats, independent of the order of addition.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const LIMBS: usize = 6;

/// The exponent of the smallest f32; every f32 is a multiple of that number.
const UNIT: i32 = f32::MIN_EXP - f32::MANTISSA_DIGITS as i32;

/// The number of fraction bits of an f64.
const FRACTION: u32 = f64::MANTISSA_DIGITS - 1;

/// An exact sum of floats: a 384-bit integer in units of 2⁻¹⁴⁹, independent of the order of
/// addition.
///
/// The unit is the smallest f32. The added numbers are f64 sums of f32 values, which are multiples
/// of it, so no addition rounds. 2⁶⁴ times the largest f32 is far from overflow.
///
/// In JSON, the sum is a hexadecimal integer.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Two's complement, low limbs first.
    limbs: [u64; LIMBS],
}

impl Sum {
    /// Adds a finite number, truncated to a multiple of the unit.
    pub(super) fn add(&mut self, x: f64) {
        debug_assert!(x.abs() < 2_f64.powi(200), "{x} is no sum of f32s");
        let bits = x.abs().to_bits();
        let exponent = (bits >> FRACTION) as i32;
        if exponent == 0 {
            return; // zero, or too small by far
        }
        let mantissa = bits & ((1 << FRACTION) - 1) | 1 << FRACTION;
        // x = mantissa · 2^up units.
        let up = exponent - (f64::MAX_EXP - 1) - FRACTION as i32 - UNIT;
        let mut limbs = [0; LIMBS];
        if up < 0 {
            limbs[0] = mantissa.checked_shr(up.unsigned_abs()).unwrap_or(0);
        } else {
            let (limb, shift) = (up as usize / 64, up as u32 % 64);
            let wide = u128::from(mantissa) << shift;
            for (to, part) in limbs.iter_mut().skip(limb).zip([wide as u64, (wide >> 64) as u64]) {
                *to = part;
            }
        }
        let term = Sum { limbs };
        self.merge(&if x < 0.0 { term.negated() } else { term });
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Sum) {
        let mut carry = false;
        for (limb, more) in self.limbs.iter_mut().zip(other.limbs) {
            (*limb, carry) = limb.carrying_add(more, carry);
        }
    }

    /// The sum, rounded to f64.
    pub fn value(&self) -> f64 {
        let units = |sum: &Sum| {
            sum.limbs.iter().rev().fold(0.0, |high, &limb| high * 2_f64.powi(64) + limb as f64)
        };
        let units = if self.is_negative() { -units(&self.negated()) } else { units(self) };
        units * 2_f64.powi(UNIT)
    }

    fn is_negative(&self) -> bool {
        self.limbs[LIMBS - 1] >> 63 == 1
    }

    fn negated(mut self) -> Sum {
        let mut carry = true;
        for limb in &mut self.limbs {
            (*limb, carry) = (!*limb).carrying_add(0, carry);
        }
        self
    }

    /// Parses the output of `Display`.
    fn parse(text: &str) -> Option<Sum> {
        const DIGITS: usize = u64::BITS as usize / 4;
        let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let length = 1..=LIMBS * DIGITS;
        if !length.contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut sum = Sum::default();
        for (limb, digits) in sum.limbs.iter_mut().zip(digits.as_bytes().rchunks(DIGITS)) {
            *limb = u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(if negative { sum.negated() } else { sum })
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = if self.is_negative() {
            f.write_str("-")?;
            self.negated()
        } else {
            *self
        };
        let top = size.limbs.iter().rposition(|&limb| limb > 0).unwrap_or(0);
        write!(f, "{:x}", size.limbs[top])?;
        size.limbs[..top].iter().rev().try_for_each(|limb| write!(f, "{limb:016x}"))
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

impl Serialize for Sum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sum, D::Error> {
        let text = String::deserialize(deserializer)?;
        let refused = || de::Error::custom(format!("`{text}`, expected a hexadecimal number"));
        Sum::parse(&text).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(terms: &[f64]) -> Sum {
        let mut sum = Sum::default();
        for &term in terms {
            sum.add(term);
        }
        sum
    }

    #[test]
    fn sums_of_the_largest_and_the_smallest_are_exact() {
        let (large, small) = (f64::from(f32::MAX), f64::from(f32::from_bits(1)));
        assert_eq!(of(&[large, small, -large]).value(), small);
        assert_eq!(of(&[-large, small, large]), of(&[small]));
        assert_eq!(of(&[large, -large]), Sum::default());
        assert_eq!(of(&[1.5, -0.25, 0.0]).value(), 1.25);
        assert_eq!(of(&[-3e38, 1e-40, -7.0]).value(), -3e38);
    }

    #[test]
    fn text_round_trips() {
        for value in [0.0, 1.0, -1.0, 1e30, -1e-30, f64::from(f32::MAX) * 1e6, -0.1] {
            let sum = of(&[value]);
            assert_eq!(Sum::parse(&sum.to_string()), Some(sum), "{value} as {sum}");
            assert!((sum.value() - value).abs() <= f64::from(f32::from_bits(1)));
        }
        assert_eq!(of(&[f64::from(f32::from_bits(1)) * -16.0]).to_string(), "-10");
        for text in ["", "-", "g", "+1", "1".repeat(97).as_str(), "0x1", "é"] {
            assert_eq!(Sum::parse(text), None, "{text}");
        }
    }
}
