//! Weights that are integers until what is needed of them is there: rows that are looked up are brought
//! back after they are taken, and not the whole table before, which runtimes would do at every run; so
//! is what comes of rearranging.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw};

use super::writer::Writer;
use crate::encode::EncodedTensor;
use crate::graph::ops;
use crate::graph::ops::Slot;
use crate::graph::uses;
use crate::graph::{Consumer, ValueId};
use crate::plan::ValuePlan;

/// What becomes of one look-up.
pub(super) struct LookUp {
    integers: String,
    scale: String,
    back: Back,
    /// What is made of it is called, where that is not the name of the value.
    pub(super) made: Option<String>,
}

/// How what was taken comes back from integers.
#[derive(Clone)]
enum Back {
    /// By a scale for each row, which is looked up too.
    ByRow,
    /// By one scale and zero point, absent where that is 0.
    Whole { zero_point: Option<String> },
}

impl Writer<'_, '_> {
    /// Lets those who look up a table take integers of it.
    pub(super) fn table(
        &mut self,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
        integers: &str,
    ) {
        let value = &self.graph.values[id];
        let by_row = how.spec.granularity != Granularity::PerTensor;
        let mut scale = tensor.scale.clone();
        if by_row {
            // One length for each axis of the table, so that rows meet their scales.
            scale.shape.resize(tensor.quantized.shape.len(), 1);
        }
        let scale = self.constant(value.name, "scale", &scale);
        let back = if by_row {
            Back::ByRow
        } else {
            let needed = self.moved_needs_zero_point(how);
            Back::Whole { zero_point: needed.then(|| self.zero_point(&tensor.zero_point)) }
        };
        let graph = self.graph;
        let looks_up = |consumer: &&Consumer| graph.nodes[consumer.node].op_type == "Gather";
        for Consumer { node, .. } in value.consumers.iter().filter(looks_up).copied() {
            let (integers, scale, back) = (integers.to_owned(), scale.clone(), back.clone());
            self.look_ups.insert(node, LookUp { integers, scale, back, made: None });
        }
    }

    /// A weight that is rearranged before it is multiplied by, if it is: its integers are, and what
    /// comes out comes back from them.
    pub(super) fn rearranged(
        &mut self,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
        mut integers: String,
    ) {
        let name = self.graph.values[id].name;
        let mut end = id;
        for node in uses::rearranging(self.graph, id) {
            let Some(output) = self.graph.output(node, 0) else { continue };
            self.edits.push(Edit::SetInput { node, input: 0, value: integers });
            integers = self.names.fresh(self.graph.values[output].name, "quantized");
            let value = integers.clone();
            self.edits.push(Edit::RenameOutput { node, output: 0, value });
            end = output;
        }
        let mut inputs = vec![integers, self.constant(name, "scale", &tensor.scale)];
        if self.needs_zero_point(end, how) {
            inputs.push(self.zero_point(&tensor.zero_point));
        }
        let end = &self.graph.values[end];
        let mut consumers = end.consumers.iter().map(|consumer| self.graph.nodes[consumer.node]);
        let consumer = consumers.find(|consumer| consumer.op_type != "Gather");
        // A matrix, or a filter whose channels come first.
        let axis = consumer.and_then(|node| match ops::rule(node)?.slot(1) {
            Slot::Weight { axis } | Slot::Operand { axis } => axis(node, 2),
            _ => None,
        });
        let granularity = match (how.spec.granularity, axis) {
            (Granularity::PerAxis { .. }, Some(axis)) => Granularity::PerAxis { axis },
            (granularity, _) => granularity,
        };
        self.node("DequantizeLinear", name, inputs, end.name.to_owned(), granularity);
    }

    /// Writes the look-ups.
    pub(super) fn look_up(&mut self) {
        for (node, look_up) in std::mem::take(&mut self.look_ups) {
            let LookUp { integers, scale, back, made } = look_up;
            let proto = self.graph.nodes[node];
            let name = proto.output[0].clone();
            let output = made.unwrap_or_else(|| name.clone());
            let taken = self.names.fresh(&name, "taken");
            self.edits.push(Edit::SetInput { node, input: 0, value: integers });
            self.edits.push(Edit::RenameOutput { node, output: 0, value: taken.clone() });
            let mut add = |op_type: &str, input: Vec<String>, output: &str, attribute| {
                let output = vec![output.to_owned()];
                self.edits
                    .push(Edit::AddNode(NodeProto::new("", op_type, input, output, attribute)));
            };
            match back {
                Back::Whole { zero_point } => {
                    let input = [taken, scale].into_iter().chain(zero_point).collect();
                    add("DequantizeLinear", input, &output, vec![]);
                }
                Back::ByRow => {
                    let [float, scales] = ["float", "scales"].map(|s| self.names.fresh(&taken, s));
                    let to = i64::from(DataType::Float.number());
                    let to = vec![Raw::new(AttributeProto::int("to", to))];
                    add("Cast", vec![taken], &float, to);
                    let input = vec![scale, proto.input[1].clone()];
                    add("Gather", input, &scales, vec![]);
                    add("Mul", vec![float, scales], &output, vec![]);
                }
            }
        }
    }
}
