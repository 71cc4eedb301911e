//! The commands of the command line. The arguments of each command are in its own file.

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};

use crate::batch::BatchArguments;
use crate::benchmark::BenchmarkArguments;
use crate::calibrate::CalibrateArguments;
use crate::compare::CompareArguments;
use crate::config::ConfigArguments;
use crate::console::OutputArguments;
use crate::convert::ConvertModelArguments;
use crate::half_precision::HalfArguments;
use crate::infer::InferArguments;
use crate::info::InfoArguments;
use crate::layer_errors::LayerErrorsArguments;
use crate::mixed::MixedArguments;
use crate::optimize::OptimizeArguments;
use crate::outliers::OutlierArguments;
use crate::plan::PlanArguments;
use crate::prune::PruneArguments;
use crate::quantize::QuantizeArguments;
use crate::ranges::RangesCommand;
use crate::recommend::RecommendArguments;
use crate::sensitivity::SensitivityArguments;
use crate::shell::{CompletionArguments, ManArguments};
use crate::validate::ValidateArguments;
use crate::variants::VariantArguments;

/// Makes ONNX models smaller and faster, and measures the loss of accuracy.
#[derive(Debug, Parser)]
#[command(name = "quantize-rs", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    /// Write when each stage, layer and sample ran to this file, as JSON for Chrome's trace viewer
    /// or Perfetto
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output")]
    pub(crate) trace: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 the model or the data was refused, 2 the command line is not valid,
130 interrupted with Ctrl-C.
Results go to standard output, progress, warnings and errors to standard error.";

/// The whole command line. No flag looks like a negative number, so that each may be a value.
pub(crate) fn command() -> clap::Command {
    with_negative_numbers(Arguments::command())
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let taken = |arg: clap::Arg| {
        let takes = !arg.is_positional() && arg.get_action().takes_values();
        if takes { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(taken).mut_subcommands(with_negative_numbers)
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what is in a model
    Info(InfoArguments),
    /// Recommend how to quantize a model, with reasons; write nothing
    Recommend(RecommendArguments),
    /// Quantize the weights of a model
    Quantize(Box<QuantizeArguments>),
    /// Quantize the weights and activations of a model, with ranges from samples
    #[command(alias = "calibrate-matrix")]
    Calibrate(Box<CalibrateArguments>),
    /// Quantize the weights of several models
    Batch(Box<BatchArguments>),
    /// Run the quantizations of a YAML or TOML file
    #[command(after_help = crate::config::help())]
    Config(ConfigArguments),
    /// Check a quantized model against the original, value by value; fail on a fault
    Validate(ValidateArguments),
    /// Show how two models differ in size and operators, and with --latency in speed
    Benchmark(Box<BenchmarkArguments>),
    /// Show what would be quantized to which type, and why the rest stays float; write nothing
    Plan(PlanArguments),
    /// Set weights of small magnitude to exactly 0
    Prune(PruneArguments),
    /// Convert a model to a newer opset
    Convert(ConvertModelArguments),
    /// Infer the types and shapes of all values and write them into the model
    InferShapes(InferArguments),
    /// Convert a model to 16-bit floats: weights, activations and computations
    Float16(Box<HalfArguments>),
    /// Write every variant of a model that a platform looks for
    Variants(Box<VariantArguments>),
    /// Simplify a model without changing what it computes
    Optimize(OptimizeArguments),
    /// Compare a quantized model with the original: outputs, accuracy, size, latency, kernels
    Compare(Box<CompareArguments>),
    /// Show the error of every value, and the part that its own layer adds
    LayerErrors(Box<LayerErrorsArguments>),
    /// Rank the layers of a model by the loss of accuracy when only that layer is quantized
    Sensitivity(Box<SensitivityArguments>),
    /// Choose the bits of each layer for a target size or SQNR
    MixedPrecision(Box<MixedArguments>),
    /// Show weights with outliers, which make the scale of all other elements coarser
    Outliers(OutlierArguments),
    /// Show, merge, compare and convert ranges written by `calibrate`
    #[command(subcommand)]
    Ranges(RangesCommand),
    /// Print a completion script for a shell
    Completions(CompletionArguments),
    /// Print the manual page (roff)
    Man(ManArguments),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        command().debug_assert();
    }

    #[test]
    fn the_help_shows_the_defaults() {
        for (name, output) in
            [("quantize", "NAME.quantized.onnx"), ("calibrate", "NAME.calibrated.onnx")]
        {
            let mut command = Arguments::command();
            let help = command.find_subcommand_mut(name).expect(name).render_help().to_string();
            assert!(help.contains(&format!("[default: {output} beside")), "{help}");
            assert!(help.contains("[default: 8]"), "{help}");
        }
    }
}
