//! Safetensors: a JSON header with the location of each tensor, then the tensors.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use quantize_rs::{CalibrationError, InputSpec};
use quantize_rs_onnx::DataType;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::rows::{Rows, Source};
use super::{BoxedSamples, Format, batching, data, io_error, open_file};

pub(super) const FORMAT: Format =
    Format { extension: "safetensors", about: "tensors by the names of the inputs", open };

/// Bytes of the length before the header.
const PREFIX_BYTES: u64 = 8;

/// The maximum length of a header: enough for a hundred thousand tensors.
const MAX_HEADER_BYTES: u64 = 1 << 24;

fn open(
    path: &Path,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    let what = path.to_string_lossy();
    let (metadata, start) = read_header(path)?;
    let names = metadata.offset_keys();
    let positions =
        batching::of_file(&names, inputs).map_err(|error| error.in_file(what.as_ref()))?;
    let rows = positions.into_iter().map(|position| {
        let name = &names[position];
        rows(path, &metadata, start, name, &format!("{what}[{name}]"))
    });
    let warning = batching::renamed(&names, inputs);
    batching::samples_with(rows.collect::<Result<_, _>>()?, inputs, limit, warning)
}

/// The header, and where the tensors begin.
///
/// The tensors must be contiguous, without gaps and overlaps, each with the length of its type and
/// shape, up to the end of the file.
fn read_header(path: &Path) -> Result<(Metadata, u64), CalibrationError> {
    let error = |message: String| {
        data(format!("not a .safetensors file: {message}")).at_value(path.to_string_lossy())
    };
    let (mut file, length) = open_file(path)?;
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix)
        .map_err(|cause| error("it ends in its header".to_owned()).caused_by(cause))?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER_BYTES || header > length.saturating_sub(PREFIX_BYTES) {
        return Err(error(format!("its header claims {header} bytes, the file has {length}")));
    }
    let mut json = Vec::new();
    file.take(header).read_to_end(&mut json).map_err(|cause| io_error(path, cause))?;
    let metadata: Metadata = serde_json::from_slice(&json)
        .map_err(|cause| error(format!("its header is wrong: {cause}")).caused_by(cause))?;
    let (start, tensors) = (PREFIX_BYTES + header, metadata.data_len() as u64);
    if tensors != length - start {
        let left = length - start;
        return Err(error(format!("its tensors take {tensors} bytes, there are {left}")));
    }
    Ok((metadata, start))
}

/// The rows of one tensor, read through a separate file handle.
fn rows(
    path: &Path,
    metadata: &Metadata,
    start: u64,
    name: &str,
    what: &str,
) -> Result<Rows, CalibrationError> {
    let Some(info) = metadata.info(name) else {
        return Err(data("the tensor is not in the header").at_value(what));
    };
    let Some(dtype) = element_type(info.dtype) else {
        let message = format!("elements of type {:?} are not plain numbers", info.dtype);
        return Err(data(message).at_value(what));
    };
    let (begin, end) = info.data_offsets;
    let mut file = File::open(path).map_err(|error| io_error(path, error))?;
    file.seek(SeekFrom::Start(start + begin as u64)).map_err(|error| io_error(path, error))?;
    let source = Source::File(BufReader::new(file));
    Rows::new(what, dtype, false, info.shape.clone(), (end - begin) as u64, source)
}

fn element_type(dtype: Dtype) -> Option<DataType> {
    Some(match dtype {
        Dtype::BOOL => DataType::Bool,
        Dtype::U8 => DataType::UInt8,
        Dtype::I8 => DataType::Int8,
        Dtype::U16 => DataType::UInt16,
        Dtype::I16 => DataType::Int16,
        Dtype::F16 => DataType::Float16,
        Dtype::BF16 => DataType::BFloat16,
        Dtype::U32 => DataType::UInt32,
        Dtype::I32 => DataType::Int32,
        Dtype::F32 => DataType::Float,
        Dtype::U64 => DataType::UInt64,
        Dtype::I64 => DataType::Int64,
        Dtype::F64 => DataType::Double,
        _ => return None,
    })
}
