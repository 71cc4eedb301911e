//! Weights that stay integers through a `Gather`, a `Transpose` or a `Reshape`.
//!
//! `Gather` takes rows of integers, and only these rows are dequantized. A `DequantizeLinear`
//! before the `Gather` would dequantize the whole table at inference time. A rearranged weight is
//! dequantized after it is rearranged.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw};

use super::writer::Writer;
use crate::encode::EncodedTensor;
use crate::graph::ops;
use crate::graph::ops::Slot;
use crate::graph::uses;
use crate::graph::{Consumer, ValueId};
use crate::plan::ValuePlan;

/// A `Gather` that takes integers.
pub(super) struct IntegerGather {
    integers: String,
    scale: String,
    dequantization: Dequantization,
    /// The name of the dequantized result, unless it is the name of the output.
    pub(super) output: Option<String>,
}

/// How the rows that a `Gather` takes are dequantized.
#[derive(Clone)]
enum Dequantization {
    /// With a scale for each row, which a second `Gather` takes.
    ByRow,
    /// With one scale and one zero point, which may be absent where it is 0.
    PerTensor { zero_point: Option<String> },
}

impl Writer<'_, '_> {
    /// Records that each `Gather` of a table takes its integers.
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
            // As many axes as the table has, so that the scales broadcast to its rows.
            scale.shape.resize(tensor.quantized.shape.len(), 1);
        }
        let scale = self.constant(value.name, "scale", &scale);
        let dequantization = if by_row {
            Dequantization::ByRow
        } else {
            let needed = self.moved_needs_zero_point(how);
            let zero_point = needed.then(|| self.zero_point(&tensor.zero_point));
            Dequantization::PerTensor { zero_point }
        };
        let graph = self.graph;
        let is_gather = |consumer: &&Consumer| graph.nodes[consumer.node].op_type == "Gather";
        for Consumer { node, .. } in value.consumers.iter().filter(is_gather).copied() {
            let gather = IntegerGather {
                integers: integers.to_owned(),
                scale: scale.clone(),
                dequantization: dequantization.clone(),
                output: None,
            };
            self.gathers.insert(node, gather);
        }
    }

    /// Writes a weight that may be rearranged before the product: the nodes rearrange its integers,
    /// and their result is dequantized.
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
        // The channel axis of a matrix. In a filter, it is the first one at any rank.
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

    /// Writes the `Gather` nodes that take integers.
    pub(super) fn write_gathers(&mut self) {
        for (node, gather) in std::mem::take(&mut self.gathers) {
            let IntegerGather { integers, scale, dequantization, output } = gather;
            let proto = self.graph.nodes[node];
            let name = proto.output[0].clone();
            let output = output.unwrap_or_else(|| name.clone());
            let taken = self.names.fresh(&name, "taken");
            self.edits.push(Edit::SetInput { node, input: 0, value: integers });
            self.edits.push(Edit::RenameOutput { node, output: 0, value: taken.clone() });
            let mut add = |op_type: &str, input: Vec<String>, output: &str, attribute| {
                let output = vec![output.to_owned()];
                self.edits
                    .push(Edit::AddNode(NodeProto::new("", op_type, input, output, attribute)));
            };
            match dequantization {
                Dequantization::PerTensor { zero_point } => {
                    let input = [taken, scale].into_iter().chain(zero_point).collect();
                    add("DequantizeLinear", input, &output, vec![]);
                }
                Dequantization::ByRow => {
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
