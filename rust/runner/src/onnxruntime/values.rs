//! Converts tensors to ONNX Runtime values, and passes outputs to the sink.

use std::fmt::Debug;
use std::ops::Deref;

use bytemuck::AnyBitPattern;
use half::{bf16, f16};
use ort::value::{
    DynValue, DynValueRef, PrimitiveTensorElementType, TensorElementType, TensorRef, ValueType,
};
use quantize_rs::{CalibrationError, CalibrationErrorKind, ValueSink};
use quantize_rs_onnx::{DataType, Tensor};

use super::error_parsing::without_node;
use super::failed;

/// Converts the bytes of a tensor to an ONNX Runtime value.
type Reader = fn(&Tensor) -> ort::Result<DynValue>;

/// The conversion for this type; `None` for types without a Rust equivalent.
fn reader(dtype: DataType) -> Option<Reader> {
    Some(match dtype {
        DataType::Float => |tensor| read(tensor, f32::from_le_bytes),
        DataType::Float16 => |tensor| read(tensor, f16::from_le_bytes),
        DataType::BFloat16 => |tensor| read(tensor, bf16::from_le_bytes),
        DataType::Double => |tensor| read(tensor, f64::from_le_bytes),
        DataType::Bool => |tensor| read(tensor, |[byte]| byte != 0),
        DataType::UInt8 => |tensor| read(tensor, u8::from_le_bytes),
        DataType::UInt16 => |tensor| read(tensor, u16::from_le_bytes),
        DataType::UInt32 => |tensor| read(tensor, u32::from_le_bytes),
        DataType::UInt64 => |tensor| read(tensor, u64::from_le_bytes),
        DataType::Int8 => |tensor| read(tensor, i8::from_le_bytes),
        DataType::Int16 => |tensor| read(tensor, i16::from_le_bytes),
        DataType::Int32 => |tensor| read(tensor, i32::from_le_bytes),
        DataType::Int64 => |tensor| read(tensor, i64::from_le_bytes),
        _ => return None,
    })
}

/// Whether ONNX Runtime can read tensors of this type.
pub(super) fn is_known(dtype: DataType) -> bool {
    reader(dtype).is_some()
}

/// The tensor as an owned value: copied, because ONNX Runtime requires aligned elements.
pub(super) fn value(tensor: &Tensor) -> Result<DynValue, CalibrationError> {
    let read = reader(tensor.dtype).ok_or_else(|| {
        let (engine, dtype) = ("onnxruntime", tensor.dtype.name());
        CalibrationError::new(CalibrationErrorKind::UnsupportedType { engine, dtype })
    })?;
    read(tensor).map_err(|error| without_node(&error))
}

/// The tensor as an input of one run: borrowed if its elements are aligned, otherwise copied.
pub(super) enum InputValue<'a> {
    Lent(DynValueRef<'a>),
    Copied(DynValue),
}

impl Deref for InputValue<'_> {
    type Target = DynValue;

    fn deref(&self) -> &DynValue {
        match self {
            InputValue::Lent(value) => value,
            InputValue::Copied(value) => value,
        }
    }
}

/// The tensor without a copy of its elements, if possible: most samples have these types.
pub(super) fn input_value(tensor: &Tensor) -> Result<InputValue<'_>, CalibrationError> {
    let lent = match tensor.dtype {
        DataType::Float => lent::<f32>(tensor),
        DataType::Int64 => lent::<i64>(tensor),
        DataType::Int32 => lent::<i32>(tensor),
        _ => None,
    };
    lent.map_or_else(|| value(tensor).map(InputValue::Copied), |value| Ok(InputValue::Lent(value)))
}

fn lent<T: PrimitiveTensorElementType + AnyBitPattern + Debug>(
    tensor: &Tensor,
) -> Option<DynValueRef<'_>> {
    // Elements are stored in little-endian order.
    let elements = cfg!(target_endian = "little").then(|| bytemuck::try_cast_slice(&tensor.data));
    let elements: &[T] = elements?.ok().filter(|elements: &&[T]| !elements.is_empty())?;
    let lent = TensorRef::from_array_view((tensor.shape.clone(), elements));
    Some(lent.ok()?.into_dyn())
}

fn read<const N: usize, T: PrimitiveTensorElementType + Clone + Debug + 'static>(
    tensor: &Tensor,
    // A generic parameter, so that the loop is compiled for it; through a pointer each element
    // would be a call.
    element: impl Fn([u8; N]) -> T,
) -> ort::Result<DynValue> {
    let elements = tensor.data.as_chunks::<N>().0.iter().map(|bytes| element(*bytes));
    let elements: Vec<T> = elements.collect();
    Ok(ort::value::Tensor::from_array((tensor.shape.clone(), elements))?.into_dyn())
}

/// As [`DataType::is_float`], for an ONNX Runtime type.
pub(super) fn are_floats(of: &ValueType) -> bool {
    use TensorElementType::{Bfloat16, Float16, Float32, Float64};
    matches!(of, ValueType::Tensor { ty: Float32 | Float16 | Bfloat16 | Float64, .. })
}

/// Passes the elements to the sink: float32 in place, other floats converted.
pub(super) fn show(
    value: &DynValue,
    index: usize,
    sink: &mut dyn ValueSink,
) -> Result<(), CalibrationError> {
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        return Err(failed(format!("an observed value is {}, not a tensor", value.dtype())));
    };
    let shape = shape.iter().map(|length| usize::try_from(*length).unwrap_or(0));
    let shape: Vec<usize> = shape.collect();
    match ty {
        TensorElementType::Float32 => sink.observe(index, &shape, elements(value)?),
        TensorElementType::Float16 => show_as(value, f16::to_f32, index, &shape, sink)?,
        TensorElementType::Bfloat16 => show_as(value, bf16::to_f32, index, &shape, sink)?,
        #[allow(clippy::cast_possible_truncation)] // ranges are float32
        TensorElementType::Float64 => show_as(value, |x: f64| x as f32, index, &shape, sink)?,
        other => return Err(failed(format!("an observed value is {other}"))),
    }
    Ok(())
}

fn show_as<T: PrimitiveTensorElementType + Copy>(
    value: &DynValue,
    float: fn(T) -> f32,
    index: usize,
    shape: &[usize],
    sink: &mut dyn ValueSink,
) -> Result<(), CalibrationError> {
    let floats: Vec<f32> = elements(value)?.iter().map(|element| float(*element)).collect();
    sink.observe(index, shape, &floats);
    Ok(())
}

fn elements<T: PrimitiveTensorElementType>(value: &DynValue) -> Result<&[T], CalibrationError> {
    let extracted = value.try_extract_tensor::<T>();
    Ok(extracted.map_err(|error| without_node(&error))?.1)
}
