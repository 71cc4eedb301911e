//! Copies of products by matrices beside the products themselves, which read a value quantized in several ways.

use std::collections::BTreeSet;

use quantize_rs_math::{Params, Range, params};
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor, TensorProto};

use crate::Plan;
use crate::encode::integers;
use crate::graph::names::Names;
use crate::graph::{Graph, ValueId};
use crate::plan::ValuePlan;

/// Since then axes may be counted from the end.
const AXES_FROM_THE_END: i64 = 11;

/// Since then they are an input.
const AXES_ARE_AN_INPUT: i64 = 18;

/// A row counts as at least this part of the mean: one of zeros is no signal.
const LEAST: f32 = 1e-3;

/// Where the numbers of one product, reading one value, are among the taps.
pub(super) struct Place {
    pub(super) value: String,
    /// One for each candidate.
    pub(super) noises: Vec<usize>,
}

/// Copies of products that read a value quantized in each of several ways, beside the products
/// themselves, with nodes that measure how far their outputs are apart.
///
/// They are compared row by row, each at its own size: it is a token or an example of its own, and what
/// comes next takes it so. Single rows that are far louder than all others, as transformers have them for
/// their first token, would decide alone otherwise, and for the range that suits them.
pub(super) struct Shadows<'g, 'm> {
    graph: &'g Graph<'m>,
    names: Names<'g>,
    pub(super) edits: Vec<Edit>,
    /// Values that tell how far outputs are apart: one number each.
    pub(super) taps: Vec<String>,
    pub(super) places: Vec<Place>,
}

/// The products by matrices that run on integers once the model is quantized: each with the value that it reads.
pub(super) fn products(graph: &Graph<'_>, plan: &Plan) -> Vec<(ValueId, usize)> {
    if opset(graph) < AXES_FROM_THE_END {
        return Vec::new();
    }
    let multiplies = |node: usize| matches!(&*graph.nodes[node].op_type, "MatMul" | "Gemm");
    // By a vector there are no rows.
    let matrix = |weight| graph.shape(weight).is_some_and(|shape| shape.len() >= 2);
    let nodes = plan.integer_nodes().into_iter();
    let nodes = nodes.filter(|integer| multiplies(integer.node) && matrix(integer.weight));
    nodes.map(|integer| (integer.input, integer.node)).collect()
}

fn opset(graph: &Graph<'_>) -> i64 {
    graph.model.opset("").unwrap_or(1)
}

impl<'g, 'm> Shadows<'g, 'm> {
    pub(super) fn new(graph: &'g Graph<'m>) -> Shadows<'g, 'm> {
        let names = Names::of(graph);
        Shadows { graph, names, edits: Vec::new(), taps: Vec::new(), places: Vec::new() }
    }

    /// Measures the products at `nodes`, which read `value`, with it quantized to each of `ranges`.
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
            .map(|range| self.quantized(name, how, params(*range, &how.spec)))
            .collect();
        for node in nodes {
            let Some(output) = self.graph.output(*node, 0) else { continue };
            let copies: Vec<String> =
                quantized.iter().map(|input| self.copy(*node, name, input)).collect();
            self.compare(name, output, &copies);
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

    /// Taps on the mean part of each row that is noise, for each of `found`.
    fn compare(&mut self, value: &str, wanted: ValueId, found: &[String]) {
        let output = self.graph.values[wanted].name.to_owned();
        let signals = self.energies(output.clone());
        let mean = self.mean(signals.clone());
        let part = self.constant("judged", "least", &Tensor::from_f32(vec![], &[LEAST]));
        let least = self.node("Mul", vec![mean, part], vec![]);
        let signals = self.node("Max", vec![signals, least], vec![]);
        let noises = found
            .iter()
            .map(|found| {
                let noise = self.node("Sub", vec![output.clone(), found.clone()], vec![]);
                let noises = self.energies(noise);
                let parts = self.node("Div", vec![noises, signals.clone()], vec![]);
                let mean = self.mean(parts);
                self.taps.push(mean);
                self.taps.len() - 1
            })
            .collect();
        self.places.push(Place { value: value.to_owned(), noises });
    }

    /// The sum of the squares of each row.
    fn energies(&mut self, value: String) -> String {
        let mut attributes = vec![Raw::new(AttributeProto::int("keepdims", 0))];
        let mut inputs = vec![value];
        if opset(self.graph) >= AXES_ARE_AN_INPUT {
            let data = (-1_i64).to_le_bytes().to_vec().into();
            let last = Tensor { dtype: DataType::Int64, shape: vec![1], data };
            inputs.push(self.constant("judged", "last", &last));
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
        let output = self.names.fresh("judged", op_type);
        let node = NodeProto::new(output.clone(), op_type, input, vec![output.clone()], attribute);
        self.edits.push(Edit::AddNode(node));
        output
    }
}
