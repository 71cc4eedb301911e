//! The one pass over the samples: a sketch of every value that the plan observes, and the means of
//! the channels that bias correction asks for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use quantize_rs_math::stats::{ChannelStats, Sketch};
use quantize_rs_math::{QSpec, Range};
use quantize_rs_onnx::Model;

use super::engine::{Engine, Sample, Samples, Sink};
use super::evaluate::{Shown, float_outputs, remember};
use super::run::{Control, Watched, Watcher, watch};
use crate::encode::bias_correction::{channel_axis, products};
use crate::error::CalibrationErrorKind as Kind;
use crate::graph::Graph;
use crate::graph::value_range::{bounds, limits};
use crate::plan::Source;
use crate::ranges::ObservedRange;
use crate::{CalibrationError, Plan, Ranges};

/// One of so many samples is held back to judge by, when somebody judges.
const HELD_BACK: u64 = 4;

/// Samples that are kept to judge by, at most: those held back, and others when they are few.
pub(super) const KEPT: usize = 16;

/// What the samples that are kept may take together, unless a single one takes more.
const KEPT_BYTES: usize = 64 << 20;

/// A value to look at, and what to remember of it.
#[derive(Clone, Debug)]
pub(super) struct Tap {
    name: String,
    /// How it will be quantized, when its own range is wanted.
    spec: Option<QSpec>,
    /// The axis of the channels whose means are wanted, counted from the end when negative.
    channels: Option<isize>,
    /// Between which numbers it lies, where the model says so.
    limits: Option<Range>,
    /// What the operator that makes it can make.
    bounds: Option<Range>,
}

/// What was gathered.
pub(super) struct Gathered {
    engine: &'static str,
    notes: Vec<String>,
    /// Samples seen, and how many of them were held back.
    pub(super) samples: usize,
    pub(super) held_back: usize,
    taps: Vec<Tap>,
    seen: Vec<ObservedRange>,
    /// What the samples held back showed.
    apart: Vec<ObservedRange>,
    /// The samples to judge by, those held back first.
    pub(super) kept: Vec<Sample>,
    /// What the float model makes of them: its float32 outputs, by the content of the sample.
    pub(super) reference: Shown,
}

/// A place in the order in which samples are kept: those held back first, then by content.
type Rank = (bool, u64);

/// Runs the model on every sample and looks at `taps`; with `judging`, some are held back.
pub(super) fn gather(
    model: &Model,
    taps: Vec<Tap>,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
    judging: bool,
) -> Result<Gathered, CalibrationError> {
    let mut names: Vec<String> = taps.iter().map(|tap| tap.name.clone()).collect();
    // Where each output is among what is looked at.
    let mut outputs: Vec<usize> = Vec::new();
    for output in judging.then(|| float_outputs(model)).into_iter().flatten() {
        let known = names.iter().position(|name| *name == output);
        outputs.push(known.unwrap_or(names.len()));
        names.extend(known.is_none().then_some(output));
    }
    let kept = Mutex::new(Kept::default());
    let judged = judging.then_some((&kept, &outputs[..]));
    let watcher = || Gatherer::new(&taps, judged);
    let Watched { watchers, samples, engine, notes } =
        watch(model, &names, engine, samples, control, watcher)?;
    let mut all = Gatherer::new(&taps, judged);
    for one in watchers {
        all.merge(&one);
    }
    if all.apart_samples == samples {
        // There are few: nothing would be left to learn from.
        all.seen = std::mem::take(&mut all.apart);
        all.apart_samples = 0;
    }
    let Gatherer { seen, apart, apart_samples: held_back, .. } = all;
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.samples.into_values();
    let (kept, reference) =
        kept.map(|(sample, shown)| (sample.clone(), (sample.key(), shown))).unzip();
    Ok(Gathered { engine, notes, samples, held_back, taps, seen, apart, kept, reference })
}

/// The values to look at: those that the plan observes, and what goes into products that have their
/// biases corrected, or are smoothed.
pub(super) fn taps(model: &Model, plan: &Plan) -> Vec<Tap> {
    let graph = Graph::of(model).ok();
    let mut taps: BTreeMap<String, Tap> = BTreeMap::new();
    for (value, how) in plan.quantized().filter(|(_, how)| how.source == Source::Observed) {
        let id = graph.as_ref().and_then(|graph| Some((graph, graph.value(&value.name)?)));
        let limits = id.and_then(|(graph, id)| limits(graph, id));
        let bounds = id.and_then(|(graph, id)| bounds(graph, id));
        let name = value.name.clone();
        let tap = Tap { name: name.clone(), spec: Some(how.spec), channels: None, limits, bounds };
        taps.insert(name, tap);
    }
    if let Some(graph) = &graph {
        let smoothed = plan.integer_nodes().into_iter().filter(|_| plan.config.smooth);
        let smoothed = smoothed.map(|node| (node.node, node.input));
        let corrected = plan.config.bias_correction.then(|| products(graph, plan));
        let corrected = corrected.into_iter().flatten().map(|it| (it.node, it.input));
        for (node, input) in smoothed.chain(corrected) {
            let Some(channels) = channel_axis(graph.nodes[node]) else { continue };
            let name = graph.values[input].name.to_owned();
            taps.entry(name.clone())
                .or_insert(Tap { name, spec: None, channels: None, limits: None, bounds: None })
                .channels
                .get_or_insert(channels);
        }
    }
    taps.into_values().collect()
}

/// Gathers what one thread sees.
struct Gatherer<'a> {
    taps: &'a [Tap],
    /// Where samples are kept, when somebody judges: one place for all threads; and which of the
    /// values that are looked at are outputs of the model.
    kept: Option<(&'a Mutex<Kept>, &'a [usize])>,
    /// What the sample at hand showed of each output.
    shown: Vec<Vec<f32>>,
    /// Whether the sample at hand is held back.
    holding: bool,
    seen: Vec<ObservedRange>,
    /// What the samples held back showed.
    apart: Vec<ObservedRange>,
    apart_samples: usize,
}

/// The samples of the first ranks, as many as may be: which came first does not matter.
#[derive(Default)]
struct Kept {
    /// Each with what the model makes of it.
    samples: BTreeMap<Rank, (Sample, Vec<Vec<f32>>)>,
    bytes: usize,
    /// The first rank for which there was no room.
    end: Option<Rank>,
}

impl Kept {
    fn keep(&mut self, rank: Rank, sample: Sample) {
        if self.end.is_some_and(|end| end <= rank) {
            return;
        }
        self.bytes += sample.bytes();
        if let Some((twin, _)) = self.samples.insert(rank, (sample, Vec::new())) {
            self.bytes -= twin.bytes();
        }
        while self.samples.len() > KEPT || self.samples.len() > 1 && self.bytes > KEPT_BYTES {
            let Some((rank, (sample, _))) = self.samples.pop_last() else { return };
            self.bytes -= sample.bytes();
            self.end = Some(rank);
        }
    }
}

impl<'a> Gatherer<'a> {
    fn new(taps: &'a [Tap], kept: Option<(&'a Mutex<Kept>, &'a [usize])>) -> Gatherer<'a> {
        let empty = |tap: &Tap| ObservedRange {
            spec: tap.spec,
            shape: Vec::new(),
            sketch: tap.spec.map(|_| Sketch::default()),
            channels: tap.channels.map(|_| ChannelStats::default()),
            axis: tap.channels,
            limits: tap.limits,
            bounds: tap.bounds,
        };
        Gatherer {
            taps,
            kept,
            shown: vec![Vec::new(); kept.map_or(0, |(_, outputs)| outputs.len())],
            holding: false,
            seen: taps.iter().map(empty).collect(),
            apart: if kept.is_some() { taps.iter().map(empty).collect() } else { Vec::new() },
            apart_samples: 0,
        }
    }

    fn merge(&mut self, other: &Gatherer<'_>) {
        self.seen.iter_mut().zip(&other.seen).for_each(|(all, one)| all.merge(one));
        self.apart.iter_mut().zip(&other.apart).for_each(|(all, one)| all.merge(one));
        self.apart_samples += other.apart_samples;
    }
}

impl Sink for Gatherer<'_> {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        let outputs = self.kept.map_or(&[][..], |(_, outputs)| outputs);
        for (_, shown) in outputs.iter().zip(&mut self.shown).filter(|(at, _)| **at == tap) {
            remember(shown, values);
        }
        let seen = if self.holding { &mut self.apart } else { &mut self.seen };
        let (Some(seen), Some(wanted)) = (seen.get_mut(tap), self.taps.get(tap)) else { return };
        if wanted.channels.is_some() {
            seen.see_shape(&shape.iter().copied().map(Some).collect::<Vec<_>>());
        }
        let axis = wanted.channels.and_then(|axis| axis_of(axis, shape.len()));
        match (&mut seen.sketch, axis) {
            (Some(sketch), Some(axis)) => {
                sketch.observe_channels(&mut seen.channels, values, shape, axis);
            }
            (Some(sketch), None) => sketch.observe(values),
            // Channels that come and go have no means.
            (None, Some(axis)) => {
                if let Some(stats) = &mut seen.channels
                    && stats.observe(values, shape, axis).is_err()
                {
                    seen.channels = None;
                }
            }
            (None, None) => {}
        }
    }
}

impl Watcher for Gatherer<'_> {
    fn begin(&mut self, _: usize, sample: &Sample) {
        let Some((kept, outputs)) = self.kept else { return };
        self.shown = vec![Vec::new(); outputs.len()];
        let key = sample.key();
        self.holding = key.is_multiple_of(HELD_BACK);
        self.apart_samples += usize::from(self.holding);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.keep((!self.holding, key), sample.clone());
    }

    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError> {
        if let Some((kept, _)) = self.kept {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, shown)) = kept.samples.get_mut(&(!self.holding, sample.key())) {
                std::mem::swap(shown, &mut self.shown);
            }
        }
        let seen = if self.holding { &self.apart } else { &self.seen };
        for (seen, tap) in seen.iter().zip(self.taps) {
            let Some(sketch) = &seen.sketch else { continue };
            let bad = sketch.nan() + sketch.positive_infinities();
            if bad > 0 {
                let elements = bad + sketch.values().count() + sketch.negative_infinities();
                let kind = Kind::NonFiniteActivation { count: bad, elements };
                return Err(CalibrationError::new(kind).at_value(&tap.name));
            }
        }
        Ok(())
    }
}

/// An axis counted from either end.
fn axis_of(axis: isize, rank: usize) -> Option<usize> {
    let from_start = if axis < 0 { rank.checked_add_signed(axis)? } else { axis.cast_unsigned() };
    (from_start < rank).then_some(from_start)
}

impl Gathered {
    /// Who ran the samples.
    pub(super) fn engine(&self) -> &'static str {
        self.engine
    }

    /// Takes out ranges with the statistics of the samples that were not held back, and those with the statistics of
    /// all; their values are still to be found.
    pub(super) fn ranges(&mut self, plan: &Plan) -> (Ranges, Ranges) {
        let (seen, apart) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.apart));
        let names = || self.taps.iter().map(|tap| &tap.name);
        let statistics = names().cloned().zip(seen).collect();
        let samples = self.samples - self.held_back;
        let model = plan.origin.fingerprint.clone();
        let mut learnt = Ranges::of(model, String::new(), self.engine, samples, statistics);
        learnt.notes.clone_from(&self.notes);
        let mut all = learnt.clone();
        all.samples = self.samples;
        if !apart.is_empty() {
            let statistics = Arc::make_mut(&mut all.statistics);
            for (name, apart) in names().zip(apart) {
                if let Some(seen) = statistics.get_mut(name) {
                    seen.merge(&apart);
                }
            }
        }
        (learnt, all)
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs_onnx::Tensor;

    use super::*;

    /// A sample of so many MiB.
    fn sample(mebibytes: usize) -> Sample {
        let values = vec![0.0; mebibytes << 18];
        Sample { inputs: vec![("x".to_owned(), Tensor::from_f32_vec(vec![values.len()], values))] }
    }

    #[test]
    fn the_same_samples_are_kept_in_whatever_order_they_come() {
        // The second has no room beside the first, and the third is not kept in its place.
        let samples = [((false, 1), 24), ((false, 2), 48), ((false, 3), 8), ((true, 0), 8)];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 1, 0, 3], [1, 3, 0, 2]] {
            let mut kept = Kept::default();
            for (rank, mebibytes) in order.map(|at| samples[at]) {
                kept.keep(rank, sample(mebibytes));
            }
            let ranks: Vec<Rank> = kept.samples.keys().copied().collect();
            assert_eq!((ranks, kept.bytes), (vec![(false, 1)], 24 << 20), "{order:?}");
        }
        let mut one = Kept::default();
        one.keep((false, 0), sample(80));
        assert_eq!(one.samples.len(), 1, "a single sample is kept, however large");
    }
}
