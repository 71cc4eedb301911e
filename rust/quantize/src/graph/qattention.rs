//! `QAttention`: ONNX Runtime's `Attention` with an input and a weight of integers, and what it
//! cannot compute. Tried with ONNX Runtime 1.32 on a CPU.

use quantize_rs_onnx::{AttributeProto, NodeProto, Raw};

use super::Graph;
use super::ops::{MICROSOFT, is_function};

/// The operator.
pub(crate) const QATTENTION: &str = "QAttention";

/// The input of `Attention` with the bias of queries, keys and values.
pub(crate) const BIAS: usize = 2;

/// The inputs of `Attention` that `QAttention` has too: input, weight, bias, mask and past.
const SHARED_INPUTS: usize = 5;

/// The attributes that both operators have.
const SHARED: [&str; 6] = [
    "num_heads",
    "unidirectional",
    "scale",
    "mask_filter_value",
    "do_rotary",
    "past_present_share_buffer",
];

/// Whether a node is ONNX Runtime's `Attention`, and not the operator of ONNX with this name.
pub(crate) fn is_attention(node: &NodeProto) -> bool {
    node.domain == MICROSOFT && node.op_type == "Attention"
}

/// Checks that `QAttention` has all that an `Attention` needs.
///
/// # Errors
/// What it lacks.
pub(crate) fn fits(graph: &Graph<'_>, node: &NodeProto) -> Result<(), &'static str> {
    let has = |input: usize| node.input.get(input).is_some_and(|name| !name.is_empty());
    let sizes = node.attribute("qkv_hidden_sizes").map(|found| &found.ints[..]);
    let known = |attribute: &AttributeProto| {
        SHARED.contains(&&*attribute.name) || is_left_out(attribute) || attribute.i == Some(0)
    };
    if is_function(graph, QATTENTION) {
        return Err("the model has a function QAttention of its own");
    }
    if !has(BIAS) {
        return Err("it has no bias, which QAttention needs");
    }
    if (SHARED_INPUTS..node.input.len()).any(has) || node.int("past_present_share_buffer", 0) != 0 {
        return Err("QAttention adds no attention_bias, and shares no buffer of past and present");
    }
    if sizes.is_some_and(|sizes| sizes.windows(2).any(|pair| pair[0] != pair[1])) {
        return Err("QAttention has queries, keys and values of one size");
    }
    if node.int("do_rotary", 0) != 0 || !node.attribute.iter().all(|found| known(found)) {
        return Err("it has an attribute that QAttention does not support");
    }
    Ok(())
}

/// The attributes of the `QAttention` for an `Attention` that [`fits`].
pub(crate) fn attributes(node: &NodeProto) -> Vec<Raw<AttributeProto>> {
    let kept = |attribute: &&Raw<AttributeProto>| SHARED.contains(&&*attribute.name);
    node.attribute.iter().filter(kept).cloned().collect()
}

/// Whether an attribute says nothing that `QAttention` does not do anyway: sizes that are equal, or
/// the dimension of embeddings that are not there.
pub(crate) fn is_left_out(attribute: &AttributeProto) -> bool {
    matches!(&*attribute.name, "qkv_hidden_sizes" | "rotary_embedding_dim")
}
