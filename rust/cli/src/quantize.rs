//! `quantize`: the weights of a model.

use quantize_rs::{Model, Plan, Report};

use crate::args::QuantizeArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::wishes::{ActivationWishes, Activations};
use crate::{file, plan, summary};

pub(crate) fn run(args: &QuantizeArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    if args.dry_run {
        let (_, plan) = planned(args)?;
        return plan::show(&plan, console);
    }
    summary::show(&report(args)?, console)
}

/// Writes the quantized model.
pub(crate) fn report(args: &QuantizeArguments) -> Result<Report, Failure> {
    let (model, plan) = planned(args)?;
    file::check(&args.output)?;
    args.page.check(&[&args.model, &args.output])?;
    let report = file::save(&plan.apply(&model, None)?, &args.output)?;
    args.page.write(|| report.html())?;
    Ok(report)
}

/// The model made ready, and what is planned for it.
pub(crate) fn planned(args: &QuantizeArguments) -> Result<(Model, Plan), Failure> {
    let model = Model::open(&args.model)?;
    let nothing = ActivationWishes::default();
    plan::of(&model, args.wishes.config(Activations::Float, &args.alone, &nothing)?)
}
