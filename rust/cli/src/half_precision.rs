//! `float16`: converts a model to 16-bit floats.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::{
    HalfOptions, HalfReport, HalfType, InputSpec, Model, convert_half, convert_half_with_samples,
};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::output_file::{self, OutputFile};
use crate::samples::SampleArguments;
use crate::{interrupt, run_on_samples, text};

/// What the default name of the result says.
const DONE: &str = "float16";

/// Arguments of `float16`.
#[derive(Debug, Args)]
#[command(
    mut_arg("output", |output| output.help(output_file::help(DONE))),
    mut_arg("calibration_data", |data| data
        .help(crate::samples::help("Samples to measure values and the result on"))),
    mut_arg("engine", |engine| engine.value_parser(crate::engine::deployed())),
    mut_arg("engine", |engine| engine.requires("calibration_data")),
    mut_arg("onnxruntime", |library| library.requires("calibration_data")),
    mut_arg("threads", |threads| threads.requires("calibration_data"))
)]
pub(crate) struct HalfArguments {
    /// The model
    model: PathBuf,
    #[command(flatten)]
    output: OutputFile,
    /// Convert to bfloat16 instead, which has the range of float32 and less precision
    #[arg(long)]
    bfloat16: bool,
    /// Convert inputs and outputs of the model, too
    #[arg(long)]
    no_keep_io: bool,
    /// Leave a node in float32: a name, a pattern or an operator type; may be repeated
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,
    /// Try kinds of operators in float32 where the worst output has a lower SQNR, in dB
    #[arg(
        long,
        value_name = "DB",
        requires = "calibration_data",
        default_value_t = HalfOptions::default().enough_sqnr
    )]
    enough_sqnr: f64,
    #[command(flatten)]
    samples: SampleArguments,
    #[command(flatten)]
    engine: EngineArguments,
}

pub(crate) fn run(args: &HalfArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    let half = if args.bfloat16 { HalfType::BFloat16 } else { HalfType::Float16 };
    let output = args.output.checked(&args.model, half.name())?;
    let options = HalfOptions {
        half,
        keep_io: !args.no_keep_io,
        exclude: args.exclude.clone(),
        enough_sqnr: args.enough_sqnr,
    };
    let inputs = InputSpec::of(&model);
    let made = match args.samples.open(&inputs)? {
        None => convert_half(&model, &options)?,
        Some(samples) => {
            if args.samples.are_random() {
                console.warn("measured on random numbers, which says little of real inputs");
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
                    convert_half_with_samples(&model, &options, engine, samples, control)
                },
            )?;
            done.conversions.iter().for_each(|said| console.warn(said));
            done.found
        }
    };
    let report = interrupt::finishing(|| {
        made.save(&output)
            .map_err(|error| Failure::from(error).while_doing("the model was not written"))
    })?;
    report.warnings.iter().for_each(|warning| console.warn(warning));
    let verbose = console.verbose();
    console.summary(|| report.to_json(), || describe(&report, verbose))
}

fn describe(report: &HalfReport, verbose: bool) -> String {
    let mut rows = vec![
        ("Original size", text::size(report.bytes_before)),
        ("New size", text::size(report.bytes_after)),
        (
            "Nodes",
            format!(
                "{} compute in {}, {} stay float32, {} casts added",
                report.converted,
                report.dtype,
                report.kept.len(),
                report.casts
            ),
        ),
    ];
    rows.extend(report.sqnr_db.map(|sqnr| ("SQNR", format!("{sqnr:.1} dB"))));
    let kept: Vec<String> = if verbose {
        let line = |kept: &quantize_rs::KeptNode| {
            format!("{} ({}): {}", kept.node, kept.op_type, kept.why)
        };
        report.kept.iter().map(line).collect()
    } else {
        let line = |(why, count, names): (String, usize, Vec<String>)| {
            let more = if count > names.len() { ", …" } else { "" };
            format!("{count}: {why}: {}{more}", names.join(", "))
        };
        report.kept_by_reason().into_iter().map(line).collect()
    };
    if !kept.is_empty() {
        rows.push(("Kept", kept.join("\n")));
    }
    if !report.clipped.is_empty() {
        rows.push(("Clipped", report.clipped.join("\n")));
    }
    if !report.notes.is_empty() {
        rows.push(("Notes", report.notes.join("\n")));
    }
    rows.extend(report.output.iter().map(|path| ("Written to", path.clone())));
    text::table(rows)
}
