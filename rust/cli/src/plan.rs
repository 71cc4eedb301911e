//! `plan`: shows what would be quantized and to which type, and the reason for each value that
//! stays float.

use std::path::PathBuf;

use clap::Args;
use quantize_rs::options::Verb;
use quantize_rs::{Config, Model, Plan, PreprocessedModel};

use crate::console::Console;
use crate::failure::Failure;
use crate::options::QuantizeOptions;
use crate::text;

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// The model
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) options: QuantizeOptions,
}

pub(crate) fn run(args: &PlanArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    // A target determines the type of activations.
    let calibrated = args.options.has("activations") || args.options.has("target");
    let verb = if calibrated { Verb::Calibrate } else { Verb::Quantize };
    let (model, plan) = of(&model, args.options.config(verb)?)?;
    show(&model, &plan, console)
}

/// The prepared model, and its plan.
pub(crate) fn of(model: &Model, config: Config) -> Result<(Model, Plan), Failure> {
    let prepared = PreprocessedModel::of(model, config)?;
    let plan = prepared.plan();
    Ok((prepared.model, plan))
}

/// Prints a plan, as the result of a command.
pub(crate) fn show(model: &Model, plan: &Plan, console: &mut Console<'_>) -> Result<(), Failure> {
    plan.warnings.iter().for_each(|warning| console.warn(warning));
    let cost = plan.rounding_cost(model)?;
    let shown = || match cost {
        Some(cost) => format!("{plan}{cost}\n"),
        None => plan.to_string(),
    };
    console.result(|| text::json(plan), shown)
}
