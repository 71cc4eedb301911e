//! `layer-errors`: where a quantized model loses accuracy.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{InputSpec, Model, layer_errors};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::html::HtmlArguments;
use crate::samples::SampleArguments;
use crate::{ascii_histogram, run_on_samples};

/// The number of values that are shown, unless all are requested.
const SHOWN: usize = 20;

/// Arguments of `layer-errors`.
#[derive(Debug, Args)]
#[command(
    mut_arg("calibration_data", |data| data
        .required(true)
        .help(crate::samples::help("Samples to compare the models on"))),
    mut_arg("engine", |engine| engine.value_parser(crate::engine::deployed()))
)]
pub(crate) struct LayerErrorsArguments {
    /// The float model
    original: PathBuf,
    /// The quantized model
    quantized: PathBuf,
    #[command(flatten)]
    html: HtmlArguments,
    #[command(flatten)]
    samples: SampleArguments,
    #[command(flatten)]
    engine: EngineArguments,
}

pub(crate) fn run(args: &LayerErrorsArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let (original, quantized) = (Model::open(&args.original)?, Model::open(&args.quantized)?);
    let inputs = InputSpec::of(&original);
    let Some(samples) = args.samples.open(&inputs)? else {
        return Err(Failure::Misuse("layer-errors needs --calibration-data".to_owned()));
    };
    if args.samples.are_random() {
        console.warn("compared on random numbers, which says little of real inputs");
    }
    args.html.check(&[], &[&original, &quantized])?;
    let engine = args.engine.open_deployed()?;
    let samples = SampleDiagnostics::new(samples, &inputs);
    let given = (&args.engine, &args.samples);
    let mut done =
        run_on_samples::on(&*engine, given, samples, console, |engine, samples, control| {
            layer_errors(&original, &quantized, engine, samples, control)
        })?;
    done.conversions.iter().for_each(|said| console.warn(said));
    console.stamp(&mut done.found.origin, args.samples.data.as_deref());
    args.html.write(|| done.found.html())?;
    let most = if console.verbose() { usize::MAX } else { SHOWN };
    let own: Vec<f64> = done.found.worst().iter().map(|row| row.own.sqnr_db).collect();
    let own = &own[..most.min(own.len())];
    let draws = console.draws();
    let text = || match done.found.table(most) {
        text if draws => ascii_histogram::before_lines(&text, own),
        text => text,
    };
    console.result(|| done.found.to_json(), text)
}
