//! `sensitivity`: the layers of a model, ranked by what it costs to quantize each of them alone.

use std::path::{Path, PathBuf};

use quantize_rs::{
    InputSpec, Metric, Model, Sensitivity, SensitivityOptions, sensitivity, weight_sensitivity,
};
use quantize_rs_runner::samples::Watched;

use crate::args::SensitivityArguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::wishes::{Activations, WeightWishes};
use crate::{chart, file, plan, work};

pub(crate) fn run(args: &SensitivityArguments, console: &mut Console<'_>) -> Result<(), Failure> {
    let model = Model::open(&args.model)?;
    let without_data = args.samples.data.is_none();
    let activations = match args.activations {
        _ if args.weights_only || without_data => Activations::Float,
        Some(qtype) => Activations::Of(qtype),
        None => Activations::OfTarget,
    };
    let wishes = args.wishes.config(activations, &WeightWishes::default(), &args.calibrated)?;
    let (model, plan) = plan::of(&model, wishes)?;
    let inputs = InputSpec::of(&model);
    let others = [Some(&args.model), args.resume.as_ref()];
    let others: Vec<&Path> = others.into_iter().flatten().map(PathBuf::as_path).collect();
    args.page.check(&others)?;
    let Some(samples) = args.samples.open(&inputs)? else {
        if args.all_but_one || args.metric.is_some_and(|metric| metric != Metric::Weight) {
            let what = "without --data only weights can be looked at: --metric weight";
            return Err(Failure::Misuse(what.to_owned()));
        }
        return show(&weight_sensitivity(&model, &plan)?, args, console);
    };
    if let Some(path) = &args.resume {
        file::check(path)?;
        file::check_apart("--resume", path, &[&args.model])?;
    }
    if args.samples.are_random() {
        console.warn("ranked on random numbers, which says little of real inputs");
    }
    let options = SensitivityOptions {
        metric: args.metric.unwrap_or_default(),
        all_but_one: args.all_but_one,
        resume: args.resume.clone(),
    };
    let engine = args.engine.open_deployed()?;
    let samples = Watched::new(samples, &inputs);
    let given = (&args.engine, &args.samples);
    let done = work::on(&*engine, given, samples, console, |engine, samples, control| {
        sensitivity(&model, &plan, None, engine, samples, &options, control)
    })?;
    show(&done.found, args, console)
}

fn show(
    found: &Sensitivity,
    args: &SensitivityArguments,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    args.page.write(|| found.html())?;
    let scores: Vec<f64> = found.layers.iter().map(|layer| layer.score).collect();
    let draws = console.draws();
    let text = || match found.to_string() {
        text if draws => chart::before_lines(&text, &scores),
        text => text,
    };
    console.result(|| found.to_json(), text)
}
