//! The pass over the samples: collects a sketch of every value that the plan observes, and the
//! channel means that bias correction needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use quantize_rs_math::stats::{ChannelStats, Sketch};
use quantize_rs_math::{MathError, QSpec, Range};
use quantize_rs_onnx::Model;

use super::engine::{Engine, Sample, Samples, ValueSink};
use super::evaluate::{RecordedOutputs, float_outputs, record};
use super::padding::{PaddingMask, counted};
use super::retained::{RetainedSamples, is_held_back};
use super::run::{Control, RunOutcome, ValueObserver, observe};
use super::weights::MomentCollector;
use crate::encode::bias_correction::{channel_axis, products};
use crate::error::CalibrationErrorKind as Kind;
use crate::graph::Graph;
use crate::graph::value_range::{bounds, limits};
use crate::plan::Source;
use crate::ranges::ObservedRange;
use crate::util::axes::axis_of;
use crate::{CalibrationError, Plan, Ranges};

/// A value to observe, and what to collect of it.
#[derive(Clone, Debug)]
pub(super) struct ObservedValue {
    name: String,
    /// Its quantized type, if its range is needed.
    spec: Option<QSpec>,
    /// The axis of the channels whose means are needed; negative counts from the end.
    channels: Option<isize>,
    /// Bounds of its values that the model guarantees.
    limits: Option<Range>,
    /// Bounds of what its operator can produce.
    bounds: Option<Range>,
}

/// The collected statistics and samples.
pub(super) struct Collected {
    engine: &'static str,
    notes: Vec<String>,
    /// The number of samples.
    pub(super) samples: usize,
    pub(super) held_back: usize,
    observed: Vec<ObservedValue>,
    seen: Vec<ObservedRange>,
    /// The statistics of the samples held back.
    held_back_seen: Vec<ObservedRange>,
    /// The evaluation samples, those held back first.
    pub(super) kept: Vec<Sample>,
    /// The float32 outputs of the float model for them, by the content of the sample.
    pub(super) reference: RecordedOutputs,
}

/// Runs the model on every sample and collects statistics of `observed`; with `evaluating`, some
/// samples are held back.
pub(super) fn collect(
    model: &Model,
    observed: Vec<ObservedValue>,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
    evaluating: bool,
    moments: Option<&MomentCollector<'_>>,
) -> Result<Collected, CalibrationError> {
    let mut names: Vec<String> = observed.iter().map(|entry| entry.name.clone()).collect();
    // The position of each output among the observed values.
    let mut outputs: Vec<usize> = Vec::new();
    for output in evaluating.then(|| float_outputs(model)).into_iter().flatten() {
        let known = names.iter().position(|name| *name == output);
        outputs.push(known.unwrap_or(names.len()));
        names.extend(known.is_none().then_some(output));
    }
    for value in moments.into_iter().flat_map(MomentCollector::values) {
        if !names.iter().any(|name| name == value) {
            names.push(value.to_owned());
        }
    }
    let moments = moments.map(|moments| (moments, &names[..]));
    let kept = Mutex::new(RetainedSamples::for_evaluation());
    let retained = evaluating.then_some((&kept, &outputs[..]));
    let observer = || Collector::new(&observed, retained, moments);
    let RunOutcome { observers, samples, engine, notes } =
        observe(model, &names, engine, samples, control, observer)?;
    let mut all = Collector::new(&observed, retained, moments);
    for one in observers {
        all.merge(&one);
    }
    if all.held_back_samples == samples {
        // Too few samples: none would be left to compute ranges from.
        all.seen = std::mem::take(&mut all.held_back_seen);
        all.held_back_samples = 0;
    }
    let Collector { seen, held_back_seen, held_back_samples: held_back, .. } = all;
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.into_samples();
    let (kept, reference) =
        kept.map(|(sample, shown)| (sample.clone(), (sample.key(), shown))).unzip();
    Ok(Collected {
        engine,
        notes,
        samples,
        held_back,
        observed,
        seen,
        held_back_seen,
        kept,
        reference,
    })
}

/// The values to observe: those that the plan observes, and the inputs of nodes whose biases are
/// corrected or whose channels are smoothed.
pub(super) fn observed_values(model: &Model, plan: &Plan) -> Vec<ObservedValue> {
    let graph = Graph::of(model).ok();
    let mut observed: BTreeMap<String, ObservedValue> = BTreeMap::new();
    let needed = plan.quantized().filter(|(_, how)| how.source == Source::Observed);
    let needed = needed.map(|(value, how)| (value, how.spec));
    for (value, spec) in plan.also_observed().chain(needed) {
        let id = graph.as_ref().and_then(|graph| Some((graph, graph.value(&value.name)?)));
        let limits = id.and_then(|(graph, id)| limits(graph, id));
        let bounds = id.and_then(|(graph, id)| bounds(graph, id));
        let name = value.name.clone();
        let index =
            ObservedValue { name: name.clone(), spec: Some(spec), channels: None, limits, bounds };
        observed.insert(name, index);
    }
    if let Some(graph) = &graph {
        let smoothed = plan.integer_nodes().into_iter().filter(|_| plan.config.smooth);
        let smoothed = smoothed.map(|node| (node.node, node.input));
        let corrected = plan.config.bias_correction.then(|| products(graph, plan));
        let corrected = corrected.into_iter().flatten().map(|it| (it.node, it.input));
        // Another plan may smooth and correct others.
        let any = (0..graph.nodes.len()).filter(|_| plan.observes_all);
        let any = any.filter_map(|node| Some((node, graph.input(node, 0)?)));
        let any = any.filter(|(_, input)| observed.contains_key(graph.values[*input].name));
        let any: Vec<_> = any.collect();
        for (node, input) in smoothed.chain(corrected).chain(any) {
            let Some(channels) = channel_axis(graph.nodes[node]) else { continue };
            let name = graph.values[input].name.to_owned();
            observed
                .entry(name.clone())
                .or_insert(ObservedValue {
                    name,
                    spec: None,
                    channels: None,
                    limits: None,
                    bounds: None,
                })
                .channels
                .get_or_insert(channels);
        }
    }
    observed.into_values().collect()
}

/// Collects what one thread observes.
struct Collector<'a> {
    observed: &'a [ObservedValue],
    /// The evaluation samples, shared by all threads, if methods are evaluated; and which of the
    /// observed values are outputs of the model.
    kept: Option<(&'a Mutex<RetainedSamples>, &'a [usize])>,
    /// The moments of the inputs of layers, shared by all threads, and the names of all values.
    moments: Option<(&'a MomentCollector<'a>, &'a [String])>,
    /// The content and the padding of the current sample.
    current: (u64, Option<PaddingMask>),
    /// The outputs of the current sample.
    shown: Vec<Vec<f32>>,
    /// How many values of it were observed.
    values: usize,
    /// Whether the current sample is held back.
    holding: bool,
    seen: Vec<ObservedRange>,
    /// The statistics of the samples held back.
    held_back_seen: Vec<ObservedRange>,
    held_back_samples: usize,
}

impl<'a> Collector<'a> {
    fn new(
        observed: &'a [ObservedValue],
        kept: Option<(&'a Mutex<RetainedSamples>, &'a [usize])>,
        moments: Option<(&'a MomentCollector<'a>, &'a [String])>,
    ) -> Collector<'a> {
        let empty = |entry: &ObservedValue| ObservedRange {
            spec: entry.spec,
            shape: Vec::new(),
            sketch: entry.spec.map(|_| Sketch::default()),
            channels: entry.channels.map(|_| ChannelStats::default()),
            axis: entry.channels,
            limits: entry.limits,
            bounds: entry.bounds,
        };
        Collector {
            observed,
            kept,
            moments,
            current: (0, None),
            shown: vec![Vec::new(); kept.map_or(0, |(_, outputs)| outputs.len())],
            values: 0,
            holding: false,
            seen: observed.iter().map(empty).collect(),
            held_back_seen: if kept.is_some() {
                observed.iter().map(empty).collect()
            } else {
                Vec::new()
            },
            held_back_samples: 0,
        }
    }

    fn merge(&mut self, other: &Collector<'_>) {
        self.seen.iter_mut().zip(&other.seen).for_each(|(all, one)| all.merge(one));
        self.held_back_seen
            .iter_mut()
            .zip(&other.held_back_seen)
            .for_each(|(all, one)| all.merge(one));
        self.held_back_samples += other.held_back_samples;
    }
}

impl ValueSink for Collector<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        self.values += values.len();
        let outputs = self.kept.map_or(&[][..], |(_, outputs)| outputs);
        for (_, shown) in outputs.iter().zip(&mut self.shown).filter(|(at, _)| **at == index) {
            record(shown, &counted(self.current.1.as_ref(), shape, values));
        }
        if let Some((moments, names)) = self.moments {
            let (key, mask) = &self.current;
            moments.observe(&names[index], shape, values, *key, mask.as_ref());
        }
        let seen = if self.holding { &mut self.held_back_seen } else { &mut self.seen };
        let (Some(seen), Some(wanted)) = (seen.get_mut(index), self.observed.get(index)) else {
            return;
        };
        if wanted.channels.is_some() {
            seen.see_shape(&shape.iter().copied().map(Some).collect::<Vec<_>>());
        }
        let axis = wanted.channels.and_then(|axis| axis_of(axis as i64, shape.len()));
        // Padding has ranges and peaks, and no part in means.
        let real = axis.zip(self.current.1.as_ref()).and_then(|(axis, mask)| {
            let (shape, values) = mask.without_padding(shape, values)?;
            Some((axis.checked_sub(1).filter(|axis| *axis > 0)?, shape, values))
        });
        match (&mut seen.sketch, axis, real) {
            (Some(sketch), Some(axis), None) => {
                sketch.observe_channels(&mut seen.channels, values, shape, axis);
            }
            (sketch, axis, real) => {
                if let Some(sketch) = sketch {
                    sketch.observe(values);
                }
                let channels = &mut seen.channels;
                match (axis, real) {
                    (Some(axis), Some((rows, shape_of_rows, real))) => {
                        add_channels(channels, |all| all.observe(&real, &shape_of_rows, rows));
                        add_channels(channels, |all| all.observe_peaks(values, shape, axis));
                    }
                    (Some(axis), None) => {
                        add_channels(channels, |all| all.observe(values, shape, axis));
                    }
                    (None, _) => {}
                }
            }
        }
    }
}

impl ValueObserver for Collector<'_> {
    fn begin(&mut self, _: usize, sample: &Sample) {
        let key = if self.moments.is_some() { sample.key() } else { 0 };
        self.current = (key, PaddingMask::of(sample));
        let Some((kept, outputs)) = self.kept else { return };
        (self.shown, self.values) = (vec![Vec::new(); outputs.len()], 0);
        let key = sample.key();
        self.holding = is_held_back(key);
        self.held_back_samples += usize::from(self.holding);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.keep((!self.holding, key), sample.clone());
    }

    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError> {
        if let Some((kept, _)) = self.kept {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.record((!self.holding, sample.key()), &mut self.shown, self.values);
        }
        let seen = if self.holding { &self.held_back_seen } else { &self.seen };
        for (seen, entry) in seen.iter().zip(self.observed) {
            let Some(sketch) = &seen.sketch else { continue };
            let bad = sketch.nan() + sketch.positive_infinities();
            if bad > 0 {
                let elements = bad + sketch.values().count() + sketch.negative_infinities();
                let kind = Kind::NonFiniteActivation { count: bad, elements };
                return Err(CalibrationError::new(kind).at_value(&entry.name));
            }
        }
        Ok(())
    }
}

/// Adds values to the statistics of channels. If the number of channels varies, there are none.
fn add_channels(
    channels: &mut Option<ChannelStats>,
    add: impl FnOnce(&mut ChannelStats) -> Result<(), MathError>,
) {
    if channels.as_mut().is_some_and(|all| add(all).is_err()) {
        *channels = None;
    }
}

impl Collected {
    /// The engine that ran the samples.
    pub(super) fn engine(&self) -> &'static str {
        self.engine
    }

    /// Takes out the statistics without the samples held back, and those of all samples. Their
    /// ranges are still to be computed.
    pub(super) fn ranges(&mut self, plan: &Plan) -> (Ranges, Ranges) {
        let seen = std::mem::take(&mut self.seen);
        let names = || self.observed.iter().map(|entry| &entry.name);
        let statistics = names().cloned().zip(seen).collect();
        let samples = self.samples - self.held_back;
        let model = plan.origin.fingerprint.clone();
        let mut learnt = Ranges::of(model, String::new(), self.engine, samples, statistics);
        learnt.notes.clone_from(&self.notes);
        let mut all = learnt.clone();
        all.samples = self.samples;
        if !self.held_back_seen.is_empty() {
            let statistics = Arc::make_mut(&mut all.statistics);
            for (name, held_back_seen) in self.held_back() {
                if let Some(seen) = statistics.get_mut(name) {
                    seen.merge(held_back_seen);
                }
            }
        }
        (learnt, all)
    }

    /// The statistics of the samples held back, by the name of the value.
    pub(super) fn held_back(&self) -> impl Iterator<Item = (&String, &ObservedRange)> {
        self.observed.iter().map(|entry| &entry.name).zip(&self.held_back_seen)
    }
}
