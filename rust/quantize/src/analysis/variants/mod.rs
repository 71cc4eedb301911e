//! Makes all variants of a model that a platform looks for: file names, sizes, errors and times.

mod table;

use std::fmt;
use std::path::Path;

use quantize_rs_onnx::Model;
use serde::Serialize;
use serde_json::Value;

use super::compare::{CompareOptions, Comparison, compare_outputs};
use super::latency::LatencyOptions;
use super::{HalfOptions, SliceSamples, convert_half, convert_half_with_samples};
use crate::calibrate::engine::{Engine, Sample, Samples};
use crate::calibrate::{Control, Progress, calibrate};
use crate::error::{QuantizeErrorKind, while_unchanged};
use crate::options::{Given, Verb};
use crate::report::worst_sqnr;
use crate::util::text::size;
use crate::{
    CalibrationError, CalibrationErrorKind, Config, Method, PreprocessedModel, QuantizeError,
};
use table::{Options, Recipe};

pub use table::{SETS, Variant, VariantSet};

/// The most samples that are used.
const MAX_SAMPLES: usize = 128;

/// The most of them that errors are measured on.
const MAX_COMPARED: usize = 32;

/// What follows the name of a file in that of its external data: the only name that
/// Transformers.js loads, and that of Optimum.
const DATA_SUFFIX: &str = "_data";

/// Runs of each model to measure its latency.
const RUNS: usize = 20;

/// A variant that was made, or could not be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VariantRow {
    /// The name of the variant.
    pub name: String,
    /// The file; `None` if it was not written.
    pub file: Option<String>,
    /// One line about it.
    pub about: String,
    /// The size in bytes, with external data.
    pub bytes: Option<u64>,
    /// The SQNR of the worst output on the samples, in decibels.
    pub sqnr_db: Option<f64>,
    /// The median time of a run, in milliseconds.
    pub median_ms: Option<f64>,
    /// Why it was not written, or could not be run.
    pub problem: Option<String>,
    /// Warnings of its report.
    pub warnings: Vec<String>,
}

impl VariantRow {
    /// The row of a variant before it is made.
    fn of(variant: &Variant) -> VariantRow {
        VariantRow {
            name: variant.name.to_owned(),
            file: None,
            about: variant.about.to_owned(),
            bytes: None,
            sqnr_db: None,
            median_ms: None,
            problem: None,
            warnings: Vec::new(),
        }
    }
}

/// The variants of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Variants {
    /// The path of the model; `None` for a model in memory.
    pub input: Option<String>,
    /// The folder with the files.
    pub output: String,
    /// The platform that the files are for.
    pub platform: String,
    /// The size of the model in bytes, with external data.
    pub bytes_before: u64,
    /// How many samples errors were measured on; 0 if none were.
    pub samples: usize,
    /// The engine that ran the first variant on them.
    pub engine: Option<String>,
    /// The variants.
    pub variants: Vec<VariantRow>,
}

/// Which variants are made, and where they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VariantOptions {
    /// The platform that the files are for: the name of one of [`SETS`].
    pub platform: String,
    /// Only the variants of these names.
    pub only: Option<Vec<String>>,
    /// What the names of the files begin with: the name of the model.
    pub stem: String,
}

/// The set of this name, and its variants that are wanted.
///
/// # Errors
/// There is no such set or variant.
fn chosen(options: &VariantOptions) -> Result<Vec<&'static Variant>, QuantizeError> {
    let Some(set) = SETS.iter().find(|set| set.name == options.platform) else {
        let known: Vec<&str> = SETS.iter().map(|set| set.name).collect();
        let what = format!("is `{}`, expected one of {}", options.platform, known.join(", "));
        return Err(QuantizeError::option("platform", what));
    };
    let only = options.only.as_deref();
    for name in only.unwrap_or_default() {
        if !set.variants.iter().any(|variant| variant.name == name) {
            let known: Vec<&str> = set.variants.iter().map(|variant| variant.name).collect();
            let what = format!("names `{name}`, expected some of {}", known.join(", "));
            return Err(QuantizeError::option("only", what));
        }
    }
    let wanted =
        |variant: &&Variant| only.is_none_or(|only| only.iter().any(|name| name == variant.name));
    Ok(set.variants.iter().filter(wanted).collect())
}

/// Writes variants of a model into a folder, each completely or not at all.
///
/// With samples, weights are rounded with their help, and the errors of the outputs and the latency
/// are measured; without them, files are only written. A variant that cannot be made is a row with
/// the reason. The source is never written to: a variant that would have its path is the source
/// itself.
///
/// ```
/// use quantize_rs::{Model, VariantOptions, variants};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// # let folder = tempfile::tempdir()?;
/// let (platform, stem) = ("transformers.js".to_owned(), "model".to_owned());
/// let options = VariantOptions { platform, stem, only: Some(vec!["fp16".to_owned()]) };
/// let mut go_on = |_| true;
/// let made = variants(&Model::open(path)?, folder.path(), &options, None, &mut go_on)?;
/// assert!(folder.path().join("model_fp16.onnx").exists());
/// assert_eq!(made.variants.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An unknown set or variant, a folder that cannot be written to, samples that do not fit the
/// model, or the caller cancels.
pub fn variants(
    model: &Model,
    folder: &Path,
    options: &VariantOptions,
    samples: Option<(&dyn Engine, &mut dyn Samples, usize)>,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Variants, QuantizeError> {
    while_unchanged(&[model], || {
        let wanted = chosen(options)?;
        let mut made = Variants {
            input: model.path().map(|path| path.display().to_string()),
            output: folder.display().to_string(),
            platform: options.platform.clone(),
            bytes_before: model.byte_len(),
            ..Variants::default()
        };
        let run = match samples {
            Some((engine, samples, threads)) => {
                let mut kept = Vec::new();
                while let Some(sample) = samples.next_sample().filter(|_| kept.len() < MAX_SAMPLES)
                {
                    kept.push(sample.map_err(|error| error.at_sample(kept.len()))?);
                }
                Some(Run { engine, kept, threads })
            }
            None => None,
        };
        let total = wanted.len();
        for (done, variant) in wanted.into_iter().enumerate() {
            let mut go_on = |now: Progress| progress(Progress { done, total: Some(total), ..now });
            if !go_on(Progress::of(done, None)) {
                return Err(CalibrationError::new(CalibrationErrorKind::Cancelled).into());
            }
            let path = folder.join(format!("{}{}.onnx", options.stem, variant.suffix));
            let (row, found) = written(model, variant, &path, run.as_ref(), &mut go_on)?;
            made.variants.push(row);
            if let Some(found) = found {
                made.samples = found.samples;
                made.engine.get_or_insert(found.engine);
            }
        }
        progress(Progress::of(total, Some(total)));
        Ok(made)
    })
}

/// Samples, and the engine that runs them.
struct Run<'a> {
    engine: &'a dyn Engine,
    kept: Vec<Sample>,
    threads: usize,
}

impl Run<'_> {
    fn samples(&self, most: usize) -> SliceSamples<'_> {
        SliceSamples(self.kept[..most.min(self.kept.len())].iter())
    }
}

/// Whether a path is that of the file the model was read from, or a link to it.
fn is_source(model: &Model, path: &Path) -> bool {
    let same = |source: &Path| Some(source.canonicalize().ok()? == path.canonicalize().ok()?);
    model.path().and_then(same).unwrap_or(false)
}

/// A variant in its file, and its comparison with the model if it was run.
fn written(
    model: &Model,
    variant: &Variant,
    path: &Path,
    run: Option<&Run<'_>>,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<(VariantRow, Option<Comparison>), QuantizeError> {
    let mut row = VariantRow::of(variant);
    let is_source = is_source(model, path);
    if is_source && !matches!(variant.recipe, Recipe::Copy) {
        let what = format!("`{}` is a link to the model: remove the link", path.display());
        row.problem = Some(what);
        return Ok((row, None));
    }
    let of_caller = |error: &QuantizeError| match error.kind() {
        // The file, or the caller: no other variant would be better.
        QuantizeErrorKind::Model(_) => true,
        QuantizeErrorKind::Calibration(error) => {
            matches!(error.kind(), CalibrationErrorKind::Cancelled)
        }
        _ => false,
    };
    let result = match made(model, variant, run, progress) {
        Err(error) if of_caller(&error) => return Err(error),
        Err(error) => {
            row.problem = Some(error.to_string());
            return Ok((row, None));
        }
        Ok(None) => {
            row.problem = Some("it quantizes activations, which needs samples".to_owned());
            return Ok((row, None));
        }
        Ok(Some((result, warnings))) => {
            row.warnings = warnings;
            result
        }
    };
    row.bytes = Some(if is_source {
        "the model itself, which is not written again".clone_into(&mut row.about);
        model.byte_len()
    } else {
        result.save_with_data(path, u64::MAX, DATA_SUFFIX)?.bytes
    });
    row.file = Some(path.display().to_string());
    let Some(run) = run else { return Ok((row, None)) };
    let latency = LatencyOptions { runs: RUNS, ..LatencyOptions::default() };
    let options = CompareOptions { latency: Some(latency), ..CompareOptions::default() };
    let control = Control { threads: run.threads, progress };
    match compare_outputs(
        model,
        &result,
        run.engine,
        &mut run.samples(MAX_COMPARED),
        &options,
        control,
    ) {
        Ok(found) => {
            row.sqnr_db = worst_sqnr(&found.outputs);
            row.median_ms = found.speed.as_ref().map(|speed| speed.quantized.median_ms);
            Ok((row, Some(found)))
        }
        Err(error) if of_caller(&error) => Err(error),
        Err(error) => {
            row.problem = Some(format!("it was not run: {error}"));
            Ok((row, None))
        }
    }
}

/// The model of a variant and its warnings; `None` if it needs samples and there are none.
fn made(
    model: &Model,
    variant: &Variant,
    run: Option<&Run<'_>>,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Option<(Model, Vec<String>)>, QuantizeError> {
    Ok(Some(match variant.recipe {
        Recipe::Copy => (model.clone(), Vec::new()),
        Recipe::Half(half) => {
            let options = HalfOptions { half, ..HalfOptions::default() };
            let made = match run {
                None => convert_half(model, &options)?,
                Some(run) => {
                    let samples = &mut run.samples(MAX_SAMPLES);
                    let control = Control { threads: run.threads, progress };
                    convert_half_with_samples(model, &options, run.engine, samples, control)?
                }
            };
            (made.model().clone(), made.report().warnings.clone())
        }
        Recipe::Convolutional { with, without } => {
            let convolves = model.graph().node.iter().any(|node| node.op_type == "Conv");
            let options = if convolves { with } else { without };
            quantized(model, options, Verb::Quantize, run, progress)?
        }
        Recipe::Quantized(options) => quantized(model, options, Verb::Quantize, run, progress)?,
        Recipe::Calibrated(_) if run.is_none() => return Ok(None),
        Recipe::Calibrated(options) => quantized(model, options, Verb::Calibrate, run, progress)?,
    }))
}

fn quantized(
    model: &Model,
    options: Options,
    verb: Verb,
    run: Option<&Run<'_>>,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<(Model, Vec<String>), QuantizeError> {
    let given = options.into_iter().filter(|(_, value)| !value.is_empty());
    let given: Given = given.map(|(name, value)| (name, Value::from(value))).collect();
    let prepared = PreprocessedModel::of(model, Config::from_options(&given, verb)?)?;
    let plan = prepared.plan();
    plan.refuse_nothing()?;
    let ranges = match run {
        None => None,
        Some(run) => {
            let samples = &mut run.samples(MAX_SAMPLES);
            let control = Control { threads: run.threads, progress };
            let method = Method::default();
            Some(calibrate(&prepared.model, &plan, run.engine, samples, &method, control)?)
        }
    };
    let made = plan.apply(&prepared.model, ranges.as_ref())?;
    Ok((made.model().clone(), made.report().warnings.clone()))
}

impl Variants {
    /// The variants as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for Variants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.variants.iter().map(|row| row.name.len()).max().unwrap_or(0);
        for row in &self.variants {
            let bytes = row.bytes.map_or_else(|| "-".to_owned(), size);
            let sqnr = row.sqnr_db.map_or_else(|| "-".to_owned(), |db| format!("{db:.1} dB"));
            let time = row.median_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2} ms"));
            let name = &row.name;
            write!(f, "{name:longest$}  {bytes:>10}  {sqnr:>9}  {time:>10}  {}", row.about)?;
            if let Some(problem) = &row.problem {
                write!(f, ": {problem}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
