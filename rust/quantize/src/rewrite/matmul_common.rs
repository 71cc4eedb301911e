//! Shared by the formats that replace a product: its factors and addends, and the removal of the
//! constant that it read.

use std::collections::HashSet;

use quantize_rs_math::QSpec;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor};

use super::writer::{Writer, floats_of};
use crate::encode::EncodedTensor;
use crate::graph::ValueId;
use crate::graph::uses::{Constant, Use};
use crate::plan::ValuePlan;

/// What a `Gemm` computes in addition to the product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest<'m> {
    alpha: f32,
    beta: f32,
    /// The value that is added, if any.
    pub(super) addend: Option<&'m str>,
    /// The type of the product and of the factors.
    dtype: DataType,
}

impl<'m> Rest<'m> {
    pub(super) fn of(node: &'m NodeProto, dtype: DataType) -> Rest<'m> {
        if node.op_type != "Gemm" {
            return Rest { alpha: 1.0, beta: 1.0, addend: None, dtype };
        }
        let (alpha, beta) = (node.float("alpha", 1.0), node.float("beta", 1.0));
        let addend = node.input.get(2).map(String::as_str);
        let addend = addend.filter(|name| !name.is_empty() && is_not(beta, 0.0));
        Rest { alpha, beta, addend, dtype }
    }

    /// Whether both factors are 1.
    pub(super) fn plain(self) -> bool {
        !is_not(self.alpha, 1.0) && !is_not(self.beta, 1.0)
    }
}

/// A copy of a node with another operator, inputs, output and attributes.
pub(super) fn another(
    node: &NodeProto,
    (domain, op_type): (&str, &str),
    input: Vec<String>,
    output: String,
    attributes: &[(&str, usize)],
) -> NodeProto {
    let mut with = node.clone();
    op_type.clone_into(&mut with.op_type);
    domain.clone_into(&mut with.domain);
    with.input = input;
    with.output = vec![output];
    let integer = |(name, value): &(&str, usize)| {
        Raw::new(AttributeProto::int(name, i64::try_from(*value).unwrap_or(i64::MAX)))
    };
    with.attribute = attributes.iter().map(integer).collect();
    with
}

/// The nodes of the main graph that multiply by a constant or gather its rows.
pub(super) fn multipliers(constant: &Constant<'_>) -> Vec<usize> {
    let node = |usage: &Use<'_>| match usage {
        Use::Weight { node, .. } => Some(*node),
        _ => None,
    };
    constant.uses.iter().filter_map(node).collect()
}

/// The zero points of a weight in blocks; `None` where they are the middle of the stored type,
/// which operators take if they are absent. A grid of fewer bits has another middle.
pub(super) fn written_zero_point<'t>(
    how: &ValuePlan,
    tensor: &'t EncodedTensor,
) -> Option<&'t Tensor> {
    let QSpec { symmetric, qtype, .. } = how.spec;
    let is_middle = symmetric && how.spec.zero_point_midpoint() == 1 << (qtype.bits() - 1);
    (!is_middle).then_some(&tensor.zero_point)
}

impl Writer<'_, '_> {
    /// Writes what a node computes in addition to the product, and returns the name of the product.
    pub(super) fn rest_of_product(&mut self, node: &NodeProto, rest: &Rest<'_>) -> String {
        let output = node.output[0].clone();
        let mut steps: Vec<(&str, String)> = Vec::new();
        if is_not(rest.alpha, 1.0) {
            steps.push(("Mul", self.scalar(&output, "alpha", rest.alpha, rest.dtype)));
        }
        if let Some(addend) = rest.addend {
            let mut addend = addend.to_owned();
            if is_not(rest.beta, 1.0) {
                let beta = self.scalar(&output, "beta", rest.beta, rest.dtype);
                let scaled = self.names.fresh(&output, "addend");
                self.step("Mul", vec![addend, beta], scaled.clone());
                addend = scaled;
            }
            steps.push(("Add", addend));
        }
        let product =
            if steps.is_empty() { output.clone() } else { self.names.fresh(&output, "product") };
        let (mut made, count) = (product.clone(), steps.len());
        for (index, (op_type, operand)) in steps.into_iter().enumerate() {
            let next = if index + 1 == count {
                output.clone()
            } else {
                self.names.fresh(&output, "scaled")
            };
            self.step(op_type, vec![made, operand], next.clone());
            made = next;
        }
        product
    }

    /// Adds a node of a standard operator without attributes.
    pub(super) fn step(&mut self, op_type: &str, input: Vec<String>, output: String) {
        self.edits.push(Edit::AddNode(NodeProto::new("", op_type, input, vec![output], vec![])));
    }

    pub(super) fn scalar(
        &mut self,
        base: &str,
        suffix: &str,
        value: f32,
        dtype: DataType,
    ) -> String {
        let value = floats_of(dtype, &Tensor::from_f32(vec![], &[value]));
        self.constant(base, suffix, &value)
    }

    /// Imports a domain if the model does not.
    pub(super) fn import(&mut self, domain: &str, version: i64) {
        if self.graph.model.opset(domain).is_none() && self.imported.insert(domain.to_owned()) {
            let domain = domain.to_owned();
            self.edits.push(Edit::SetOpset { domain, version });
        }
    }

    /// Removes a constant whose consumers were replaced, and the nodes that rearranged it before
    /// them.
    pub(super) fn take_out_read(&mut self, id: ValueId, consumers: &[usize]) {
        let mut done: HashSet<usize> = consumers.iter().copied().collect();
        let mut waiting = vec![id];
        while let Some(value) = waiting.pop() {
            for consumer in &self.graph.values[value].consumers {
                if !done.insert(consumer.node) {
                    continue;
                }
                self.edits.push(Edit::RemoveNode(consumer.node));
                waiting.extend(self.graph.output(consumer.node, 0));
                let others = self.graph.nodes[consumer.node].input.iter().skip(1);
                let others: Vec<ValueId> =
                    others.filter_map(|name| self.graph.value(name)).collect();
                for other in others {
                    let alone = self.graph.only_consumer(other).is_some();
                    if alone && self.graph.constant(other).is_some() {
                        self.take_out(other);
                    }
                }
            }
        }
        self.take_out(id);
    }
}

#[allow(clippy::float_cmp)] // attributes of the file, not computed numbers
fn is_not(value: f32, other: f32) -> bool {
    value != other
}
