//! Judges ranges on samples held back: by the outputs of the model, and layer by layer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quantize_rs_math::{Params, Range, params};
use quantize_rs_onnx::{
    AttributeProto, DataType, Edit, Kept, Model, NodeProto, Tensor, TensorProto,
};

use super::run::{Control, Progress, Watcher, watch};
use crate::encode::integers;
use crate::graph::{Graph, ValueId};
use crate::plan::ValuePlan;
use crate::rewrite::names::Names;
use crate::sample::{Engine, Sample, Samples, Sink};
use crate::{CalibrationError, Plan, QuantizeError, Ranges};

/// The error of the layers that read a value, sample by sample, as a part of their signal.
pub(super) type LayerError = Vec<f64>;

/// Runs models on the samples held back.
pub(super) struct Judge<'a, 'c> {
    pub(super) model: &'a Model,
    pub(super) plan: &'a Plan,
    pub(super) engine: &'a dyn Engine,
    pub(super) control: &'a mut Control<'c>,
    /// Samples that were run before it came to judging.
    pub(super) samples: usize,
    /// Samples held back, by their content.
    pub(super) kept: &'a BTreeMap<u64, Sample>,
}

/// What is remembered of one sample: a list of numbers for each tap.
type Shown = BTreeMap<u64, Vec<Vec<f32>>>;

impl Judge<'_, '_> {
    /// Names of the float32 outputs of the model.
    fn outputs(&self) -> Vec<String> {
        let outputs = self.model.graph().output.iter();
        let float = Some(DataType::Float.number());
        outputs
            .filter(|output| output.tensor_type().map(|tensor| tensor.elem_type) == float)
            .map(|output| output.name.clone())
            .collect()
    }

    /// The float32 outputs of the float model for each sample.
    pub(super) fn reference(&mut self) -> Result<Shown, CalibrationError> {
        let outputs = self.outputs();
        self.shown(self.model, &outputs)
    }

    /// How near the outputs of the model come to `reference` when it is quantized with `ranges`:
    /// the mean of the outputs' SQNR in decibels; `None` for a model without float32 outputs.
    pub(super) fn sqnr(
        &mut self,
        ranges: &Ranges,
        reference: &Shown,
    ) -> Result<Option<f64>, QuantizeError> {
        let quantized = self.plan.apply(self.model, Some(ranges))?;
        let outputs = self.outputs();
        let shown = self.shown(quantized.model(), &outputs)?;
        let mut sums = vec![(0.0, 0.0); outputs.len()];
        // By content, which is an order that does not depend on threads.
        for (key, wanted) in reference {
            let Some(got) = shown.get(key) else { continue };
            for (sums, (wanted, got)) in sums.iter_mut().zip(wanted.iter().zip(got)) {
                for (x, y) in wanted.iter().zip(got) {
                    let (x, y) = (f64::from(*x), f64::from(*y));
                    sums.0 += x * x;
                    sums.1 += (x - y) * (x - y);
                }
            }
        }
        let found: Vec<f64> = sums
            .into_iter()
            .filter(|(signal, _)| *signal > 0.0)
            .map(|(signal, noise)| 10.0 * (signal / noise.max(signal * NOISELESS)).log10())
            .collect();
        Ok(mean(&found))
    }

    /// For each observed value, and each of its `candidates`, the error of the layers that read it
    /// (of the value itself where no weighted layer does), as a part of their signal.
    pub(super) fn layer_errors(
        &mut self,
        candidates: &BTreeMap<String, Vec<Range>>,
    ) -> Result<BTreeMap<String, Vec<LayerError>>, QuantizeError> {
        let graph = Graph::of(self.model)?;
        let mut shadows = Shadows::new(&graph, self.plan);
        for (value, how) in self.plan.quantized() {
            let Some(ranges) = candidates.get(&value.name) else { continue };
            if let Some(id) = graph.value(&value.name) {
                shadows.add(id, how, ranges);
            }
        }
        let Shadows { edits, taps, places, .. } = shadows;
        let mut model = self.model.clone();
        model.apply(edits)?;
        let shown = self.shown(&model, &taps)?;
        let energy = |taps: &[Vec<f32>], tap: usize| {
            taps[tap].first().map_or(0.0, |energy| f64::from(*energy))
        };
        let mut errors: BTreeMap<String, Vec<LayerError>> = BTreeMap::new();
        for Place { value, signal, noises } in places {
            let all: f64 = shown.values().map(|taps| energy(taps, signal)).sum();
            let found = errors.entry(value).or_insert_with(|| vec![Vec::new(); noises.len()]);
            for (found, noise) in found.iter_mut().zip(noises) {
                let parts =
                    shown.values().map(|taps| energy(taps, noise) / all.max(f64::MIN_POSITIVE));
                found.resize(shown.len(), 0.0);
                found.iter_mut().zip(parts).for_each(|(found, part)| *found += part);
            }
        }
        Ok(errors)
    }

    fn shown(&mut self, model: &Model, taps: &[String]) -> Result<Shown, CalibrationError> {
        let mut samples = Queue(self.kept.values().cloned().collect());
        let control = &mut *self.control;
        let done = self.samples;
        let mut go_on = |_: Progress| (control.progress)(Progress { done, total: Some(done) });
        let mut control = Control { threads: control.threads, progress: &mut go_on };
        let watcher = || Shower { now: vec![Vec::new(); taps.len()], shown: Shown::new() };
        let outcome = watch(model, taps, self.engine, &mut samples, &mut control, watcher)?;
        Ok(outcome.watchers.into_iter().flat_map(|watcher| watcher.shown).collect())
    }
}

/// The mean, if there is anything.
#[allow(clippy::cast_precision_loss)] // as many as a model has outputs
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Less noise than this part of the signal is none: float32 has no more digits.
const NOISELESS: f64 = 1e-15;

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
            now.extend_from_slice(values);
        }
    }
}

impl Watcher for Shower {
    fn begin(&mut self, _: &Sample) {
        self.now.iter_mut().for_each(Vec::clear);
    }

    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError> {
        let taps = self.now.len();
        self.shown.insert(sample.key(), std::mem::replace(&mut self.now, vec![Vec::new(); taps]));
        Ok(())
    }
}

/// Where the numbers of one layer, reading one value, are among the taps.
struct Place {
    value: String,
    signal: usize,
    /// One for each candidate.
    noises: Vec<usize>,
}

/// Copies of layers that read a value quantized in each of several ways, beside the layers
/// themselves, with nodes that measure how far their outputs are apart.
struct Shadows<'g, 'm> {
    graph: &'g Graph<'m>,
    /// Nodes that run on integers once the model is quantized.
    on_integers: BTreeSet<usize>,
    names: Names<'g>,
    edits: Vec<Edit>,
    taps: Vec<String>,
    places: Vec<Place>,
    signals: BTreeMap<ValueId, usize>,
}

impl<'g, 'm> Shadows<'g, 'm> {
    fn new(graph: &'g Graph<'m>, plan: &Plan) -> Shadows<'g, 'm> {
        Shadows {
            graph,
            on_integers: plan.integer_nodes().iter().map(|node| node.node).collect(),
            names: Names::of(graph),
            edits: Vec::new(),
            taps: Vec::new(),
            places: Vec::new(),
            signals: BTreeMap::new(),
        }
    }

    /// Measures the layers that read `value` quantized with each of `ranges`.
    fn add(&mut self, value: ValueId, how: &ValuePlan, ranges: &[Range]) {
        let name = self.graph.values[value].name;
        let quantized: Vec<String> = ranges
            .iter()
            .map(|range| self.quantized(name, how, params(*range, &how.spec)))
            .collect();
        let readers: BTreeSet<usize> = self.graph.values[value]
            .readers
            .iter()
            .map(|reader| reader.node)
            .filter(|node| self.on_integers.contains(node))
            .collect();
        for node in &readers {
            let Some(output) = self.graph.output(*node, 0) else { continue };
            let copies: Vec<String> =
                quantized.iter().map(|input| self.copy(*node, name, input)).collect();
            self.compare(name, output, &copies);
        }
        if readers.is_empty() {
            self.compare(name, value, &quantized);
        }
    }

    /// The value rounded to the grid, under a new name.
    fn quantized(&mut self, name: &str, how: &ValuePlan, params: Params) -> String {
        let scale = Tensor::from_f32(vec![], &[params.scale]);
        let zero_point = integers(how.stored, vec![], &[params.zero_point]);
        let parameters =
            [self.constant(name, "scale", &scale), self.constant(name, "zp", &zero_point)];
        let inputs = |first: String| vec![first, parameters[0].clone(), parameters[1].clone()];
        let integers = self.node("QuantizeLinear", inputs(name.to_owned()), vec![]);
        self.node("DequantizeLinear", inputs(integers), vec![])
    }

    /// A copy of a node that reads `input` instead of `value`; its first output.
    fn copy(&mut self, node: usize, value: &str, input: &str) -> String {
        let mut copy = self.graph.nodes[node].clone();
        for name in copy.input.iter_mut().filter(|name| *name == value) {
            input.clone_into(name);
        }
        let first = self.names.fresh(value, "copy");
        copy.output = vec![first.clone()];
        copy.name.clone_from(&first);
        self.edits.push(Edit::AddNode(copy));
        first
    }

    fn compare(&mut self, value: &str, wanted: ValueId, found: &[String]) {
        let output = self.graph.values[wanted].name.to_owned();
        let known = self.signals.get(&wanted).copied();
        let signal = known.unwrap_or_else(|| self.energy(output.clone()));
        self.signals.insert(wanted, signal);
        let noises = found
            .iter()
            .map(|found| {
                let noise = self.node("Sub", vec![output.clone(), found.clone()], vec![]);
                self.energy(noise)
            })
            .collect();
        self.places.push(Place { value: value.to_owned(), signal, noises });
    }

    /// A tap on the sum of the squares of a value.
    fn energy(&mut self, value: String) -> usize {
        let scalar = Kept::new(AttributeProto::int("keepdims", 0));
        let name = self.node("ReduceSumSquare", vec![value], vec![scalar]);
        self.taps.push(name);
        self.taps.len() - 1
    }

    fn constant(&mut self, base: &str, suffix: &str, tensor: &Tensor) -> String {
        let name = self.names.fresh(base, suffix);
        self.edits.push(Edit::AddInitializer(TensorProto::new(&name, tensor)));
        name
    }

    fn node(
        &mut self,
        op_type: &str,
        input: Vec<String>,
        attribute: Vec<Kept<AttributeProto>>,
    ) -> String {
        let output = self.names.fresh("judged", op_type);
        let node = NodeProto::new(output.clone(), op_type, input, vec![output.clone()], attribute);
        self.edits.push(Edit::AddNode(node));
        output
    }
}
