//! The elements of a `TensorProto` as bytes, from any of the fields that can hold them.

use bytes::Bytes;

use crate::error::Error;
use crate::external::External;
use crate::schema::TensorProto;
use crate::wire::{Field, Wire};
use crate::{DataType, Tensor};

/// The checked type and shape of a tensor.
pub(crate) struct TensorInfo {
    pub(crate) dtype: DataType,
    pub(crate) shape: Vec<usize>,
    elements: usize,
    /// Bytes of the elements in `raw_data`; `None` for strings.
    pub(crate) byte_len: Option<usize>,
}

/// Checks everything except the elements.
pub(crate) fn tensor_info(proto: &TensorProto) -> Result<TensorInfo, Error> {
    let wrong = |what: String| Error::structure(place(proto), what);
    let dtype = proto.dtype().ok_or_else(|| {
        wrong(format!("element type {}, which ONNX does not define", proto.data_type))
    })?;
    let mut shape = Vec::new();
    let mut elements = 1usize;
    for dim in &proto.dims {
        let length = usize::try_from(*dim)
            .map_err(|_| wrong(format!("shape {:?} has a negative dimension", proto.dims)))?;
        shape.push(length);
        elements = elements.checked_mul(length).ok_or_else(|| {
            wrong(format!("shape {:?} has more elements than can be addressed", proto.dims))
        })?;
    }
    let byte_len = dtype.byte_len(elements);
    if byte_len.is_none() && dtype != DataType::String {
        return Err(wrong(format!(
            "shape {:?} of {dtype} has more bytes than can be addressed",
            proto.dims
        )));
    }
    Ok(TensorInfo { dtype, shape, elements, byte_len })
}

/// Checks a tensor against its data, without copying the data.
pub(crate) fn check(proto: &TensorProto, external: &External) -> Result<(), Error> {
    let info = tensor_info(proto)?;
    if proto.is_external() {
        return external.bytes(proto, &info).map(|_| ());
    }
    match (&proto.raw_data, info.byte_len) {
        (Some(data), Some(expected)) if data.len() != expected => {
            Err(wrong_length(proto, &info, data.len()))
        }
        (Some(_), None) => Err(Error::structure(place(proto), "raw_data cannot hold strings")),
        (Some(_), Some(_)) => Ok(()),
        (None, _) => {
            let field = typed_field(info.dtype);
            if let Some(run) = proto.typed.iter().find(|run| run.field.number != field) {
                let what = format!("its data is not in the field for {}", info.dtype);
                return Err(run.field.wrong(format!("{}: {what}", place(proto))));
            }
            let found = proto.typed.iter().map(|run| count(&run.field)).sum::<usize>();
            let expected = typed_entries(&info);
            if found == expected { Ok(()) } else { Err(wrong_count(proto, &info, found)) }
        }
    }
}

/// The tensor. Only elements in typed integer fields are copied.
pub(crate) fn tensor(proto: &TensorProto, external: &External) -> Result<Tensor, Error> {
    let info = tensor_info(proto)?;
    let data = if proto.is_external() {
        external.bytes(proto, &info)?
    } else if let Some(data) = &proto.raw_data {
        data.clone()
    } else {
        typed_bytes(proto, &info)?
    };
    match info.byte_len {
        Some(expected) if data.len() == expected => {
            Ok(Tensor { dtype: info.dtype, shape: info.shape, data })
        }
        Some(_) => Err(wrong_length(proto, &info, data.len())),
        None => Err(Error::structure(place(proto), "a tensor of strings cannot be read as bytes")),
    }
}

fn wrong_length(proto: &TensorProto, info: &TensorInfo, found: usize) -> Error {
    Error::structure(
        place(proto),
        format!(
            "{found} bytes of data for shape {:?} of {}, expected {}",
            info.shape,
            info.dtype,
            info.byte_len.unwrap_or(0)
        ),
    )
}

fn wrong_count(proto: &TensorProto, info: &TensorInfo, found: usize) -> Error {
    Error::structure(
        place(proto),
        format!(
            "{found} values for shape {:?} of {}, expected {}",
            info.shape,
            info.dtype,
            typed_entries(info)
        ),
    )
}

pub(crate) fn place(proto: &TensorProto) -> String {
    if proto.name.is_empty() {
        "tensor attribute".to_owned()
    } else {
        format!("initializer `{}`", proto.name)
    }
}

/// Entries that a typed field must have: sub-byte types share one, complex numbers take two.
fn typed_entries(info: &TensorInfo) -> usize {
    match info.dtype {
        DataType::Complex64 | DataType::Complex128 => info.elements.saturating_mul(2),
        dtype if (1..8).contains(&dtype.bits()) => info.byte_len.unwrap_or(0),
        _ => info.elements,
    }
}

/// The field with the elements of this type when `raw_data` is not set.
fn typed_field(dtype: DataType) -> u32 {
    match dtype {
        DataType::Float | DataType::Complex64 => 4,
        DataType::String => 6,
        DataType::Int64 => 7,
        DataType::Double | DataType::Complex128 => 10,
        DataType::UInt32 | DataType::UInt64 => 11,
        _ => 5,
    }
}

/// Entries in one run of a typed field.
fn count(field: &Field) -> usize {
    let Wire::Len(span) = &field.wire else { return 1 };
    match field.number {
        4 => span.bytes.len() / 4,
        6 => 1,
        10 => span.bytes.len() / 8,
        _ => span.bytes.iter().filter(|byte| **byte & 0x80 == 0).count(),
    }
}

/// The elements of `float_data`, `double_data` or one of the integer fields.
fn typed_bytes(proto: &TensorProto, info: &TensorInfo) -> Result<Bytes, Error> {
    // A single packed run of floats has the same layout as `raw_data`.
    if let [run] = &proto.typed[..]
        && let (4 | 10, Wire::Len(span)) = (run.field.number, &run.field.wire)
    {
        return Ok(span.bytes.clone());
    }
    let mut out = Vec::new();
    for run in &proto.typed {
        match (run.field.number, &run.field.wire) {
            (4 | 10, Wire::Len(span)) => out.extend_from_slice(&span.bytes),
            (4, Wire::Fixed32(bits)) => out.extend_from_slice(&bits.to_le_bytes()),
            (10, Wire::Fixed64(bits)) => out.extend_from_slice(&bits.to_le_bytes()),
            (5 | 7 | 11, _) => {
                let width = info.dtype.bits().div_ceil(8).min(8);
                let mut values = Vec::new();
                run.field.ints_into(&mut values)?;
                for value in values {
                    out.extend_from_slice(&value.to_le_bytes()[..width]);
                }
            }
            _ => return Err(run.field.wrong("not a numeric field")),
        }
    }
    Ok(out.into())
}
