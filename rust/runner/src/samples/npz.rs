//! numpy's `.npz`: a zip archive with one `.npy` file per array.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use quantize_rs::{CalibrationError, InputSpec};
use zip::ZipArchive;
use zip::read::ZipFile;

use super::rows::Rows;
use super::{BoxedSamples, Format, batching, data, npy, open_file};

pub(super) const FORMAT: Format =
    Format { extension: "npz", about: "numpy arrays by the names of the inputs", open };

fn open(
    path: &Path,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    let what = path.to_string_lossy();
    let (file, length) = open_file(path)?;
    let broken = || data("not a readable .npz archive").at_value(what.as_ref());
    let mut archive =
        ZipArchive::new(BufReader::new(file)).map_err(|error| broken().caused_by(error))?;
    let names = archive
        .file_names()
        .map(|name| name.map(|name| name.strip_suffix(".npy").unwrap_or(&name).to_owned()));
    let names: Vec<String> =
        names.collect::<Result<_, _>>().map_err(|error| broken().caused_by(error))?;
    let positions =
        batching::by_input(&names, inputs).map_err(|error| error.in_file(what.as_ref()))?;
    let rows = positions.into_iter().zip(inputs).map(|(position, input)| {
        let what = format!("{what}[{}]", names[position]);
        let entry = archive.by_index(position).map_err(|error| unreadable(&what).caused_by(error));
        read(entry?, length, &what, |shape| batching::rows_needed(input, &what, shape, limit))
    });
    batching::samples(rows.collect::<Result<_, _>>()?, inputs, limit)
}

/// The first rows of the array in an entry of an archive of `length` bytes: as many rows as
/// `needed` returns for the shape of the array.
fn read(
    mut entry: ZipFile<'_, BufReader<File>>,
    length: u64,
    what: &str,
    needed: impl FnOnce(&[usize]) -> Result<usize, CalibrationError>,
) -> Result<Rows, CalibrationError> {
    let size = entry.size();
    let mut header = npy::read_header(&mut entry, size, what)?;
    let all = header.data_len().and_then(|bytes| u64::try_from(bytes).ok());
    if all != size.checked_sub(header.data_start) {
        let shape = &header.shape;
        let message = format!("{size} bytes cannot hold shape {shape:?} of {}", header.dtype);
        return Err(data(message).at_value(what));
    }
    // In Fortran order the first rows are scattered over the whole array.
    if !header.fortran && !header.shape.is_empty() {
        header.shape[0] = needed(&header.shape)?;
    }
    // Deflated data may be longer than the file; memory grows with the data, not with the claimed
    // length.
    let expected = header.data_len().map_or(0, |bytes| bytes as u64);
    let mut bytes = Vec::with_capacity(usize::try_from(expected.min(length)).unwrap_or(0));
    let mut elements = entry.take(expected);
    elements.read_to_end(&mut bytes).map_err(|error| unreadable(what).caused_by(error))?;
    if Some(expected) == all {
        // The checksum is verified at the end.
        let mut entry = elements.into_inner();
        io::copy(&mut entry, &mut io::sink()).map_err(|error| unreadable(what).caused_by(error))?;
    }
    header.into_rows(what, bytes)
}

fn unreadable(what: &str) -> CalibrationError {
    data("cannot be read from its archive").at_value(what)
}
