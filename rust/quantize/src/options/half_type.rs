//! Types of 16-bit floats that a model can compute in.

use quantize_rs_onnx::DataType;
use serde::{Deserialize, Serialize};

use super::named::named;

/// A type of 16-bit floats.
///
/// ```
/// use quantize_rs::HalfType;
/// assert_eq!("bfloat16".parse::<HalfType>()?, HalfType::BFloat16);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HalfType {
    /// IEEE 754 binary16: 11 bits of precision, up to 65,504.
    #[default]
    Float16,
    /// The upper half of a float32: 8 bits of precision, the range of float32.
    BFloat16,
}

struct Row {
    value: HalfType,
    name: &'static str,
    about: &'static str,
}

const ROWS: &[Row] = &[
    Row { value: HalfType::Float16, name: "float16", about: "11 bits of precision, up to 65,504" },
    Row {
        value: HalfType::BFloat16,
        name: "bfloat16",
        about: "8 bits of precision, the range of float32",
    },
];

impl HalfType {
    /// All types.
    pub const ALL: &'static [HalfType] = &[HalfType::Float16, HalfType::BFloat16];

    /// The type of a tensor.
    pub fn data_type(self) -> DataType {
        match self {
            HalfType::Float16 => DataType::Float16,
            HalfType::BFloat16 => DataType::BFloat16,
        }
    }

    /// The largest finite number.
    pub(crate) fn largest(self) -> f32 {
        match self {
            HalfType::Float16 => half::f16::MAX.to_f32(),
            HalfType::BFloat16 => half::bf16::MAX.to_f32(),
        }
    }

    /// The smallest number above 0.
    pub(crate) fn smallest(self) -> f32 {
        match self {
            HalfType::Float16 => half::f16::MIN_POSITIVE_SUBNORMAL.to_f32(),
            HalfType::BFloat16 => half::bf16::MIN_POSITIVE_SUBNORMAL.to_f32(),
        }
    }

    /// The smallest number with full precision.
    pub(crate) fn smallest_normal(self) -> f32 {
        match self {
            HalfType::Float16 => half::f16::MIN_POSITIVE.to_f32(),
            HalfType::BFloat16 => half::bf16::MIN_POSITIVE.to_f32(),
        }
    }

    /// The opset to which older models are converted: runtimes need 7, and before 6 a `Cast` names
    /// its type in a
    /// text; most operators are defined for bfloat16 from opset 22 on.
    pub(crate) fn since_opset(self) -> i64 {
        match self {
            HalfType::Float16 => 7,
            HalfType::BFloat16 => 22,
        }
    }

    /// A number rounded to the type. The conversion of a float64 would ignore its last digits.
    pub(crate) fn rounded(self, number: f32) -> f32 {
        match self {
            HalfType::Float16 => half::f16::from_f32(number).to_f32(),
            HalfType::BFloat16 => half::bf16::from_f32(number).to_f32(),
        }
    }

    /// Whether results of usual computations leave the range.
    pub(crate) fn overflows(self) -> bool {
        self == HalfType::Float16
    }
}

named!(HalfType, "float_type");

#[cfg(test)]
mod rounding {
    use super::*;

    #[test]
    fn a_number_just_beyond_the_middle_of_two_is_rounded_up() {
        for (half, digits) in [(HalfType::Float16, 11), (HalfType::BFloat16, 8)] {
            let step = 2.0_f32.powi(1 - digits);
            let beyond = 1.0 + step / 2.0 + f32::EPSILON;
            assert_eq!(half.rounded(beyond).to_bits(), (1.0 + step).to_bits(), "{half}");
        }
    }
}
