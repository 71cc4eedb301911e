//! Types of a quantized cache of keys and values.

use quantize_rs_onnx::DataType;
use serde::{Deserialize, Serialize};

use super::named::named;

/// A type of a quantized cache of keys and values.
///
/// ```
/// use quantize_rs::KvCacheType;
/// assert_eq!("int4".parse::<KvCacheType>()?, KvCacheType::Int4);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvCacheType {
    /// 8 bits.
    Int8,
    /// 4 bits, two in a byte.
    Int4,
}

struct Row {
    value: KvCacheType,
    name: &'static str,
    about: &'static str,
}

const ROWS: &[Row] = &[
    Row { value: KvCacheType::Int8, name: "int8", about: "a quarter of the memory of float32" },
    Row {
        value: KvCacheType::Int4,
        name: "int4",
        about: "an eighth of the memory of float32, and a larger error; two in a byte",
    },
];

impl KvCacheType {
    /// All types.
    pub const ALL: &'static [KvCacheType] = &[KvCacheType::Int8, KvCacheType::Int4];

    /// The number of bits of an element.
    pub fn bits(self) -> usize {
        match self {
            KvCacheType::Int8 => 8,
            KvCacheType::Int4 => 4,
        }
    }

    /// The largest integer.
    pub(crate) fn largest(self) -> f32 {
        match self {
            KvCacheType::Int8 => 127.0,
            KvCacheType::Int4 => 7.0,
        }
    }

    /// The type of the tensors.
    pub(crate) fn data_type(self) -> DataType {
        match self {
            KvCacheType::Int8 => DataType::Int8,
            KvCacheType::Int4 => DataType::UInt8,
        }
    }
}

named!(KvCacheType, "kv_cache");
