//! `plan`: what would be quantized, to what, and why not.

use quantize_rs::{Config, Graph, Model, Plan};

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
    show(&of(&model, args.wishes.config(activations)?)?, console)
}

/// The plan for a model.
pub(crate) fn of(model: &Model, config: Config) -> Result<Plan, Failure> {
    Ok(Plan::of(&Graph::of(model)?, config)?)
}

/// Prints a plan, as the result of a command.
pub(crate) fn show(plan: &Plan, console: &mut Console<'_>) -> Result<(), Failure> {
    plan.warnings.iter().for_each(|warning| console.warn(warning));
    console.result(|| text::json(plan), || plan.to_string())
}
