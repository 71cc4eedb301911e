//! The one pass over the samples: a sketch of every value that the plan observes, and the means of
//! the channels that bias correction asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use quantize_rs_math::QSpec;
use quantize_rs_math::stats::{ChannelStats, Sketch};
use quantize_rs_onnx::Model;

use super::run::{Control, Watched, Watcher, watch};
use crate::correct::channel_axis;
use crate::error::CalibrationErrorKind as Kind;
use crate::graph::Graph;
use crate::plan::Source;
use crate::ranges::Seen;
use crate::sample::{Engine, Sample, Samples, Sink};
use crate::{CalibrationError, Plan, Ranges};

/// One of so many samples is held back to judge by, when somebody judges.
const HELD_BACK: u64 = 4;

/// Samples that are kept to judge by, at most: those held back, and others when they are few.
const KEPT: usize = 24;

/// What the samples that are kept may take together, unless a single one takes more.
const KEPT_BYTES: usize = 64 << 20;

/// A value to look at, and what to remember of it.
#[derive(Clone, Debug)]
struct Tap {
    name: String,
    /// How it will be quantized, when its own range is wanted.
    spec: Option<QSpec>,
    /// The axis of the channels whose means are wanted, counted from the end when negative.
    channels: Option<isize>,
}

/// What was gathered.
pub(super) struct Gathered {
    engine: &'static str,
    notes: Vec<String>,
    /// Samples seen, and how many of them were held back.
    pub(super) samples: usize,
    pub(super) held_back: usize,
    taps: Vec<Tap>,
    seen: Vec<Seen>,
    /// What the samples held back showed.
    apart: Vec<Seen>,
    /// The samples to judge by, those held back first.
    pub(super) kept: Vec<Sample>,
}

/// A place in the order in which samples are kept: those held back first, then by content.
type Rank = (bool, u64);

/// Runs the model on every sample; with `judging`, some are held back.
pub(super) fn gather(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
    judging: bool,
) -> Result<Gathered, CalibrationError> {
    let taps = taps(model, plan);
    let names: Vec<String> = taps.iter().map(|tap| tap.name.clone()).collect();
    let watcher = || Gatherer::new(&taps, judging);
    let Watched { watchers, samples, engine, notes } =
        watch(model, &names, engine, samples, control, watcher)?;
    let mut all = Gatherer::new(&taps, judging);
    for one in watchers {
        all.merge(one);
    }
    if all.apart_samples == samples {
        // There are few: nothing would be left to learn from.
        all.seen = std::mem::take(&mut all.apart);
        all.apart_samples = 0;
    }
    let Gatherer { seen, apart, apart_samples: held_back, kept, .. } = all;
    let kept = kept.into_values().collect();
    Ok(Gathered { engine, notes, samples, held_back, taps, seen, apart, kept })
}

/// The values to look at: those that the plan observes, and what goes into weighted operators.
fn taps(model: &Model, plan: &Plan) -> Vec<Tap> {
    let mut taps: BTreeMap<String, Tap> = BTreeMap::new();
    for (value, how) in plan.quantized().filter(|(_, how)| how.source == Source::Observed) {
        let tap = Tap { name: value.name.clone(), spec: Some(how.spec), channels: None };
        taps.insert(value.name.clone(), tap);
    }
    let graph = if plan.config.bias_correction || plan.config.smooth {
        Graph::of(model).ok()
    } else {
        None
    };
    for (graph, node) in graph
        .iter()
        .flat_map(|graph| plan.integer_nodes().into_iter().map(move |node| (graph, node)))
    {
        let Some(channels) = channel_axis(graph.nodes[node.node]) else { continue };
        let name = graph.values[node.input].name.to_owned();
        taps.entry(name.clone())
            .or_insert(Tap { name, spec: None, channels: None })
            .channels
            .get_or_insert(channels);
    }
    taps.into_values().collect()
}

/// Gathers what one thread sees.
struct Gatherer<'a> {
    taps: &'a [Tap],
    judging: bool,
    /// Whether the sample at hand is held back.
    holding: bool,
    seen: Vec<Seen>,
    /// What the samples held back showed.
    apart: Vec<Seen>,
    apart_samples: usize,
    kept: BTreeMap<Rank, Sample>,
    kept_bytes: usize,
}

impl<'a> Gatherer<'a> {
    fn new(taps: &'a [Tap], judging: bool) -> Gatherer<'a> {
        let empty = |tap: &Tap| Seen {
            spec: tap.spec,
            shape: Vec::new(),
            sketch: tap.spec.map(|_| Sketch::default()),
            channels: tap.channels.map(|_| ChannelStats::default()),
            axis: tap.channels,
        };
        Gatherer {
            taps,
            judging,
            holding: false,
            seen: taps.iter().map(empty).collect(),
            apart: if judging { taps.iter().map(empty).collect() } else { Vec::new() },
            apart_samples: 0,
            kept: BTreeMap::new(),
            kept_bytes: 0,
        }
    }

    fn merge(&mut self, other: Gatherer<'_>) {
        self.seen.iter_mut().zip(&other.seen).for_each(|(all, one)| all.merge(one));
        self.apart.iter_mut().zip(&other.apart).for_each(|(all, one)| all.merge(one));
        self.apart_samples += other.apart_samples;
        other.kept.into_iter().for_each(|(rank, sample)| self.keep(rank, sample));
    }

    /// Keeps the samples of the first ranks, so that it does not matter which came first.
    fn keep(&mut self, rank: Rank, sample: Sample) {
        self.kept_bytes += sample.bytes();
        if let Some(twin) = self.kept.insert(rank, sample) {
            self.kept_bytes -= twin.bytes();
        }
        while self.kept.len() > KEPT || self.kept.len() > 1 && self.kept_bytes > KEPT_BYTES {
            let last = self.kept.pop_last();
            self.kept_bytes -= last.map_or(0, |(_, sample)| sample.bytes());
        }
    }
}

impl Sink for Gatherer<'_> {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        let seen = if self.holding { &mut self.apart } else { &mut self.seen };
        let (Some(seen), Some(wanted)) = (seen.get_mut(tap), self.taps.get(tap)) else { return };
        if let Some(sketch) = &mut seen.sketch {
            sketch.observe(values);
        }
        if wanted.channels.is_some() {
            seen.see_shape(&shape.iter().copied().map(Some).collect::<Vec<_>>());
        }
        if let (Some(channels), Some(axis)) = (&mut seen.channels, wanted.channels)
            && let Some(axis) = axis_of(axis, shape.len())
        {
            // Channels that come and go have no means.
            if channels.observe(values, shape, axis).is_err() {
                seen.channels = None;
            }
        }
    }
}

impl Watcher for Gatherer<'_> {
    fn begin(&mut self, _: usize, sample: &Sample) {
        if !self.judging {
            return;
        }
        let key = sample.key();
        self.holding = key.is_multiple_of(HELD_BACK);
        self.apart_samples += usize::from(self.holding);
        self.keep((!self.holding, key), sample.clone());
    }

    fn finish(&mut self, _: &Sample) -> Result<(), CalibrationError> {
        let seen = if self.holding { &self.apart } else { &self.seen };
        for (seen, tap) in seen.iter().zip(self.taps) {
            let Some(sketch) = &seen.sketch else { continue };
            let bad = sketch.nan() + sketch.positive_infinities();
            if bad > 0 {
                let all = bad + sketch.values().count() + sketch.negative_infinities();
                let what = format!(
                    "{bad} of {all} elements are NaN or infinite; no scale can hold them: look at \
                     the sample, or exclude the node"
                );
                return Err(CalibrationError::new(Kind::NonFinite(what)).at_value(&tap.name));
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

    /// Ranges with the statistics of all samples; their values are still to be found.
    pub(super) fn all(&self, plan: &Plan) -> Ranges {
        let mut ranges = self.learnt(plan);
        ranges.samples = self.samples;
        let statistics = Arc::make_mut(&mut ranges.statistics);
        for (tap, apart) in self.taps.iter().zip(&self.apart) {
            if let Some(seen) = statistics.get_mut(&tap.name) {
                seen.merge(apart);
            }
        }
        ranges
    }

    /// The same of the samples that were not held back.
    pub(super) fn learnt(&self, plan: &Plan) -> Ranges {
        let statistics = self.taps.iter().zip(&self.seen);
        let statistics = statistics.map(|(tap, seen)| (tap.name.clone(), seen.clone())).collect();
        let samples = self.samples - self.held_back;
        let model = &plan.origin.fingerprint;
        let mut ranges = Ranges::of(model.clone(), String::new(), self.engine, samples, statistics);
        ranges.notes.clone_from(&self.notes);
        ranges
    }
}
