//! `quantize`: quantizes the weights of a model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgGroup, Args};
use quantize_rs::options::Verb;
use quantize_rs::{Config, InputSpec, Method, Model, Plan, Report};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::accuracy_control::{AccuracyControlArguments, Evaluation};
use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::html::HtmlArguments;
use crate::nothing::NothingArguments;
use crate::options::WeightOptions;
use crate::output_check::Calibrated;
use crate::output_file::{self, OutputFile};
use crate::recipe::RecipeArguments;
use crate::samples::{self, SampleArguments};
use crate::{calibrate, output_check, output_path, plan, summary};

/// What the default name of the result says.
pub(crate) const DONE: &str = "quantized";

/// Arguments of `quantize`.
#[derive(Debug, Args)]
#[command(
    mut_arg("output", |output| output.help(output_file::help(DONE))),
    mut_arg("calibration_data", |data| data.help(samples::help(samples::FOR_BIASES))),
    group(ArgGroup::new("run_on").args(["calibration_data", "validation_data"]).multiple(true)),
    mut_arg("engine", |engine| engine.requires("run_on")),
    mut_arg("onnxruntime", |library| library.requires("run_on")),
    mut_arg("threads", |threads| threads.requires("run_on"))
)]
pub(crate) struct QuantizeArguments {
    /// The model
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputFile,
    /// Print the plan and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) recipe: RecipeArguments,
    #[command(flatten)]
    pub(crate) html: HtmlArguments,
    #[command(flatten)]
    pub(crate) nothing: NothingArguments,
    #[command(flatten)]
    pub(crate) samples: SampleArguments,
    #[command(flatten)]
    pub(crate) accuracy_control: AccuracyControlArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) options: WeightOptions,
}

pub(crate) fn run(args: &QuantizeArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    if args.dry_run {
        let (model, plan) = planned(args, console)?;
        plan::show(&model, &plan, console)?;
        return args.nothing.check(&plan);
    }
    summary::show(&report(args, console)?, args.samples.warning(), console)
}

/// Writes the quantized model. Warns about random samples before it begins.
pub(crate) fn report(
    args: &QuantizeArguments,
    console: &mut Console<'_>,
) -> Result<Report, Failure> {
    let Ready { model, config, prepared, plan, output, samples, evaluation } =
        ready(args, console)?;
    args.nothing.check(&plan)?;
    let given = &args.samples;
    calibrate::warn_of_noise(given, console);
    let begun = Instant::now();
    let ranges = samples.map(|samples| {
        let sources = (&args.engine, given);
        calibrate::observe(&prepared, &plan, sources, samples, &Method::full_range(), console)
    });
    let (ranges, kept) = ranges.transpose()?.unzip();
    let seconds = begun.elapsed().as_secs_f64();
    let calibrated = Calibrated { ranges, kept: kept.unwrap_or_default(), seconds };
    let ranges = &calibrated.ranges;
    let made = match evaluation {
        None => {
            let mut made = plan.apply(&prepared, ranges.as_ref())?;
            if args.accuracy_control.checks() {
                output_check::check(&model, &mut made, &calibrated, &args.engine)?;
            }
            made
        }
        Some(evaluation) => {
            evaluation.quantized((&model, &config), ranges.as_ref(), &args.engine, console)?
        }
    };
    let mut report = output_path::save(&made, &output)?;
    if ranges.is_some() {
        report.seconds.calibrate = seconds;
    }
    console.stamp(&mut report.origin, given.data.as_deref());
    args.html.write(|| report.html())?;
    Ok(report)
}

/// What the work needs: opened and checked.
struct Ready {
    model: Model,
    config: Config,
    prepared: Model,
    plan: Plan,
    output: PathBuf,
    samples: Option<SampleDiagnostics>,
    evaluation: Option<Evaluation>,
}

/// The prepared model and its plan, after everything that the work needs was checked.
pub(crate) fn planned(
    args: &QuantizeArguments,
    console: &mut Console<'_>,
) -> Result<(Model, Plan), Failure> {
    let ready = ready(args, console)?;
    Ok((ready.prepared, ready.plan))
}

fn ready(args: &QuantizeArguments, console: &mut Console<'_>) -> Result<Ready, Failure> {
    let (model, config) = wanted(args)?;
    let (prepared, plan) = plan::of(&model, config.clone())?;
    let output = args.output.checked(&args.model, DONE)?;
    let read: Vec<&Path> =
        args.samples.data.as_deref().into_iter().chain(args.accuracy_control.files()).collect();
    let state: Vec<&Path> = config.resume_rounding.as_deref().into_iter().collect();
    output_path::check_apart("--output", &output, &[&*read, &*state].concat())?;
    args.html.check(&[&*output], &[&model])?;
    let given = &args.samples;
    let inputs = InputSpec::of(&prepared);
    let samples = given.open_beside(&inputs, args.accuracy_control.verify())?;
    let samples = samples.map(|samples| SampleDiagnostics::new(samples, &inputs));
    let calibrated = given.data.is_some().then_some(given);
    let evaluation = args.accuracy_control.open(&model, &given.images, calibrated, console)?;
    Ok(Ready { model, config, prepared, plan, output, samples, evaluation })
}

/// The model, and the requested configuration.
fn wanted(args: &QuantizeArguments) -> Result<(Model, Config), Failure> {
    let model = Model::open(&args.model)?;
    let config = args.options.config(Verb::Quantize)?;
    if args.samples.data.is_none() {
        args.options.without_samples()?;
    }
    Ok((model, config))
}
