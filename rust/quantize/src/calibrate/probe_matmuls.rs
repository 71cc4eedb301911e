//! Copies of `MatMul` and Gemm nodes, added to the model, that read a value quantized with each
//! candidate range.

use std::collections::BTreeSet;

use quantize_rs_math::{Params, Range, params};
use quantize_rs_onnx::{AttributeProto, Edit, NodeProto, Raw, Tensor, TensorProto};

use crate::Plan;
use crate::encode::integers;
use crate::graph::constants::of_ints;
use crate::graph::names::Names;
use crate::graph::{Graph, ValueId};
use crate::plan::ValuePlan;

/// The opset since which axes may be negative.
const NEGATIVE_AXES_OPSET: i64 = 11;

/// The opset since which the axes of a reduction are an input.
const AXES_INPUT_OPSET: i64 = 18;

/// The energy of a row counts as at least this fraction of the mean: a row of zeros has no signal.
const MIN_ROW_ENERGY: f32 = 1e-3;

/// The observed errors of one `MatMul` or Gemm that reads one value.
pub(super) struct ProbedMatMul {
    pub(super) value: String,
    /// For each candidate, the position of its error among the observed outputs.
    pub(super) noises: Vec<usize>,
}

/// Copies of `MatMul` and Gemm nodes that read a value quantized with each candidate range, with
/// nodes that measure the difference between the outputs of the copies and those of the originals.
///
/// The outputs are compared row by row, each relative to its own energy: a row is a token or an
/// example of its own, and the next layer uses it as such. Transformers have single rows with a far
/// larger energy than all others, for example the first token; without this rule such rows would
/// decide alone, in favor of the range that suits them.
pub(super) struct MatMulProbes<'g, 'm> {
    graph: &'g Graph<'m>,
    names: Names<'g>,
    pub(super) edits: Vec<Edit>,
    /// Names of the measured differences: one number each.
    pub(super) observed: Vec<String>,
    pub(super) probed: Vec<ProbedMatMul>,
}

/// The `MatMul` and Gemm nodes that the quantized model computes on integers, each with its input.
pub(super) fn products(graph: &Graph<'_>, plan: &Plan) -> Vec<(ValueId, usize)> {
    if opset(graph) < NEGATIVE_AXES_OPSET {
        return Vec::new();
    }
    let multiplies = |node: usize| matches!(&*graph.nodes[node].op_type, "MatMul" | "Gemm");
    // A product with a vector has no rows.
    let matrix = |weight| graph.shape(weight).is_some_and(|shape| shape.len() >= 2);
    let nodes = plan.integer_nodes().into_iter();
    let nodes = nodes.filter(|integer| multiplies(integer.node) && matrix(integer.weight));
    nodes.map(|integer| (integer.input, integer.node)).collect()
}

fn opset(graph: &Graph<'_>) -> i64 {
    graph.model.opset("").unwrap_or(1)
}

impl<'g, 'm> MatMulProbes<'g, 'm> {
    pub(super) fn new(graph: &'g Graph<'m>) -> MatMulProbes<'g, 'm> {
        let names = Names::of(graph);
        MatMulProbes { graph, names, edits: Vec::new(), observed: Vec::new(), probed: Vec::new() }
    }

    /// Measures the nodes `nodes`, which read `value`, with the value quantized to each of
    /// `ranges`.
    pub(super) fn add(
        &mut self,
        value: ValueId,
        how: &ValuePlan,
        ranges: &[Range],
        nodes: &BTreeSet<usize>,
    ) {
        let name = self.graph.values[value].name;
        let quantized: Vec<String> = ranges
            .iter()
            .map(|range| self.quantize_dequantize(name, how, params(*range, &how.spec)))
            .collect();
        for node in nodes {
            let Some(output) = self.graph.output(*node, 0) else { continue };
            let copies: Vec<String> =
                quantized.iter().map(|input| self.copy(*node, name, input)).collect();
            self.compare(name, output, &copies);
        }
    }

    /// The value quantized and dequantized, under a new name.
    fn quantize_dequantize(&mut self, name: &str, how: &ValuePlan, params: Params) -> String {
        let scale = Tensor::from_f32(vec![], &[params.scale]);
        let zero_point = integers(how.stored, vec![], [params.zero_point]);
        let parameters =
            [self.constant(name, "scale", &scale), self.constant(name, "zp", &zero_point)];
        let inputs = |first: String| vec![first, parameters[0].clone(), parameters[1].clone()];
        let integers = self.node("QuantizeLinear", inputs(name.to_owned()), vec![]);
        self.node("DequantizeLinear", inputs(integers), vec![])
    }

    /// Adds a copy of a node that reads `input` instead of `value`, and returns the first output.
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

    /// Observes the mean relative error over the rows, for each of `found`.
    fn compare(&mut self, value: &str, wanted: ValueId, found: &[String]) {
        let output = self.graph.values[wanted].name.to_owned();
        let signals = self.row_energies(output.clone());
        let mean = self.mean(signals.clone());
        let part = self.constant("probe", "least", &Tensor::from_f32(vec![], &[MIN_ROW_ENERGY]));
        let least = self.node("Mul", vec![mean, part], vec![]);
        let signals = self.node("Max", vec![signals, least], vec![]);
        let noises = found
            .iter()
            .map(|found| {
                let noise = self.node("Sub", vec![output.clone(), found.clone()], vec![]);
                let noises = self.row_energies(noise);
                let parts = self.node("Div", vec![noises, signals.clone()], vec![]);
                let mean = self.mean(parts);
                self.observed.push(mean);
                self.observed.len() - 1
            })
            .collect();
        self.probed.push(ProbedMatMul { value: value.to_owned(), noises });
    }

    /// The sum of squares of each row.
    fn row_energies(&mut self, value: String) -> String {
        let mut attributes = vec![Raw::new(AttributeProto::int("keepdims", 0))];
        let mut inputs = vec![value];
        if opset(self.graph) >= AXES_INPUT_OPSET {
            inputs.push(self.constant("probe", "last", &of_ints(vec![1], &[-1])));
        } else {
            attributes.push(Raw::new(AttributeProto::ints("axes", &[-1])));
        }
        self.node("ReduceSumSquare", inputs, attributes)
    }

    /// The mean of all elements.
    fn mean(&mut self, value: String) -> String {
        let scalar = Raw::new(AttributeProto::int("keepdims", 0));
        self.node("ReduceMean", vec![value], vec![scalar])
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
        attribute: Vec<Raw<AttributeProto>>,
    ) -> String {
        let output = self.names.fresh("probe", op_type);
        let node = NodeProto::new(output.clone(), op_type, input, vec![output.clone()], attribute);
        self.edits.push(Edit::AddNode(node));
        output
    }
}
