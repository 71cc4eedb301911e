//! `mixed-precision`: chooses bits for each layer, so that the model meets a size or an SQNR.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use quantize_rs::{
    Config, Control, Format, InputSpec, Method, MixedOptions, MixedPrecision, Model, QType,
    mixed_precision,
};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::options;
use crate::samples::SampleArguments;
use crate::{calibrate, output_path, plan, run_on_samples};

/// What the samples are for.
const PURPOSE: &str = "Samples to choose the bits on, by the effect on the outputs";

/// Arguments of `mixed-precision`.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("goal").args(["target_size", "min_sqnr"]).required(true)),
    mut_arg("calibration_data", |data| data.help(crate::samples::help(PURPOSE))),
    mut_arg("engine", |engine| engine.value_parser(crate::engine::deployed())),
    mut_arg("engine", |engine| engine.requires("calibration_data")),
    mut_arg("onnxruntime", |library| library.requires("calibration_data")),
    mut_arg("threads", |threads| threads.requires("calibration_data"))
)]
pub(crate) struct MixedArguments {
    /// The model
    model: PathBuf,
    /// Write the model with the chosen bits
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The maximum size of the model in bytes; a number up to 1 is a fraction of the float size
    #[arg(long, value_name = "SIZE")]
    target_size: Option<f64>,
    /// The minimum SQNR of the worst output on --calibration-data, in dB
    #[arg(long, value_name = "DB", requires = "calibration_data")]
    min_sqnr: Option<f64>,
    /// The bits to choose from, besides float: 16, 8, 4 or 2
    #[arg(long, value_name = "BITS", value_delimiter = ',', default_value = "8,4,2")]
    bits: Vec<u8>,
    /// Quantize activations to 8 bits, too, and choose which of them get 16, as few as --min-sqnr
    /// needs; weights have 8
    #[arg(
        long,
        value_name = "TYPE",
        requires = "min_sqnr",
        conflicts_with = "bits",
        value_parser = ["uint8", "int8"]
    )]
    activations: Option<String>,
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help = options::help("per_channel"),
        long_help = options::long_help("per_channel")
    )]
    per_channel: Option<bool>,
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help = options::help("symmetric"),
        long_help = options::long_help("symmetric")
    )]
    symmetric: Option<bool>,
    /// Use one scale for each N consecutive elements along the axis that is summed over
    #[arg(long, value_name = "N")]
    block_size: Option<usize>,
    /// Leave this weight or node in float: a name, a pattern with *, ? or […], a regular expression
    /// after re:, or an operator type; may be repeated
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,
    /// How quantized values are written into the file
    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = options::choice::<Format>("output_format"),
        default_value = Format::Qdq.name()
    )]
    output_format: Format,
    #[command(flatten)]
    samples: SampleArguments,
    #[command(flatten)]
    engine: EngineArguments,
}

pub(crate) fn run(args: &MixedArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    if let Some(output) = &args.output {
        output_path::check(output)?;
        let data: Vec<&Path> = args.samples.data.as_deref().into_iter().collect();
        output_path::check_apart("--output", output, &data)?;
    }
    let config = Config {
        activations: args.activations.as_deref().map(|name| match name {
            "int8" => QType::Int8,
            _ => QType::UInt8,
        }),
        per_channel: args.per_channel,
        symmetric: args.symmetric,
        block_size: args.block_size,
        exclude: args.exclude.clone(),
        output_format: args.output_format,
        ..Config::default()
    };
    let found = chosen(args, &model, &config, console)?;
    if let Some(output) = &args.output {
        let (prepared, plan) = plan::of(&model, found.config(&config))?;
        let ranges = match args.samples.open(&InputSpec::of(&prepared))? {
            Some(samples) if plan.needs_calibration() => {
                let samples = SampleDiagnostics::new(samples, &InputSpec::of(&prepared));
                let given = (&args.engine, &args.samples);
                let method = Method::default();
                Some(calibrate::observe(&prepared, &plan, given, samples, &method, console)?.0)
            }
            _ => None,
        };
        let report = output_path::save(&plan.apply(&prepared, ranges.as_ref())?, output)?;
        report.warnings.iter().for_each(|warning| console.warn(warning));
    }
    let written = args.output.as_ref().map(|path| format!("written to {}\n", path.display()));
    console.result(|| found.to_json(), || format!("{found}{}", written.unwrap_or_default()))
}

fn chosen(
    args: &MixedArguments,
    model: &Model,
    config: &Config,
    console: &mut Console<'_>,
) -> Result<MixedPrecision, Failure> {
    let options = MixedOptions {
        target_size: args.target_size,
        min_sqnr: args.min_sqnr,
        bits: args.bits.clone(),
        ..MixedOptions::default()
    };
    let inputs = InputSpec::of(model);
    let Some(samples) = args.samples.open(&inputs)? else {
        let control = Control { threads: args.engine.threads(), progress: &mut |_| true };
        return Ok(mixed_precision(model, config, &options, None, control)?);
    };
    if args.samples.are_random() {
        console.warn("chosen on random numbers, which says little of real inputs");
    }
    let engine = args.engine.open_deployed()?;
    let given = (&args.engine, &args.samples);
    let samples = SampleDiagnostics::new(samples, &inputs);
    let done =
        run_on_samples::on(&*engine, given, samples, console, |engine, samples, control| {
            mixed_precision(model, config, &options, Some((engine, samples)), control)
        })?;
    done.conversions.iter().for_each(|said| console.warn(said));
    Ok(done.found)
}
