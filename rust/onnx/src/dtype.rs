//! The element types of ONNX, one table row per type.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An element type of a tensor, `TensorProto.DataType` in the ONNX schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
#[allow(missing_docs)] // the variants are ONNX's own names
pub enum DataType {
    Float = 1,
    UInt8 = 2,
    Int8 = 3,
    UInt16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    UInt32 = 12,
    UInt64 = 13,
    Complex64 = 14,
    Complex128 = 15,
    BFloat16 = 16,
    Float8E4M3FN = 17,
    Float8E4M3FNUZ = 18,
    Float8E5M2 = 19,
    Float8E5M2FNUZ = 20,
    UInt4 = 21,
    Int4 = 22,
    Float4E2M1 = 23,
    Float8E8M0 = 24,
    UInt2 = 25,
    Int2 = 26,
    Float6E2M3 = 27,
    Float6E3M2 = 28,
}

/// The properties of an element type.
struct TypeInfo {
    dtype: DataType,
    name: &'static str,
    bits: usize,
    since_ir: i64,
}

const fn info(dtype: DataType, name: &'static str, bits: usize, since_ir: i64) -> TypeInfo {
    TypeInfo { dtype, name, bits, since_ir }
}

/// In the order of their numbers, so that `TYPES[n - 1]` is type `n`.
///
/// Strings have no bits, because `raw_data` cannot hold them.
const TYPES: [TypeInfo; 28] = [
    info(DataType::Float, "float32", 32, 1),
    info(DataType::UInt8, "uint8", 8, 1),
    info(DataType::Int8, "int8", 8, 1),
    info(DataType::UInt16, "uint16", 16, 1),
    info(DataType::Int16, "int16", 16, 1),
    info(DataType::Int32, "int32", 32, 1),
    info(DataType::Int64, "int64", 64, 1),
    info(DataType::String, "string", 0, 1),
    info(DataType::Bool, "bool", 8, 1),
    info(DataType::Float16, "float16", 16, 1),
    info(DataType::Double, "float64", 64, 1),
    info(DataType::UInt32, "uint32", 32, 1),
    info(DataType::UInt64, "uint64", 64, 1),
    info(DataType::Complex64, "complex64", 64, 1),
    info(DataType::Complex128, "complex128", 128, 1),
    info(DataType::BFloat16, "bfloat16", 16, 4),
    info(DataType::Float8E4M3FN, "float8e4m3fn", 8, 9),
    info(DataType::Float8E4M3FNUZ, "float8e4m3fnuz", 8, 9),
    info(DataType::Float8E5M2, "float8e5m2", 8, 9),
    info(DataType::Float8E5M2FNUZ, "float8e5m2fnuz", 8, 9),
    info(DataType::UInt4, "uint4", 4, 10),
    info(DataType::Int4, "int4", 4, 10),
    info(DataType::Float4E2M1, "float4e2m1", 4, 11),
    info(DataType::Float8E8M0, "float8e8m0", 8, 12),
    info(DataType::UInt2, "uint2", 2, 13),
    info(DataType::Int2, "int2", 2, 13),
    info(DataType::Float6E2M3, "float6e2m3", 6, 14),
    info(DataType::Float6E3M2, "float6e3m2", 6, 14),
];

impl DataType {
    /// All element types, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = DataType> {
        TYPES.iter().map(|row| row.dtype)
    }

    /// The type with this number; `None` when ONNX does not define it.
    ///
    /// ```
    /// use quantize_rs_onnx::DataType;
    /// assert_eq!(DataType::from_number(1), Some(DataType::Float));
    /// assert_eq!(DataType::from_number(99), None);
    /// ```
    pub fn from_number(number: i32) -> Option<DataType> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        TYPES.get(index).map(|row| row.dtype)
    }

    /// The number of the type in the file.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// The name of the type in numpy and ONNX: `float32`, `int4`, `float8e4m3fn`, ….
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Bits per element in `raw_data`; 0 for strings, which have no fixed size.
    pub fn bits(self) -> usize {
        self.info().bits
    }

    /// The first IR version that includes this type.
    pub fn since_ir(self) -> i64 {
        self.info().since_ir
    }

    /// Whether this is one of the four floating-point types that models compute in.
    pub fn is_float(self) -> bool {
        matches!(self, DataType::Float | DataType::Float16 | DataType::BFloat16 | DataType::Double)
    }

    /// Bytes of `elements` elements in `raw_data`; sub-byte types are packed.
    ///
    /// `None` for strings, and when the product overflows.
    pub fn byte_len(self, elements: usize) -> Option<usize> {
        match self.bits() {
            0 => None,
            bits => Some(elements.checked_mul(bits)?.div_ceil(8)),
        }
    }

    fn info(self) -> &'static TypeInfo {
        &TYPES[self as usize - 1]
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for DataType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DataType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DataType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let row = TYPES.iter().find(|row| row.name == name);
        row.map(|row| row.dtype).ok_or_else(|| {
            serde::de::Error::custom(format!("`{name}` is not an element type of ONNX"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_numerical_order() {
        for (index, row) in TYPES.iter().enumerate() {
            assert_eq!(row.dtype as usize, index + 1, "{}", row.name);
            assert_eq!(DataType::from_number(row.dtype.number()), Some(row.dtype));
        }
    }

    #[test]
    fn sub_byte_types_are_packed() {
        assert_eq!(DataType::Int4.byte_len(3), Some(2));
        assert_eq!(DataType::Int2.byte_len(5), Some(2));
        assert_eq!(DataType::Double.byte_len(usize::MAX), None);
        assert_eq!(DataType::String.byte_len(1), None);
    }
}
