//! `calibrate`: quantizes the weights of a model, and its activations with ranges from samples.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgGroup, Args};
use quantize_rs::options::Verb;
use quantize_rs::{
    Config, InputSpec, Method, Model, Plan, Quantized, Ranges, Report, RetainingSamples, Sample,
    Shard,
};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::accuracy_control::{AccuracyControlArguments, Evaluation};
use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::html::HtmlArguments;
use crate::nothing::NothingArguments;
use crate::options::{self, ActivationOptions};
use crate::output_check::Calibrated;
use crate::output_file::{self, OutputFile};
use crate::recipe::RecipeArguments;
use crate::samples::{SAMPLING, SampleArguments};
use crate::{output_check, output_path, plan, ranges, run_on_samples, summary, text};

/// What the default name of the result says.
pub(crate) const DONE: &str = "calibrated";

/// Flags without effect if methods are only compared.
const NOT_WITH_COMPARE_METHODS: [&str; 13] = [
    "dry_run",
    "shard",
    "ranges",
    "ranges_out",
    "method",
    "save_recipe",
    "html",
    "validation_data",
    "labels",
    "scores",
    "min_sqnr",
    "max_accuracy_drop",
    "require_faster",
];

/// Flags without effect if no model is written.
const NOT_WITH_SHARD: [&str; 10] = [
    "output",
    "dry_run",
    "save_recipe",
    "html",
    "validation_data",
    "labels",
    "scores",
    "min_sqnr",
    "max_accuracy_drop",
    "require_faster",
];

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
#[command(
    mut_arg("output", |output| output.help(output_file::help(DONE))),
    group(
        ArgGroup::new("source")
            .args(["calibration_data", "ranges", "dry_run"])
            .required(true)
            .multiple(true)
    ),
    group(ArgGroup::new("run_on").args(["calibration_data", "validation_data"]).multiple(true)),
    mut_arg("engine", |engine| engine.requires("run_on")),
    mut_arg("onnxruntime", |library| library.requires("run_on")),
    mut_arg("threads", |threads| threads.requires("run_on"))
)]
pub(crate) struct CalibrateArguments {
    /// The model
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputFile,
    /// Print the plan and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a comparison of all methods on the samples and write nothing
    #[arg(long, conflicts_with_all = NOT_WITH_COMPARE_METHODS)]
    pub(crate) compare_methods: bool,
    #[command(flatten)]
    pub(crate) recipe: RecipeArguments,
    #[command(flatten)]
    pub(crate) html: HtmlArguments,
    #[command(flatten)]
    pub(crate) nothing: NothingArguments,
    #[command(flatten)]
    pub(crate) samples: SampleArguments,
    #[command(flatten)]
    pub(crate) ranges: RangesArguments,
    #[command(flatten)]
    pub(crate) accuracy_control: AccuracyControlArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) options: ActivationOptions,
}

/// What becomes of the samples.
#[derive(Debug, Args)]
#[command(next_help_heading = "Calibration")]
pub(crate) struct RangesArguments {
    #[arg(
        long,
        value_name = "FILE",
        // clap requires nothing that conflicts with what was typed.
        conflicts_with = "calibration_data",
        conflicts_with_all = SAMPLING,
        help = options::help("ranges")
    )]
    pub(crate) ranges: Option<PathBuf>,
    #[arg(
        long,
        visible_alias = "save-ranges",
        value_name = "FILE",
        conflicts_with = "ranges",
        help = options::help("ranges_out")
    )]
    pub(crate) ranges_out: Option<PathBuf>,
    #[arg(
        long,
        value_name = "I/N",
        requires = "ranges_out",
        conflicts_with_all = NOT_WITH_SHARD,
        value_parser = options::whole(|text| text.parse::<Shard>()),
        help = options::help("shard"),
        long_help = options::long_help("shard")
    )]
    pub(crate) shard: Option<Shard>,
    #[arg(
        long,
        value_name = "METHOD",
        value_parser = options::whole(|text| text.parse::<Method>()),
        help = options::help("method"),
        long_help = options::long_help("method")
    )]
    pub(crate) method: Option<Method>,
}

pub(crate) fn run(args: &CalibrateArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    if args.dry_run {
        let (model, plan) = planned(args, console)?;
        plan::show(&model, &plan, console)?;
        return args.nothing.check(&plan);
    }
    if args.compare_methods {
        let (_, _, model, plan) = prepared(args)?;
        let numbers = Numbers::open(args, &model)?;
        args.nothing.check(&plan)?;
        warn_of_noise(&args.samples, console);
        return compare(args, &model, &plan, numbers, console);
    }
    match (args.ranges.shard, &args.ranges.ranges_out) {
        (Some(shard), Some(path)) => part(args, shard, path, console),
        _ => summary::show(&report(args, console)?, args.samples.warning(), console),
    }
}

/// Calibrates on a part of the samples, and writes its ranges alone.
fn part(
    args: &CalibrateArguments,
    shard: Shard,
    path: &Path,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let (_, _, model, plan) = prepared(args)?;
    let Numbers::Samples(samples) = Numbers::open(args, &model)? else { return Ok(()) };
    warn_of_noise(&args.samples, console);
    let mut others: Vec<&Path> = vec![&args.model];
    others.extend(args.samples.data.as_deref());
    others.extend(args.engine.library());
    output_path::check_apart("--ranges-out", path, &others)?;
    output_path::check_data("--ranges-out", path, &[&model])?;
    output_path::check(path)?;
    // Ranges of all samples are what `auto` compares methods by.
    let method = args.ranges.method.clone().unwrap_or_else(Method::full_range);
    let engine = args.engine.open()?;
    let sources = (&args.engine, &args.samples);
    let done =
        run_on_samples::on(&*engine, sources, samples, console, |engine, samples, control| {
            let how = (&method, shard);
            quantize_rs::calibrate_shard(&model, &plan, engine, samples, how, control)
        })?;
    let mut found = done.found;
    if found.samples > 0 {
        found.evidence = done.evidence;
        found.warnings.extend(done.warnings);
    }
    console.done(&summary::ran(found.samples, &found.engine));
    output_path::write_ranges(path, &found)?;
    ranges::summary(&found, path, console)
}

/// Calibrates, and writes the quantized model. Warns about random samples before it begins.
pub(crate) fn report(
    args: &CalibrateArguments,
    console: &mut Console<'_>,
) -> Result<Report, Failure> {
    let Ready { original, config, model, plan, numbers, evaluation, output } =
        ready(args, console)?;
    args.nothing.check(&plan)?;
    warn_of_noise(&args.samples, console);

    let begun = Instant::now();
    let (ranges, kept) = numbers.ranges(args, &model, &plan, console)?;
    let seconds = begun.elapsed().as_secs_f64();
    let calibrated = Calibrated { ranges, kept, seconds };
    let made =
        quantized(args, (&original, &config), (&model, &plan), evaluation, &calibrated, console)
            .and_then(|made| output_path::save(&made, &output));
    let mut report = match &args.ranges.ranges_out {
        Some(path) => made.map_err(|failure| failure.after_ranges(path))?,
        None => made?,
    };
    report.seconds.calibrate = seconds;
    let samples = args.samples.data.as_ref().or(args.ranges.ranges.as_ref());
    console.stamp(&mut report.origin, samples.map(PathBuf::as_path));
    args.html.write(|| report.html())?;
    Ok(report)
}

/// The quantized model: checked, or with the accuracy criteria met.
fn quantized(
    args: &CalibrateArguments,
    (original, config): (&Model, &Config),
    (model, plan): (&Model, &Plan),
    evaluation: Option<Evaluation>,
    calibrated: &Calibrated,
    console: &mut Console<'_>,
) -> Result<Quantized, Failure> {
    let ranges = calibrated.ranges.as_ref();
    if let Some(evaluation) = evaluation {
        return evaluation.quantized((original, config), ranges, &args.engine, console);
    }
    let mut made = plan.apply(model, ranges)?;
    if args.accuracy_control.checks() {
        output_check::check(original, &mut made, calibrated, &args.engine)?;
    }
    Ok(made)
}

/// What the work needs: opened and checked.
struct Ready {
    original: Model,
    config: Config,
    model: Model,
    plan: Plan,
    numbers: Numbers,
    evaluation: Option<Evaluation>,
    output: PathBuf,
}

/// The prepared model and its plan, after everything that the work needs was checked.
pub(crate) fn planned(
    args: &CalibrateArguments,
    console: &mut Console<'_>,
) -> Result<(Model, Plan), Failure> {
    let ready = ready(args, console)?;
    Ok((ready.model, ready.plan))
}

/// The same, with ranges that do not exist yet.
pub(crate) fn planned_alone(args: &CalibrateArguments) -> Result<(Model, Plan), Failure> {
    let (_, _, model, plan) = prepared(args)?;
    Ok((model, plan))
}

fn ready(args: &CalibrateArguments, console: &mut Console<'_>) -> Result<Ready, Failure> {
    let (original, config, model, plan) = prepared(args)?;
    let numbers = Numbers::open(args, &model)?;
    let given = &args.samples;
    let evaluation = args.accuracy_control.open(&original, &given.images, Some(given), console)?;
    let output = checked_output(args, &original)?;
    Ok(Ready { original, config, model, plan, numbers, evaluation, output })
}

/// The model, the requested configuration, the prepared model and its plan.
fn prepared(args: &CalibrateArguments) -> Result<(Model, Config, Model, Plan), Failure> {
    let original = Model::open(&args.model)?;
    let config = args.options.config(Verb::Calibrate)?;
    let (model, plan) = plan::of(&original, config.clone())?;
    Ok((original, config, model, plan))
}

/// Warns of random samples before they are used, which may take long.
pub(crate) fn warn_of_noise(samples: &SampleArguments, console: &mut Console<'_>) {
    if let Some(warning) = samples.warning() {
        console.warn(&format!("{warning}; give real samples with --calibration-data PATH"));
    }
}

/// Prints the comparison of the methods on the samples.
fn compare(
    args: &CalibrateArguments,
    model: &Model,
    plan: &Plan,
    numbers: Numbers,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let Numbers::Samples(samples) = numbers else {
        return Err(Failure::Misuse("--compare-methods needs --calibration-data".to_owned()));
    };
    let done = run_on_samples::on(
        &*args.engine.open()?,
        (&args.engine, &args.samples),
        samples,
        console,
        |engine, samples, control| {
            quantize_rs::compare_methods(model, plan, engine, samples, control)
        },
    )?;
    // The comparison names the engine; the reason for the choice is printed only with --verbose.
    let verbose = console.verbose();
    let notes = done.found.ranges.first().into_iter().filter(|_| verbose).flat_map(|r| &r.notes);
    let new = done.warnings.iter().filter(|said| args.samples.warning() != Some(said.as_str()));
    notes.chain(new).for_each(|said| console.warn(said));
    console.result(|| text::json(&done.found), || done.found.to_string())
}

/// The source of the ranges of activations.
enum Numbers {
    Samples(SampleDiagnostics),
    Ranges(Box<Ranges>),
    /// No source: clap allows this only in a dry run.
    Nowhere,
}

impl Numbers {
    fn open(args: &CalibrateArguments, model: &Model) -> Result<Numbers, Failure> {
        let RangesArguments { ranges: saved, method, .. } = &args.ranges;
        if let Some(path) = saved {
            let ranges = ranges::read(path)?;
            return Ok(Numbers::Ranges(Box::new(match method {
                Some(method) => ranges.using(method)?,
                None => ranges,
            })));
        }
        let inputs = InputSpec::of(model);
        Ok(match args.samples.open_beside(&inputs, args.accuracy_control.verify())? {
            Some(samples) => Numbers::Samples(SampleDiagnostics::new(samples, &inputs)),
            None => Numbers::Nowhere,
        })
    }

    /// The ranges of the values that the plan observes, with warnings about the samples.
    fn ranges(
        self,
        args: &CalibrateArguments,
        model: &Model,
        plan: &Plan,
        console: &mut Console<'_>,
    ) -> Result<(Option<Ranges>, Vec<Sample>), Failure> {
        match self {
            Numbers::Nowhere => Ok((None, Vec::new())),
            Numbers::Ranges(ranges) => {
                // Merged ranges may hold what weights are rounded with.
                let ranges = run_on_samples::without(&args.engine, console, |control| {
                    quantize_rs::round_weights(model, plan, &ranges, None, control)
                })?;
                Ok((Some(ranges), Vec::new()))
            }
            Numbers::Samples(samples) => {
                let method = args.ranges.method.clone().unwrap_or_default();
                let sources = (&args.engine, &args.samples);
                let (ranges, kept) = observe(model, plan, sources, samples, &method, console)?;
                if let Some(path) = &args.ranges.ranges_out {
                    output_path::write_ranges(path, &ranges)?;
                }
                Ok((Some(ranges), kept))
            }
        }
    }
}

/// Runs the model on the samples, and collects ranges and the channel means for bias correction.
/// Also returns some of the samples.
pub(crate) fn observe(
    model: &Model,
    plan: &Plan,
    sources: (&EngineArguments, &SampleArguments),
    samples: SampleDiagnostics,
    method: &Method,
    console: &mut Console<'_>,
) -> Result<(Ranges, Vec<Sample>), Failure> {
    let engine = sources.0.open()?;
    let done =
        run_on_samples::on(&*engine, sources, samples, console, |engine, samples, control| {
            let mut samples = RetainingSamples::new(samples);
            let ranges =
                quantize_rs::calibrate(model, plan, engine, &mut samples, method, control)?;
            Ok((ranges, samples.kept()))
        })?;
    let (mut ranges, kept) = done.found;
    // If nothing is observed, samples are read for the check of the outputs alone.
    if ranges.samples > 0 {
        ranges.evidence = done.evidence;
        ranges.warnings.extend(done.warnings);
    }
    console.done(&summary::ran(ranges.samples, &ranges.engine));
    Ok((ranges, kept))
}

/// The path of the result, if it and the other files can be written.
fn checked_output(args: &CalibrateArguments, model: &Model) -> Result<PathBuf, Failure> {
    let output = args.output.checked(&args.model, DONE)?;
    let mut others: Vec<&Path> = vec![&output, &args.model];
    others.extend(args.samples.data.as_deref());
    others.extend(args.ranges.ranges.as_deref());
    others.extend(args.engine.library());
    others.extend(args.accuracy_control.files());
    // The output may replace the model, as in all commands.
    output_path::check_apart("--output", &output, &others[2..])?;
    if let Some(path) = &args.ranges.ranges_out {
        output_path::check_apart("--ranges-out", path, &others)?;
        output_path::check_data("--ranges-out", path, &[model])?;
        output_path::check(path)?;
        others.push(path);
    }
    args.html.check(&others, &[model])?;
    Ok(output)
}
