//! `quantize`: the weights of a model.

use std::path::Path;

use quantize_rs::{Config, Model, Plan, Report};

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
    summary::show(&report(args, console)?, console)
}

/// Writes the quantized model.
pub(crate) fn report(
    args: &QuantizeArguments,
    console: &mut Console<'_>,
) -> Result<Report, Failure> {
    let (model, config) = wanted(args)?;
    let (prepared, plan) = plan::of(&model, config.clone())?;
    file::check(&args.output)?;
    let mut others: Vec<&Path> = vec![&args.model, &args.output];
    others.extend(args.guard.files());
    file::check_apart("--output", &args.output, &args.guard.files().collect::<Vec<_>>())?;
    args.page.check(&others)?;
    let judged = args.guard.open(&model, &args.images, None, console)?;
    let made = match judged {
        None => plan.apply(&prepared, None)?,
        Some(judged) => judged.quantized((&model, &config), None, &args.engine, console)?,
    };
    let report = file::save(&made, &args.output)?;
    args.page.write(|| report.html())?;
    Ok(report)
}

/// The model made ready, and what is planned for it.
pub(crate) fn planned(args: &QuantizeArguments) -> Result<(Model, Plan), Failure> {
    let (model, config) = wanted(args)?;
    plan::of(&model, config)
}

/// The model, and what is wanted of it.
fn wanted(args: &QuantizeArguments) -> Result<(Model, Config), Failure> {
    let model = Model::open(&args.model)?;
    let nothing = ActivationWishes::default();
    let config = args.wishes.config(Activations::Float, &args.alone, &nothing)?;
    Ok((model, config))
}
