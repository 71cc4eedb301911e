//! Operators that pass on elements of their input: they move, select or clip them.

use quantize_rs_onnx::NodeProto;

use super::{FLOAT, IntegerSupport, OpRule, Slot, flows};
use crate::graph::Graph;

const MOVES: fn(&Graph<'_>, usize) -> IntegerSupport =
    |_, _| IntegerSupport::SameAsInput { same_range: true };
const PICKS: fn(&Graph<'_>, usize) -> IntegerSupport =
    |_, _| IntegerSupport::SameAsInput { same_range: false };

pub(super) const RULES: &[OpRule] = &[
    flows("Reshape", MOVES),
    flows("Transpose", MOVES),
    flows("Flatten", MOVES),
    flows("Squeeze", MOVES),
    flows("Unsqueeze", MOVES),
    flows("Identity", MOVES),
    flows("DepthToSpace", MOVES),
    flows("SpaceToDepth", MOVES),
    flows("Expand", MOVES),
    flows("Tile", MOVES),
    // The maximum of negative numbers hides how large their magnitudes were, so the output may need
    // a much finer scale than the input.
    flows("MaxPool", PICKS),
    flows("GlobalMaxPool", PICKS),
    flows("ReduceMax", PICKS),
    flows("ReduceMin", PICKS),
    // A constant that a Slice reads is a table, such as position embeddings of which a model takes
    // the first rows.
    OpRule {
        op_type: "Slice",
        inputs: &[Slot::Operand { axis: last }],
        more: Slot::Other,
        min_inputs: 1,
        integer: PICKS,
        range: None,
    },
    flows("Split", PICKS),
    flows("GatherElements", PICKS),
    flows("GatherND", PICKS),
    flows("Pad", pad),
    flows("Resize", resize),
    flows("Upsample", resize),
    flows("Relu", |_, _| IntegerSupport::Fused),
    flows("Clip", |_, _| IntegerSupport::Fused),
];

fn last(_: &NodeProto, rank: usize) -> Option<usize> {
    (rank > 1).then(|| rank - 1)
}

/// The padding value must be among the values that the quantized input can represent; 0 always is.
fn pad(graph: &Graph<'_>, node: usize) -> IntegerSupport {
    let proto = graph.nodes[node];
    let with_zeros = match proto.input.get(2).filter(|name| !name.is_empty()) {
        None => proto.float("value", 0.0) == 0.0,
        Some(_) => graph
            .input(node, 2)
            .and_then(|value| graph.model.tensor(graph.fixed_constant(value)?).ok()?.to_f32())
            .is_some_and(|values| values.iter().all(|value| *value == 0.0)),
    };
    match text(graph, node, "mode", "constant") {
        "constant" if !with_zeros => IntegerSupport::Computes { kernel: None },
        // The borders of an image may hold values that its interior does not.
        _ => IntegerSupport::SameAsInput { same_range: true },
    }
}

fn resize(graph: &Graph<'_>, node: usize) -> IntegerSupport {
    // Positions outside the image take a separate extrapolation value.
    let crops = text(graph, node, "coordinate_transformation_mode", "") == "tf_crop_and_resize";
    match text(graph, node, "mode", "nearest") {
        _ if crops => IntegerSupport::No(FLOAT),
        "nearest" => IntegerSupport::SameAsInput { same_range: false },
        "linear" => IntegerSupport::Computes { kernel: None },
        _ => IntegerSupport::No(FLOAT),
    }
}

fn text<'m>(graph: &Graph<'m>, node: usize, attribute: &str, default: &'static str) -> &'m str {
    let found = graph.nodes[node].attribute(attribute).and_then(|found| found.s.as_deref());
    found.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or(default)
}
