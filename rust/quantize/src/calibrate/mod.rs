//! Calibration: runs a model on samples and finds where its activations live.
//!
//! In: a model, its plan, an [`Engine`] and samples. Out: [`Ranges`].
//! Imports: the rooms up to `encode`.

mod auto;
mod collect;
mod compare_methods;
pub(crate) mod engine;
mod evaluate;
mod probe_matmuls;
mod progress;
mod run;
mod score;

pub use engine::{Engine, Runner, Sample, Samples, Sink, Timed};

use std::collections::BTreeMap;

use quantize_rs_onnx::Model;

use crate::{Method, Plan, QuantizeError, Ranges};

pub use compare_methods::{MethodComparison, MethodRow};
pub(crate) use progress::Works;
pub use run::{Control, Progress};
pub(crate) use run::{Watched, Watcher, watch};

/// Runs `model` on every sample and finds the range of each value that `plan` observes, and what the
/// biases of products by quantized weights are corrected by.
///
/// A plan for weights alone observes no value: there the means are all that is looked for, and the method
/// makes no difference. Everything that any method needs is gathered in one pass, in memory that does not grow with the
/// number of samples. The result depends neither on the number of threads nor on the order of the
/// samples, bit for bit.
///
/// With [`Method::Auto`] and 128 samples or more a part is held back and run again, as by [`compare_methods`]; single values are
/// judged so from 512 on. With fewer it is the method that leaves room for what was not seen, and of one sample the full range.
///
/// # Errors
/// No samples, a sample that does not fit the model, NaN or infinity in an observed value, or an
/// engine that cannot run the model.
pub fn calibrate(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    method: &Method,
    mut control: Control<'_>,
) -> Result<Ranges, QuantizeError> {
    let taps = collect::taps(model, plan);
    if taps.is_empty() {
        // Nothing to look for: the engine need not even be able to run the model.
        let model = plan.origin.fingerprint.clone();
        let mut ranges = Ranges::of(model, method.name(), engine.name(), 0, BTreeMap::new());
        ranges.notes.push(IDLE.to_owned());
        return Ok(ranges);
    }
    if matches!(method, Method::Auto) && plan.needs_calibration() {
        let gathered = collect::gather(model, taps, engine, samples, &mut control, true)?;
        return auto::choose(model, plan, engine, gathered, &mut control);
    }
    let mut gathered = collect::gather(model, taps, engine, samples, &mut control, false)?;
    let (_, mut ranges) = gathered.ranges(plan);
    if plan.needs_calibration() {
        return Ok(ranges.using(method)?);
    }
    // No method chose anything.
    ranges.method = Method::default().name();
    Ok(ranges)
}

/// What is said where samples serve nothing.
const IDLE: &str = "no sample was run: no activation is quantized, and no bias could be corrected";

/// Runs `model` on every sample once and compares what each method makes of it.
///
/// A part of the samples is held back: the ranges of each method follow from the others, the model
/// is quantized with them, and its outputs on the samples held back (and on others, when these are
/// few) are compared with those of the float model.
///
/// # Errors
/// As [`calibrate`].
pub fn compare_methods(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    mut control: Control<'_>,
) -> Result<MethodComparison, QuantizeError> {
    let taps = collect::taps(model, plan);
    let gathered = collect::gather(model, taps, engine, samples, &mut control, true)?;
    let all = compare_methods::Extent { blunt: true, single: true };
    compare_methods::compare(model, plan, engine, gathered, &mut control, all)
}
