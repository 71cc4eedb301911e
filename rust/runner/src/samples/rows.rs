//! An array that is read row by row along its first axis, from memory or from a file. A single
//! number is one row.

use std::fs::File;
use std::io::{self, BufReader, Read};

use bytes::Bytes;
use quantize_rs::CalibrationError;
use quantize_rs_onnx::{DataType, Tensor};

use super::data;
use super::fortran::{self, Columns, Elements, Failure, Rearranged};
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
    /// A file that holds them as they are.
    File(BufReader<File>),
    /// A decoder of a part of a file.
    Stream(Box<dyn Read + Send>),
    /// A file that holds their columns.
    Columns(Columns),
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
        let row = shape.get(1..).unwrap_or_default();
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
        let elements = match &mut self.source {
            _ if rows == 0 || self.row_bytes == 0 => None,
            Source::File(file) => Some(Elements::File(file)),
            Source::Stream(reader) => Some(Elements::Stream(reader)),
            Source::Memory(_) | Source::Columns(_) => None,
        };
        if let Some(elements) = elements {
            let rearranged = fortran::rearranged(elements, rows, self.row_bytes, width.max(1));
            self.source = match rearranged.map_err(|failure| self.not_rearranged(failure))? {
                Rearranged::Memory(bytes) => Source::Memory(bytes.into()),
                Rearranged::File(file) => Source::File(file),
                Rearranged::Columns(columns) => Source::Columns(columns),
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
        let mut rows = match self.source.reader() {
            None => self.source.split_to(bytes),
            Some(reader) => {
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
            let shape = self.shape.get(1..).unwrap_or_default();
            let width = (self.dtype.bits() / 8).max(1);
            let rearranged = rows.chunks_exact(self.row_bytes);
            let rearranged = rearranged.flat_map(|row| fortran::c_order(row, shape, width));
            rows = rearranged.collect();
        }
        Ok(if self.big_endian { swapped(&rows, self.dtype) } else { rows })
    }

    /// Passes over the next `count` rows.
    pub(super) fn skip(&mut self, count: usize) -> Result<(), CalibrationError> {
        let bytes = count.saturating_mul(self.row_bytes);
        let skipped = match &mut self.source {
            Source::Memory(_) => {
                self.source.split_to(bytes);
                Ok(())
            }
            Source::File(file) => i64::try_from(bytes)
                .map_err(|_| io::ErrorKind::InvalidInput.into())
                .and_then(|bytes| file.seek_relative(bytes)),
            Source::Columns(columns) => {
                columns.skip(bytes);
                Ok(())
            }
            Source::Stream(reader) => {
                io::copy(&mut reader.take(bytes as u64), &mut io::sink()).map(drop)
            }
        };
        skipped.map_err(|error| self.unreadable(error))
    }

    fn not_rearranged(&self, failure: Failure) -> CalibrationError {
        match failure {
            Failure::Elements(error) => self.unreadable(error),
            Failure::Temporary(error) => data(format!(
                "its elements are in Fortran order, and no temporary file could be written in \
                 `{}` to rearrange them: {error}; save the array in C order, or set TMPDIR",
                std::env::temp_dir().display()
            ))
            .at_value(&self.what),
        }
    }

    fn unreadable(&self, error: io::Error) -> CalibrationError {
        data(format!("cannot read the file: {error}")).at_value(&self.what).caused_by(error)
    }
}

impl Source {
    /// What elements are read from, if they are not in memory.
    fn reader(&mut self) -> Option<&mut dyn Read> {
        match self {
            Source::Memory(_) => None,
            Source::File(file) => Some(file),
            Source::Stream(reader) => Some(reader),
            Source::Columns(columns) => Some(columns),
        }
    }

    /// The next bytes of those in memory; fewer at their end.
    fn split_to(&mut self, bytes: usize) -> Bytes {
        match self {
            Source::Memory(rest) => rest.split_to(bytes.min(rest.len())),
            Source::File(_) | Source::Stream(_) | Source::Columns(_) => Bytes::new(),
        }
    }
}

/// The elements with their bytes in reverse order.
fn swapped(elements: &[u8], dtype: DataType) -> Bytes {
    let size = (dtype.bits() / 8).max(1);
    elements.chunks_exact(size).flat_map(|element| element.iter().rev().copied()).collect()
}
