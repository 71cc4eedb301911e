//! An array that is read row by row along its first axis, from memory or from a file.

use std::fs::File;
use std::io::{BufReader, Read};

use bytes::Bytes;
use quantize_rs::CalibrationError;
use quantize_rs_onnx::{DataType, Tensor};

use super::data;
use crate::inputs;

/// An array with checked sizes, read up to some row.
pub(super) struct Rows {
    /// Name of the array or file, for messages.
    pub(super) what: String,
    pub(super) dtype: DataType,
    pub(super) shape: Vec<usize>,
    row_bytes: usize,
    big_endian: bool,
    source: Source,
}

/// The elements, in C order.
pub(super) enum Source {
    Memory(Bytes),
    File(BufReader<File>),
}

impl Rows {
    /// The rows of an array with the claimed `shape` and `available` bytes.
    pub(super) fn new(
        what: &str,
        dtype: DataType,
        big_endian: bool,
        shape: Vec<usize>,
        available: u64,
        source: Source,
    ) -> Result<Rows, CalibrationError> {
        let error = |message: String| Err(data(message).at_value(what));
        let Some((_, row)) = shape.split_first() else {
            return error("the array is a single number, samples need a first axis".to_owned());
        };
        let (Some(row_bytes), Some(bytes)) =
            (inputs::byte_len(dtype, row), inputs::byte_len(dtype, &shape))
        else {
            return error(format!("shape {shape:?} of {dtype} is larger than any memory"));
        };
        if u64::try_from(bytes) != Ok(available) {
            return error(format!(
                "shape {shape:?} of {dtype} takes {bytes} bytes, there are {available}"
            ));
        }
        Ok(Rows { what: what.to_owned(), dtype, shape, row_bytes, big_endian, source })
    }

    /// The rows of a tensor in memory.
    pub(super) fn from_tensor(name: &str, tensor: Tensor) -> Result<Rows, CalibrationError> {
        let available = tensor.data.len() as u64;
        let source = Source::Memory(tensor.data);
        Rows::new(name, tensor.dtype, false, tensor.shape, available, source)
    }

    /// The next `count` rows as little-endian elements; fewer bytes at the end of the source.
    pub(super) fn take(&mut self, count: usize) -> Result<Bytes, CalibrationError> {
        let bytes = count.saturating_mul(self.row_bytes);
        let rows = match &mut self.source {
            Source::Memory(rest) => rest.split_to(bytes.min(rest.len())),
            Source::File(reader) => {
                let mut rows = vec![0; bytes];
                reader.read_exact(&mut rows).map_err(|error| {
                    data(format!("cannot read the file: {error}"))
                        .at_value(&self.what)
                        .caused_by(error)
                })?;
                Bytes::from(rows)
            }
        };
        Ok(if self.big_endian { swapped(&rows, self.dtype) } else { rows })
    }
}

/// The elements with their bytes in reverse order.
fn swapped(elements: &[u8], dtype: DataType) -> Bytes {
    let size = (dtype.bits() / 8).max(1);
    elements.chunks_exact(size).flat_map(|element| element.iter().rev().copied()).collect()
}
