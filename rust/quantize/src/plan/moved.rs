//! Integers of 8 bits with a sign that ONNX Runtime moves by itself. What comes back from them before a
//! `Reshape` and the like it takes to integers again behind it. From opset 21 on it then writes down
//! that these are int8, and on x86, where it makes uint8 of int8, cannot load what it made (1.32).

use quantize_rs_math::{Granularity, QType};

use super::{Decision, Draft, IntegerNode, Readers};
use crate::Config;
use crate::graph::Graph;
use crate::options::target::Target;

/// The first opset whose `QuantizeLinear` can say of what type the integers are.
pub(crate) const SAYS_TYPE: i64 = 21;

/// Keeps what ONNX Runtime moves loadable: rows of tables get along without a zero point, and of
/// activations the caller is told.
pub(super) fn settle(graph: &Graph<'_>, config: &Config, draft: &mut Draft) {
    if graph.model.opset("").is_none_or(|opset| opset < SAYS_TYPE) {
        return;
    }
    for decision in draft.decisions.values_mut() {
        let Decision::Quantize(plan) = decision else { continue };
        let rows = matches!(plan.consumers, Readers::Rows | Readers::Tied);
        let whole = plan.spec.granularity == Granularity::PerTensor;
        if rows && whole && plan.spec.qtype == QType::Int8 {
            plan.spec.symmetric = true;
        }
    }
    draft.warnings.extend(activations(graph, config, draft));
}

/// A product of three axes or more to which a bias is added: ONNX Runtime makes a `Gemm` of both, with a
/// `Reshape` before it.
fn activations(graph: &Graph<'_>, config: &Config, draft: &Draft) -> Option<String> {
    let elsewhere = matches!(
        config.target,
        Some(Target::Arm | Target::TensorRt | Target::OpenVino | Target::Qnn)
    );
    let becomes_gemm = |node: &&IntegerNode| {
        let signed = draft.quantized(node.input).is_some_and(|plan| plan.spec.qtype == QType::Int8);
        let axes = graph.shape(node.input).map(|shape| shape.len());
        let sum = graph.nodes[node.node].op_type == "MatMul" && node.bias.is_some();
        signed && sum && axes.is_some_and(|axes| axes > 2)
    };
    let found = draft.integer_nodes.iter().find(becomes_gemm).filter(|_| !elsewhere)?;
    Some(format!(
        "on x86, ONNX Runtime 1.32 cannot load activations of int8 in a model of opset {SAYS_TYPE} or \
         later that it moves, as before {}: take uint8 there, or its session option \
         session.qdqisint8allowed = 1",
        graph.nodes[found.node].label()
    ))
}
