//! `calibrate`: the weights of a model, and its activations as samples show them.

use std::path::Path;
use std::time::Instant;

use quantize_rs::{Config, InputSpec, Method, Model, Plan, Ranges, Report};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::args::{CalibrateArguments, RangesArguments};
use crate::console::Console;
use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::samples::SampleArguments;
use crate::wishes::{Activations, WeightWishes};
use crate::{file, plan, ranges, run_on_samples, summary, text};

pub(crate) fn run(args: &CalibrateArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    if args.dry_run || args.compare_methods {
        let (model, plan) = planned(args)?;
        // Opened in a dry run too, which is to tell what would go wrong.
        let numbers = Numbers::open(args, &model)?;
        if args.dry_run {
            return plan::show(&plan, console);
        }
        warn_of_noise(&args.samples, console);
        return compare(args, &model, &plan, numbers, console);
    }
    summary::show(&report(args, console)?, args.samples.warning(), console)
}

/// Calibrates, and writes the quantized model. A warning that random samples were asked for is told
/// at once.
pub(crate) fn report(
    args: &CalibrateArguments,
    console: &mut Console<'_>,
) -> Result<Report, Failure> {
    let (original, config) = wanted(args)?;
    let (model, plan) = plan::of(&original, config.clone())?;
    let numbers = Numbers::open(args, &model)?;
    let given = &args.samples;
    let judged = args.guard.open(&original, &given.images, Some(given), console)?;
    let noise = warn_of_noise(&args.samples, console);
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

pub(crate) fn warn_of_noise(
    samples: &SampleArguments,
    console: &mut Console<'_>,
) -> Option<&'static str> {
    let noise = samples.warning();
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
    let done = run_on_samples::on(
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
    Samples(SampleDiagnostics),
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
            Some(samples) => Numbers::Samples(SampleDiagnostics::new(samples, &inputs)),
            None => Numbers::Nowhere,
        })
    }

    /// The ranges of the values that the plan observes, and what is to be said of the samples.
    fn ranges(
        self,
        args: &CalibrateArguments,
        model: &Model,
        plan: &Plan,
        console: &mut Console<'_>,
    ) -> Result<Option<Ranges>, Failure> {
        match self {
            Numbers::Nowhere => Ok(None),
            Numbers::Ranges(ranges) => Ok(Some(ranges)),
            Numbers::Samples(samples) => {
                let method = args.ranges.method.clone().unwrap_or_default();
                let sources = (&args.engine, &args.samples);
                let ranges = observe(model, plan, sources, samples, &method, console)?;
                if let Some(path) = &args.ranges.ranges_out {
                    file::write(path, &ranges.to_json())?;
                }
                Ok(Some(ranges))
            }
        }
    }
}

/// Runs the model on the samples and finds ranges, and what biases are corrected by.
pub(crate) fn observe(
    model: &Model,
    plan: &Plan,
    sources: (&EngineArguments, &SampleArguments),
    samples: SampleDiagnostics,
    method: &Method,
    console: &mut Console<'_>,
) -> Result<Ranges, Failure> {
    let engine = sources.0.open()?;
    let done =
        run_on_samples::on(&*engine, sources, samples, console, |engine, samples, control| {
            quantize_rs::calibrate(model, plan, engine, samples, method, control)
        })?;
    let mut ranges = done.found;
    ranges.warnings.extend(done.warnings);
    // Where weights are quantized alone, the inputs of layers are all that is looked at.
    let tracked =
        if plan.needs_calibration() { ranges.values.len() } else { ranges.statistics.len() };
    console.done(&format!("Calibration complete: {tracked} layers tracked"));
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
