//! How a tensor is to be quantized: type, symmetry, granularity, and the grid of values that follows.

use serde::{Deserialize, Serialize};

use crate::QType;

/// Which elements of a tensor share a scale and a zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// All of them.
    PerTensor,
    /// Those with the same index along `axis`.
    PerAxis {
        /// Index into the shape, not negative.
        axis: usize,
    },
    /// Runs of `block_size` elements along `axis`; the last run may be shorter.
    ///
    /// `DequantizeLinear` of ONNX since opset 21.
    Blocked {
        /// Index into the shape, not negative.
        axis: usize,
        /// Elements in a block, at least 1.
        block_size: usize,
    },
}

/// What scales are stored as.
///
/// Names, in JSON, are those of `TensorProto.DataType`, in lower case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scales {
    /// Floats of 32 or 16 bits: any normal number.
    #[default]
    Float,
    /// The exponents of powers of two.
    Float8E8M0,
    /// Floats of 8 bits, all times one float of 32 bits.
    Float8E4M3FN,
}

impl Scales {
    /// Whether they are floats as wide as the weights were.
    pub const fn are_wide(&self) -> bool {
        matches!(self, Scales::Float)
    }

    /// The name of the type: `float8e8m0`.
    pub const fn name(self) -> &'static str {
        match self {
            Scales::Float => "float",
            Scales::Float8E8M0 => "float8e8m0",
            Scales::Float8E4M3FN => "float8e4m3fn",
        }
    }
}

/// How a tensor is to be quantized.
#[allow(clippy::struct_excessive_bools)] // each bends the grid in a way of its own
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QSpec {
    /// The type of the values.
    pub qtype: QType,
    /// Whether the zero point is the middle of the grid, whatever the range; that of floats always is.
    pub symmetric: bool,
    /// Which elements share a scale.
    pub granularity: Granularity,
    /// Leave out the most negative value of a symmetric grid, so that it reaches as far up as down.
    ///
    /// Without effect when not symmetric.
    pub narrow: bool,
    /// Use one bit less (`reduce_range`), for x86 without VNNI, whose sums of `uint8 × int8` pairs saturate.
    ///
    /// Without effect below 8 bits, and for floats.
    #[serde(default, rename = "reduced", alias = "reduce_range")]
    pub reduce_range: bool,
    /// Let the scale be negative, so that the end of a symmetric grid that reaches further can be above 0 too.
    ///
    /// Without effect where both ends reach as far, and for more than 4 bits.
    #[serde(default, rename = "flips", alias = "allows_negative_scale")]
    pub allows_negative_scale: bool,
    /// What scales are stored as. With less than floats of 16 bits, values are floats of 4 or 8 bits, and scales are
    /// found by [`block_scales`](crate::block_scales).
    #[serde(default, skip_serializing_if = "Scales::are_wide")]
    pub scales: Scales,
}

impl QSpec {
    /// A spec with the usual grid: narrow for signed symmetric 8 and 16 bits, which integer kernels want; full for 4
    /// and 2 bits, where the one value more is worth half a decibel and up. Floats are symmetric, asked or not.
    pub const fn new(qtype: QType, symmetric: bool, granularity: Granularity) -> QSpec {
        let symmetric = symmetric || qtype.is_float();
        let lopsided = qtype.signed() && qtype.min() < -qtype.max();
        let narrow = symmetric && lopsided && matches!(qtype.bits(), 8 | 16);
        QSpec {
            qtype,
            symmetric,
            granularity,
            narrow,
            reduce_range: false,
            allows_negative_scale: false,
            scales: Scales::Float,
        }
    }

    /// 8 bits, zero point 0, one scale.
    pub const fn int8_symmetric() -> QSpec {
        QSpec::new(QType::Int8, true, Granularity::PerTensor)
    }

    /// 8 bits, a zero point, one scale.
    pub const fn int8_asymmetric() -> QSpec {
        QSpec::new(QType::Int8, false, Granularity::PerTensor)
    }

    /// 4 bits, zero point 0, a scale for each index along the first axis.
    pub const fn int4_per_channel() -> QSpec {
        QSpec::new(QType::Int4, true, Granularity::PerAxis { axis: 0 })
    }

    /// The smallest and the largest value that this spec writes.
    #[inline]
    pub const fn grid(&self) -> (i32, i32) {
        let (mut lo, mut hi) = (self.qtype.min(), self.qtype.max());
        if self.reduce_range && self.qtype.bits() >= 8 && !self.qtype.is_float() {
            (lo, hi) = (lo / 2, hi / 2);
        }
        if self.symmetric && self.narrow {
            // As far below the middle as above it.
            lo = 2 * self.middle_below(hi) - hi;
        }
        (lo, hi)
    }

    /// The zero point of a symmetric grid: 0 when signed, the upper of the two middle values when not.
    #[inline]
    pub const fn zero_point_midpoint(&self) -> i32 {
        self.middle_below(self.grid().1)
    }

    const fn middle_below(&self, hi: i32) -> i32 {
        if self.qtype.signed() { 0 } else { hi / 2 + 1 }
    }

    /// How many values this spec writes.
    #[inline]
    pub const fn levels(&self) -> u64 {
        let (lo, hi) = self.grid();
        if self.qtype.is_float() { self.qtype.levels() } else { hi.abs_diff(lo) as u64 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(qtype: QType, symmetric: bool) -> QSpec {
        QSpec::new(qtype, symmetric, Granularity::PerTensor)
    }

    #[test]
    fn signed_symmetric_grids_of_8_and_16_bits_are_narrow() {
        for &qtype in QType::ALL {
            let narrow = matches!(qtype, QType::Int8 | QType::Int16);
            assert_eq!(spec(qtype, true).narrow, narrow, "{qtype}");
            assert_eq!(
                spec(qtype, true).grid(),
                (qtype.min() + i32::from(narrow), qtype.max()),
                "{qtype}"
            );
            assert_eq!(spec(qtype, false).grid(), (qtype.min(), qtype.max()), "{qtype}");
        }
    }

    #[test]
    fn floats_are_symmetric_and_have_one_grid() {
        for qtype in [QType::Float8E4M3FN, QType::Float8E5M2] {
            assert_eq!(spec(qtype, false), spec(qtype, true));
            let odd = QSpec { narrow: true, reduce_range: true, ..spec(qtype, false) };
            assert_eq!(odd.grid(), (qtype.min(), qtype.max()));
            assert_eq!((odd.zero_point_midpoint(), odd.levels()), (0, qtype.levels()));
        }
        assert_eq!(spec(QType::Int8, true).levels(), 255);
    }

    #[test]
    fn the_middle_of_an_unsigned_grid_leaves_room_below_and_above() {
        let middles =
            [(QType::UInt2, 2), (QType::UInt4, 8), (QType::UInt8, 128), (QType::UInt16, 32768)];
        for (qtype, middle) in middles {
            assert_eq!(spec(qtype, true).zero_point_midpoint(), middle);
        }
        assert_eq!(spec(QType::Int8, true).zero_point_midpoint(), 0);
    }

    #[test]
    fn a_reduced_grid_has_seven_bits() {
        let reduced = |qtype, symmetric| QSpec { reduce_range: true, ..spec(qtype, symmetric) };
        assert_eq!(reduced(QType::Int8, false).grid(), (-64, 63));
        assert_eq!(reduced(QType::Int8, true).grid(), (-63, 63));
        assert_eq!(reduced(QType::UInt8, false).grid().0, 0);
        assert_eq!(reduced(QType::UInt8, false).grid().1, i32::from(i8::MAX));
        assert_eq!(reduced(QType::UInt8, true).zero_point_midpoint(), 64);
        assert_eq!(reduced(QType::Int4, false).grid(), (-8, 7));
    }
}
