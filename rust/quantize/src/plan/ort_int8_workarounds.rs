//! Workarounds for int8 values that ONNX Runtime moves. If the input of a `Reshape` or a similar
//! operator is dequantized, ONNX Runtime quantizes its output again. From opset 21 on, it writes
//! the type int8 as an attribute. On x86 it converts int8 to uint8, and then cannot load the model
//! that it wrote (observed in 1.32).

use quantize_rs_math::{Granularity, QSpec, QType};

use super::activations::ActivationContext;
use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Consumers, Decision, IntegerNode, ValuePlan};
use crate::graph::ops::{self, IntegerSupport};
use crate::graph::{Graph, ValueId};
use crate::options::target::Target;

/// The first opset in which `QuantizeLinear` has an attribute for the type of the integers.
pub(crate) const SAYS_TYPE: i64 = 21;

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
    let moves = writes_type(graph)
        && CARRIERS.contains(&proto.op_type.as_str())
        && ops::rule(proto).is_some_and(|rule| {
            matches!((rule.integer)(graph, node), IntegerSupport::SameAsInput { .. })
        });
    let plan = graph.input(node, 0).filter(|_| moves).and_then(|id| decisions.quantized(id));
    let plan =
        plan.filter(|plan| plan.spec.qtype == QType::Int8 && plan.consumers == Consumers::All);
    let ends = |output: ValueId| decisions.quantized(output).is_none();
    context.pass_on(node, plan.filter(|_| context.outputs(node).any(ends)))
}

/// Gives int8 tables whose rows are gathered a zero point of 0, so that the rows can be moved.
pub(super) fn make_tables_symmetric(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    if !writes_type(context.graph) {
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

/// Warns about int8 activations that ONNX Runtime moves: the input of a `MatMul` of three axes or
/// more to which a bias is added. ONNX Runtime fuses both into a `Gemm`, with a `Reshape` before
/// it.
pub(super) fn warn_moved(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let graph = context.graph;
    let elsewhere = matches!(
        context.config.target,
        Some(Target::Arm | Target::TensorRt | Target::OpenVino | Target::Qnn)
    );
    let becomes_gemm = |node: &&IntegerNode| {
        let input = decisions.quantized(node.input);
        let signed = input.is_some_and(|plan| plan.spec.qtype == QType::Int8);
        let axes = graph.shape(node.input).map(|shape| shape.len());
        let sum = graph.nodes[node.node].op_type == "MatMul" && node.bias.is_some();
        signed && sum && axes.is_some_and(|axes| axes > 2)
    };
    let mut nodes = decisions.integer_nodes.iter();
    let found = nodes.find(becomes_gemm).filter(|_| writes_type(graph) && !elsewhere);
    Outcome::warn(found.map(|found| {
        format!(
            "on x86, ONNX Runtime 1.32 cannot load activations of int8 in a model of opset \
             {SAYS_TYPE} or later that it moves, as before {}: take uint8 there, or its session \
             option session.qdqisint8allowed = 1",
            graph.nodes[found.node].label()
        )
    }))
}

/// Whether ONNX Runtime would write the type of the values that it quantizes.
fn writes_type(graph: &Graph<'_>) -> bool {
    graph.model.opset("").is_some_and(|opset| opset >= SAYS_TYPE)
}
