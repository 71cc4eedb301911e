//! Calibration: runs a model on samples and finds the range of each of its activations.

mod auto;
mod collect;
mod compare_methods;
pub(crate) mod engine;
mod evaluate;
mod hidden_noise;
mod kv_cache;
pub(crate) mod magnitudes;
mod masks;
pub(crate) mod padding;
pub(crate) mod pair;
mod probe_matmuls;
mod progress;
mod retained;
mod run;
mod score;
mod shard;
pub(crate) mod threads;
mod weights;

pub use engine::{Engine, RanOperators, Sample, Samples, Session, TimedSession, ValueSink};

use std::collections::BTreeMap;
use std::sync::Arc;

use quantize_rs_onnx::{Model, Span};

use crate::error::while_unchanged;
use crate::graph::InputSpec;
use crate::ranges::rows_at_once;
use crate::transform::half_precision;
use crate::{Method, Plan, QuantizeError, Ranges};

pub use compare_methods::{MethodComparison, MethodRow};
pub(crate) use progress::StagedProgress;
use retained::RepeatedSamples;
pub use retained::RetainingSamples;
pub use run::{Control, Progress};
pub(crate) use run::{RunOutcome, ValueObserver, observe};
pub use shard::calibrate_shard;
pub(crate) use weights::with_rounded_weights;
use weights::{Again, MomentCollector, StateFile};
pub use weights::{RoundingCost, round_weights};

/// Runs `model` on every sample and finds the range of each value that `plan` observes, and the
/// channel means that bias correction needs.
///
/// A weight-only plan observes no value: only the channel means are collected, and the method makes
/// no difference. All statistics that any method needs are collected in one pass, in memory that
/// does not grow with the number of samples. The result is the same bit for bit for every number of
/// threads and every order of the samples.
///
/// With [`RoundingEffort::Best`](crate::RoundingEffort::Best), up to 128 samples and 256 MiB are
/// kept, and run again for each layer whose weights are rounded, if the engine
/// [runs several models](Engine::runs_several_models).
///
/// With [`Method::Auto`] and 128 samples or more, some samples are held back and run again, as in
/// [`compare_methods`]. From 512 samples on, single values may get a method of their own. With
/// fewer than 128 samples `auto` takes the method that leaves room for values that were not seen;
/// with one sample it takes the full range.
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
    control: Control<'_>,
) -> Result<Ranges, QuantizeError> {
    while_unchanged(&[model], || {
        calibrated((model, plan), engine, samples, (method, Rounding::Now), control)
    })
}

/// When weights are rounded with the second moments of a calibration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// At its end.
    Now,
    /// Later: the ranges keep the moments.
    Later,
}

fn calibrated(
    (model, plan): (&Model, &Plan),
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    (method, rounding): (&Method, Rounding),
    mut control: Control<'_>,
) -> Result<Ranges, QuantizeError> {
    let observed = collect::observed_values(model, plan);
    let layers = weights::layers(model, plan)?;
    let nothing = weights::nothing_to_round(plan, &layers);
    let half = plan.config.float_type;
    let cached = plan.config.kv_cache.is_some();
    if observed.is_empty() && layers.weights.is_empty() && half.is_none() && !cached {
        // No value is observed: the engine does not even have to support the model.
        let model = plan.origin.fingerprint.clone();
        let mut ranges = Ranges::of(model, method.name(), engine.name(), 0, BTreeMap::new());
        ranges.notes.push(NO_OBSERVED_VALUE.to_owned());
        ranges.warnings.extend(nothing);
        return Ok(ranges);
    }
    let moments = (!layers.weights.is_empty()).then(|| MomentCollector::new(&layers));
    // Before samples run, which may take long.
    let resume = plan.config.resume_rounding.as_deref();
    let rounds = moments.is_some() && rounding == Rounding::Now;
    let state = StateFile::open(resume.filter(|_| rounds))?;
    let wanted = rounds && layers.repeats(plan);
    let repeats = wanted && engine.runs_several_models();
    let mut samples = RepeatedSamples::new(
        samples,
        (half.is_some() || cached || repeats) && engine.runs_any_model(),
    );
    let evaluating =
        matches!(method, Method::Auto) && plan.needs_calibration() && engine.runs_any_model();
    let mut collected = collect::collect(
        model,
        observed,
        engine,
        &mut samples,
        &mut control,
        evaluating,
        moments.as_ref(),
    )?;
    let kept = samples.kept();
    let again = (repeats && !kept.is_empty()).then(|| Again { engine, samples: &kept });
    // Samples that run again to evaluate methods are not counted twice.
    let count = collected.samples;
    let Control { threads, progress } = control;
    let mut at_the_end =
        |now: Progress| progress(Progress { done: count, total: Some(count), ..now });
    let mut control = Control { threads, progress: &mut at_the_end };
    let span = Span::stage("find ranges");
    let mut ranges = if !plan.needs_calibration() {
        // No range is computed, so no method is used.
        let (_, ranges) = collected.ranges(plan);
        Ranges { method: Method::full_range().name(), ..ranges }
    } else if matches!(method, Method::Auto) {
        auto::choose(model, plan, engine, collected, &mut control)?
    } else {
        collected.ranges(plan).1.using(method)?
    };
    drop(span);
    ranges.warnings.extend(nothing);
    if wanted && !repeats {
        ranges.notes.push(ONE_MODEL.to_owned());
    }
    match moments {
        Some(moments) if rounding == Rounding::Later => ranges.moments = Some(moments.kept()),
        Some(moments) => {
            let _span = Span::stage("round weights");
            let mut moments = moments.finish();
            let mut take = |at: usize| Ok(moments[at].take());
            let with = (again, state, usize::MAX);
            weights::round(model, plan, &mut ranges, &layers, &mut take, with, &mut control)?;
        }
        None if resume.is_some() => ranges.notes.push(NOTHING_TO_RESUME.to_owned()),
        None => {}
    }
    if let Some(half) = half.filter(|_| !kept.is_empty()) {
        // Masks are clipped before their values are measured.
        let (float, _) = half_precision::prepared(model, half)?;
        let samples = &mut pair::SliceSamples(kept.iter());
        let found = magnitudes::magnitudes(&float, engine, samples, &mut control)?;
        ranges.magnitudes = Arc::new(found.values);
    }
    if cached && !kept.is_empty() {
        let samples = &mut pair::SliceSamples(kept.iter());
        let found = kv_cache::magnitudes(model, engine, samples, &mut control)?;
        ranges.kv_cache = Arc::new(found);
    }
    ranges.rows = rows_at_once(&InputSpec::of(model));
    Ok(ranges)
}

/// The note of a plan with a file to resume from that has no use for it.
const NOTHING_TO_RESUME: &str = "resume_rounding has no effect: no weight is rounded with samples";

/// The note of a plan that rounds weights layer after layer, with an engine that cannot do that.
const ONE_MODEL: &str = "no layer is rounded for the inputs that quantized layers give: the engine \
                         runs only the model that was prepared last";

/// The note of a plan that observes no value.
const NO_OBSERVED_VALUE: &str =
    "no sample was run: no activation is quantized and no bias can be corrected";

/// Runs `model` on every sample once and compares the range methods.
///
/// Some samples are held back. The ranges of each method are computed from the other samples, the
/// model is quantized with them, and its outputs on the samples held back (and on others if these
/// are few) are compared with the outputs of the float model.
///
/// # Errors
/// See [`calibrate`].
pub fn compare_methods(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    mut control: Control<'_>,
) -> Result<MethodComparison, QuantizeError> {
    while_unchanged(&[model], || {
        let observed = collect::observed_values(model, plan);
        let mut collected =
            collect::collect(model, observed, engine, samples, &mut control, true, None)?;
        let (learnt, all) = collected.ranges(plan);
        let given = (&collected, [&learnt, &all]);
        let extent = compare_methods::ComparisonScope { all: true, single: true };
        compare_methods::compare(model, plan, engine, given, &mut control, extent)
    })
}
