//! Where samples come from: files, folders of images, arrays in memory, a random generator.
//!
//! Whatever the source, arrays are cut into samples by one rule ([`from_arrays`]), converted to the
//! type of the input by one function ([`convert`]), and checked the same way.

mod batching;
mod convert;
mod diagnostics;
mod images;
mod iterables;
mod npy;
mod npz;
mod random;
mod rows;
mod safetensors;

use std::fs::File;
use std::path::Path;

use quantize_rs::{CalibrationError, CalibrationErrorKind, InputSpec, Samples};
use quantize_rs_onnx::Tensor;

pub use convert::convert;
pub use diagnostics::{MIN_SAMPLES, SampleDiagnostics};
pub use images::{
    ChannelOrder, IMAGE_EXTENSIONS, ImageFolder, Layout, Resize, is_image_path, matching_files,
};
pub use iterables::Items;
pub use random::random;
use rows::Rows;

/// Samples that may be handed to another thread.
pub type BoxedSamples = Box<dyn Samples + Send>;

/// A kind of file that samples can be read from.
#[derive(Clone, Copy)]
pub struct Format {
    /// Extension of its files, in lower case and without the dot.
    pub extension: &'static str,
    /// What such a file holds, in half a line for a help text.
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

/// Every format that [`open`] knows.
pub const FORMATS: &[Format] = &[npy::FORMAT, npz::FORMAT, safetensors::FORMAT];

/// The samples in a file, whose format is told by its extension, or the images in a folder.
///
/// A folder, an image, or a pattern of paths such as `photos/*.jpg` is what an [`ImageFolder`] says
/// that has no options.
///
/// Arrays are cut into samples as [`from_arrays`] says; `limit` takes the first samples only.
/// Files are read sample by sample, but for `.npz`, of which the samples asked for are held in
/// memory, and arrays in Fortran order, which are read whole: there a sample lies everywhere.
///
/// # Errors
/// [`CalibrationError`] naming the file. Where it could not be opened or read, the
/// [`std::io::Error`] is the source: a missing file is recognized by its `ErrorKind::NotFound`.
/// What is wrong with a single sample is reported when that sample is reached; its number is known
/// to whoever counts them.
pub fn open(
    path: &Path,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    if is_image_path(path) {
        return ImageFolder::new(path).open(inputs, limit);
    }
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let format = FORMATS.iter().find(|format| extension.as_deref() == Some(format.extension));
    // A path that leads nowhere is reported as that, whatever its extension.
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

/// Samples cut from arrays in memory, which are not copied where type and order allow.
///
/// Each array belongs to the input of its name; a lone array called `""` or `arr_0` (numpy's name
/// for an array without one) belongs to the only input. Arrays that match no input, such as
/// labels, are left aside when every input has its array.
///
/// - An array of the input's rank has samples along its first axis, taken as many at a time as the
///   model's first dimension says, or one at a time where that is dynamic.
/// - An array with one axis more has whole inputs along its first axis.
///
/// Every input must get the same number of samples. `limit` takes the first samples only.
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
/// [`CalibrationError`] naming the array and what would have fitted. NaN, infinity and values that
/// the input's type cannot hold are reported when their sample is reached.
pub fn from_arrays(
    arrays: Vec<(String, Tensor)>,
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<BoxedSamples, CalibrationError> {
    let arrays = batching::in_order(arrays, inputs)?;
    let rows = arrays.into_iter().map(|(name, array)| Rows::from_tensor(&name, array));
    batching::samples(rows.collect::<Result<_, _>>()?, inputs, limit)
}

/// A file or array that is not readable or not of a usable form.
fn data(message: impl Into<String>) -> CalibrationError {
    CalibrationError::new(CalibrationErrorKind::Data(message.into()))
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
    fn formats_are_told_apart_by_extensions_in_lower_case() {
        for (position, format) in FORMATS.iter().enumerate() {
            assert_eq!(format.extension, format.extension.to_lowercase());
            assert!(!FORMATS[..position].iter().any(|f| f.extension == format.extension));
            assert!(!format.about.is_empty());
        }
    }

    #[test]
    fn a_missing_file_is_not_found_and_another_extension_lists_the_known() {
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
