//! Calibration samples: a file of samples, images or, on request, random numbers.

use std::path::{Path, PathBuf};

use clap::Args;
use quantize_rs::{InputSpec, RANDOM_SAMPLES};
use quantize_rs_runner::samples::{self, BoxedSamples, FORMATS, IMAGE_EXTENSIONS};

use crate::failure::Failure;
use crate::images::ImageArguments;
use crate::options;

/// The word for random samples. A file of this name can be given as `./random`.
const RANDOM: &str = "random";

/// Options that say which samples are used.
pub(crate) const SAMPLING: [&str; 4] = ["limit", "num_samples", "sample_shape", "seed"];

/// The default number of random samples.
const NUM_SAMPLES: usize = 100;

/// Where samples come from.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Samples")]
pub(crate) struct SampleArguments {
    #[arg(
        id = "calibration_data",
        long = "calibration-data",
        visible_alias = "data",
        value_name = "PATH",
        help = help("Samples to calibrate with")
    )]
    pub(crate) data: Option<PathBuf>,
    #[arg(
        long,
        value_name = "N",
        requires = "calibration_data",
        value_parser = options::parsed::<usize>("limit"),
        help = options::help("limit")
    )]
    limit: Option<usize>,
    #[arg(
        long,
        value_name = "N",
        requires = "calibration_data",
        value_parser = options::parsed::<usize>("num_samples"),
        help = options::help("num_samples")
    )]
    num_samples: Option<usize>,
    #[arg(
        long,
        value_name = "DIMS",
        value_delimiter = ',',
        requires = "calibration_data",
        help = options::help("sample_shape")
    )]
    sample_shape: Option<Vec<usize>>,
    #[arg(
        long,
        value_name = "N",
        requires = "calibration_data",
        help = options::help("seed")
    )]
    seed: Option<u64>,
    #[command(flatten)]
    pub(crate) images: ImageArguments,
}

/// Whether a path is the word for random samples.
pub(crate) fn is_random(path: &Path) -> bool {
    path == Path::new(RANDOM)
}

/// Samples for another purpose than calibration: those at `path`, or random ones.
pub(crate) fn others(
    path: &Path,
    images: &ImageArguments,
    inputs: &[InputSpec],
) -> Result<BoxedSamples, Failure> {
    if is_random(path) {
        return Ok(samples::random(inputs, NUM_SAMPLES, None, 0)?);
    }
    if samples::is_image_path(path) {
        return Ok(images.folder(path)?.open(inputs, None)?);
    }
    Ok(samples::open(path, inputs, None)?)
}

/// The samples of `quantize`, which leaves activations in float.
pub(crate) const FOR_BIASES: &str =
    "Samples to run the model on, to correct biases by the mean shift that quantized weights cause";

/// The help about samples: their purpose, then the accepted formats.
pub(crate) fn help(purpose: &str) -> String {
    let formats: Vec<String> =
        FORMATS.iter().map(|format| format!(".{} ({})", format.extension, format.about)).collect();
    let images: Vec<String> =
        IMAGE_EXTENSIONS.iter().map(|extension| format!(".{extension}")).collect();
    format!(
        "{purpose}: {}; a folder or a pattern of images ({}); or `{RANDOM}`, for \
         a first try",
        formats.join(", "),
        images.join(", ")
    )
}

impl SampleArguments {
    /// Whether the samples are random numbers.
    pub(crate) fn are_random(&self) -> bool {
        self.data.as_deref().is_some_and(is_random)
    }

    /// Whether `path` has the same samples.
    pub(crate) fn hold(&self, path: &Path) -> bool {
        let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let Some(data) = &self.data else { return false };
        if is_random(path) {
            return is_random(data) && self.seed.unwrap_or(0) == 0;
        }
        !is_random(data) && place(data) == place(path)
    }

    /// The warning of the report if the samples are random numbers.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        self.are_random().then_some(RANDOM_SAMPLES)
    }

    /// The samples for a model with these inputs; `None` if no source was given.
    pub(crate) fn open(&self, inputs: &[InputSpec]) -> Result<Option<BoxedSamples>, Failure> {
        self.open_beside(inputs, None)
    }

    /// As [`Self::open`], with another source of samples, to which the flags for images may apply.
    pub(crate) fn open_beside(
        &self,
        inputs: &[InputSpec],
        other: Option<&Path>,
    ) -> Result<Option<BoxedSamples>, Failure> {
        self.images.check(&[self.data.as_deref(), other])?;
        let Some(path) = &self.data else { return Ok(None) };
        let samples = if self.are_random() { self.random(inputs) } else { self.file(path, inputs) };
        samples.map(Some)
    }

    fn random(&self, inputs: &[InputSpec]) -> Result<BoxedSamples, Failure> {
        if self.limit.is_some() {
            let message = "--limit is for files; --num-samples is for --calibration-data random";
            return Err(Failure::Misuse(message.to_owned()));
        }
        let count = self.num_samples.unwrap_or(NUM_SAMPLES);
        let shape = self.sample_shape.as_deref();
        Ok(samples::random(inputs, count, shape, self.seed.unwrap_or(0))?)
    }

    fn file(&self, path: &Path, inputs: &[InputSpec]) -> Result<BoxedSamples, Failure> {
        let only_random =
            [("--num-samples", self.num_samples.is_some()), ("--seed", self.seed.is_some())];
        if let Some((flag, _)) = only_random.iter().find(|(_, given)| *given) {
            let message = format!("{flag} is for --calibration-data random; --limit is for files");
            return Err(Failure::Misuse(message));
        }
        let found = if samples::is_image_path(path) {
            self.images.folder(path)?.open(inputs, self.limit)?
        } else {
            samples::open(path, inputs, self.limit)?
        };
        Ok(match &self.sample_shape {
            None => found,
            Some(shape) => samples::expecting(found, shape.clone()),
        })
    }
}
