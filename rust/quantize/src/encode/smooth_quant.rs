//! `SmoothQuant`: some channels of a normalized activation are much larger than the others, so a
//! scale that covers them is too coarse for the rest. Dividing each channel by a factor and
//! multiplying the matching row of the weights by it does not change the result, and makes both
//! easier to quantize.
//!
//! With `a_c` the largest magnitude of channel `c` and `w_c` that of its row in the weights, the
//! factors are `a_c^α / w_c^(1-α)`. Source: Xiao et al., `SmoothQuant`, ICML 2023, section 4. The
//! exponent α of each value minimizes the expected error, where quantization with a step size has
//! an error with the variance step² / 12.

// Step sizes and magnitudes do not need full precision.
#![allow(clippy::cast_possible_truncation)]

use std::collections::BTreeMap;

use quantize_rs_math::{Granularity, QSpec, Range, params};
use quantize_rs_onnx::{DataType, Edit, Model, NodeProto, Tensor, TensorProto};

use crate::graph::elements::to_f32;
use crate::graph::fingerprint::fingerprint;
use crate::graph::names::Names;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};
use crate::options::target::Placement;
use crate::plan::{Decision, IntegerNode, Source, ValuePlan};
use crate::ranges::ObservedRange;
use crate::{Plan, QuantizeError, Ranges};

/// The exponents that are tried.
const ALPHAS: [f64; 5] = [0.35, 0.45, 0.55, 0.65, 0.75];

/// The fraction of the expected error that smoothing must remove to justify an additional node:
/// three decibels.
const MIN_ERROR_REDUCTION: f64 = 0.5;

/// The variance of a uniform distribution of width 1.
const UNIFORM: f64 = 1.0 / 12.0;

/// The assumed ratio of the largest magnitude of a channel to its standard deviation.
const PEAK_IN_SIGMAS: f64 = 4.0;

/// An equivalent float model, with its plan and ranges.
pub(crate) struct Smoothed {
    pub(crate) model: Model,
    pub(crate) plan: Plan,
    pub(crate) ranges: Ranges,
}

/// Smooths all values that benefit from it; `None` if none does.
pub(crate) fn smoothed(
    graph: &Graph<'_>,
    plan: &Plan,
    ranges: &Ranges,
) -> Result<Option<Smoothed>, QuantizeError> {
    let config = &plan.config;
    let placed = matches!(
        config.profile().placement,
        Placement::WeightedAndInterior | Placement::WeightedOps
    );
    // Who asked for types of single values names those that there are.
    if !config.smooth || !placed || !config.activation_types.is_empty() {
        return Ok(None);
    }
    let mut consumers: BTreeMap<ValueId, Vec<IntegerNode>> = BTreeMap::new();
    for node in plan.integer_nodes() {
        consumers.entry(node.input).or_default().push(node);
    }
    let mut smoothing = Smoothing { graph, names: Names::of(graph), edits: Vec::new() };
    let mut ranges = ranges.clone();
    let mut count = 0;
    for (value, nodes) in consumers {
        let name = graph.values[value].name;
        let Some(seen) = ranges.statistics.get(name).cloned() else { continue };
        let Some(range) = ranges.values.get(name).copied() else { continue };
        let Some(candidate) = SmoothingCandidate::of(graph, plan, value, nodes, &seen) else {
            continue;
        };
        let Some((factors, reach)) = candidate.best(range) else { continue };
        let inverse: Vec<f32> = factors.iter().map(|factor| 1.0 / factor).collect();
        let smooth = smoothing.divide(value, &factors, &inverse, &candidate);
        let channels = seen.channels.as_ref().and_then(|all| all.scaled(&inverse).ok());
        let statistics = std::sync::Arc::make_mut(&mut ranges.statistics);
        statistics.insert(smooth.clone(), ObservedRange { sketch: None, channels, ..seen });
        ranges.values.insert(smooth, Range { min: -reach, max: reach });
        count += 1;
    }
    if count == 0 {
        return Ok(None);
    }
    let edits = smoothing.edits;
    let mut model = graph.model.clone();
    model.apply(edits)?;
    ranges.model = fingerprint(&model);
    ranges.remarks.push(format!(
        "smoothed {count} values: their channels are divided by factors, and the weights \
         multiplied by them"
    ));
    let plan = Plan::of(&Graph::of(&model)?, config.clone())?;
    // A value that the new plan observes and that the original plan did not.
    if plan.observed().iter().any(|name| !ranges.values.contains_key(name)) {
        return Ok(None);
    }
    Ok(Some(Smoothed { model, plan, ranges }))
}

/// A value that may be smoothed, and its consumers.
struct SmoothingCandidate<'p> {
    how: &'p ValuePlan,
    /// The largest magnitude of each channel.
    peaks: Vec<f64>,
    weights: Vec<Weight>,
}

/// A weight matrix of a value.
struct Weight {
    node: usize,
    name: String,
    /// The node that casts the matrix and the cast constant, if it is not stored as float32.
    cast: Option<(usize, String)>,
    spec: QSpec,
    shape: [usize; 2],
    values: Vec<f32>,
    /// Which of the two axes is summed over.
    summed: usize,
    /// The sum of squares of each row.
    energies: Vec<f64>,
}

impl<'p> SmoothingCandidate<'p> {
    fn of(
        graph: &Graph<'_>,
        plan: &'p Plan,
        value: ValueId,
        nodes: Vec<IntegerNode>,
        seen: &ObservedRange,
    ) -> Option<SmoothingCandidate<'p>> {
        let Decision::Quantize(how) = &plan.values.get(value)?.decision else { return None };
        let Producer::Node { node, .. } = graph.values[value].producer else { return None };
        let channels = seen.channels.as_ref().filter(|_| seen.axis == Some(-1))?;
        if how.source != Source::Observed || !normalizes(graph, node) || how.spec.qtype.is_float() {
            return None;
        }
        let weights: Option<Vec<Weight>> =
            nodes.into_iter().map(|node| Weight::of(graph, plan, &node)).collect();
        let weights = weights?;
        let peaks: Vec<f64> = channels.absmax().iter().copied().map(f64::from).collect();
        let fits = weights.iter().all(|weight| weight.shape[weight.summed] == peaks.len());
        (fits && peaks.iter().all(|peak| peak.is_finite())).then_some(SmoothingCandidate {
            how,
            peaks,
            weights,
        })
    }

    /// The channel factors with the least expected error, and the largest magnitude of the divided
    /// value; `None` if smoothing improves too little.
    fn best(&self, range: Range) -> Option<(Vec<f32>, f32)> {
        let none = vec![1.0; self.peaks.len()];
        let without = self.error(&none, f64::from(params(range, &self.how.spec).scale));
        let rows = self.rows();
        let tried = ALPHAS.iter().map(|alpha| {
            let factors = self.factors(&rows, *alpha);
            let peaks = self.peaks.iter().zip(&factors);
            let reach = peaks.map(|(peak, by)| peak / f64::from(*by)).fold(0.0, f64::max) as f32;
            let step = params(Range { min: -reach, max: reach }, &self.how.spec).scale;
            (self.error(&factors, f64::from(step)), factors, reach)
        });
        let (error, factors, reach) = tried.min_by(|a, b| a.0.total_cmp(&b.0))?;
        (error < without * MIN_ERROR_REDUCTION && reach > 0.0).then_some((factors, reach))
    }

    /// The largest magnitude of each row over all weights.
    fn rows(&self) -> Vec<f64> {
        let mut rows = vec![0.0_f64; self.peaks.len()];
        for weight in &self.weights {
            for (row, found) in
                rows.iter_mut().zip(weight.of_rows(0.0_f32, |max, x| max.max(x.abs())))
            {
                *row = row.max(f64::from(found));
            }
        }
        rows
    }

    /// A factor for each channel, with a geometric mean of 1. Channels that are always 0 have
    /// factor 1.
    fn factors(&self, rows: &[f64], alpha: f64) -> Vec<f32> {
        let factor = |(peak, row): (&f64, &f64)| {
            let used = *peak > 0.0 && *row > 0.0;
            if used { alpha * peak.ln() - (1.0 - alpha) * row.ln() } else { f64::NAN }
        };
        let logs: Vec<f64> = self.peaks.iter().zip(rows).map(factor).collect();
        let (sum, count) = logs
            .iter()
            .filter(|log| log.is_finite())
            .fold((0.0, 0.0), |(sum, count), log| (sum + log, count + 1.0));
        let mean = sum / f64::max(count, 1.0);
        let one = |log: &f64| if log.is_finite() { (log - mean).exp() as f32 } else { 1.0 };
        logs.iter().map(one).collect()
    }

    /// The expected squared error of all products if the value has the step size `step`.
    fn error(&self, factors: &[f32], step: f64) -> f64 {
        let power = |channel: usize| (self.peaks[channel] / f64::from(factors[channel])).powi(2);
        let inputs: f64 =
            (0..factors.len()).map(power).sum::<f64>() / (PEAK_IN_SIGMAS * PEAK_IN_SIGMAS);
        let of = |weight: &Weight| {
            let energies = weight.energies.iter().zip(factors);
            let energy: f64 = energies.map(|(energy, by)| energy * f64::from(*by).powi(2)).sum();
            let mut columns = weight.columns(factors);
            if weight.spec.granularity == Granularity::PerTensor {
                let largest = columns.iter().copied().fold(0.0, f32::max);
                columns.fill(largest);
            }
            let steps = columns.into_iter().map(|absmax| {
                let range = Range { min: -absmax, max: absmax };
                f64::from(params(range, &weight.spec).scale).powi(2)
            });
            UNIFORM * (step * step * energy + inputs * steps.sum::<f64>())
        };
        self.weights.iter().map(of).sum()
    }

    /// The scale and the bias of the normalization that produces a value, if dividing them affects
    /// only the consumers that expect the divided value.
    fn normalization(&self, graph: &Graph<'_>, value: ValueId) -> Option<Vec<(String, Vec<f32>)>> {
        let found = &graph.values[value];
        let Producer::Node { node, .. } = found.producer else { return None };
        let multiplies = |node: usize| self.weights.iter().any(|weight| weight.node == node);
        let alone = !found.is_output
            && !found.used_in_subgraph
            && found
                .consumers
                .iter()
                .all(|consumer| consumer.input == 0 && multiplies(consumer.node));
        let proto = graph.nodes[node];
        if !alone || !matches!(proto.op_type.as_str(), "LayerNormalization" | "RMSNormalization") {
            return None;
        }
        let inputs = (1..proto.input.len()).filter(|input| !proto.input[*input].is_empty());
        let constant = |input: usize| {
            let id = graph.input(node, input)?;
            let value = &graph.values[id];
            let own = matches!(value.producer, Producer::Initializer { overridable: false, .. })
                && value.consumers.len() == 1
                && !value.used_in_subgraph
                && !value.is_output;
            let tensor = graph.model.tensor(graph.constant(id)?).ok()?;
            let fits = own && tensor.dtype == DataType::Float && tensor.shape == [self.peaks.len()];
            Some((value.name.to_owned(), tensor.to_f32().filter(|_| fits)?))
        };
        inputs.map(constant).collect()
    }
}

impl Weight {
    fn of(graph: &Graph<'_>, plan: &Plan, node: &IntegerNode) -> Option<Weight> {
        let proto = graph.nodes[node.node];
        let transposed = proto.op_type == "Gemm" && proto.int("transB", 0) != 0;
        let fits = match proto.op_type.as_str() {
            "MatMul" => true,
            "Gemm" => proto.int("transA", 0) == 0,
            _ => false,
        };
        let read_once = |value: ValueId| {
            let value = &graph.values[value];
            value.consumers.len() == 1 && !value.used_in_subgraph && !value.is_output
        };
        let (stored, cast) = match graph.values[node.weight].producer {
            Producer::Node { node: cast, .. } => (graph.input(cast, 0)?, Some(cast)),
            _ => (node.weight, None),
        };
        let alone = matches!(
            graph.values[stored].producer,
            Producer::Initializer { overridable: false, .. }
        ) && read_once(stored)
            && read_once(node.weight)
            && graph.input(node.node, 1) == Some(node.weight);
        let Decision::Quantize(how) = &plan.values.get(node.weight)?.decision else { return None };
        if !fits || !alone || uses::float_type(graph, node.weight) != Some(DataType::Float) {
            return None;
        }
        let tensor = graph.model.tensor(graph.constant(stored)?).ok()?;
        let &[rows, columns] = &tensor.shape[..] else { return None };
        let values = to_f32(&tensor)?;
        let cast = cast.map(|cast| (cast, graph.values[stored].name.to_owned()));
        let name = graph.values[node.weight].name.to_owned();
        let summed = usize::from(transposed);
        let sound = values.iter().all(|x| x.is_finite());
        let shape = [rows, columns];
        let (node, spec) = (node.node, how.spec);
        let energies = Vec::new();
        let mut weight = Weight { node, name, cast, spec, shape, values, summed, energies };
        weight.energies = weight.of_rows(0.0, |sum, x| sum + f64::from(x).powi(2));
        sound.then_some(weight)
    }

    /// Folds the elements of each row, which all multiply the same input channel.
    fn of_rows<T: Copy>(&self, from: T, with: impl Fn(T, f32) -> T) -> Vec<T> {
        let lines = self.values.chunks_exact(self.shape[1].max(1));
        if self.summed == 0 {
            return lines.map(|line| line.iter().fold(from, |all, x| with(all, *x))).collect();
        }
        let mut rows = vec![from; self.shape[1]];
        for line in lines {
            rows.iter_mut().zip(line).for_each(|(all, x)| *all = with(*all, *x));
        }
        rows
    }

    /// The largest magnitude of each column, which contributes to one output channel, with the rows
    /// multiplied by factors.
    fn columns(&self, factors: &[f32]) -> Vec<f32> {
        let lines = self.values.chunks_exact(self.shape[1].max(1));
        if self.summed == 1 {
            let largest = |line: &[f32]| {
                line.iter().zip(factors).fold(0.0, |max: f32, (x, by)| max.max((x * by).abs()))
            };
            return lines.map(largest).collect();
        }
        let mut columns = vec![0.0_f32; self.shape[1]];
        for (line, by) in lines.zip(factors) {
            columns.iter_mut().zip(line).for_each(|(max, x)| *max = max.max((x * by).abs()));
        }
        columns
    }

    fn scaled(&self, factors: &[f32]) -> Tensor {
        let lines = self.values.chunks_exact(self.shape[1].max(1));
        let values: Vec<f32> = if self.summed == 1 {
            lines.flat_map(|line| line.iter().zip(factors).map(|(x, by)| x * by)).collect()
        } else {
            lines.zip(factors).flat_map(|(line, by)| line.iter().map(move |x| x * by)).collect()
        };
        Tensor::from_f32(self.shape.to_vec(), &values)
    }
}

/// Whether a node outputs a normalized value, before or after adding a bias.
fn normalizes(graph: &Graph<'_>, node: usize) -> bool {
    let proto = graph.nodes[node];
    let vector = |input: usize| {
        let constant = graph.input(node, input).and_then(|value| graph.constant(value));
        constant.is_some_and(|tensor| tensor.dims.len() == 1)
    };
    proto.is_onnx()
        && match proto.op_type.as_str() {
            "LayerNormalization" | "RMSNormalization" => true,
            // A decomposed normalization ends with its bias, or with its scale if it has none.
            "Add" | "Mul" => vector(0) || vector(1),
            _ => false,
        }
}

struct Smoothing<'g, 'm> {
    graph: &'g Graph<'m>,
    names: Names<'g>,
    edits: Vec<Edit>,
}

impl Smoothing<'_, '_> {
    /// Divides a value for the consumers that multiply it by weights, and multiplies these weights.
    /// Returns the name of the divided value.
    fn divide(
        &mut self,
        value: ValueId,
        factors: &[f32],
        inverse: &[f32],
        candidate: &SmoothingCandidate<'_>,
    ) -> String {
        for weight in &candidate.weights {
            let tensor = TensorProto::new(&weight.name, &weight.scaled(factors));
            if let Some((cast, stored)) = &weight.cast {
                self.edits.push(Edit::RemoveNode(*cast));
                self.edits.push(Edit::RemoveInitializer(stored.clone()));
                self.edits.push(Edit::AddInitializer(tensor));
            } else {
                self.edits.push(Edit::ReplaceInitializer(tensor));
            }
        }
        let name = self.graph.values[value].name;
        if let Some(constants) = candidate.normalization(self.graph, value) {
            for (constant, values) in constants {
                let scaled: Vec<f32> = values.iter().zip(inverse).map(|(x, by)| x * by).collect();
                let tensor = Tensor::from_f32(vec![scaled.len()], &scaled);
                self.edits.push(Edit::ReplaceInitializer(TensorProto::new(&constant, &tensor)));
            }
            return name.to_owned();
        }
        let smooth = self.names.fresh(name, "smooth");
        let by = self.names.fresh(name, "smoothing");
        let tensor = TensorProto::new(&by, &Tensor::from_f32(vec![inverse.len()], inverse));
        self.edits.push(Edit::AddInitializer(tensor));
        let inputs = vec![name.to_owned(), by];
        let node = NodeProto::new(String::new(), "Mul", inputs, vec![smooth.clone()], vec![]);
        self.edits.push(Edit::AddNode(node));
        for weight in &candidate.weights {
            let (node, value) = (weight.node, smooth.clone());
            self.edits.push(Edit::SetInput { node, input: 0, value });
        }
        smooth
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs_math::QType;

    use super::*;

    /// Three input channels with two elements each, as a matrix in normal or transposed layout.
    fn weight(turned: bool) -> Weight {
        let spec = QSpec::new(QType::Int8, true, Granularity::PerTensor);
        let (shape, values) = if turned {
            ([2, 3], [1.0, -3.0, 5.0, 2.0, 4.0, -6.0])
        } else {
            ([3, 2], [1.0, 2.0, -3.0, 4.0, 5.0, -6.0])
        };
        let (values, summed) = (values.to_vec(), usize::from(turned));
        let (name, energies) = ("w".to_owned(), Vec::new());
        Weight { node: 0, name, cast: None, spec, shape, values, summed, energies }
    }

    #[test]
    fn rows_are_multiplied_and_columns_measured_however_the_matrix_lies() {
        let factors = [10.0, 0.5, 2.0];
        for turned in [false, true] {
            let weight = weight(turned);
            assert_eq!(weight.of_rows(0.0, |sum, x| sum + x * x), [5.0, 25.0, 61.0]);
            assert_eq!(weight.columns(&[1.0; 3]), [5.0, 6.0]);
            assert_eq!(weight.columns(&factors), [10.0, 20.0]);
            let scaled = weight.scaled(&factors).to_f32().unwrap();
            let expected =
                [[10.0, 20.0, -1.5, 2.0, 10.0, -12.0], [10.0, -1.5, 10.0, 20.0, 2.0, -12.0]];
            assert_eq!(scaled, expected[usize::from(turned)]);
        }
    }
}
