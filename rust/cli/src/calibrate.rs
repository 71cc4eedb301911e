//! `calibrate`: the weights of a model, and its activations as samples show them.

use std::path::Path;
use std::time::Instant;

use quantize_rs::{Config, InputSpec, Model, Plan, Ranges, Report};
use quantize_rs_runner::samples::Watched;

use crate::args::{CalibrateArguments, RangesArguments};
use crate::console::Console;
use crate::failure::Failure;
use crate::wishes::{Activations, WeightWishes};
use crate::{file, plan, ranges, summary, text, work};

pub(crate) fn run(args: &CalibrateArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    if args.dry_run || args.compare_methods {
        let (model, plan) = planned(args)?;
        // Opened in a dry run too, which is to tell what would go wrong.
        let numbers = Numbers::open(args, &model)?;
        if args.dry_run {
            return plan::show(&plan, console);
        }
        warn_of_noise(args, &plan, console);
        return compare(args, &model, &plan, numbers, console);
    }
    let mut report = report(args, console)?;
    // What was told before it began is not told again.
    let told = report.warnings.pop_if(|warning| args.samples.warning() == Some(warning));
    summary::show_with(report, told.as_deref(), console)
}

/// Calibrates, and writes the quantized model. A warning that random samples were asked for is told
/// at once, and is the last of the report.
pub(crate) fn report(
    args: &CalibrateArguments,
    console: &mut Console<'_>,
) -> Result<Report, Failure> {
    let (original, config) = wanted(args)?;
    let (model, plan) = plan::of(&original, config.clone())?;
    let numbers = Numbers::open(args, &model)?;
    let given = &args.samples;
    let judged = args.guard.open(&original, &given.images, Some(given), console)?;
    let noise = warn_of_noise(args, &plan, console);
    check_paths(args)?;

    let begun = Instant::now();
    let ranges = numbers.ranges(args, &model, &plan, console)?;
    let seconds = begun.elapsed().as_secs_f64();
    let made = match judged {
        None => plan.apply(&model, ranges.as_ref())?,
        Some(judged) => {
            judged.quantized((&original, &config), ranges.as_ref(), &args.engine, console)?
        }
    };
    let mut report = file::save(&made, &args.output)?;
    report.seconds.calibrate = seconds;
    report.warnings.extend(noise.map(str::to_owned));
    args.page.write(|| report.html())?;
    Ok(report)
}

/// The model made ready, and what is planned for it.
pub(crate) fn planned(args: &CalibrateArguments) -> Result<(Model, Plan), Failure> {
    let (model, config) = wanted(args)?;
    plan::of(&model, config)
}

/// The model, and what is wanted of it.
fn wanted(args: &CalibrateArguments) -> Result<(Model, Config), Failure> {
    let model = Model::open(&args.model)?;
    let activations = args.ranges.activations.map_or(Activations::OfTarget, Activations::Of);
    let config = args.wishes.config(activations, &WeightWishes::default(), &args.calibrated)?;
    Ok((model, config))
}

fn warn_of_noise(
    args: &CalibrateArguments,
    plan: &Plan,
    console: &mut Console<'_>,
) -> Option<&'static str> {
    let noise = args.samples.warning().filter(|_| plan.needs_calibration());
    if let Some(warning) = noise {
        console.warn(warning);
    }
    noise
}

/// Prints what each method makes of the samples.
fn compare(
    args: &CalibrateArguments,
    model: &Model,
    plan: &Plan,
    numbers: Numbers,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let Numbers::Samples(samples) = numbers else {
        return Err(Failure::Misuse("--compare-methods needs --data".to_owned()));
    };
    let done = work::on(
        &*args.engine.open()?,
        (&args.engine, &args.samples),
        samples,
        console,
        |engine, samples, control| {
            quantize_rs::compare_methods(model, plan, engine, samples, control)
        },
    )?;
    // The comparison names the engine; why it is that one, only those want to know who ask.
    let verbose = console.verbose();
    let notes = done.found.ranges.first().into_iter().filter(|_| verbose).flat_map(|r| &r.notes);
    notes.chain(&done.warnings).for_each(|said| console.warn(said));
    console.result(|| text::json(&done.found), || done.found.to_string())
}

/// Where the numbers of activations come from.
enum Numbers {
    Samples(Watched),
    Ranges(Ranges),
    /// Nowhere: clap allows this in a dry run only.
    Nowhere,
}

impl Numbers {
    fn open(args: &CalibrateArguments, model: &Model) -> Result<Numbers, Failure> {
        let RangesArguments { ranges: saved, method, .. } = &args.ranges;
        if let Some(path) = saved {
            let ranges = ranges::read(path)?;
            return Ok(Numbers::Ranges(match method {
                Some(method) => ranges.using(method)?,
                None => ranges,
            }));
        }
        let inputs = InputSpec::of(model);
        Ok(match args.samples.open_beside(&inputs, args.guard.verify())? {
            Some(samples) => Numbers::Samples(Watched::new(samples, &inputs)),
            None => Numbers::Nowhere,
        })
    }

    /// The ranges of the values that the plan observes, `None` when there are none, and what is to
    /// be said of the samples.
    fn ranges(
        self,
        args: &CalibrateArguments,
        model: &Model,
        plan: &Plan,
        console: &mut Console<'_>,
    ) -> Result<Option<Ranges>, Failure> {
        match self {
            _ if !plan.needs_calibration() => Ok(None),
            Numbers::Nowhere => Ok(None),
            Numbers::Ranges(ranges) => Ok(Some(ranges)),
            Numbers::Samples(samples) => {
                let ranges = observe(args, model, plan, samples, console)?;
                if let Some(path) = &args.ranges.ranges_out {
                    file::write(path, &ranges.to_json())?;
                }
                Ok(Some(ranges))
            }
        }
    }
}

/// Runs the model on the samples and finds ranges.
fn observe(
    args: &CalibrateArguments,
    model: &Model,
    plan: &Plan,
    samples: Watched,
    console: &mut Console<'_>,
) -> Result<Ranges, Failure> {
    let method = args.ranges.method.clone().unwrap_or_default();
    let done = work::on(
        &*args.engine.open()?,
        (&args.engine, &args.samples),
        samples,
        console,
        |engine, samples, control| {
            quantize_rs::calibrate(model, plan, engine, samples, &method, control)
        },
    )?;
    let mut ranges = done.found;
    ranges.warnings.extend(done.warnings);
    console.done(&format!("Calibration complete: {} layers tracked", ranges.values.len()));
    Ok(ranges)
}

fn check_paths(args: &CalibrateArguments) -> Result<(), Failure> {
    file::check(&args.output)?;
    let mut others: Vec<&Path> = vec![&args.output, &args.model];
    others.extend(args.samples.data.as_deref());
    others.extend(args.ranges.ranges.as_deref());
    others.extend(args.engine.library());
    others.extend(args.guard.files());
    // The model may be replaced, as anywhere.
    file::check_apart("--output", &args.output, &others[2..])?;
    if let Some(path) = &args.ranges.ranges_out {
        file::check_apart("--ranges-out", path, &others)?;
        file::check(path)?;
        others.push(path);
    }
    args.page.check(&others)
}
