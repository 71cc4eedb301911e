//! `recommend`: recommends how to quantize a model, with reasons.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::recommend::ALL;
use quantize_rs::{InputSpec, Model, Request, SampleSource, Target, recommend, recommend_measured};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::samples::SampleArguments;
use crate::{options, run_on_samples, samples};

/// What the samples are for.
const PURPOSE: &str = "Samples to measure the error and the time on; the first 20 are read";

/// Arguments of `recommend`.
#[derive(Debug, Args)]
#[command(
    after_help = rules(),
    mut_arg("calibration_data", |data| data.help(samples::help(PURPOSE))),
    mut_arg("engine", |engine| engine.value_parser(crate::engine::deployed())),
    mut_arg("engine", |engine| engine.requires("calibration_data")),
    mut_arg("onnxruntime", |library| library.requires("calibration_data")),
    mut_arg("threads", |threads| threads.requires("calibration_data")),
    // Random numbers are no samples to measure on.
    mut_arg("num_samples", |count| count.hide(true)),
    mut_arg("sample_shape", |shape| shape.hide(true)),
    mut_arg("seed", |seed| seed.hide(true))
)]
pub(crate) struct RecommendArguments {
    /// The model
    model: PathBuf,
    /// The runtime that the model is made for [default: x86]
    #[arg(long, value_name = "NAME", value_parser = options::choice::<Target>("target"))]
    target: Option<Target>,
    #[command(flatten)]
    samples: SampleArguments,
    #[command(flatten)]
    engine: EngineArguments,
}

/// The list of rules, with their conditions.
fn rules() -> String {
    let rows = ALL
        .iter()
        .map(|rule| format!("  {:<18}{:<8}  {}\n", rule.name, rule.choice.way.name(), rule.about));
    format!("Rules; the first that applies decides:\n{}", rows.collect::<String>())
}

pub(crate) fn run(args: &RecommendArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    // Random numbers are not samples of real inputs.
    let path = args.samples.data.as_ref().filter(|path| !samples::is_random(path));
    let Some(path) = path else {
        args.samples.images.check(&[])?;
        if args.samples.are_random() {
            console.warn("nothing is measured on random numbers: give samples to measure on");
        }
        let found = recommend(&model, Request { target: args.target, samples: None })?;
        return console.result(|| found.to_json(), || found.to_string());
    };
    let path = path.display().to_string();
    let flags = args.samples.images.flags();
    let source = match &flags[..] {
        [] => SampleSource::File(&path),
        flags => SampleSource::Images { path: &path, flags },
    };
    let wanted = Request { target: args.target, samples: Some(source) };
    let inputs = InputSpec::of(&model);
    let Some(samples) = args.samples.open(&inputs)? else { return Ok(()) };
    let engine = args.engine.open_deployed()?;
    let samples = SampleDiagnostics::new(samples, &inputs);
    let given = (&args.engine, &args.samples);
    let done =
        run_on_samples::on(&*engine, given, samples, console, |engine, samples, control| {
            recommend_measured(&model, wanted, engine, samples, control)
        })?;
    done.conversions.iter().for_each(|said| console.warn(said));
    console.result(|| done.found.to_json(), || done.found.to_string())
}
