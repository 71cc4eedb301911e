//! What weights are stored as: a type of ONNX, or a layout of small blocks with scales of 8 bits.

use std::fmt;
use std::str::FromStr;

use quantize_rs_math::{Codebook, QType, Scales};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::QuantizeError;

/// What a weight is stored as: a type of ONNX, whose scales are floats, or a layout that says more
/// than a type.
///
/// ```
/// use quantize_rs::{Config, QType, WeightType};
/// let config = Config { weights: "nvfp4".parse()?, ..Config::default() };
/// assert_eq!(config.weights.qtype(), QType::Float4E2M1);
/// assert_eq!(Config::default().weights, QType::Int8);
/// assert_eq!(WeightType::from(QType::Int4).to_string(), "int4");
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightType {
    /// A type, in blocks or without, as the other options say.
    Of(QType),
    /// Integers of a number of bits that no type of ONNX has, in a type that has more.
    Partial(PartialType),
    /// A layout, which has blocks of its own.
    In(MicroLayout),
    /// Codes of 4 bits for numbers of a table, in blocks.
    Codes(Codebook),
}

/// Integers of a number of bits that no type of ONNX has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartialType {
    /// Signed, 3 bits.
    Int3,
    /// Unsigned, 3 bits.
    UInt3,
    /// Signed, 5 bits.
    Int5,
    /// Unsigned, 5 bits.
    UInt5,
    /// Signed, 6 bits.
    Int6,
    /// Unsigned, 6 bits.
    UInt6,
}

/// What is known of integers that use a part of a type.
#[derive(Debug)]
pub struct PartialRow {
    /// The integers.
    pub partial: PartialType,
    /// Their name in options.
    pub name: &'static str,
    /// One line about them, for help texts.
    pub about: &'static str,
    /// The type that they are stored in.
    pub qtype: QType,
    /// How many of its bits they use.
    pub bits: u32,
}

/// The rows, in the order of the variants.
const PARTIAL: [PartialRow; 6] = [
    partial(PartialType::Int3, "int3", "the values -4 to 3 of int4", QType::Int4, 3),
    partial(PartialType::UInt3, "uint3", "the values 0 to 7 of uint4", QType::UInt4, 3),
    partial(PartialType::Int5, "int5", "the values -16 to 15 of int8", QType::Int8, 5),
    partial(PartialType::UInt5, "uint5", "the values 0 to 31 of uint8", QType::UInt8, 5),
    partial(PartialType::Int6, "int6", "the values -32 to 31 of int8", QType::Int8, 6),
    partial(PartialType::UInt6, "uint6", "the values 0 to 63 of uint8", QType::UInt8, 6),
];

const fn partial(
    partial: PartialType,
    name: &'static str,
    about: &'static str,
    qtype: QType,
    bits: u32,
) -> PartialRow {
    PartialRow { partial, name, about, qtype, bits }
}

impl PartialType {
    /// All of them.
    pub const ALL: &'static [PartialType] = &[
        PartialType::Int3,
        PartialType::UInt3,
        PartialType::Int5,
        PartialType::UInt5,
        PartialType::Int6,
        PartialType::UInt6,
    ];

    /// What is known of them.
    pub const fn row(self) -> &'static PartialRow {
        &PARTIAL[self as usize]
    }
}

/// A layout of small blocks with scales of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MicroLayout {
    /// Floats of 4 bits in blocks of 32, whose scales are powers of two.
    MxFp4,
    /// Floats of 8 bits in blocks of 32, whose scales are powers of two.
    MxFp8,
    /// Floats of 4 bits in blocks of 16, whose scales are floats of 8 bits times one float of all.
    NvFp4,
}

/// What is known of a layout.
#[derive(Debug)]
pub struct MicroRow {
    /// The layout.
    pub layout: MicroLayout,
    /// Its name in options.
    pub name: &'static str,
    /// One line about it, for help texts.
    pub about: &'static str,
    /// The type of the values.
    pub qtype: QType,
    /// Values in a block.
    pub block_size: usize,
    /// What scales are stored as.
    pub scales: Scales,
}

/// The rows, in the order of the variants. Sources: OCP Microscaling Formats (MX) Specification,
/// version 1.0, table 1; NVIDIA, "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149),
/// section 2.
const TABLE: [MicroRow; 3] = [
    MicroRow {
        layout: MicroLayout::MxFp4,
        name: "mxfp4",
        about: "float4e2m1 in blocks of 32 whose scales are powers of two",
        qtype: QType::Float4E2M1,
        block_size: 32,
        scales: Scales::Float8E8M0,
    },
    MicroRow {
        layout: MicroLayout::MxFp8,
        name: "mxfp8",
        about: "float8e4m3fn in blocks of 32 whose scales are powers of two",
        qtype: QType::Float8E4M3FN,
        block_size: 32,
        scales: Scales::Float8E8M0,
    },
    MicroRow {
        layout: MicroLayout::NvFp4,
        name: "nvfp4",
        about: "float4e2m1 in blocks of 16 whose scales are float8e4m3fn times one float32",
        qtype: QType::Float4E2M1,
        block_size: 16,
        scales: Scales::Float8E4M3FN,
    },
];

impl MicroLayout {
    /// Every layout.
    pub const ALL: &'static [MicroLayout] =
        &[MicroLayout::MxFp4, MicroLayout::MxFp8, MicroLayout::NvFp4];

    /// What is known of it.
    pub const fn row(self) -> &'static MicroRow {
        &TABLE[self as usize]
    }
}

impl WeightType {
    /// Every type and every layout.
    pub fn all() -> impl Iterator<Item = WeightType> {
        let types = QType::ALL.iter().copied().map(WeightType::Of);
        let partial = PartialType::ALL.iter().copied().map(WeightType::Partial);
        let codes = Codebook::ALL.iter().copied().map(WeightType::Codes);
        let layouts = MicroLayout::ALL.iter().copied().map(WeightType::In);
        types.chain(partial).chain(layouts).chain(codes)
    }

    /// The type of the values.
    pub const fn qtype(self) -> QType {
        match self {
            WeightType::Of(qtype) => qtype,
            WeightType::Partial(partial) => partial.row().qtype,
            WeightType::In(layout) => layout.row().qtype,
            WeightType::Codes(_) => QType::UInt4,
        }
    }

    /// The numbers that codes stand for.
    pub const fn codebook(self) -> Option<Codebook> {
        match self {
            WeightType::Codes(codebook) => Some(codebook),
            _ => None,
        }
    }

    /// What is known of the layout, where it is one.
    pub const fn layout(self) -> Option<&'static MicroRow> {
        match self {
            WeightType::In(layout) => Some(layout.row()),
            _ => None,
        }
    }

    /// What scales are stored as.
    pub fn scales(self) -> Scales {
        self.layout().map_or(Scales::Float, |row| row.scales)
    }

    /// The signed integers of this many bits.
    pub fn signed(bits: u8) -> Option<WeightType> {
        Self::all().find(|found| {
            found.layout().is_none()
                && found.bits() == u32::from(bits)
                && found.qtype().signed()
                && !found.qtype().is_float()
        })
    }

    /// Bits of one value, of which it may be stored with more.
    pub const fn bits(self) -> u32 {
        match self {
            WeightType::Partial(partial) => partial.row().bits,
            other => other.qtype().bits(),
        }
    }

    /// How many bits of the type are used; 0 stands for all.
    pub const fn used_bits(self) -> u32 {
        match self {
            WeightType::Partial(partial) => partial.row().bits,
            _ => 0,
        }
    }

    /// One line about it, for help texts; empty for the types of ONNX.
    pub fn about(self) -> &'static str {
        match self {
            WeightType::Of(_) => "",
            WeightType::Partial(partial) => partial.row().about,
            WeightType::In(layout) => layout.row().about,
            WeightType::Codes(codebook) => codebook.about(),
        }
    }

    /// Its name in options: `int8`, `mxfp4`.
    pub fn name(self) -> &'static str {
        match self {
            WeightType::Of(qtype) => qtype.name(),
            WeightType::Partial(partial) => partial.row().name,
            WeightType::In(layout) => layout.row().name,
            WeightType::Codes(codebook) => codebook.name(),
        }
    }

    /// Other names that [`parse`](WeightType::parse) knows it by.
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            WeightType::Of(qtype) => qtype.aliases(),
            _ => &[],
        }
    }

    /// What has this name, or a usual other one such as `float8`, in any case; `None` when nothing
    /// has.
    pub fn parse(name: &str) -> Option<WeightType> {
        let known = |found: &WeightType| found.name().eq_ignore_ascii_case(name);
        QType::parse(name).map(WeightType::Of).or_else(|| Self::all().find(known))
    }

    /// As [`parse`](WeightType::parse), for an option.
    ///
    /// # Errors
    /// Nothing has this name.
    pub fn of_option(option: &str, name: &str) -> Result<WeightType, QuantizeError> {
        Self::parse(name).ok_or_else(|| {
            // Only biases are int32.
            let taken = Self::all().filter(|found| *found != QType::Int32);
            let names: Vec<&str> = taken.map(Self::name).collect();
            let what = format!("is `{name}`, expected one of {}", names.join(", "));
            QuantizeError::option(option, what)
        })
    }
}

impl From<QType> for WeightType {
    fn from(qtype: QType) -> WeightType {
        WeightType::Of(qtype)
    }
}

impl PartialEq<QType> for WeightType {
    fn eq(&self, qtype: &QType) -> bool {
        *self == WeightType::Of(*qtype)
    }
}

impl FromStr for WeightType {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<WeightType, QuantizeError> {
        WeightType::of_option("weights", name)
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for WeightType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for WeightType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightType, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_variants() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!((row.layout as usize, MicroLayout::ALL[index]), (index, row.layout));
        }
        assert_eq!(
            MicroLayout::NvFp4 as usize + 1,
            TABLE.len(),
            "the last variant is the last row"
        );
        for (index, row) in PARTIAL.iter().enumerate() {
            assert_eq!((row.partial as usize, PartialType::ALL[index]), (index, row.partial));
        }
    }

    #[test]
    fn names_parse_and_agree_with_serde() {
        for found in WeightType::all() {
            for name in [found.name()].iter().chain(found.aliases()) {
                assert_eq!(name.to_uppercase().parse::<WeightType>().unwrap(), found);
                let json = format!("\"{name}\"");
                assert_eq!(serde_json::from_str::<WeightType>(&json).unwrap(), found);
            }
            assert_eq!(serde_json::to_value(found).unwrap(), found.name());
        }
        let error = "fp3".parse::<WeightType>().unwrap_err().to_string();
        assert!(error.contains("int8") && error.contains("nvfp4"), "{error}");
    }
}
