//! The numeric types a tensor can be quantized to: one row each, and everything else follows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::MathError;
use crate::minifloat::Minifloat;

/// A type of ONNX that quantized values can have.
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
    /// Floats of 4 bits, 2 of them for the exponent: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; two to a byte.
    #[serde(alias = "float4")]
    Float4E2M1,
    /// Signed, 8 bits.
    Int8,
    /// Unsigned, 8 bits.
    UInt8,
    /// Floats of 8 bits, 4 of them for the exponent: finite up to 448.
    #[serde(alias = "float8")]
    Float8E4M3FN,
    /// Floats of 8 bits, 5 of them for the exponent: finite up to 57344, with half as many steps in between.
    Float8E5M2,
    /// Signed, 16 bits, little endian.
    Int16,
    /// Unsigned, 16 bits, little endian.
    UInt16,
    /// Floats of 16 bits, 5 of them for the exponent, little endian: finite up to 65504. They have no scale.
    #[serde(alias = "fp16", alias = "half")]
    Float16,
    /// Floats of 16 bits, 8 of them for the exponent, as many as float32 has. They have no scale.
    #[serde(alias = "bf16")]
    BFloat16,
    /// Signed, 32 bits, little endian: for biases only.
    Int32,
}

struct TypeInfo {
    qtype: QType,
    name: &'static str,
    /// Other names that people use.
    aliases: &'static [&'static str],
    bits: u32,
    numbers: Numbers,
}

/// The numbers that the codes of a type stand for.
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

/// The smallest and the largest finite value of each type: they are asked for at every block of a weight.
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
    /// Every type there is, narrow ones first.
    pub const ALL: &'static [QType] = &ALL;

    #[inline]
    const fn info(self) -> &'static TypeInfo {
        &TABLE[self as usize]
    }

    /// The name of the type: `int8`.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// Other names that [`parse`](QType::parse) knows it by.
    pub const fn aliases(self) -> &'static [&'static str] {
        self.info().aliases
    }

    /// Bits that one value takes.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.info().bits
    }

    /// How its codes stand for floats; `None` when they are integers.
    #[inline]
    pub const fn format(self) -> Option<Minifloat> {
        match self.info().numbers {
            Numbers::Floats(format) => Some(format),
            Numbers::Signed | Numbers::Unsigned => None,
        }
    }

    /// Whether its values are floats, whose steps grow with them.
    #[inline]
    pub const fn is_float(self) -> bool {
        self.format().is_some()
    }

    /// Whether its values stand beside a scale; floats of 16 bits stand for themselves.
    #[inline]
    pub const fn is_scaled(self) -> bool {
        !(self.is_float() && self.bits() == 16)
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

    /// How many finite values there are: `2^bits` integers.
    pub const fn levels(self) -> u64 {
        match self.info().numbers {
            Numbers::Signed | Numbers::Unsigned => 1 << self.bits(),
            Numbers::Floats(format) => format.levels(),
        }
    }

    /// The largest distance between two neighbouring values: that of all integers, and of the largest floats.
    pub const fn largest_step(self) -> i32 {
        match self.info().numbers {
            Numbers::Signed | Numbers::Unsigned => 1,
            Numbers::Floats(format) => format.largest_step(),
        }
    }

    /// Bytes that `elements` values take in ONNX `raw_data`: narrow types share bytes, the last byte is filled up.
    pub const fn packed_len(self, elements: usize) -> usize {
        let bits = self.bits() as usize;
        if bits < 8 { elements.div_ceil(8 / bits) } else { elements.saturating_mul(bits / 8) }
    }

    /// How many times smaller than float32 a value is, scales and zero points not counted.
    pub fn nominal_ratio(self) -> f64 {
        f64::from(f32::MANTISSA_DIGITS + 8) / f64::from(self.bits())
    }

    /// The type with this name, or a usual other one such as `float8`, in any case; `None` when there is none.
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
    fn other_names_parse_and_agree_with_serde() {
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
    fn odd_counts_fill_up_the_last_byte() {
        assert_eq!(QType::Int4.packed_len(3), 2);
        assert_eq!(QType::UInt2.packed_len(5), 2);
        assert_eq!(QType::Int2.packed_len(0), 0);
        assert_eq!(QType::Int16.packed_len(3), 6);
        assert_eq!(QType::Int32.packed_len(3), 12);
    }

    #[test]
    fn nominal_ratios() {
        assert_eq!(QType::Int8.nominal_ratio(), 4.0);
        assert_eq!(QType::Float8E5M2.nominal_ratio(), 4.0);
        assert_eq!(QType::Int4.nominal_ratio(), 8.0);
        assert_eq!(QType::Int2.nominal_ratio(), 16.0);
    }
}
