//! Copies of layers beside the layers themselves, which read a value quantized in several ways.

use std::collections::{BTreeMap, BTreeSet};

use quantize_rs_math::{Params, Range, params};
use quantize_rs_onnx::{AttributeProto, Edit, Kept, NodeProto, Tensor, TensorProto};

use crate::Plan;
use crate::encode::integers;
use crate::graph::{Graph, ValueId};
use crate::plan::ValuePlan;
use crate::rewrite::names::Names;

/// Where the numbers of one layer, reading one value, are among the taps.
pub(super) struct Place {
    pub(super) value: String,
    pub(super) signal: usize,
    /// One for each candidate.
    pub(super) noises: Vec<usize>,
}

/// Copies of layers that read a value quantized in each of several ways, beside the layers
/// themselves, with nodes that measure how far their outputs are apart.
pub(super) struct Shadows<'g, 'm> {
    graph: &'g Graph<'m>,
    /// Nodes that run on integers once the model is quantized.
    on_integers: BTreeSet<usize>,
    names: Names<'g>,
    pub(super) edits: Vec<Edit>,
    /// Values that tell how far outputs are apart: one number each.
    pub(super) taps: Vec<String>,
    pub(super) places: Vec<Place>,
    signals: BTreeMap<ValueId, usize>,
}

impl<'g, 'm> Shadows<'g, 'm> {
    pub(super) fn new(graph: &'g Graph<'m>, plan: &Plan) -> Shadows<'g, 'm> {
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
    pub(super) fn add(&mut self, value: ValueId, how: &ValuePlan, ranges: &[Range]) {
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
