//! Evaluates ranges on samples held back: by the outputs of the model, and layer by layer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quantize_rs_math::Range;
use quantize_rs_onnx::{DataType, Model};

use super::engine::{Engine, Sample, Samples, ValueSink};
use super::padding::{PaddingMask, counted};
use super::probe_matmuls::{MatMulProbes, ProbedMatMul, products};
use super::run::{Control, Progress, ValueObserver, observe};
use super::score::{Score, Scored};
use crate::encode::WeightCache;
use crate::graph::{Graph, ValueId};
use crate::{CalibrationError, Plan, QuantizeError, Ranges};

/// The error of the matrix multiplications that consume a value, sample by sample, relative to
/// their outputs.
pub(super) type LayerError = Vec<f64>;

/// Runs quantized models on the evaluation samples.
pub(super) struct Evaluator<'a, 'c> {
    pub(super) model: &'a Model,
    pub(super) plan: &'a Plan,
    pub(super) engine: &'a dyn Engine,
    pub(super) control: &'a mut Control<'c>,
    /// The evaluation samples, those held back first.
    pub(super) kept: &'a [Sample],
    /// Samples run so far, and their total.
    pub(super) progress: Progress,
    /// Encoded weights, shared by the models that are evaluated.
    pub(super) known: WeightCache,
}

/// What is recorded of each sample: a list of numbers for each observed output, without padding.
pub(super) type RecordedOutputs = BTreeMap<u64, Vec<Vec<f32>>>;

/// The maximum number of elements of a value that are recorded for a sample: enough for an
/// evaluation, and little memory however large the outputs of a model are.
const MAX_ELEMENTS: usize = 1 << 16;

/// The number of samples that layers are evaluated on. Each sample shows every position of a layer,
/// and costs one copy of the layer for each method.
pub(super) const LAYER_SAMPLES: usize = 8;

/// The names of the float outputs of a model.
pub(super) fn float_outputs(model: &Model) -> Vec<String> {
    let is_float = |number: i32| DataType::from_number(number).is_some_and(DataType::is_float);
    let outputs = model.graph().output.iter();
    let outputs =
        outputs.filter(|it| it.tensor_type().is_some_and(|tensor| is_float(tensor.elem_type)));
    outputs.map(|output| output.name.clone()).collect()
}

/// Records elements of a value, at most [`MAX_ELEMENTS`].
pub(super) fn record(all: &mut Vec<f32>, values: &[f32]) {
    // Dimensions are mostly even: an odd step meets every channel.
    let step = values.len().div_ceil(MAX_ELEMENTS).max(1) | 1;
    all.extend(values.iter().step_by(step));
}

impl Evaluator<'_, '_> {
    /// The score of the model quantized with `ranges` against the float outputs in `reference`;
    /// `None` for a model without float outputs, and for one that is not ahead of `rival` after
    /// half of the samples.
    pub(super) fn score(
        &mut self,
        ranges: &Ranges,
        reference: &RecordedOutputs,
        rival: Option<&Score>,
    ) -> Result<Option<Score>, QuantizeError> {
        let quantized = self.plan.apply_cached(self.model, Some(ranges), Some(&mut self.known))?;
        let (model, outputs) = (quantized.model(), float_outputs(self.model));
        let (kept, threads) = (self.kept, self.control.threads);
        let Some(rival) = rival else {
            let shown = self.shown(model, &outputs, kept, threads)?;
            return Ok(self.score_of(reference, &shown));
        };
        let (first, rest) = kept.split_at(kept.len().div_ceil(2));
        let mut shown = self.shown(model, &outputs, first, threads)?;
        let score = self.score_of(reference, &shown);
        if rest.is_empty() || !score.is_some_and(|it| it.is_ahead_of(rival)) {
            self.progress.total = self.progress.total.map(|total| total - rest.len());
            return Ok(None);
        }
        shown.extend(self.shown(model, &outputs, rest, threads)?);
        Ok(self.score_of(reference, &shown))
    }

    /// The score of what samples showed.
    fn score_of(&self, reference: &RecordedOutputs, shown: &RecordedOutputs) -> Option<Score> {
        // The key is the content, so that the order does not depend on threads.
        let chose: BTreeSet<u64> = self.kept.iter().take(LAYER_SAMPLES).map(Sample::key).collect();
        Score::of(reference.iter().filter_map(|(&key, wanted)| {
            let sample = Scored { key, chose: chose.contains(&key) };
            Some((sample, &wanted[..], &shown.get(&key)?[..]))
        }))
    }

    /// For each of these values, and for each of its candidate ranges: the error of the `MatMul`
    /// and Gemm nodes that consume the value, relative to each row of their outputs.
    pub(super) fn layer_errors(
        &mut self,
        candidates: &BTreeMap<String, Vec<Range>>,
    ) -> Result<BTreeMap<String, Vec<LayerError>>, QuantizeError> {
        let graph = Graph::of(self.model)?;
        let mut consumers: BTreeMap<ValueId, BTreeSet<usize>> = BTreeMap::new();
        for (value, node) in products(&graph, self.plan) {
            consumers.entry(value).or_default().insert(node);
        }
        let mut probes = MatMulProbes::new(&graph);
        for (value, how) in self.plan.quantized() {
            let Some(ranges) = candidates.get(&value.name) else { continue };
            let Some(id) = graph.value(&value.name) else { continue };
            if let Some(nodes) = consumers.get(&id) {
                probes.add(id, how, ranges, nodes);
            }
        }
        let MatMulProbes { edits, observed, probed, .. } = probes;
        let mut model = self.model.clone();
        model.apply(edits)?;
        // One sample at a time: the copies of the layers take more memory than calibration does.
        let few = &self.kept[..self.kept.len().min(LAYER_SAMPLES)];
        let shown = self.shown(&model, &observed, few, 1)?;
        let mut errors: BTreeMap<String, Vec<LayerError>> = BTreeMap::new();
        for ProbedMatMul { value, noises } in probed {
            let found = errors.entry(value).or_insert_with(|| vec![Vec::new(); noises.len()]);
            for (found, index) in found.iter_mut().zip(noises) {
                found.resize(shown.len(), 0.0);
                let parts =
                    shown.values().map(|observed| observed[index].first().copied().unwrap_or(0.0));
                found.iter_mut().zip(parts).for_each(|(found, part)| *found += f64::from(part));
            }
        }
        Ok(errors)
    }

    /// What samples show, run on `threads` threads; by the content of the sample.
    fn shown(
        &mut self,
        model: &Model,
        observed: &[String],
        samples: &[Sample],
        threads: usize,
    ) -> Result<RecordedOutputs, CalibrationError> {
        let mut samples = SampleQueue(samples.iter().cloned().collect());
        let count = samples.0.len();
        let control = &mut *self.control;
        let Progress { done: before, total, .. } = self.progress;
        let mut go_on = |Progress { done, .. }: Progress| {
            (control.progress)(Progress::of(before + done, total))
        };
        let mut control = Control { threads, progress: &mut go_on };
        let observer = || OutputRecorder {
            mask: None,
            now: vec![Vec::new(); observed.len()],
            shown: RecordedOutputs::new(),
        };
        let outcome = observe(model, observed, self.engine, &mut samples, &mut control, observer)?;
        self.progress.done += count;
        Ok(outcome.observers.into_iter().flat_map(|observer| observer.shown).collect())
    }
}

/// A queue of samples.
struct SampleQueue(VecDeque<Sample>);

impl Samples for SampleQueue {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.0.pop_front().map(Ok)
    }
}

/// Records what each sample shows.
struct OutputRecorder {
    mask: Option<PaddingMask>,
    now: Vec<Vec<f32>>,
    shown: RecordedOutputs,
}

impl ValueSink for OutputRecorder {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        if let Some(now) = self.now.get_mut(index) {
            record(now, &counted(self.mask.as_ref(), shape, values));
        }
    }
}

impl ValueObserver for OutputRecorder {
    fn begin(&mut self, _: usize, sample: &Sample) {
        self.mask = PaddingMask::of(sample);
        self.now.iter_mut().for_each(Vec::clear);
    }

    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError> {
        let observed = self.now.len();
        self.shown
            .insert(sample.key(), std::mem::replace(&mut self.now, vec![Vec::new(); observed]));
        Ok(())
    }
}
