//! `MoE` of ONNX Runtime, a mixture of experts, and `QMoE`, which reads their weights as integers.
//! What they compute alike was tried with ONNX Runtime 1.32 on a CPU.

use quantize_rs_onnx::{AttributeProto, NodeProto};

use super::Graph;
use super::ops::{MICROSOFT, is_function};

/// The operator on integers.
pub(crate) const QMOE: &str = "QMoE";

/// The input with the scores of the experts, of both operators.
pub(crate) const ROUTER: usize = 1;

/// The input of `QMoE` with the factors of the experts.
pub(crate) const FACTORS: usize = 14;

/// The attribute of `QMoE` with the bits of both weights, and their number if it is omitted.
pub(crate) const BITS: (&str, i64) = ("expert_weight_bits", 4);

/// The attribute that divides the factors of the chosen experts by their sum.
pub(crate) const NORMALIZES: &str = "normalize_routing_weights";

/// The number that the elements of a row are a multiple of, if it is no multiple of a block.
pub(crate) const LEAST_MULTIPLE: usize = 8;

/// A weight of the experts, and its place in `QMoE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Projection {
    /// The input of `MoE` with the weight, which the bias follows.
    pub(crate) weight: usize,
    /// The input of `QMoE` with the integers, which scales and the bias follow.
    pub(crate) integers: usize,
    /// The input of `QMoE` with the zero points.
    pub(crate) zero_points: usize,
}

/// The weights before and after the activation function. `QMoE` has no third one on a CPU.
pub(crate) const PROJECTIONS: [Projection; 2] = [
    Projection { weight: 2, integers: 2, zero_points: 11 },
    Projection { weight: 4, integers: 5, zero_points: 12 },
];

/// The attributes of `MoE` that `QMoE` has, too. Where the factors of the chosen experts are not
/// normalized, `QMoE` gets them as an input.
pub(crate) const SHARED: [&str; 6] = [
    "k",
    "activation_type",
    "activation_alpha",
    "activation_beta",
    "swiglu_limit",
    "swiglu_fusion",
];

const ACTIVATIONS: [&[u8]; 5] = [b"relu", b"gelu", b"silu", b"identity", b"swiglu"];

/// Whether a node is a mixture of experts.
pub(crate) fn is_moe(node: &NodeProto) -> bool {
    node.domain == MICROSOFT && node.op_type == "MoE"
}

/// Whether a node is a mixture of experts with integers.
pub(crate) fn is_qmoe(node: &NodeProto) -> bool {
    node.domain == MICROSOFT && node.op_type == QMOE
}

/// Whether the factors of the chosen experts are divided by their sum.
pub(crate) fn normalizes(node: &NodeProto) -> bool {
    node.int(NORMALIZES, 0) != 0
}

/// Checks that `QMoE` has all that a `MoE` needs.
///
/// # Errors
/// What it lacks.
pub(crate) fn fits(graph: &Graph<'_>, node: &NodeProto) -> Result<(), String> {
    if is_function(graph, QMOE) {
        return Err("the model calls a function of its own QMoE".to_owned());
    }
    if node.input.iter().skip(6).any(|name| !name.is_empty()) {
        return Err("QMoE has no third weight (fc3) on a CPU".to_owned());
    }
    let activation = node.attribute("activation_type").and_then(|found| found.s.clone());
    let activation = activation.as_deref().unwrap_or(b"relu");
    let name = String::from_utf8_lossy(activation);
    if !ACTIVATIONS.contains(&activation) {
        return Err(format!("QMoE has no activation function {name} on a CPU"));
    }
    let fusion = node.int("swiglu_fusion", 0);
    if activation == b"swiglu" && fusion != 1 {
        return Err(format!("swiglu_fusion is {fusion}, QMoE has 1 alone on a CPU"));
    }
    let known = |attribute: &AttributeProto| {
        SHARED.contains(&&*attribute.name) || attribute.name == NORMALIZES || attribute.i == Some(0)
    };
    match node.attribute.iter().find(|attribute| !known(attribute)) {
        Some(attribute) => Err(format!("QMoE has no {} on a CPU", attribute.name)),
        None => Ok(()),
    }
}

/// The number of elements of a block that divides both `lengths`: at most `wanted`, and a power of
/// two from 16 on. `None` if there is none; then rows have one scale each.
pub(crate) fn block(wanted: usize, lengths: [usize; 2]) -> Option<usize> {
    let sizes = (4..usize::BITS).rev().map(|power| 1usize << power);
    let fits = |size: &usize| *size <= wanted && lengths.iter().all(|it| it.is_multiple_of(*size));
    sizes.filter(|_| lengths.iter().all(|length| *length > 0)).find(fits)
}

/// Whether blocks may have this many elements.
pub(crate) fn is_block(size: usize) -> bool {
    size >= 16 && size.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::block;

    #[test]
    fn blocks_divide_both_lengths() {
        assert_eq!(block(32, [64, 128]), Some(32));
        assert_eq!(block(128, [64, 128]), Some(64));
        assert_eq!(block(32, [48, 128]), Some(16));
        assert_eq!(block(32, [40, 128]), None);
        assert_eq!(block(32, [0, 128]), None);
    }
}
