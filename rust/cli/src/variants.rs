//! `variants`: writes every variant of a model that a platform looks for.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{Control, InputSpec, Model, VARIANT_SETS, VariantOptions, variants};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::output_path::Made;
use crate::run_on_samples;
use crate::samples::SampleArguments;

/// Arguments of `variants`.
#[derive(Debug, Args)]
#[command(
    after_help = sets(),
    mut_arg("calibration_data", |data| data
        .help(crate::samples::help("Samples to round weights and measure the variants with"))),
    mut_arg("engine", |engine| engine.value_parser(crate::engine::deployed())),
    mut_arg("engine", |engine| engine.requires("calibration_data")),
    mut_arg("onnxruntime", |library| library.requires("calibration_data")),
    mut_arg("threads", |threads| threads.requires("calibration_data"))
)]
pub(crate) struct VariantArguments {
    /// The model
    model: PathBuf,
    /// The folder for the files, whose names begin with that of the model
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// The platform that the files are for
    #[arg(long = "for", value_name = "PLATFORM", default_value = "transformers.js")]
    platform: String,
    /// Write only these variants, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Option<Vec<String>>,
    #[command(flatten)]
    samples: SampleArguments,
    #[command(flatten)]
    engine: EngineArguments,
}

/// The list of variants, by platform.
fn sets() -> String {
    let row = |variant: &quantize_rs::Variant| {
        let file = format!("NAME{}.onnx", variant.suffix);
        format!("  {:<13}{file:<32}{}\n", variant.name, variant.about)
    };
    let one = |set: &quantize_rs::VariantSet| {
        let rows: String = set.variants.iter().map(row).collect();
        format!("{}: {}\n{rows}", set.name, set.about)
    };
    VARIANT_SETS.iter().map(one).collect()
}

pub(crate) fn run(args: &VariantArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    let stem = args.model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let options = VariantOptions {
        platform: args.platform.clone(),
        only: args.only.clone(),
        stem: stem.unwrap_or_else(|| "model".to_owned()),
    };
    let inputs = InputSpec::of(&model);
    let given = args.samples.open(&inputs)?;
    // It is removed again if nothing is written to it.
    let mut folder = Made::default();
    folder.make(&args.output)?;
    let made = match given {
        None => {
            let mut go_on = |_| !crate::interrupt::is_pressed();
            variants(&model, &args.output, &options, None, &mut go_on)?
        }
        Some(samples) => {
            if args.samples.are_random() {
                console.warn(
                    "rounded and measured on random numbers, which says little of real inputs",
                );
            }
            let engine = args.engine.open_deployed()?;
            let samples = SampleDiagnostics::new(samples, &inputs);
            let given = (&args.engine, &args.samples);
            let done = run_on_samples::on(
                &*engine,
                given,
                samples,
                console,
                |engine, samples, control| {
                    let Control { threads, progress } = control;
                    let given = Some((engine, samples, threads));
                    variants(&model, &args.output, &options, given, progress)
                },
            )?;
            done.conversions.iter().for_each(|said| console.warn(said));
            done.found
        }
    };
    for row in &made.variants {
        row.warnings.iter().for_each(|said| console.warn(&format!("{}: {said}", row.name)));
    }
    console.result(|| made.to_json(), || made.to_string())
}
