//! `quantize`: the weights of a model.

use quantize_rs::Model;

use crate::args::QuantizeArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::wishes::{ActivationWishes, Activations};
use crate::{file, plan, summary};

pub(crate) fn run(args: &QuantizeArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    let (model, plan) = plan::of(
        &model,
        args.wishes.config(Activations::Float, &args.alone, &ActivationWishes::default())?,
    )?;
    if args.dry_run {
        return plan::show(&plan, console);
    }
    file::check(&args.output)?;
    let report = file::save(&plan.apply(&model, None)?, &args.output)?;
    summary::show(&report, console)
}
