//! Checks of the `fake_quant` format: weights are float, and fake-quantized where they are read.

use quantize_rs_onnx::{DataType, TensorProto};

use super::{Models, failed};
use crate::QuantizeError;
use crate::graph::Producer;
use crate::graph::elements::data_type;
use crate::plan::{Consumers, Planned, ValuePlan};

/// Checks that a weight is float before a `QuantizeLinear` of its own, with constant scales.
pub(super) fn value(
    Models { after: graph, .. }: &Models<'_, '_>,
    value: &Planned,
    how: &ValuePlan,
) -> Result<(), QuantizeError> {
    let constant = |node: usize, input: usize| {
        graph.input(node, input).and_then(|id| graph.constant(id)).and_then(TensorProto::dtype)
    };
    let quantizes = |node: usize| {
        graph.nodes[node].op_type == "QuantizeLinear"
            && constant(node, 0) == Some(DataType::Float)
            && constant(node, 1) == Some(DataType::Float)
            && constant(node, 2) == Some(data_type(how.stored))
    };
    let back = |node: usize| {
        let integers = graph.input(node, 0).map(|id| graph.values[id].producer);
        graph.nodes[node].op_type == "DequantizeLinear"
            && matches!(integers, Some(Producer::Node { node, .. }) if quantizes(node))
    };
    let made = graph.value(&value.name).map(|id| graph.values[id].producer);
    let found = match (made, how.consumers, how.matrix) {
        (Some(Producer::Node { node, .. }), Consumers::All, None) => back(node),
        (None, ..) => false,
        _ => (0..graph.nodes.len()).any(back),
    };
    let missing = || failed(format!("`{}` is not quantized where it is read", value.name));
    found.then_some(()).ok_or_else(missing)
}
