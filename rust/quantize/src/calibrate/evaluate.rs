//! Judges ranges on samples held back: by the outputs of the model, and layer by layer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quantize_rs_math::Range;
use quantize_rs_onnx::Model;

use super::engine::{Engine, Sample, Samples, Sink};
use super::probe_matmuls::{Place, Shadows, products};
use super::run::{Control, Progress, Watcher, watch};
use super::score::Score;
use crate::encode::WeightCache;
use crate::graph::uses::FLOATS;
use crate::graph::{Graph, ValueId};
use crate::{CalibrationError, Plan, QuantizeError, Ranges};

/// The error of the products that read a value, sample by sample, as a part of what they put out.
pub(super) type LayerError = Vec<f64>;

/// Runs models on the samples to judge by.
pub(super) struct Judge<'a, 'c> {
    pub(super) model: &'a Model,
    pub(super) plan: &'a Plan,
    pub(super) engine: &'a dyn Engine,
    pub(super) control: &'a mut Control<'c>,
    /// Samples to judge by, those held back first.
    pub(super) kept: &'a [Sample],
    /// Samples run so far, and in all.
    pub(super) progress: Progress,
    /// Weights of the models that are judged.
    pub(super) known: WeightCache,
}

/// What is remembered of one sample: a list of numbers for each tap.
pub(super) type Shown = BTreeMap<u64, Vec<Vec<f32>>>;

/// So many elements of a value are remembered of a sample, at most: enough to judge by, and little
/// to keep, however large the outputs of a model are.
const MOST_ELEMENTS: usize = 1 << 16;

/// Samples that layers are judged by: each shows a layer's every position, and costs as many copies
/// of it as there are methods.
pub(super) const FOR_LAYERS: usize = 8;

/// Names of the outputs of a model that are floats.
pub(super) fn float_outputs(model: &Model) -> Vec<String> {
    let is_float = |number: i32| FLOATS.iter().any(|float| float.number() == number);
    let outputs = model.graph().output.iter();
    let outputs =
        outputs.filter(|it| it.tensor_type().is_some_and(|tensor| is_float(tensor.elem_type)));
    outputs.map(|output| output.name.clone()).collect()
}

/// Remembers elements of a value, as many as may be.
pub(super) fn remember(all: &mut Vec<f32>, values: &[f32]) {
    // Lengths of axes are even more often than not: an odd step meets every channel.
    let step = values.len().div_ceil(MOST_ELEMENTS).max(1) | 1;
    all.extend(values.iter().step_by(step));
}

impl Judge<'_, '_> {
    /// How near the outputs of the model come to `reference` when it is quantized with `ranges`;
    /// `None` for a model without outputs of floats.
    pub(super) fn score(
        &mut self,
        ranges: &Ranges,
        reference: &Shown,
    ) -> Result<Option<Score>, QuantizeError> {
        let quantized = self.plan.apply_cached(self.model, Some(ranges), Some(&mut self.known))?;
        let outputs = float_outputs(self.model);
        let shown = self.shown(quantized.model(), &outputs, usize::MAX, self.control.threads)?;
        // By content, which is an order that does not depend on threads.
        let chose: BTreeSet<u64> = self.kept.iter().take(FOR_LAYERS).map(Sample::key).collect();
        let samples = reference.iter().filter_map(|(key, wanted)| {
            Some((&wanted[..], &shown.get(key)?[..], chose.contains(key)))
        });
        Ok(Score::of(samples))
    }

    /// For each of these values, and each of its `candidates`, the error of the products by matrices that read
    /// it, as a part of each row of what they put out.
    pub(super) fn layer_errors(
        &mut self,
        candidates: &BTreeMap<String, Vec<Range>>,
    ) -> Result<BTreeMap<String, Vec<LayerError>>, QuantizeError> {
        let graph = Graph::of(self.model)?;
        let mut consumers: BTreeMap<ValueId, BTreeSet<usize>> = BTreeMap::new();
        for (value, node) in products(&graph, self.plan) {
            consumers.entry(value).or_default().insert(node);
        }
        let mut shadows = Shadows::new(&graph);
        for (value, how) in self.plan.quantized() {
            let Some(ranges) = candidates.get(&value.name) else { continue };
            let Some(id) = graph.value(&value.name) else { continue };
            if let Some(nodes) = consumers.get(&id) {
                shadows.add(id, how, ranges, nodes);
            }
        }
        let Shadows { edits, taps, places, .. } = shadows;
        let mut model = self.model.clone();
        model.apply(edits)?;
        // One sample at a time: the copies of the layers take more memory than calibration does.
        let shown = self.shown(&model, &taps, FOR_LAYERS, 1)?;
        let mut errors: BTreeMap<String, Vec<LayerError>> = BTreeMap::new();
        for Place { value, noises } in places {
            let found = errors.entry(value).or_insert_with(|| vec![Vec::new(); noises.len()]);
            for (found, tap) in found.iter_mut().zip(noises) {
                found.resize(shown.len(), 0.0);
                let parts = shown.values().map(|taps| taps[tap].first().copied().unwrap_or(0.0));
                found.iter_mut().zip(parts).for_each(|(found, part)| *found += f64::from(part));
            }
        }
        Ok(errors)
    }

    /// What the first samples show, so many at most, so many of them at once; by their content.
    fn shown(
        &mut self,
        model: &Model,
        taps: &[String],
        most: usize,
        threads: usize,
    ) -> Result<Shown, CalibrationError> {
        let mut samples = Queue(self.kept.iter().take(most).cloned().collect());
        let count = samples.0.len();
        let control = &mut *self.control;
        let Progress { done: before, total } = self.progress;
        let mut go_on = |Progress { done, .. }: Progress| {
            (control.progress)(Progress { done: before + done, total })
        };
        let mut control = Control { threads, progress: &mut go_on };
        let watcher = || Shower { now: vec![Vec::new(); taps.len()], shown: Shown::new() };
        let outcome = watch(model, taps, self.engine, &mut samples, &mut control, watcher)?;
        self.progress.done += count;
        Ok(outcome.watchers.into_iter().flat_map(|watcher| watcher.shown).collect())
    }
}

/// Samples in a row.
struct Queue(VecDeque<Sample>);

impl Samples for Queue {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.0.pop_front().map(Ok)
    }
}

/// Remembers what each sample shows.
struct Shower {
    now: Vec<Vec<f32>>,
    shown: Shown,
}

impl Sink for Shower {
    fn observe(&mut self, tap: usize, _: &[usize], values: &[f32]) {
        if let Some(now) = self.now.get_mut(tap) {
            remember(now, values);
        }
    }
}

impl Watcher for Shower {
    fn begin(&mut self, _: usize, _: &Sample) {
        self.now.iter_mut().for_each(Vec::clear);
    }

    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError> {
        let taps = self.now.len();
        self.shown.insert(sample.key(), std::mem::replace(&mut self.now, vec![Vec::new(); taps]));
        Ok(())
    }
}
