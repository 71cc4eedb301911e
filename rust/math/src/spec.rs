//! How a tensor is quantized: type, symmetry, granularity, and the resulting grid of values.

use serde::{Deserialize, Serialize};

use crate::{Codebook, QType};

/// Which elements of a tensor share a scale and a zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// All elements of the tensor.
    PerTensor,
    /// Elements with the same index along `axis`.
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

/// The type in which scales are stored.
///
/// Names, in JSON, are those of `TensorProto.DataType`, in lower case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scales {
    /// Floats of 32 or 16 bits: any normal number.
    #[default]
    Float,
    /// Powers of two, stored as exponents.
    Float8E8M0,
    /// 8-bit floats, multiplied by one float32 per tensor.
    Float8E4M3FN,
}

impl Scales {
    /// Whether the scales are floats of the width of the weights.
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

/// How a tensor is quantized.
#[allow(clippy::struct_excessive_bools)] // each changes the grid independently
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QSpec {
    /// The type of the values.
    pub qtype: QType,
    /// Whether the zero point is the midpoint of the grid, whatever the range. Floats are always
    /// symmetric.
    pub symmetric: bool,
    /// Which elements share a scale.
    pub granularity: Granularity,
    /// Leaves out the most negative value of a symmetric grid, so that it has as many steps above
    /// the zero point as below.
    ///
    /// Has no effect on asymmetric grids.
    pub narrow: bool,
    /// Uses one bit less. Needed on x86 without VNNI, where the sums of `uint8 × int8` pairs
    /// saturate.
    ///
    /// Has no effect below 8 bits or on floats.
    #[serde(default, rename = "reduced", alias = "reduce_range")]
    pub reduce_range: bool,
    /// How many bits of an integer type of up to 8 bits the grid uses: one of 3 bits in int4 has
    /// the values -4 to 3. 0 stands for all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub used_bits: u32,
    /// Allows a negative scale, so that the additional step of a symmetric grid can be on the
    /// positive side.
    ///
    /// Has no effect on grids with as many steps above as below, or above 4 bits.
    #[serde(default, rename = "flips", alias = "allows_negative_scale")]
    pub allows_negative_scale: bool,
    /// The type in which scales are stored. 8-bit scales require values that are floats of 4 or 8
    /// bits, and are computed by [`block_scales`](crate::block_scales).
    #[serde(default, skip_serializing_if = "Scales::are_wide")]
    pub scales: Scales,
    /// The numbers that codes of 4 bits stand for; `None` if values are numbers themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codebook: Option<Codebook>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(bits: &u32) -> bool {
    *bits == 0
}

impl QSpec {
    /// A spec with the default grid: narrow for signed symmetric 8 and 16 bits, as integer kernels
    /// require; full for 4 and 2 bits, where the additional value gains half a decibel or more.
    /// Floats are always symmetric.
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
            used_bits: 0,
            allows_negative_scale: false,
            scales: Scales::Float,
            codebook: None,
        }
    }

    /// The bits of the grid: those of the type, or fewer.
    #[inline]
    pub const fn bits(&self) -> u32 {
        let all = self.qtype.bits();
        if self.used_bits == 0 || self.used_bits > all || all > 8 || self.qtype.is_float() {
            all
        } else {
            self.used_bits
        }
    }

    /// The smallest and the largest value of the grid.
    ///
    /// ```
    /// use quantize_rs_math::{Granularity, QSpec, QType};
    /// let spec = QSpec::new(QType::Int8, false, Granularity::PerTensor);
    /// assert_eq!(QSpec { used_bits: 6, ..spec }.grid(), (-32, 31));
    /// assert_eq!(spec.grid(), (-128, 127));
    /// ```
    #[inline]
    pub const fn grid(&self) -> (i32, i32) {
        let (mut lo, mut hi) = (self.qtype.min(), self.qtype.max());
        let unused = self.qtype.bits() - self.bits();
        (lo, hi) = (lo >> unused, hi >> unused);
        if self.reduce_range && self.bits() >= 8 && !self.qtype.is_float() {
            (lo, hi) = (lo / 2, hi / 2);
        }
        if self.symmetric && self.narrow {
            // As many steps below the midpoint as above it.
            lo = 2 * self.middle_below(hi) - hi;
        }
        (lo, hi)
    }

    /// The zero point of a symmetric grid: 0 when signed, the upper of the two middle values when
    /// unsigned.
    #[inline]
    pub const fn zero_point_midpoint(&self) -> i32 {
        self.middle_below(self.grid().1)
    }

    const fn middle_below(&self, hi: i32) -> i32 {
        if self.qtype.signed() { 0 } else { hi / 2 + 1 }
    }

    /// The number of values of the grid.
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
    fn floats_are_symmetric_and_have_a_single_grid() {
        for qtype in [QType::Float8E4M3FN, QType::Float8E5M2] {
            assert_eq!(spec(qtype, false), spec(qtype, true));
            let odd = QSpec { narrow: true, reduce_range: true, ..spec(qtype, false) };
            assert_eq!(odd.grid(), (qtype.min(), qtype.max()));
            assert_eq!((odd.zero_point_midpoint(), odd.levels()), (0, qtype.levels()));
        }
        assert_eq!(spec(QType::Int8, true).levels(), 255);
    }

    #[test]
    fn the_midpoint_of_an_unsigned_grid_is_half_its_range() {
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
