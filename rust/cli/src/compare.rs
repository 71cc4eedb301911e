//! `compare`: compares a quantized model with the original.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{CompareOptions, InputSpec, Model, compare};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::accuracy_control::CriteriaArguments;
use crate::benchmark::LatencyArguments;
use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::html::HtmlArguments;
use crate::labels::ClassArguments;
use crate::run_on_samples;
use crate::samples::SampleArguments;

/// Arguments of `compare`.
#[derive(Debug, Args)]
#[command(
    mut_arg("calibration_data", |data| data
        .required(true)
        .help(crate::samples::help("Samples to compare the models on"))),
    mut_arg("engine", |engine| engine.value_parser(crate::engine::deployed()))
)]
#[command(mut_arg("require_faster", |faster| faster.conflicts_with("no_latency")))]
pub(crate) struct CompareArguments {
    /// The float model
    original: PathBuf,
    /// The quantized model
    quantized: PathBuf,
    #[command(flatten)]
    samples: SampleArguments,
    #[command(flatten)]
    classes: ClassArguments,
    #[command(flatten)]
    latency: LatencyArguments,
    #[command(flatten)]
    criteria: CriteriaArguments,
    #[command(flatten)]
    html: HtmlArguments,
    #[command(flatten)]
    engine: EngineArguments,
}

pub(crate) fn run(args: &CompareArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let (original, quantized) = (Model::open(&args.original)?, Model::open(&args.quantized)?);
    let inputs = InputSpec::of(&original);
    let Some(samples) = args.samples.open(&inputs)? else {
        return Err(Failure::Misuse("compare needs --calibration-data".to_owned()));
    };
    let labels = args.classes.labels()?;
    if args.samples.are_random() {
        console.warn("compared on random numbers, which says little of real inputs");
    }
    let options = CompareOptions {
        labels,
        scores: args.classes.scores.clone(),
        latency: args.latency.options(),
        metric: None,
    };
    args.html.check(&[], &[&original, &quantized])?;
    let engine = args.engine.open_deployed()?;
    let samples = SampleDiagnostics::new(samples, &inputs);
    let given = (&args.engine, &args.samples);
    let done =
        run_on_samples::on(&*engine, given, samples, console, |engine, samples, control| {
            compare(&original, &quantized, engine, samples, &options, control)
        })?;
    done.conversions.iter().for_each(|said| console.warn(said));
    let mut found = done.found;
    console.stamp(&mut found.origin, args.samples.data.as_deref());
    if console.verbose() {
        found.notes.iter().for_each(|note| console.warn(note));
    }
    args.html.write(|| found.html())?;
    console.result(|| found.to_json(), || found.to_string())?;
    match found.misses(&args.criteria.chosen()) {
        misses if misses.is_empty() => Ok(()),
        misses => {
            Err(Failure::Refused(format!("below the accuracy criterion: {}", misses.join("; "))))
        }
    }
}
