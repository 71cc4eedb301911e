//! The numeric types that a tensor can be quantized to: one table row per type.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::MathError;
use crate::minifloat::Minifloat;

/// An ONNX data type of quantized values.
///
/// Names, in text and in JSON, are those of `TensorProto.DataType`, in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QType {
    /// Signed, 2 bits, four to a byte.
    Int2,
    /// Unsigned, 2 bits, four to a byte.
    UInt2,
    /// Signed, 4 bits, two to a byte.
    Int4,
    /// Unsigned, 4 bits, two to a byte.
    UInt4,
    /// 4-bit floats with 2 exponent bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; two to a
    /// byte.
    #[serde(alias = "float4")]
    Float4E2M1,
    /// Signed, 8 bits.
    Int8,
    /// Unsigned, 8 bits.
    UInt8,
    /// 8-bit floats with 4 exponent bits: finite up to 448.
    #[serde(alias = "float8")]
    Float8E4M3FN,
    /// 8-bit floats with 5 exponent bits: finite up to 57344, with half as many mantissa steps.
    Float8E5M2,
    /// Signed, 16 bits, little endian.
    Int16,
    /// Unsigned, 16 bits, little endian.
    UInt16,
    /// 16-bit floats with 5 exponent bits, little endian: finite up to 65504. They have no scale.
    #[serde(alias = "fp16", alias = "half")]
    Float16,
    /// 16-bit floats with 8 exponent bits, as many as float32. They have no scale.
    #[serde(alias = "bf16")]
    BFloat16,
    /// Signed, 32 bits, little endian: for biases only.
    Int32,
}

struct TypeInfo {
    qtype: QType,
    name: &'static str,
    /// Alternative names.
    aliases: &'static [&'static str],
    bits: u32,
    numbers: Numbers,
}

/// What the codes of a type represent.
#[derive(Clone, Copy)]
enum Numbers {
    Signed,
    Unsigned,
    Floats(Minifloat),
}

const fn info(qtype: QType, name: &'static str, bits: u32, numbers: Numbers) -> TypeInfo {
    TypeInfo { qtype, name, aliases: &[], bits, numbers }
}

const E2M1: Numbers = Numbers::Floats(Minifloat::new(4, 1, 0, 0x7));
pub(crate) const E4M3: Minifloat = Minifloat::new(8, 3, -6, 0x7e);
const E4M3FN: Numbers = Numbers::Floats(E4M3);
const E5M2: Numbers = Numbers::Floats(Minifloat::new(8, 2, -14, 0x7b));
const HALF: Numbers = Numbers::Floats(Minifloat::new(16, 10, -14, 0x7bff));
const BRAIN: Numbers = Numbers::Floats(Minifloat::new(16, 7, -126, 0x7f7f));

/// In the order of the variants.
const TABLE: [TypeInfo; 14] = [
    info(QType::Int2, "int2", 2, Numbers::Signed),
    info(QType::UInt2, "uint2", 2, Numbers::Unsigned),
    info(QType::Int4, "int4", 4, Numbers::Signed),
    info(QType::UInt4, "uint4", 4, Numbers::Unsigned),
    TypeInfo { aliases: &["float4"], ..info(QType::Float4E2M1, "float4e2m1", 4, E2M1) },
    info(QType::Int8, "int8", 8, Numbers::Signed),
    info(QType::UInt8, "uint8", 8, Numbers::Unsigned),
    TypeInfo { aliases: &["float8"], ..info(QType::Float8E4M3FN, "float8e4m3fn", 8, E4M3FN) },
    info(QType::Float8E5M2, "float8e5m2", 8, E5M2),
    info(QType::Int16, "int16", 16, Numbers::Signed),
    info(QType::UInt16, "uint16", 16, Numbers::Unsigned),
    TypeInfo { aliases: &["fp16", "half"], ..info(QType::Float16, "float16", 16, HALF) },
    TypeInfo { aliases: &["bf16"], ..info(QType::BFloat16, "bfloat16", 16, BRAIN) },
    info(QType::Int32, "int32", 32, Numbers::Signed),
];

const ALL: [QType; TABLE.len()] = {
    let mut all = [QType::Int2; TABLE.len()];
    let mut i = 0;
    while i < TABLE.len() {
        all[i] = TABLE[i].qtype;
        i += 1;
    }
    all
};

/// The smallest and the largest finite value of each type, precomputed because they are read for
/// every block of a weight.
const ENDS: [(i32, i32); TABLE.len()] = {
    let mut ends = [(0, 0); TABLE.len()];
    let mut at = 0;
    while at < ends.len() {
        let signed_max = i32::MAX >> (32 - TABLE[at].bits);
        ends[at] = match TABLE[at].numbers {
            Numbers::Signed => (-signed_max - 1, signed_max),
            Numbers::Unsigned => (0, 2 * signed_max + 1),
            Numbers::Floats(format) => (-format.max_integer(), format.max_integer()),
        };
        at += 1;
    }
    ends
};

impl QType {
    /// All types, in order of width.
    pub const ALL: &'static [QType] = &ALL;

    #[inline]
    const fn info(self) -> &'static TypeInfo {
        &TABLE[self as usize]
    }

    /// The name of the type: `int8`.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// Alternative names that [`parse`](QType::parse) accepts.
    pub const fn aliases(self) -> &'static [&'static str] {
        self.info().aliases
    }

    /// Bits per value.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.info().bits
    }

    /// The float format of the codes; `None` for integers.
    #[inline]
    pub const fn format(self) -> Option<Minifloat> {
        match self.info().numbers {
            Numbers::Floats(format) => Some(format),
            Numbers::Signed | Numbers::Unsigned => None,
        }
    }

    /// Whether the values are floats, whose steps grow with their magnitude.
    #[inline]
    pub const fn is_float(self) -> bool {
        self.format().is_some()
    }

    /// Whether the values have a scale; 16-bit floats have none.
    #[inline]
    pub const fn is_scaled(self) -> bool {
        !(self.is_float() && self.bits() == 16)
    }

    /// The largest number of a float without a scale; `None` for other types.
    ///
    /// ```
    /// use quantize_rs_math::QType;
    /// assert_eq!(QType::Float16.largest_unscaled(), Some(65504.0));
    /// assert_eq!(QType::Int8.largest_unscaled(), None);
    /// ```
    pub fn largest_unscaled(self) -> Option<f32> {
        self.format().filter(|_| !self.is_scaled()).map(Minifloat::max)
    }

    /// Whether values can be negative.
    #[inline]
    pub const fn signed(self) -> bool {
        !matches!(self.info().numbers, Numbers::Unsigned)
    }

    /// The smallest finite value.
    #[inline]
    pub const fn min(self) -> i32 {
        ENDS[self as usize].0
    }

    /// The largest finite value.
    #[inline]
    pub const fn max(self) -> i32 {
        ENDS[self as usize].1
    }

    /// The number of finite values: `2^bits` for integers.
    pub const fn levels(self) -> u64 {
        match self.info().numbers {
            Numbers::Signed | Numbers::Unsigned => 1 << self.bits(),
            Numbers::Floats(format) => format.levels(),
        }
    }

    /// The largest distance between neighbouring values: 1 for integers, that of the largest values
    /// for floats.
    pub const fn largest_step(self) -> i32 {
        match self.info().numbers {
            Numbers::Signed | Numbers::Unsigned => 1,
            Numbers::Floats(format) => format.largest_step(),
        }
    }

    /// Bytes of `elements` values in ONNX `raw_data`. Types of less than 8 bits are packed; the
    /// last byte is padded.
    pub const fn packed_len(self, elements: usize) -> usize {
        let bits = self.bits() as usize;
        if bits < 8 { elements.div_ceil(8 / bits) } else { elements.saturating_mul(bits / 8) }
    }

    /// The type with this name or alias (such as `float8`), in any case; `None` when there is none.
    pub fn parse(name: &str) -> Option<QType> {
        let known = |known: &str| known.eq_ignore_ascii_case(name);
        let named = |q: &QType| known(q.name()) || q.aliases().iter().any(|alias| known(alias));
        Self::ALL.iter().copied().find(named)
    }

    pub(crate) fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|qtype| qtype.name()).collect();
        names.join(", ")
    }
}

impl FromStr for QType {
    type Err = MathError;

    fn from_str(name: &str) -> Result<Self, MathError> {
        Self::parse(name).ok_or_else(|| MathError::UnknownType { name: name.to_owned() })
    }
}

impl fmt::Display for QType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_variants() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.qtype as usize, index);
        }
        assert_eq!(QType::Int32 as usize + 1, QType::ALL.len(), "the last variant is the last row");
    }

    #[test]
    fn bounds_and_levels() {
        let expected = [
            (QType::Int2, -2, 1, 4),
            (QType::UInt2, 0, 3, 4),
            (QType::Int4, -8, 7, 16),
            (QType::UInt4, 0, 15, 16),
            (QType::Float4E2M1, -6, 6, 15),
            (QType::Int8, i32::from(i8::MIN), i32::from(i8::MAX), 256),
            (QType::UInt8, 0, i32::from(u8::MAX), 256),
            (QType::Float8E4M3FN, -448, 448, 253),
            (QType::Float8E5M2, -57344, 57344, 247),
            (QType::Int16, i32::from(i16::MIN), i32::from(i16::MAX), 65536),
            (QType::UInt16, 0, i32::from(u16::MAX), 65536),
            (QType::Float16, -65504, 65504, 63487),
            (QType::BFloat16, -i32::MAX, i32::MAX, 65279),
            (QType::Int32, i32::MIN, i32::MAX, 1 << 32),
        ];
        assert_eq!(expected.map(|(qtype, ..)| qtype), *QType::ALL);
        for (qtype, min, max, levels) in expected {
            assert_eq!((qtype.min(), qtype.max(), qtype.levels()), (min, max, levels), "{qtype}");
        }
    }

    #[test]
    fn names_parse_and_agree_with_serde() {
        for &qtype in QType::ALL {
            assert_eq!(qtype.name().parse(), Ok(qtype));
            assert_eq!(
                QType::parse(&format!("{qtype:?}")),
                Some(qtype),
                "the variant is the name in camel case"
            );
        }
        assert_eq!(QType::parse("int7"), None);
    }

    #[test]
    fn aliases_parse_and_agree_with_serde() {
        let read = |name: &str| serde_json::from_str::<QType>(&format!("\"{name}\""));
        for &qtype in QType::ALL {
            assert_eq!(read(qtype.name()).unwrap(), qtype);
            for alias in qtype.aliases() {
                assert_eq!((QType::parse(alias), read(alias).unwrap()), (Some(qtype), qtype));
            }
        }
        assert_eq!(QType::parse("Float8"), Some(QType::Float8E4M3FN));
    }

    #[test]
    fn odd_counts_pad_the_last_byte() {
        assert_eq!(QType::Int4.packed_len(3), 2);
        assert_eq!(QType::UInt2.packed_len(5), 2);
        assert_eq!(QType::Int2.packed_len(0), 0);
        assert_eq!(QType::Int16.packed_len(3), 6);
        assert_eq!(QType::Int32.packed_len(3), 12);
    }
}
