//! Samples from images: a folder or a pattern of paths, one image after the other.

mod decode;
mod files;
mod frame;
mod options;
mod resample;
mod resize;

use std::path::{Path, PathBuf};

use quantize_rs::{CalibrationError, InputSpec, QuantizeError, Sample, Samples};
use quantize_rs_onnx::{DataType, Tensor};

use super::{BoxedSamples, convert, data, refuse_strings};
use crate::inputs::mismatch;
use decode::Pixels;
use frame::Frame;

pub use files::{IMAGE_EXTENSIONS, entries, is_image_path, matching_files};
pub use options::{ChannelOrder, Layout, Resize};

/// Images, and how their pixels are converted to inputs.
///
/// Each number is `(pixel · scale − mean) / std`, where a pixel is 0 to 255. All images are
/// converted in the same way:
///
/// - Images are read in the order of their paths, one at a time.
/// - The EXIF orientation is applied.
/// - Transparency is ignored; of 16 bits per channel the upper 8 are used; a model with one channel
///   gets the luma of ITU-R 601, and a grey image has three equal channels.
/// - An integer input gets the pixels themselves, unless `scale`, `mean` or `std` are set.
/// - If the model takes N images at a time, a sample has N images.
///
/// ```no_run
/// use quantize_rs::InputSpec;
/// use quantize_rs_onnx::Model;
/// use quantize_rs_runner::samples::ImageFolder;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let images = ImageFolder {
///     mean: vec![0.485, 0.456, 0.406],
///     std: vec![0.229, 0.224, 0.225],
///     crop: Some(256),
///     ..ImageFolder::new("images")
/// };
/// let model = Model::open("resnet18.onnx")?;
/// let samples = images.open(&InputSpec::of(&model), Some(100))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageFolder {
    /// A folder, or a pattern: `images/*.jpg`, `images/**` for all subfolders.
    pub path: PathBuf,
    /// Height and width; `None` uses those of the model's input.
    pub size: Option<[usize; 2]>,
    /// Subtracted from the scaled pixels: one number, or one per channel in the order of the input.
    pub mean: Vec<f64>,
    /// The divisor of the difference: one number, or one per channel.
    pub std: Vec<f64>,
    /// The factor for pixels, which are 0 to 255.
    pub scale: f64,
    /// The position of the channels; `None` finds the axis of the input with 3 or 1 of them.
    pub layout: Option<Layout>,
    /// The order of three channels.
    pub channel_order: ChannelOrder,
    /// The resampling filter.
    pub resize: Resize,
    /// Resizes the shorter side to this length and takes a center crop, as is usual for ImageNet;
    /// `None` resizes the whole image, whatever its aspect ratio.
    pub crop: Option<usize>,
    /// The maximum number of images.
    pub limit: Option<usize>,
}

impl ImageFolder {
    /// The images at `path`, with pixels scaled to 0 to 1 and the size of the model's input.
    pub fn new(path: impl Into<PathBuf>) -> ImageFolder {
        ImageFolder {
            path: path.into(),
            size: None,
            mean: vec![0.0],
            std: vec![1.0],
            scale: 1.0 / 255.0,
            layout: None,
            channel_order: ChannelOrder::Rgb,
            resize: Resize::Bilinear,
            crop: None,
            limit: None,
        }
    }

    /// Checks the options as far as possible without a model.
    ///
    /// # Errors
    /// [`quantize_rs::QuantizeErrorKind::Option`] with the name of the option.
    pub fn check(&self) -> Result<(), QuantizeError> {
        options::check(self)
    }

    /// The images as samples of a model with one input; `limit` is the maximum number of samples.
    ///
    /// # Errors
    /// [`CalibrationError`] if there are no images, or the options do not match the input. An error
    /// in a single image is reported when that image is read.
    pub fn open(
        &self,
        inputs: &[InputSpec],
        limit: Option<usize>,
    ) -> Result<BoxedSamples, CalibrationError> {
        self.check().map_err(|error| data(error.to_string()).caused_by(error))?;
        refuse_strings(inputs)?;
        let frame = Frame::of(self, inputs)?;
        let numbers = self.numbers(&frame)?;
        let mut paths = files::listed(&self.path)?;
        paths.truncate(self.limit.unwrap_or(usize::MAX));
        let (step, images, limit) = (frame.batch, paths.len(), limit.unwrap_or(usize::MAX));
        if limit == 0 {
            return Err(files::none("the limit is 0", &self.path));
        }
        if images % step != 0 && images / step < limit {
            let (name, left) = (&frame.name, images % step);
            let message = format!(
                "input `{name}` takes {step} images at a time, there are {images}: \
                 {left} are left over"
            );
            return Err(mismatch(message).at_value(self.path.to_string_lossy()));
        }
        paths.truncate(limit.saturating_mul(step));
        let (resize, crop, warning) = (self.resize, self.crop, self.other_units());
        Ok(Box::new(Images { frame, numbers, resize, crop, warning, paths: paths.into_iter() }))
    }

    /// A warning, if the mean is that of pixels in other units than `scale` gives them.
    fn other_units(&self) -> Option<String> {
        let end = 255.0 * self.scale;
        let (low, high) = (end.min(0.0), end.max(0.0));
        let mean = self.mean.iter().copied().find(|mean| *mean < low || *mean > high);
        if let Some(mean) = mean {
            let hint =
                if mean > 1.0 { "; a mean of pixels from 0 to 255 needs scale=1" } else { "" };
            return Some(format!(
                "mean has {mean}, and pixels times scale are from {low} to {high}{hint}"
            ));
        }
        let of_ones = |mean: &f64| *mean > 0.0 && *mean <= 1.0;
        (high >= 255.0 && self.mean.iter().all(of_ones)).then(|| {
            format!(
                "mean is {:?}, and pixels times scale are from 0 to {high}; a mean of pixels from \
                 0 to 1 needs scale=1/255",
                self.mean
            )
        })
    }

    /// Whether scale, mean and std have their defaults.
    fn is_plain(&self) -> bool {
        let all = |numbers: &[f64], default: &[f64]| numbers.iter().all(|n| default.contains(n));
        let default = ImageFolder::new("");
        let shift = all(&self.mean, &default.mean) && all(&self.std, &default.std);
        shift && self.scale == default.scale
    }

    /// The value of each pixel in each channel; `None` for unchanged pixels.
    fn numbers(&self, frame: &Frame) -> Result<Option<Vec<[f32; 256]>>, CalibrationError> {
        if self.is_plain() && !frame.dtype.is_float() {
            return Ok(None);
        }
        let mean = frame.by_channel("mean", &self.mean)?;
        let std = frame.by_channel("std", &self.std)?;
        #[allow(clippy::cast_possible_truncation)] // rounded to float32
        let number = |pixel: usize, (mean, std): (f64, f64)| {
            ((f64::from(u8::try_from(pixel).unwrap_or(u8::MAX)) * self.scale - mean) / std) as f32
        };
        let channels = mean.into_iter().zip(std);
        Ok(Some(channels.map(|by| std::array::from_fn(|pixel| number(pixel, by))).collect()))
    }
}

/// Images, read one after the other.
struct Images {
    frame: Frame,
    numbers: Option<Vec<[f32; 256]>>,
    resize: Resize,
    crop: Option<usize>,
    warning: Option<String>,
    paths: std::vec::IntoIter<PathBuf>,
}

impl Samples for Images {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let paths: Vec<PathBuf> = self.paths.by_ref().take(self.frame.batch).collect();
        (!paths.is_empty()).then(|| {
            let value = self.value(&paths)?;
            Ok(Sample { inputs: vec![(self.frame.name.clone(), value)] })
        })
    }

    fn skip_sample(&mut self) -> Option<Result<(), CalibrationError>> {
        let skipped = self.paths.by_ref().take(self.frame.batch).count();
        (skipped > 0).then_some(Ok(()))
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.paths.len() / self.frame.batch)
    }

    fn conversions(&self) -> Vec<String> {
        self.warning.iter().cloned().collect()
    }
}

impl Images {
    fn value(&self, paths: &[PathBuf]) -> Result<Tensor, CalibrationError> {
        let frame = &self.frame;
        let images = paths.iter().map(|path| self.pixels(path)).collect::<Result<Vec<_>, _>>()?;
        let tensor = match &self.numbers {
            None => Tensor {
                dtype: DataType::UInt8,
                shape: frame.shape(),
                data: self.ordered(&images, |_, pixel| pixel).into(),
            },
            Some(numbers) => {
                let values =
                    self.ordered(&images, |channel, pixel| numbers[channel][usize::from(pixel)]);
                Tensor::from_f32_vec(frame.shape(), values)
            }
        };
        convert(tensor, frame.dtype, &frame.name)
            .map_err(|error| error.in_file(paths[0].to_string_lossy()))
    }

    fn pixels(&self, path: &Path) -> Result<Pixels, CalibrationError> {
        let frame = &self.frame;
        let pixels = decode::read(path, frame.channels)?;
        resize::fit(pixels, frame.size, self.crop, self.resize)
            .map_err(|error| error.at_value(path.to_string_lossy()))
    }

    /// The pixels of all images in the order of the input.
    fn ordered<T>(&self, images: &[Pixels], number: impl Fn(usize, u8) -> T) -> Vec<T> {
        let Frame { channels, layout, order, size: [height, width], .. } = self.frame;
        let mut ordered = Vec::with_capacity(images.len() * height * width * channels);
        let source = |channel: usize| match order {
            ChannelOrder::Rgb => channel,
            ChannelOrder::Bgr => channels - 1 - channel,
        };
        for image in images {
            match layout {
                Layout::Nchw => {
                    for channel in 0..channels {
                        let plane = image.bytes.iter().skip(source(channel)).step_by(channels);
                        ordered.extend(plane.map(|pixel| number(channel, *pixel)));
                    }
                }
                Layout::Nhwc => {
                    for pixel in image.bytes.chunks_exact(channels) {
                        ordered.extend((0..channels).map(|c| number(c, pixel[source(c)])));
                    }
                }
            }
        }
        ordered
    }
}
