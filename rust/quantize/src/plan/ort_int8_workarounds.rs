//! Workarounds for integers that ONNX Runtime moves.
//!
//! If the input of a `Reshape` or a similar operator is dequantized, ONNX Runtime quantizes its
//! output again. From opset 21 on, it writes the type int8 as an attribute. On x86 it converts int8
//! to uint8, and then cannot load the model that it wrote (observed in 1.32).
//!
//! It moves a `Transpose` of dequantized integers before the `DequantizeLinear`. If these have 2
//! bits, it then does not load the model (observed in 1.32). It moves none with blocks.
//!
//! It replaces a `Conv`, `Gemm` or `MatMul` between quantized values by its operator on integers,
//! which takes no weights of 2 bits, so that it does not load the model (observed in 1.32). It does
//! not replace a `Gemm` or `MatMul` whose weight has blocks, nor a `Conv` whose filter is reshaped.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::Model;

use super::activations::ActivationContext;
use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Consumers, Decision, ValuePlan};
use crate::graph::ops;
use crate::graph::{Graph, ValueId};

/// The first opset in which `QuantizeLinear` has an attribute for the type of the integers.
const SAYS_TYPE: i64 = 21;

/// Operators after which ONNX Runtime adds a `QuantizeLinear` and a `DequantizeLinear` if their
/// input is dequantized and their output is not quantized.
const CARRIERS: &[&str] = &["MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"];

/// Quantizes the output of a node that only moves int8, whichever nodes read it and even if the
/// node is excluded: the elements do not change.
///
/// ONNX Runtime would do so itself. On x86 it then converts int8 to uint8, does not update the
/// `output_dtype` that it wrote, and rejects the model (observed in 1.32).
pub(super) fn quantize_moved(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
    node: usize,
) -> Outcome {
    let graph = context.graph;
    let proto = graph.nodes[node];
    let moves = writes_type(graph.model)
        && CARRIERS.contains(&proto.op_type.as_str())
        && ops::moves_elements(graph, node);
    let plan = graph.input(node, 0).filter(|_| moves).and_then(|id| decisions.quantized(id));
    let plan =
        plan.filter(|plan| plan.spec.qtype == QType::Int8 && plan.consumers == Consumers::All);
    let ends = |output: ValueId| decisions.quantized(output).is_none();
    context.pass_on(node, plan.filter(|_| context.outputs(node).any(ends)))
}

/// Gives int8 tables whose rows are gathered a zero point of 0, so that the rows can be moved.
pub(super) fn make_tables_symmetric(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    if !writes_type(context.graph.model) {
        return Outcome::default();
    }
    let revised = decisions.all_quantized().filter_map(|(id, plan)| {
        let rows = matches!(plan.consumers, Consumers::GatheredRows | Consumers::TiedEmbedding);
        let whole = plan.spec.granularity == Granularity::PerTensor;
        let spec = QSpec { symmetric: true, ..plan.spec };
        (rows && whole && plan.spec.qtype == QType::Int8)
            .then(|| Outcome::revise(id, Decision::Quantize(ValuePlan { spec, ..plan.clone() })))
    });
    revised.collect()
}

/// Whether a node of one of these types reads a value.
pub(super) fn is_read_by(graph: &Graph<'_>, value: ValueId, op_types: &[&str]) -> bool {
    graph.values[value].consumers.iter().any(|reader| {
        let node = graph.nodes[reader.node];
        node.is_onnx() && op_types.contains(&node.op_type.as_str())
    })
}

/// Whether ONNX Runtime would write the type of the values that it quantizes.
pub(crate) fn writes_type(model: &Model) -> bool {
    model.opset("").is_some_and(|opset| opset >= SAYS_TYPE)
}
