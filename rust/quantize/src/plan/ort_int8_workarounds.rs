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
//!
//! It computes convolutions on integers with the channels last, and moves transpositions through
//! a `Resize` between them. If that is cubic and makes an axis shorter, keeps the aspect ratio of
//! some axes, or crops, it does not load the model, or its results are wrong (observed in 1.32).

use std::collections::HashSet;

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::Model;

use super::activations::ActivationContext;
use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Consumers, Decision, ValuePlan};
use crate::graph::constants::fixed;
use crate::graph::elements::to_f32;
use crate::graph::ops;
use crate::graph::{Graph, Producer, ValueId};

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

/// The `Conv` nodes after a `Resize` that ONNX Runtime cannot compute with the channels last, if a
/// `Conv` comes before it too.
pub(super) fn convs_after_resize(graph: &Graph<'_>) -> HashSet<usize> {
    let made_by = |value: ValueId| match graph.values[value].producer {
        Producer::Node { node, .. } => Some(node),
        _ => None,
    };
    let before = |node: usize| -> Vec<usize> {
        let inputs = 0..graph.nodes[node].input.len();
        inputs.filter_map(|input| made_by(graph.input(node, input)?)).collect()
    };
    let after = |node: usize| -> Vec<usize> {
        let outputs = 0..graph.nodes[node].output.len();
        let values = outputs.filter_map(|output| graph.output(node, output));
        values.flat_map(|value| &graph.values[value].consumers).map(|it| it.node).collect()
    };
    let odd = (0..graph.nodes.len()).filter(|node| needs_channels_first(graph, *node));
    let between = odd.filter(|resize| !nearest_convs(graph, *resize, before).is_empty());
    between.flat_map(|resize| nearest_convs(graph, resize, after)).collect()
}

/// The first `Conv` on each way from a node, past nodes that do not multiply by a weight.
fn nearest_convs(graph: &Graph<'_>, from: usize, next: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let (mut found, mut pending, mut seen) = (Vec::new(), vec![from], HashSet::new());
    while let Some(node) = pending.pop() {
        for other in next(node).into_iter().filter(|other| seen.insert(*other)) {
            match graph.nodes[other].op_type.as_str() {
                "Conv" => found.push(other),
                "ConvTranspose" | "Gemm" | "MatMul" => {}
                _ => pending.push(other),
            }
        }
    }
    found
}

/// Whether a node is a `Resize` that needs the order of the axes that it has.
fn needs_channels_first(graph: &Graph<'_>, resize: usize) -> bool {
    /// The input with the scales.
    const SCALES: usize = 2;
    let proto = graph.nodes[resize];
    if proto.op_type != "Resize" || !proto.is_onnx() {
        return false;
    }
    let is = |attribute: &str, value: &[u8]| {
        proto.attribute(attribute).is_some_and(|found| found.s.as_deref() == Some(value))
    };
    let scales = graph.input(resize, SCALES).and_then(|value| to_f32(&fixed(graph, value)?));
    let grows = scales.is_some_and(|all| !all.is_empty() && all.iter().all(|scale| *scale >= 1.0));
    is("coordinate_transformation_mode", b"tf_crop_and_resize")
        || is("keep_aspect_ratio_policy", b"not_larger")
        || is("keep_aspect_ratio_policy", b"not_smaller")
        || is("mode", b"cubic") && (!grows || proto.int("exclude_outside", 0) != 0)
}

/// Whether ONNX Runtime would write the type of the values that it quantizes.
pub(crate) fn writes_type(model: &Model) -> bool {
    model.opset("").is_some_and(|opset| opset >= SAYS_TYPE)
}
