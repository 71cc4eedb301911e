//! Sources of samples: files, folders of images, arrays in memory, a random generator.
//!
//! All sources divide arrays into samples by the same rules ([`from_arrays`]), convert them to the
//! type of the input with the same function ([`convert`]), and have the same checks.

mod batching;
mod convert;
mod diagnostics;
mod expected;
mod fortran;
mod images;
mod iterables;
mod npy;
mod npz;
mod random;
mod rows;
mod safetensors;
mod sequence_lens;
mod synthetic;
mod units;
mod widths;

use std::fs::File;
use std::path::Path;

use quantize_rs::{CalibrationError, InputSpec, Samples};
use quantize_rs_onnx::Tensor;

pub use crate::inputs::refuse_strings;
pub use convert::convert;
pub use diagnostics::SampleDiagnostics;
pub use expected::expecting;
pub use images::{
    ChannelOrder, IMAGE_EXTENSIONS, ImageFolder, Layout, Resize, entries, is_image_path,
    matching_files,
};
pub use iterables::Items;
pub use random::random;
use rows::Rows;
pub use synthetic::{for_check, synthetic};

/// Samples that can be sent to another thread.
pub type BoxedSamples = Box<dyn Samples + Send>;

/// A file format of samples.
#[derive(Clone, Copy)]
pub struct Format {
    /// Extension of its files, in lower case and without the dot.
    pub extension: &'static str,
    /// The contents of such a file, as a short help text.
    pub about: &'static str,
    open: Open,
}

/// Opens a file of one format.
type Open = fn(&Path, &[InputSpec], Option<usize>) -> Result<BoxedSamples, CalibrationError>;

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Format(.{}: {})", self.extension, self.about)
    }
}

/// All formats that [`open`] reads.
pub const FORMATS: &[Format] = &[npy::FORMAT, npz::FORMAT, safetensors::FORMAT];

/// The samples of a file, whose format is that of its extension, or the images of a folder.
///
/// A folder, an image, or a pattern of paths such as `images/*.jpg` is read by an [`ImageFolder`]
/// with default options.
///
/// Arrays are divided into samples as by [`from_arrays`]; `limit` is the maximum number of samples.
/// Files are read sample by sample. Arrays in Fortran order, in which the elements of a sample are
/// not contiguous, are rearranged first, large ones in a temporary file.
///
/// # Errors
/// [`CalibrationError`] with the name of the file. If it could not be opened or read, the source is
/// the [`std::io::Error`]: a missing file has the `ErrorKind::NotFound`. An error in a single
/// sample is reported when that sample is read; the caller knows its number.
pub fn open(
    path: &Path,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    refuse_strings(inputs)?;
    if is_image_path(path) {
        return ImageFolder::new(path).open(inputs, limit);
    }
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let format = FORMATS.iter().find(|format| extension.as_deref() == Some(format.extension));
    // A path that does not exist is reported as that, whatever its extension.
    let metadata = std::fs::metadata(path).map_err(|error| io_error(path, error))?;
    let Some(format) = format else {
        let known: Vec<String> = FORMATS.iter().map(|f| format!(".{}", f.extension)).collect();
        let what = extension.map_or("no extension".to_owned(), |e| format!("extension .{e}"));
        let known = known.join(", ");
        let images =
            IMAGE_EXTENSIONS.iter().map(|extension| format!(".{extension}")).collect::<Vec<_>>();
        let images = images.join(", ");
        let message = format!(
            "samples are read from {known}, and images from {images}; this path has {what}"
        );
        return Err(data(message).at_value(path.to_string_lossy()));
    };
    if !metadata.is_file() {
        let message = format!("expected a .{} file, this is no regular file", format.extension);
        return Err(data(message).at_value(path.to_string_lossy()));
    }
    (format.open)(path, inputs, limit)
}

/// Samples from arrays in memory, which are not copied if type and order match.
///
/// Each array belongs to the input with its name; a single array called `""` or `arr_0` (numpy's
/// default name) belongs to the only input. Arrays that match no input, such as labels, are ignored
/// if every input has its array.
///
/// - An array with the rank of the input has samples along its first axis: as many rows per sample
///   as the model's first dimension, or one if that is dynamic.
/// - An array with one more axis has whole inputs along its first axis.
/// - A scalar input, such as a sampling rate, takes an array with one number for each sample, or a
///   single number for all of them.
///
/// All inputs, except those with a single number, must have the same number of samples. `limit` is
/// the maximum number of samples.
///
/// ```
/// use quantize_rs::InputSpec;
/// use quantize_rs_onnx::{DataType, Tensor};
/// use quantize_rs_runner::samples;
///
/// let shape = Some(vec![None, Some(2)]);
/// let input = InputSpec { name: "x".into(), dtype: Some(DataType::Float), shape };
/// let rows = Tensor::from_f32(vec![3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// let mut samples = samples::from_arrays(vec![("x".into(), rows)], &[input], None)?;
/// assert_eq!(samples.len_hint(), Some(3));
/// let first = samples.next_sample().unwrap()?;
/// assert_eq!(first.get("x"), Some(&Tensor::from_f32(vec![1, 2], &[1.0, 2.0])));
/// # Ok::<(), quantize_rs::CalibrationError>(())
/// ```
///
/// # Errors
/// [`CalibrationError`] with the name of the array and the expected shape. NaN, infinity and values
/// that do not fit the type of the input are reported when their sample is read.
pub fn from_arrays(
    arrays: Vec<(String, Tensor)>,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    let arrays = batching::in_order(arrays, inputs)?;
    let rows = arrays.into_iter().map(|(name, array)| Rows::from_tensor(&name, array));
    batching::samples(rows.collect::<Result<_, _>>()?, inputs, limit)
}

/// The error for a file or array that cannot be read or used.
fn data(message: impl Into<String>) -> CalibrationError {
    CalibrationError::data(message)
}

fn io_error(path: &Path, error: std::io::Error) -> CalibrationError {
    data(format!("cannot read the file: {error}")).at_value(path.to_string_lossy()).caused_by(error)
}

/// The file and its length.
fn open_file(path: &Path) -> Result<(File, u64), CalibrationError> {
    let file = File::open(path).map_err(|error| io_error(path, error))?;
    let length = file.metadata().map_err(|error| io_error(path, error))?.len();
    Ok((file, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_distinct_lower_case_extensions() {
        for (position, format) in FORMATS.iter().enumerate() {
            assert_eq!(format.extension, format.extension.to_lowercase());
            assert!(!FORMATS[..position].iter().any(|f| f.extension == format.extension));
            assert!(!format.about.is_empty());
        }
    }

    #[test]
    fn a_missing_file_is_reported_and_an_unknown_extension_lists_the_known() {
        let directory = tempfile::tempdir().expect("a directory");
        let message = |name: &str| match open(&directory.path().join(name), &[], None) {
            Ok(_) => unreachable!("{name} opened"),
            Err(error) => error,
        };
        let source = std::error::Error::source(&message("none.npy"))
            .and_then(|cause| cause.downcast_ref::<std::io::Error>())
            .map(std::io::Error::kind);
        assert_eq!(source, Some(std::io::ErrorKind::NotFound));

        std::fs::write(directory.path().join("x.csv"), "1").expect("written");
        let error = message("x.csv").to_string();
        let known = "read from .npy, .npz, .safetensors, and images from .jpg, .jpeg, .png; this";
        assert!(error.contains(known) && error.contains("has extension .csv"), "{error}");
    }
}
