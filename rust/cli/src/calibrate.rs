//! `calibrate`: the weights of a model, and its activations as samples show them.

use std::path::Path;
use std::time::Instant;
use std::{fs, thread};

use quantize_rs::{Control, InputSpec, Method, Model, Plan, Ranges};
use quantize_rs_runner::Tract;
use quantize_rs_runner::samples::BoxedSamples;

use crate::args::CalibrateArguments;
use crate::console::Console;
use crate::failure::{Failure, said};
use crate::{file, plan, summary};

pub(crate) fn run(args: &CalibrateArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let method = method(&args.method)?;
    let model = Model::open(&args.model)?;
    let plan = plan::of(&model, args.wishes.config(Some(args.activations))?)?;
    // Opened in a dry run too, which is to tell what would go wrong.
    let numbers = Numbers::open(args, &model)?;
    if args.dry_run {
        return plan::show(&plan, console);
    }
    check_paths(args)?;
    let warning = args.samples.warning().filter(|_| plan.needs_calibration());
    if let Some(warning) = warning {
        console.warn(warning);
    }

    let begun = Instant::now();
    let ranges = numbers.ranges(args, &method, &model, &plan, console)?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut report = file::save(&plan.apply(&model, ranges.as_ref())?, &args.output)?;
    report.seconds.calibrate = seconds;
    if !plan.needs_calibration() {
        let idle = "no operator of the model can run on integers as it is: no activation was \
                    quantized, and no sample was run";
        report.warnings.push(idle.to_owned());
    }
    summary::show_with(report, warning, console)
}

/// Where the numbers of activations come from.
enum Numbers {
    Samples(BoxedSamples),
    Ranges(Ranges),
    /// Nowhere: clap allows this in a dry run only.
    Nowhere,
}

impl Numbers {
    fn open(args: &CalibrateArguments, model: &Model) -> Result<Numbers, Failure> {
        if let Some(path) = &args.ranges {
            return read_ranges(path).map(Numbers::Ranges);
        }
        let samples = args.samples.open(&InputSpec::of(model))?;
        Ok(samples.map_or(Numbers::Nowhere, Numbers::Samples))
    }

    /// The ranges of the values that the plan observes, `None` when there are none.
    fn ranges(
        self,
        args: &CalibrateArguments,
        method: &Method,
        model: &Model,
        plan: &Plan,
        console: &mut Console<'_>,
    ) -> Result<Option<Ranges>, Failure> {
        match self {
            _ if !plan.needs_calibration() => Ok(None),
            Numbers::Nowhere => Ok(None),
            Numbers::Ranges(ranges) => Ok(Some(ranges)),
            Numbers::Samples(samples) => {
                let ranges = observe(args, method, model, plan, samples, console)?;
                if let Some(path) = &args.ranges_out {
                    file::write(path, &ranges.to_json())?;
                }
                Ok(Some(ranges))
            }
        }
    }
}

/// Runs the model on the samples.
fn observe(
    args: &CalibrateArguments,
    method: &Method,
    model: &Model,
    plan: &Plan,
    mut samples: BoxedSamples,
    console: &mut Console<'_>,
) -> Result<Ranges, Failure> {
    let threads = match args.threads {
        Some(threads) => usize::from(threads),
        None => thread::available_parallelism().map_or(1, usize::from),
    };
    let mut progress = console.progress(samples.len_hint());
    let mut show = |done| {
        progress.show(done);
        true
    };
    let control = Control { threads, progress: &mut show };
    let ranges = quantize_rs::calibrate(model, plan, &Tract, &mut *samples, method, control);
    progress.clear();
    let ranges = ranges?;
    console.done(&format!("Calibration complete: {} layers tracked", ranges.values.len()));
    Ok(ranges)
}

fn read_ranges(path: &Path) -> Result<Ranges, Failure> {
    let refused = |what: String| Failure::Refused(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| refused(said(&error)))?;
    Ranges::from_json(&text).map_err(|error| refused(error.to_string()))
}

fn check_paths(args: &CalibrateArguments) -> Result<(), Failure> {
    file::check(&args.output)?;
    let Some(path) = &args.ranges_out else { return Ok(()) };
    let mut others: Vec<&Path> = vec![&args.output, &args.model];
    others.extend(args.samples.data.as_deref());
    file::check_apart("--ranges-out", path, &others)?;
    file::check(path)
}

fn method(name: &str) -> Result<Method, Failure> {
    name.parse().map_err(|error| Failure::Misuse(format!("--{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_do_not_exist_are_refused_by_name() {
        for (name, _) in Method::all() {
            assert_eq!(method(&name).ok().map(|method| method.name()).as_deref(), Some(&*name));
        }
        for name in ["minmax:3", "", "kl"] {
            let message = method(name).expect_err(name).message().unwrap_or_default();
            assert!(message.starts_with(&format!("--method is `{name}`: ")), "{message}");
        }
    }
}
