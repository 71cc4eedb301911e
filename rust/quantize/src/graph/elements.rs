//! The elements of a tensor: their type, and the floats of whatever type they are stored in.

// This module rounds to narrower types on purpose.
#![allow(clippy::cast_possible_truncation)]

use bytes::Bytes;
use half::{bf16, f16};
use quantize_rs_math::{FloatSource, QType, pack};
use quantize_rs_onnx::{DataType, Tensor};

/// The floating-point types of 16 bits. float32 represents all their values.
pub(crate) const HALVES: [DataType; 2] = [DataType::Float16, DataType::BFloat16];

/// Whether a type is float32 or one of 16 bits, the floats of ONNX Runtime's own operators.
pub(crate) fn is_single_or_half(dtype: DataType) -> bool {
    dtype == DataType::Float || HALVES.contains(&dtype)
}

/// Converts the elements of a floating-point tensor to float32.
pub(crate) fn to_f32(tensor: &Tensor) -> Option<Vec<f32>> {
    match Elements::converted(tensor)? {
        Elements::InPlace(_) => tensor.to_f32(),
        Elements::Converted(values) => Some(values),
    }
}

/// The element type of ONNX for a numeric type.
pub(crate) fn data_type(qtype: QType) -> DataType {
    match qtype {
        QType::Int2 => DataType::Int2,
        QType::UInt2 => DataType::UInt2,
        QType::Int4 => DataType::Int4,
        QType::UInt4 => DataType::UInt4,
        QType::Float4E2M1 => DataType::Float4E2M1,
        QType::Int8 => DataType::Int8,
        QType::UInt8 => DataType::UInt8,
        QType::Float8E4M3FN => DataType::Float8E4M3FN,
        QType::Float8E5M2 => DataType::Float8E5M2,
        QType::Int16 => DataType::Int16,
        QType::UInt16 => DataType::UInt16,
        QType::Float16 => DataType::Float16,
        QType::BFloat16 => DataType::BFloat16,
        QType::Int32 => DataType::Int32,
    }
}

/// The numeric type of an element type of ONNX; `None` for those that are not quantized to.
pub(crate) fn qtype_of(dtype: DataType) -> Option<QType> {
    QType::ALL.iter().copied().find(|qtype| data_type(*qtype) == dtype)
}

/// The elements of a tensor of integers of at most 32 bits; `None` for other types.
pub(crate) fn integers(tensor: &Tensor) -> Option<Vec<i32>> {
    let qtype = qtype_of(tensor.dtype).filter(|qtype| !qtype.is_float())?;
    let (bytes, bits, signed) = (&tensor.data, qtype.bits(), qtype.signed());
    let halves = || bytes.as_chunks::<2>().0.iter().copied();
    Some(match (bits, signed) {
        (32, _) => bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect(),
        (16, true) => halves().map(|half| i32::from(i16::from_le_bytes(half))).collect(),
        (16, false) => halves().map(|half| i32::from(u16::from_le_bytes(half))).collect(),
        (8, false) => bytes.iter().map(|byte| i32::from(*byte)).collect(),
        _ => pack::unpack(bytes, bits, signed, tensor.elements())
            .into_iter()
            .map(i32::from)
            .collect(),
    })
}

/// Where the float32 elements of a weight are: in place, or converted from another float.
pub(crate) enum Elements {
    InPlace(Bytes),
    Converted(Vec<f32>),
}

impl Elements {
    /// The elements of a weight; an error message if the type or the magnitudes are unsupported.
    pub(crate) fn of(tensor: &Tensor) -> Result<Elements, String> {
        let elements = Elements::converted(tensor);
        let elements = elements.ok_or_else(|| format!("has elements of type {}", tensor.dtype))?;
        let doubles = tensor.data.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        if tensor.dtype == DataType::Double && doubles.clone().all(f64::is_finite) {
            let largest = doubles.fold(0.0, |largest: f64, x| largest.max(x.abs()));
            let (least, most) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
            if largest != 0.0 && !(least..=most).contains(&largest) {
                return Err(format!(
                    "has magnitudes up to {largest:.1e}, and scales are float32, which holds \
                     {least:.1e} to {most:.1e}"
                ));
            }
        }
        Ok(elements)
    }

    fn converted(tensor: &Tensor) -> Option<Elements> {
        let halves = || tensor.data.as_chunks::<2>().0.iter().copied();
        let converted = match tensor.dtype {
            DataType::Float => return Some(Elements::InPlace(tensor.data.clone())),
            DataType::Float16 => halves().map(|half| f16::from_le_bytes(half).to_f32()).collect(),
            DataType::BFloat16 => halves().map(|half| bf16::from_le_bytes(half).to_f32()).collect(),
            DataType::Double => {
                let doubles = tensor.data.as_chunks::<8>().0.iter();
                doubles.map(|bytes| f64::from_le_bytes(*bytes) as f32).collect()
            }
            _ => return None,
        };
        Some(Elements::Converted(converted))
    }

    pub(crate) fn floats(&self) -> FloatSource<'_> {
        match self {
            Elements::InPlace(bytes) => FloatSource::LittleEndian(bytes.as_chunks::<4>().0),
            Elements::Converted(values) => FloatSource::Slice(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_numeric_type_has_an_element_type_of_its_own() {
        for qtype in QType::ALL {
            assert_eq!(qtype_of(data_type(*qtype)), Some(*qtype));
        }
        assert_eq!(qtype_of(DataType::Float), None);
    }

    #[test]
    fn integers_keep_their_sign() {
        let of = |dtype: DataType, shape: &[usize], data: &'static [u8]| {
            integers(&Tensor { dtype, shape: shape.to_vec(), data: Bytes::from_static(data) })
        };
        assert_eq!(of(DataType::Int4, &[3], &[0x8f, 0x07]), Some(vec![-1, -8, 7]));
        assert_eq!(of(DataType::UInt4, &[3], &[0x8f, 0x07]), Some(vec![15, 8, 7]));
        assert_eq!(of(DataType::UInt2, &[2], &[0x0b]), Some(vec![3, 2]));
        assert_eq!(of(DataType::Int8, &[2], &[0x80, 0x7f]), Some(vec![-128, 127]));
        assert_eq!(of(DataType::UInt8, &[2], &[0x80, 0x7f]), Some(vec![128, 127]));
        assert_eq!(of(DataType::Int16, &[1], &[0x00, 0x80]), Some(vec![-32768]));
        assert_eq!(of(DataType::UInt16, &[1], &[0x00, 0x80]), Some(vec![32768]));
        assert_eq!(of(DataType::Int32, &[1], &[0xfe, 0xff, 0xff, 0xff]), Some(vec![-2]));
        assert_eq!(of(DataType::Float8E4M3FN, &[1], &[0x80]), None);
    }
}
