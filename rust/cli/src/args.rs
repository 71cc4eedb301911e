//! The commands of the command line. The arguments of each command are in its own file.

use clap::{Parser, Subcommand};

use crate::batch::BatchArguments;
use crate::benchmark::BenchmarkArguments;
use crate::calibrate::CalibrateArguments;
use crate::compare::CompareArguments;
use crate::config::ConfigArguments;
use crate::console::OutputArguments;
use crate::convert::ConvertModelArguments;
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

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what is in a model
    Info(InfoArguments),
    /// Say how to quantize a model, and why; writes nothing
    Recommend(RecommendArguments),
    /// Quantize the weights of a model
    Quantize(Box<QuantizeArguments>),
    /// Quantize the weights and the activations of a model, measured on samples
    Calibrate(Box<CalibrateArguments>),
    /// Quantize the weights of several models
    Batch(Box<BatchArguments>),
    /// Do what a file of YAML or TOML says
    #[command(after_help = crate::config::help())]
    Config(ConfigArguments),
    /// Compare a quantized model with its original, number by number; fails when anything is wrong
    Validate(ValidateArguments),
    /// Show how two models differ in size and structure, and with --latency in time
    Benchmark(Box<BenchmarkArguments>),
    /// Show what would be quantized, to what, and why not; writes nothing
    Plan(PlanArguments),
    /// Set weights of small magnitude to exactly 0
    Prune(PruneArguments),
    /// Make a model that means the same in a newer version of ONNX's operators
    Convert(ConvertModelArguments),
    /// Write into a model of what type and shape its values are
    InferShapes(InferArguments),
    /// Make a model simpler; what it computes stays
    Optimize(OptimizeArguments),
    /// Hold a quantized model against the original: outputs, accuracy, size, latency, kernels
    Compare(Box<CompareArguments>),
    /// Show where a quantized model loses accuracy: value by value, own errors and inherited ones
    LayerErrors(Box<LayerErrorsArguments>),
    /// Rank the layers of a model by what it costs to quantize each of them alone
    Sensitivity(Box<SensitivityArguments>),
    /// Choose bits for each layer, so that the model meets a size or an SQNR
    MixedPrecision(Box<MixedArguments>),
    /// Show the weights with numbers far from all others, which coarsen a scale
    Outliers(OutlierArguments),
    /// Show, merge, compare and convert the ranges that `calibrate` wrote
    #[command(subcommand)]
    Ranges(RangesCommand),
    /// Print a script with which a shell completes commands
    Completions(CompletionArguments),
    /// Print the manual page
    Man(ManArguments),
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
