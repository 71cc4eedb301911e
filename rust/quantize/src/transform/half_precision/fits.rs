//! Whether magnitudes of constants and of values on samples fit a type of 16 bits.

use std::collections::BTreeMap;

use super::KeptReason;
use crate::options::HalfType;

/// The largest magnitude on samples may be this many times as large on other data.
const MARGIN: f32 = 4.0;

/// How a magnitude does not fit a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// It is larger than the largest number.
    Large,
    /// It is so small that it loses precision, or becomes 0.
    Small,
}

impl Misfit {
    /// How a magnitude does not fit if it may be `margin` times as large; `None` if it fits.
    pub(super) fn of(half: HalfType, magnitude: f32, margin: f32) -> Option<Misfit> {
        if magnitude > half.largest() / margin {
            return Some(Misfit::Large);
        }
        let small = magnitude > 0.0 && magnitude < half.smallest_normal();
        small.then_some(Misfit::Small)
    }

    /// Why a node stays float32 that reads a constant of this magnitude.
    pub(super) fn of_constant(self, value: &str, magnitude: f32) -> KeptReason {
        let value = value.to_owned();
        match self {
            Misfit::Large => KeptReason::LargeConstant { value, magnitude },
            Misfit::Small => KeptReason::SmallConstant { value, magnitude },
        }
    }
}

/// The largest magnitudes of values on samples.
#[derive(Clone, Copy)]
pub(super) struct Samples<'d> {
    pub(super) half: HalfType,
    /// `None` without samples.
    pub(super) magnitudes: Option<&'d BTreeMap<String, f32>>,
}

impl Samples<'_> {
    /// Whether there are any.
    pub(super) fn exist(&self) -> bool {
        self.magnitudes.is_some()
    }

    fn misfit(&self, name: &str) -> Option<(Misfit, f32)> {
        let magnitude = *self.magnitudes?.get(name)?;
        Some((Misfit::of(self.half, magnitude, MARGIN)?, magnitude))
    }

    /// Whether a value is too large.
    pub(super) fn is_large(&self, name: &str) -> bool {
        matches!(self.misfit(name), Some((Misfit::Large, _)))
    }

    /// Why a value cannot be 16 bits wide.
    pub(super) fn reason(&self, name: &str) -> Option<KeptReason> {
        let (misfit, magnitude) = self.misfit(name)?;
        let value = name.to_owned();
        Some(match misfit {
            Misfit::Large => KeptReason::LargeValue { value, magnitude },
            Misfit::Small => KeptReason::SmallValue { value, magnitude },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_fits_and_numbers_beyond_either_end_do_not() {
        let of = |magnitude, margin| Misfit::of(HalfType::Float16, magnitude, margin);
        assert_eq!(of(0.0, 1.0), None);
        assert_eq!(of(65504.0, 1.0), None);
        assert_eq!(of(65504.0, 4.0), Some(Misfit::Large));
        assert_eq!(of(f32::INFINITY, 1.0), Some(Misfit::Large));
        assert_eq!(of(1e-6, 1.0), Some(Misfit::Small));
    }
}
