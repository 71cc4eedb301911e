//! numpy's `.npz`: a zip archive with one `.npy` file per array.
//!
//! Each array is read sample by sample through its own handle of the file: a stored one as it is, a
//! deflated one through a decoder. Only the directory is read with the library for archives.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::CrcReader;
use flate2::bufread::DeflateDecoder;
use quantize_rs::{CalibrationError, InputSpec};
use zip::read::ZipFile;
use zip::{CompressionMethod, ZipArchive};

use super::rows::{Rows, Source};
use super::{BoxedSamples, Format, batching, data, io_error, npy, open_file};

pub(super) const FORMAT: Format =
    Format { extension: "npz", about: "numpy arrays by the names of the inputs", open };

fn open(
    path: &Path,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    let what = path.to_string_lossy();
    let (file, _) = open_file(path)?;
    let broken = || data("not a readable .npz archive").at_value(what.as_ref());
    let mut archive =
        ZipArchive::new(BufReader::new(file)).map_err(|error| broken().caused_by(error))?;
    let names = archive
        .file_names()
        .map(|name| name.map(|name| name.strip_suffix(".npy").unwrap_or(&name).to_owned()));
    let names: Vec<String> =
        names.collect::<Result<_, _>>().map_err(|error| broken().caused_by(error))?;
    let positions =
        batching::of_file(&names, inputs).map_err(|error| error.in_file(what.as_ref()))?;
    let rows = positions.into_iter().map(|position| {
        let what = format!("{what}[{}]", names[position]);
        let entry = archive.by_index(position).map_err(|error| unreadable(&what).caused_by(error));
        rows(path, &entry?, &what)
    });
    let warning = batching::renamed(&names, inputs);
    batching::samples_with(rows.collect::<Result<_, _>>()?, inputs, limit, warning)
}

/// The rows of the array in an entry of an archive.
fn rows(
    path: &Path,
    entry: &ZipFile<'_, BufReader<File>>,
    what: &str,
) -> Result<Rows, CalibrationError> {
    let size = entry.size();
    let start = entry.data_start().ok_or_else(|| unreadable(what))?;
    let (mut file, _) = open_file(path)?;
    file.seek(SeekFrom::Start(start)).map_err(|error| io_error(path, error))?;
    let stored = BufReader::new(file).take(entry.compressed_size());
    let elements: Box<dyn Read + Send> = match entry.compression() {
        CompressionMethod::Stored => Box::new(stored),
        CompressionMethod::Deflated => Box::new(DeflateDecoder::new(stored)),
        other => {
            let message = format!("it is compressed by {other}: save it with numpy.savez");
            return Err(data(message).at_value(what));
        }
    };
    let elements = CrcReader::new(elements);
    let mut elements = Checked { elements, left: size, checksum: entry.crc32() };
    let header = npy::read_header(&mut elements, size, what)?;
    let all = header.data_len().and_then(|bytes| u64::try_from(bytes).ok());
    if all != size.checked_sub(header.data_start) {
        let shape = &header.shape;
        let message = format!("{size} bytes cannot hold shape {shape:?} of {}", header.dtype);
        return Err(data(message).at_value(what));
    }
    // The checksum is that of all elements, so that those of other parts are read, too.
    header.rows(what, size, Source::Stream(Box::new(elements)))
}

fn unreadable(what: &str) -> CalibrationError {
    data("cannot be read from its archive").at_value(what)
}

/// The bytes of an entry. The checksum is verified when the last of them is read.
struct Checked<R> {
    elements: CrcReader<R>,
    /// The number of bytes that are not read yet.
    left: u64,
    checksum: u32,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Deflated data may be longer than the archive says.
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.elements.read(&mut buffer[..most])?;
        self.left -= count as u64;
        if self.left == 0 && count > 0 && self.elements.crc().sum() != self.checksum {
            let what = "it cannot be read from its archive: its checksum is wrong";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(count)
    }
}
