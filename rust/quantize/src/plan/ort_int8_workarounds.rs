//! Integers of 8 bits with a sign that ONNX Runtime moves by itself. What comes back from them before a
//! `Reshape` and the like it takes to integers again behind it. From opset 21 on it then writes down
//! that these are int8, and on x86, where it makes uint8 of int8, cannot load what it made (1.32).

use quantize_rs_math::{Granularity, QType};

use super::activations::Planner;
use super::{Decision, Draft, IntegerNode, Readers};
use crate::Config;
use crate::graph::ops;
use crate::graph::ops::Integer;
use crate::graph::{Graph, ValueId};
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
        let rows = matches!(plan.readers, Readers::Rows | Readers::Tied);
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

/// Operators behind which ONNX Runtime puts a `QuantizeLinear` and a `DequantizeLinear` of its own
/// when what flows into them is dequantized and what flows out is not quantized.
const CARRIERS: &[&str] = &["MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"];

impl Planner<'_, '_> {
    /// Quantizes what comes out of a node that only moves int8, whoever reads it and even where the
    /// node is excluded: the numbers stay what they are.
    ///
    /// ONNX Runtime would do so itself. On x86 it then turns int8 into uint8, overlooks the
    /// `output_dtype` of what it made and refuses the model (seen in 1.32).
    pub(super) fn carry_on(&self, draft: &mut Draft) {
        if self.graph.model.opset("").unwrap_or(0) < SAYS_TYPE {
            return;
        }
        for node in self.order.iter().copied() {
            let proto = self.graph.nodes[node];
            let carries = CARRIERS.contains(&proto.op_type.as_str())
                && ops::rule(proto).is_some_and(|rule| {
                    matches!((rule.integer)(self.graph, node), Integer::SameAsInput { .. })
                });
            let Some(input) = self.graph.input(node, 0).filter(|_| carries) else { continue };
            let reads_int8 = draft
                .quantized(input)
                .is_some_and(|how| how.spec.qtype == QType::Int8 && how.readers == Readers::All);
            let ends = |output: ValueId| draft.quantized(output).is_none();
            if reads_int8 && self.outputs(node).any(ends) {
                self.pass_on(draft, node);
            }
        }
    }
}
