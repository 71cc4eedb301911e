//! Attention masks: operators that pass them on, and operators that compute a softmax of them.

use quantize_rs_onnx::NodeProto;

/// Operators between a mask and the softmax that it is added to.
const OF_MASKS: &[&str] = &[
    "Add",
    "Cast",
    "Concat",
    "Expand",
    "Gather",
    "Identity",
    "Max",
    "Min",
    "Mul",
    "Reshape",
    "ScatterND",
    "Slice",
    "Squeeze",
    "Sub",
    "Tile",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
];

/// Whether a node passes a mask on.
pub(crate) fn passes_masks_on(node: &NodeProto) -> bool {
    node.is_onnx() && OF_MASKS.contains(&node.op_type.as_str())
}

/// Operators that compute a softmax of what they read.
const SOFTMAX: &[&str] = &[
    "Attention",
    "BiasSoftmax",
    "GroupQueryAttention",
    "LogSoftmax",
    "MultiHeadAttention",
    "Softmax",
];

/// Whether a node computes a softmax of what it reads.
pub(crate) fn is_softmax(node: &NodeProto) -> bool {
    SOFTMAX.contains(&node.op_type.as_str())
}
