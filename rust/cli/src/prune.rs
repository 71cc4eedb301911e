//! `prune`: sets weights of small magnitude to 0.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use quantize_rs::{Below, Model, Prune, Pruning, prune};

use crate::console::Console;
use crate::failure::Failure;
use crate::output_file::{self, OutputFile};
use crate::{interrupt, text};

/// What the default name of the result says.
const DONE: &str = "pruned";

/// Arguments of `prune`.
#[derive(Debug, Args)]
#[command(
    mut_arg("output", |output| output.help(output_file::help(DONE))),
    group(ArgGroup::new("below").args(["threshold", "sparsity"]).required(true))
)]
pub(crate) struct PruneArguments {
    /// The model
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputFile,
    /// Set elements of a smaller magnitude to 0
    #[arg(long, value_name = "X")]
    pub(crate) threshold: Option<f64>,
    /// Set the smallest elements to 0 until this fraction of all is 0
    #[arg(long, value_name = "PART", conflicts_with = "mode")]
    pub(crate) sparsity: Option<f64>,
    /// Whether the threshold is a magnitude, or a fraction of the largest magnitude
    #[arg(
        long,
        value_name = "MODE",
        default_value = "absolute",
        value_parser = ["absolute", "relative"]
    )]
    pub(crate) mode: String,
    /// The group that a threshold or fraction applies to: a weight, or each of its output channels
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "tensor",
        value_parser = ["tensor", "channel"]
    )]
    pub(crate) per: String,
    /// A weight or node that is not pruned: a name or pattern; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) exclude: Vec<String>,
}

pub(crate) fn run(args: &PruneArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let output = args.output.checked(&args.model, DONE)?;
    let below = match (args.sparsity, args.threshold) {
        (Some(part), _) => Below::Sparsity(part),
        (None, threshold) => Below::parse(&args.mode, threshold.unwrap_or_default())?,
    };
    let (per_channel, exclude) = (args.per == "channel", args.exclude.clone());
    let how = Prune { below, per_channel, exclude };
    let (model, report) = prune(&Model::open(&args.model)?, &how)?;
    interrupt::finishing(|| {
        let saved = model.save(&output).map(|_| ());
        saved.map_err(|error| Failure::from(error).while_doing("the model was not written"))
    })?;
    let output = output.display().to_string();
    console.summary(|| text::json(&report), || describe(&report, output))
}

fn describe(report: &Pruning, output: String) -> String {
    let said = report.to_string();
    let (first, weights) = said.trim_end().split_once('\n').unwrap_or((said.trim_end(), ""));
    let weights: Vec<&str> = weights.lines().map(str::trim).collect();
    text::table(vec![
        ("Pruned", first.to_owned()),
        ("Weights", weights.join("\n")),
        ("Written to", output),
    ])
}
