//! `quantize`: the weights of a model.

use std::path::Path;
use std::time::Instant;

use quantize_rs::{Config, InputSpec, Method, Model, Plan, Report};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::args::QuantizeArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::wishes::{ActivationWishes, Activations};
use crate::{calibrate, file, plan, summary};

pub(crate) fn run(args: &QuantizeArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    if args.dry_run {
        let (model, plan) = planned(args)?;
        samples(args, &model)?;
        return plan::show(&plan, console);
    }
    summary::show(&report(args, console)?, args.samples.warning(), console)
}

/// Writes the quantized model. A warning that random samples were asked for is told at once.
pub(crate) fn report(
    args: &QuantizeArguments,
    console: &mut Console<'_>,
) -> Result<Report, Failure> {
    let (model, config) = wanted(args)?;
    let (prepared, plan) = plan::of(&model, config.clone())?;
    file::check(&args.output)?;
    let read: Vec<&Path> =
        args.samples.data.as_deref().into_iter().chain(args.guard.files()).collect();
    file::check_apart("--output", &args.output, &read)?;
    args.page.check(&[&[&*args.model, &*args.output], &read[..]].concat())?;
    let given = &args.samples;
    let samples = samples(args, &prepared)?;
    let calibrated = given.data.is_some().then_some(given);
    let judged = args.guard.open(&model, &given.images, calibrated, console)?;
    let noise = calibrate::warn_of_noise(given, console);
    let begun = Instant::now();
    let ranges = samples.map(|samples| {
        let sources = (&args.engine, given);
        calibrate::observe(&prepared, &plan, sources, samples, &Method::default(), console)
    });
    let ranges = ranges.transpose()?;
    let seconds = begun.elapsed().as_secs_f64();
    let made = match judged {
        None => plan.apply(&prepared, ranges.as_ref())?,
        Some(judged) => {
            judged.quantized((&model, &config), ranges.as_ref(), &args.engine, console)?
        }
    };
    let mut report = file::save(&made, &args.output)?;
    if ranges.is_some() {
        report.seconds.calibrate = seconds;
    }
    report.warnings.extend(noise.map(str::to_owned));
    args.page.write(|| report.html())?;
    Ok(report)
}

/// The samples that biases are corrected by, where there are any.
fn samples(args: &QuantizeArguments, model: &Model) -> Result<Option<SampleDiagnostics>, Failure> {
    let inputs = InputSpec::of(model);
    let samples = args.samples.open_beside(&inputs, args.guard.verify())?;
    Ok(samples.map(|samples| SampleDiagnostics::new(samples, &inputs)))
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
