//! An array that is read row by row along its first axis, from memory or from a file.

use std::io::{self, Read};

use bytes::Bytes;
use quantize_rs::CalibrationError;
use quantize_rs_onnx::{DataType, Tensor};

use super::data;
use super::fortran::{self, Rearranged};
use crate::inputs;

/// An array with checked sizes, read up to some row.
pub(super) struct Rows {
    /// Name of the array or file, for messages.
    pub(super) what: String,
    pub(super) dtype: DataType,
    pub(super) shape: Vec<usize>,
    row_bytes: usize,
    big_endian: bool,
    /// Whether the elements of a row are in Fortran order.
    fortran: bool,
    source: Source,
}

/// The elements, row by row.
pub(super) enum Source {
    Memory(Bytes),
    /// A file, or a decoder of a part of one.
    Stream(Box<dyn Read + Send>),
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
        let (what, fortran) = (what.to_owned(), false);
        Ok(Rows { what, dtype, shape, row_bytes, big_endian, fortran, source })
    }

    /// The same rows, whose elements are in Fortran order in the source.
    pub(super) fn in_fortran_order(mut self) -> Result<Rows, CalibrationError> {
        let (rows, width) = (self.shape.first().copied().unwrap_or(0), self.dtype.bits() / 8);
        if let Source::Stream(reader) = &mut self.source
            && rows > 0
            && self.row_bytes > 0
        {
            let rearranged = fortran::rearranged(reader, rows, self.row_bytes, width.max(1));
            self.source = match rearranged.map_err(|error| self.unreadable(error))? {
                Rearranged::Memory(bytes) => Source::Memory(bytes.into()),
                Rearranged::File(file) => Source::Stream(Box::new(file)),
            };
        }
        Ok(Rows { fortran: true, ..self })
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
        let mut rows = match &mut self.source {
            Source::Memory(rest) => rest.split_to(bytes.min(rest.len())),
            Source::Stream(reader) => {
                let mut rows = Vec::new();
                let read = match rows.try_reserve_exact(bytes) {
                    Ok(()) => {
                        rows.resize(bytes, 0);
                        reader.read_exact(&mut rows)
                    }
                    Err(_) => Err(io::ErrorKind::OutOfMemory.into()),
                };
                read.map_err(|error| self.unreadable(error))?;
                Bytes::from(rows)
            }
        };
        if self.fortran && self.row_bytes > 0 {
            let (shape, width) = (&self.shape[1..], (self.dtype.bits() / 8).max(1));
            let rearranged = rows.chunks_exact(self.row_bytes);
            let rearranged = rearranged.flat_map(|row| fortran::c_order(row, shape, width));
            rows = rearranged.collect();
        }
        Ok(if self.big_endian { swapped(&rows, self.dtype) } else { rows })
    }

    fn unreadable(&self, error: io::Error) -> CalibrationError {
        data(format!("cannot read the file: {error}")).at_value(&self.what).caused_by(error)
    }
}

/// The elements with their bytes in reverse order.
fn swapped(elements: &[u8], dtype: DataType) -> Bytes {
    let size = (dtype.bits() / 8).max(1);
    elements.chunks_exact(size).flat_map(|element| element.iter().rev().copied()).collect()
}
