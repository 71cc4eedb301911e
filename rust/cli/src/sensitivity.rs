//! `sensitivity`: ranks the layers of a model by the loss of quantizing each of them alone.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use quantize_rs::options::Verb;
use quantize_rs::{
    InputSpec, Metric, Model, Sensitivity, SensitivityOptions, sensitivity, weight_sensitivity,
};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::html::HtmlArguments;
use crate::options::ActivationOptions;
use crate::samples::SampleArguments;
use crate::{ascii_histogram, output_path, plan, run_on_samples};

/// What the samples are for.
const PURPOSE: &str = "Samples to rank the layers on, by the effect on the outputs";

/// Arguments of `sensitivity`.
#[derive(Debug, Args)]
#[command(
    mut_arg("calibration_data", |data| data.help(crate::samples::help(PURPOSE))),
    mut_arg("engine", |engine| engine.value_parser(crate::engine::deployed())),
    // Without samples, only weights are compared.
    mut_arg("activations", |activations| activations.requires("calibration_data")),
    mut_arg("no_bias_correction", |flag| flag.requires("calibration_data")),
    mut_arg("no_smooth", |flag| flag.requires("calibration_data")),
    mut_arg("engine", |engine| engine.requires("calibration_data")),
    mut_arg("onnxruntime", |library| library.requires("calibration_data")),
    mut_arg("threads", |threads| threads.requires("calibration_data"))
)]
pub(crate) struct SensitivityArguments {
    /// The float model
    model: PathBuf,
    /// The metric that ranks the layers [default: sqnr, or weight without --calibration-data]
    #[arg(long, value_name = "METRIC", value_parser = metrics())]
    metric: Option<Metric>,
    /// Quantize all layers but one, instead of one
    #[arg(long)]
    all_but_one: bool,
    /// Save each result to this file, and resume from it
    #[arg(long, value_name = "FILE", requires = "calibration_data")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    html: HtmlArguments,
    /// Leave activations in float
    #[arg(long, conflicts_with = "activations")]
    weights_only: bool,
    #[command(flatten)]
    samples: SampleArguments,
    #[command(flatten)]
    engine: EngineArguments,
    #[command(flatten)]
    options: ActivationOptions,
}

/// The list of metrics.
fn metrics() -> impl TypedValueParser<Value = Metric> {
    let names = PossibleValuesParser::new(Metric::ALL.iter().map(|(name, _)| *name));
    names.try_map(|name| name.parse::<Metric>())
}

pub(crate) fn run(args: &SensitivityArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    let without_data = args.samples.data.is_none();
    let weights_only = args.weights_only || without_data;
    if without_data {
        args.options.without_samples()?;
    }
    let verb = if weights_only { Verb::Quantize } else { Verb::Calibrate };
    let (model, plan) = plan::of(&model, args.options.config(verb)?)?;
    let inputs = InputSpec::of(&model);
    args.html.check(&[], &[&model])?;
    let Some(samples) = args.samples.open(&inputs)? else {
        if args.all_but_one || args.metric.is_some_and(|metric| metric != Metric::Weight) {
            let what = "without --calibration-data only weights can be looked at: --metric weight";
            return Err(Failure::Misuse(what.to_owned()));
        }
        return show(weight_sensitivity(&model, &plan)?, args, console);
    };
    if let Some(path) = &args.resume {
        output_path::check(path)?;
        output_path::check_apart("--resume", path, &[&args.model])?;
    }
    if args.samples.are_random() {
        console.warn("ranked on random numbers, which says little of real inputs");
    }
    let options = SensitivityOptions {
        metric: args.metric.unwrap_or_default(),
        all_but_one: args.all_but_one,
        resume: args.resume.clone(),
        ..SensitivityOptions::default()
    };
    let engine = args.engine.open_deployed()?;
    let samples = SampleDiagnostics::new(samples, &inputs);
    let given = (&args.engine, &args.samples);
    let done =
        run_on_samples::on(&*engine, given, samples, console, |engine, samples, control| {
            sensitivity(&model, &plan, None, engine, samples, &options, control)
        })?;
    done.conversions.iter().for_each(|said| console.warn(said));
    show(done.found, args, console)
}

fn show(
    mut found: Sensitivity,
    args: &SensitivityArguments,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    console.stamp(&mut found.origin, args.samples.data.as_deref());
    args.html.write(|| found.html())?;
    let scores: Vec<f64> = found.layers.iter().map(|layer| layer.score).collect();
    let draws = console.draws();
    let text = || match found.to_string() {
        text if draws => ascii_histogram::before_lines(&text, &scores),
        text => text,
    };
    console.result(|| found.to_json(), text)
}
