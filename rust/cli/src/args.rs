//! The command line as types: what was typed, before it means anything.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::samples::SampleArguments;
use crate::wishes::{Activations, Wishes};

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
#[derive(Clone, Copy, Debug, Args)]
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
    /// Quantize the weights of a model
    Quantize(QuantizeArguments),
    /// Quantize the weights and the activations of a model, measured on samples
    Calibrate(CalibrateArguments),
    /// Show what would be quantized, to what, and why not; writes nothing
    Plan(PlanArguments),
}

/// Arguments of `info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// The model
    pub(crate) model: PathBuf,
}

/// Arguments of `quantize`.
#[derive(Debug, Args)]
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
    pub(crate) wishes: Wishes,
}

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Where the quantized model goes; may be the model itself
    #[arg(short, long, value_name = "FILE", default_value = "model_calibrated.onnx")]
    pub(crate) output: PathBuf,
    /// Print the plan and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) samples: SampleArguments,
    /// Ranges of an earlier calibration, instead of samples
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(crate) ranges: Option<PathBuf>,
    /// Also write the ranges, as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "ranges")]
    pub(crate) ranges_out: Option<PathBuf>,
    /// How ranges follow from what was seen: minmax
    #[arg(long, default_value = "minmax")]
    pub(crate) method: String,
    /// Type of activations
    #[arg(long, value_enum, value_name = "TYPE", default_value_t)]
    pub(crate) activations: Activations,
    /// Samples that run at once, each on a thread of its own [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) wishes: Wishes,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// The model
    pub(crate) model: PathBuf,
    /// Plan activations of this type too, as `calibrate` does
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) activations: Option<Activations>,
    #[command(flatten)]
    pub(crate) wishes: Wishes,
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
