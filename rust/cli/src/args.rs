//! The command line as types: what was typed, before it means anything.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use quantize_rs::{Bar, LatencyOptions, Method, QType, tensorrt, transform};

use crate::accuracy_control::GuardArguments;
use crate::batch::BatchArguments;
use crate::benchmark::BenchmarkArguments;
use crate::compare::CompareArguments;
use crate::config::ConfigArguments;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::file;
use crate::layer_errors::LayerErrorsArguments;
use crate::mixed::MixedArguments;
use crate::outliers::OutlierArguments;
use crate::recommend::RecommendArguments;
use crate::samples::{self, SampleArguments};
use crate::sensitivity::SensitivityArguments;
use crate::shell::{CompletionArguments, ManArguments};
use crate::validate::ValidateArguments;
use crate::wishes::{self, ActivationWishes, WeightWishes, Wishes};

/// Makes ONNX models smaller and faster, and says honestly what it cost.
#[derive(Debug, Parser)]
#[command(name = "quantize-rs", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 the model or the data was refused, 2 the command was misused.
Results go to standard output, progress, warnings and errors to standard error.";

/// How results are shown.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArguments {
    /// How results are printed; json is one document on one line
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// No progress and no summary, only warnings, errors and what was asked for by name
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Every weight, and progress even where no bar can be drawn
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what is in a model
    Info(InfoArguments),
    /// Say how to quantize a model, and why; writes nothing
    Recommend(RecommendArguments),
    /// Quantize the weights of a model
    Quantize(Box<QuantizeArguments>),
    /// Quantize the weights and the activations of a model, measured on samples
    Calibrate(Box<CalibrateArguments>),
    /// Quantize the weights of several models
    Batch(Box<BatchArguments>),
    /// Do what a file of YAML or TOML says
    #[command(after_help = crate::config::help())]
    Config(ConfigArguments),
    /// Compare a quantized model with its original, number by number; fails when anything is wrong
    Validate(ValidateArguments),
    /// Show how two models differ in size and structure, and with --latency in time
    Benchmark(Box<BenchmarkArguments>),
    /// Show what would be quantized, to what, and why not; writes nothing
    Plan(PlanArguments),
    /// Set weights of small magnitude to exactly 0
    Prune(PruneArguments),
    /// Make a model that means the same in a newer version of ONNX's operators
    Convert(ConvertModelArguments),
    /// Write into a model of what type and shape its values are
    InferShapes(InferArguments),
    /// Make a model simpler; what it computes stays
    Optimize(OptimizeArguments),
    /// Hold a quantized model against the original: outputs, accuracy, size, latency, kernels
    Compare(Box<CompareArguments>),
    /// Show where a quantized model loses accuracy: value by value, own errors and inherited ones
    LayerErrors(Box<LayerErrorsArguments>),
    /// Rank the layers of a model by what it costs to quantize each of them alone
    Sensitivity(Box<SensitivityArguments>),
    /// Choose bits for each layer, so that the model meets a size or an SQNR
    MixedPrecision(Box<MixedArguments>),
    /// Show the weights with numbers far from all others, which coarsen a scale
    Outliers(OutlierArguments),
    /// Show, merge, compare and convert the ranges that `calibrate` wrote
    #[command(subcommand)]
    Ranges(RangesCommand),
    /// Print a script with which a shell completes commands
    Completions(CompletionArguments),
    /// Print the manual page
    Man(ManArguments),
}

/// Arguments of `info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// The model
    pub(crate) model: PathBuf,
}

/// Arguments of `prune`.
#[derive(Debug, Args)]
pub(crate) struct PruneArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Where the pruned model goes; may be the model itself
    #[arg(short, long, value_name = "FILE", default_value = "model_pruned.onnx")]
    pub(crate) output: PathBuf,
    /// Weights of a smaller magnitude become 0
    #[arg(long, value_name = "X", required_unless_present = "sparsity")]
    pub(crate) threshold: Option<f64>,
    /// The smallest weights become 0, until this part of all is: 0 to 1
    #[arg(long, value_name = "PART", conflicts_with_all = ["threshold", "mode"])]
    pub(crate) sparsity: Option<f64>,
    /// What the threshold is: a number, or a part of the largest magnitude
    #[arg(long, value_name = "MODE", default_value = "absolute", value_parser = ["absolute", "relative"])]
    pub(crate) mode: String,
    /// What is looked at by itself: the whole weight, or each output channel of it
    #[arg(long, value_name = "WHAT", default_value = "tensor", value_parser = ["tensor", "channel"])]
    pub(crate) per: String,
    /// Weights and nodes to leave alone, by name or pattern, with commas between them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) exclude: Vec<String>,
}

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertModelArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Where the converted model goes; may be the model itself
    #[arg(short, long, value_name = "FILE", default_value = "model_converted.onnx")]
    pub(crate) output: PathBuf,
    /// The version of the operators, not older than the model's
    #[arg(long, value_name = "N")]
    pub(crate) opset: i64,
}

/// Arguments of `infer-shapes`.
#[derive(Debug, Args)]
pub(crate) struct InferArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Where the model with its shapes goes; may be the model itself
    #[arg(short, long, value_name = "FILE", default_value = "model_inferred.onnx")]
    pub(crate) output: PathBuf,
}

/// Arguments of `quantize`.
#[derive(Debug, Args)]
#[command(
    mut_arg("data", |data| data.help(samples::means_help())),
    group(ArgGroup::new("run_on").args(["data", "verify"]).multiple(true)),
    mut_arg("engine", |engine| engine.requires("run_on")),
    mut_arg("onnxruntime", |library| library.requires("run_on")),
    mut_arg("threads", |threads| threads.requires("run_on"))
)]
pub(crate) struct QuantizeArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Where the quantized model goes; may be the model itself
    #[arg(short, long, value_name = "FILE", default_value = "model_quantized.onnx")]
    pub(crate) output: PathBuf,
    /// Print the plan and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) recipe: RecipeArguments,
    #[command(flatten)]
    pub(crate) page: PageArguments,
    #[command(flatten)]
    pub(crate) samples: SampleArguments,
    #[command(flatten)]
    pub(crate) guard: GuardArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) wishes: Wishes,
    #[command(flatten)]
    pub(crate) alone: WeightWishes,
}

/// Whether a run is kept.
#[derive(Debug, Default, Args)]
pub(crate) struct RecipeArguments {
    /// Also write a file of YAML or TOML with which `config` repeats this run
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) save_recipe: Option<PathBuf>,
}

/// A result as a page, beside what is printed.
#[derive(Debug, Default, Args)]
pub(crate) struct PageArguments {
    /// Also write what was found as one page of HTML, for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl PageArguments {
    /// Refuses a file that cannot be written, or that is one of `others`, before the work.
    pub(crate) fn check(&self, others: &[&Path]) -> Result<(), Failure> {
        let Some(path) = &self.html else { return Ok(()) };
        file::check_apart("--html", path, others)?;
        file::check(path)
    }

    /// Writes it, where it was asked for.
    pub(crate) fn write(&self, html: impl FnOnce() -> String) -> Result<(), Failure> {
        self.html.as_ref().map_or(Ok(()), |path| file::write(path, &html()))
    }
}

/// Arguments of `optimize`.
#[derive(Debug, Args)]
#[command(after_help = passes())]
pub(crate) struct OptimizeArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Where the simpler model goes; may be the model itself
    #[arg(short, long, value_name = "FILE", default_value = "model_optimized.onnx")]
    pub(crate) output: PathBuf,
    /// Only these passes, with commas between them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) passes: Option<Vec<String>>,
    /// Not these passes, with commas between them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) skip: Vec<String>,
}

/// Every pass and what it does.
fn passes() -> String {
    let rows = transform::ALL.iter().map(|pass| format!("  {:<25}{}\n", pass.name, pass.about));
    format!("Passes, in their order:\n{}", rows.collect::<String>())
}

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
#[command(
    mut_arg("data", |data| data.required_unless_present_any(["ranges", "dry_run"])),
    group(ArgGroup::new("run_on").args(["data", "verify"]).multiple(true)),
    mut_arg("engine", |engine| engine.requires("run_on")),
    mut_arg("onnxruntime", |library| library.requires("run_on")),
    mut_arg("threads", |threads| threads.requires("run_on"))
)]
pub(crate) struct CalibrateArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Where the quantized model goes; may be the model itself
    #[arg(short, long, value_name = "FILE", default_value = "model_calibrated.onnx")]
    pub(crate) output: PathBuf,
    /// Print the plan and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print what each method makes of the samples and write nothing
    #[arg(long, conflicts_with_all = ["dry_run", "ranges", "ranges_out", "method", "save_recipe", "html", "verify", "labels", "scores", "min_sqnr", "max_accuracy_drop", "require_faster"])]
    pub(crate) compare_methods: bool,
    #[command(flatten)]
    pub(crate) recipe: RecipeArguments,
    #[command(flatten)]
    pub(crate) page: PageArguments,
    #[command(flatten)]
    pub(crate) samples: SampleArguments,
    #[command(flatten)]
    pub(crate) ranges: RangesArguments,
    #[command(flatten)]
    pub(crate) guard: GuardArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) wishes: Wishes,
    #[command(flatten)]
    pub(crate) calibrated: ActivationWishes,
}

/// What the right classes are.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Accuracy")]
pub(crate) struct ClassArguments {
    /// The right class of each sample: whole numbers in a .npy file, or in a text with one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) labels: Option<PathBuf>,
    /// The output with the scores of the classes [default: the first that looks like it]
    #[arg(long, value_name = "NAME")]
    pub(crate) scores: Option<String>,
}

/// How latency is measured.
#[derive(Debug, Args)]
#[command(next_help_heading = "Latency")]
pub(crate) struct LatencyArguments {
    /// Do not measure it
    #[arg(long, conflicts_with_all = ["runs", "latency_threads"])]
    pub(crate) no_latency: bool,
    #[command(flatten)]
    pub(crate) timing: TimingArguments,
}

/// How often, and on how many threads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Latency")]
pub(crate) struct TimingArguments {
    /// Runs of each model that count, those to warm up not among them [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: Option<u32>,
    /// Threads that one run is computed on [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) latency_threads: Option<u16>,
}

impl LatencyArguments {
    /// How to measure; `None` when it is not wanted.
    pub(crate) fn options(&self) -> Option<LatencyOptions> {
        (!self.no_latency).then(|| self.timing.options())
    }
}

impl TimingArguments {
    /// How to measure.
    pub(crate) fn options(&self) -> LatencyOptions {
        let mut options = LatencyOptions::default();
        if let Some(runs) = self.runs.and_then(|runs| usize::try_from(runs).ok()) {
            options.runs = runs;
        }
        if let Some(threads) = self.latency_threads {
            options.threads = usize::from(threads);
        }
        options
    }
}

/// What the quantized model has to reach.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Bar, below which the exit code is 1")]
pub(crate) struct BarArguments {
    /// The least SQNR of the worst output, in decibels
    #[arg(long, value_name = "DB")]
    pub(crate) min_sqnr: Option<f64>,
    /// The most accuracy that may be lost, in points of 100
    #[arg(long, value_name = "POINTS", requires = "labels")]
    pub(crate) max_accuracy_drop: Option<f64>,
    /// It has to be faster than the original
    #[arg(long)]
    pub(crate) require_faster: bool,
}

impl BarArguments {
    pub(crate) fn bar(&self) -> Bar {
        Bar {
            min_sqnr: self.min_sqnr,
            max_accuracy_drop: self.max_accuracy_drop.map(|points| points / 1e2),
            require_faster: self.require_faster,
        }
    }
}

/// What becomes of the samples.
#[derive(Debug, Args)]
#[command(next_help_heading = "Calibration")]
pub(crate) struct RangesArguments {
    /// Ranges of an earlier calibration, instead of samples
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(crate) ranges: Option<PathBuf>,
    /// Also write the ranges, as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "ranges")]
    pub(crate) ranges_out: Option<PathBuf>,
    #[arg(long, value_name = "METHOD", help = METHOD, long_help = methods())]
    pub(crate) method: Option<Method>,
    /// Type of activations [default: uint8, or what the target likes best]
    #[arg(long, value_name = "TYPE", value_parser = wishes::activations())]
    pub(crate) activations: Option<QType>,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Plan activations of this type too, as `calibrate` does; a target brings its own
    #[arg(long, value_name = "TYPE", value_parser = wishes::activations())]
    pub(crate) activations: Option<QType>,
    #[command(flatten)]
    pub(crate) wishes: Wishes,
    #[command(flatten)]
    pub(crate) alone: WeightWishes,
    #[command(flatten)]
    pub(crate) calibrated: ActivationWishes,
}

/// What is to be done with ranges.
#[derive(Debug, Subcommand)]
pub(crate) enum RangesCommand {
    /// Show the range of each value
    Show(ShowArguments),
    /// Make one file of several, as if one calibration had seen all samples
    Merge(MergeArguments),
    /// Show where two files differ
    Diff(DiffArguments),
    /// Turn ranges into a calibration cache of TensorRT, or such a cache into ranges
    Convert(ConvertArguments),
}

/// Arguments of `ranges show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// The ranges
    pub(crate) file: PathBuf,
}

/// Arguments of `ranges merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeArguments {
    /// The ranges, two files or more
    #[arg(required = true, num_args = 2..)]
    pub(crate) files: Vec<PathBuf>,
    /// Where the merged ranges go; may be one of the files
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// Arguments of `ranges diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// The ranges
    pub(crate) first: PathBuf,
    /// Those to compare them with
    pub(crate) second: PathBuf,
}

/// Arguments of `ranges convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArguments {
    /// Ranges, or a calibration cache of TensorRT
    pub(crate) file: PathBuf,
    /// The model they belong to
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Where the other form goes
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The version of TensorRT that a cache names in its first line
    #[arg(long, value_name = "N", default_value = tensorrt::VERSION)]
    pub(crate) tensorrt_version: String,
}

const METHOD: &str = "How ranges follow from what was seen [default: minmax]";

/// The methods there are, as clap shows possible values; a percentile may have its number.
fn methods() -> String {
    let width = Method::all().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    let method = |(name, about)| format!("- {:width$} {about}", format!("{name}:"));
    let methods: Vec<String> = Method::all().map(method).collect();
    let number = "percentile:99.9 leaves out what is beyond 99.9 %";
    format!("{METHOD}\n\nPossible values:\n{}\n\n{number}", methods.join("\n"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_help_shows_the_defaults_that_users_know() {
        for (name, output) in
            [("quantize", "model_quantized.onnx"), ("calibrate", "model_calibrated.onnx")]
        {
            let mut command = Arguments::command();
            let help = command.find_subcommand_mut(name).expect(name).render_help().to_string();
            assert!(help.contains(&format!("[default: {output}]")), "{help}");
            assert!(help.contains("[default: 8]"), "{help}");
        }
    }
}
