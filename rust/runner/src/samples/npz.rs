//! numpy's `.npz`: a zip archive with one `.npy` file per array.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use quantize_rs::{CalibrationError, InputSpec};
use zip::ZipArchive;

use super::rows::Rows;
use super::{BoxedSamples, Format, cut, data, npy, open_file};

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
    let positions = cut::by_input(&names, inputs).map_err(|error| error.in_file(what.as_ref()))?;
    let rows = positions.into_iter().map(|position| {
        let what = format!("{what}[{}]", names[position]);
        read(&mut archive, position, length, &what)
    });
    cut::samples(rows.collect::<Result<_, _>>()?, inputs, limit)
}

/// The array at `position` of an archive whose file has `length` bytes.
fn read(
    archive: &mut ZipArchive<BufReader<File>>,
    position: usize,
    length: u64,
    what: &str,
) -> Result<Rows, CalibrationError> {
    let broken = || data("cannot be read from its archive").at_value(what);
    let mut entry = archive.by_index(position).map_err(|error| broken().caused_by(error))?;
    let size = entry.size();
    let header = npy::read_header(&mut entry, size, what)?;
    let expected = header.data_len().and_then(|bytes| u64::try_from(bytes).ok());
    if expected != size.checked_sub(header.data_start) {
        let shape = &header.shape;
        let message = format!("{size} bytes cannot hold shape {shape:?} of {}", header.dtype);
        return Err(data(message).at_value(what));
    }
    // Deflated data may be longer than the file; it gets memory as it comes, not as it claims.
    let expected = expected.unwrap_or(0);
    let mut bytes = Vec::with_capacity(usize::try_from(expected.min(length)).unwrap_or(0));
    let mut elements = entry.take(expected);
    elements.read_to_end(&mut bytes).map_err(|error| broken().caused_by(error))?;
    // The checksum is compared at the very end.
    let mut entry = elements.into_inner();
    io::copy(&mut entry, &mut io::sink()).map_err(|error| broken().caused_by(error))?;
    header.into_rows(what, bytes)
}
