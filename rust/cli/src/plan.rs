//! `plan`: what would be quantized, to what, and why not.

use quantize_rs::{Config, Model, Plan, PreprocessedModel};

use crate::args::PlanArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::text;
use crate::wishes::Activations;

pub(crate) fn run(args: &PlanArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    let activations = match (args.activations, args.wishes.target) {
        (Some(qtype), _) => Activations::Of(qtype),
        (None, Some(_)) => Activations::OfTarget,
        (None, None) => Activations::Float,
    };
    let (_, plan) = of(&model, args.wishes.config(activations, &args.alone, &args.calibrated)?)?;
    show(&plan, console)
}

/// A model made ready, and the plan for it.
pub(crate) fn of(model: &Model, config: Config) -> Result<(Model, Plan), Failure> {
    let prepared = PreprocessedModel::of(model, config)?;
    let plan = prepared.plan();
    Ok((prepared.model, plan))
}

/// Prints a plan, as the result of a command.
pub(crate) fn show(plan: &Plan, console: &mut Console<'_>) -> Result<(), Failure> {
    plan.warnings.iter().for_each(|warning| console.warn(warning));
    console.result(|| text::json(plan), || plan.to_string())
}
