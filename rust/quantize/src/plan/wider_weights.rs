//! Weights that get 8 bits where weights get fewer, because their errors are not averaged by a long
//! sum: tables of embeddings, and kernels that sum few elements.

use std::collections::BTreeMap;

use quantize_rs_math::QType;

use super::select::Selection;
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};
use crate::{Config, WeightType};

/// The fraction of the bytes of all weights, one in this many, that 8 bits may add.
const SHARE: usize = 8;

/// The most elements that a kernel with few elements sums: those of a depthwise convolution, and of
/// the first convolution of most networks.
const FEW: usize = 32;

/// What may be wider, and the reason as [`super::QuantizeReason::WiderWeightOf`] has it.
type Kind = (fn(&Graph<'_>, &Constant<'_>) -> bool, &'static str);
const KINDS: [Kind; 2] = [
    (is_table, "8 bits for a small table: no sum averages its errors"),
    (sums_few, "8 bits for a small kernel: its sums are too short to average its errors"),
];

/// The weights that get 8 bits, if 8 bits in all of them add little to the size, each with the
/// reason: first tables that are only looked up, then kernels. Weights whose type an option names
/// keep it, as do all that replace those of onnxruntime.
pub(super) fn find(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    selection: &Selection,
) -> BTreeMap<ValueId, &'static str> {
    // With activations in integers too, an operator with 8-bit weights would run on integers.
    let on_integers = config.activations.is_some();
    if eight_bits(config.weights).is_none() || on_integers || config.onnxruntime_names {
        return BTreeMap::new();
    }
    let bits = config.weights.qtype().bits() as usize;
    let elements = |constant: &Constant<'_>| constant.shape.iter().product::<usize>();
    let weights: Vec<&Constant<'_>> =
        constants.iter().filter(|constant| constant.is_weight()).collect();
    let mut left = weights.iter().map(|weight| elements(weight) * bits).sum::<usize>() / SHARE;
    let mut found = BTreeMap::new();
    for (kind, why) in KINDS {
        let unnamed = |constant: &&&Constant<'_>| {
            let nodes = constant.multipliers(graph);
            selection.weight_type(&constant.names(graph), nodes).is_none()
        };
        let mut wider: Vec<&&Constant<'_>> =
            weights.iter().filter(|weight| kind(graph, weight)).filter(unnamed).collect();
        let added = |weight: &Constant<'_>| elements(weight) * (8 - bits);
        let all: usize = wider.iter().map(|weight| added(weight)).sum();
        if all > left {
            // Not some of them: which ones matter is not known.
            wider.clear();
        }
        left -= wider.iter().map(|weight| added(weight)).sum::<usize>();
        found.extend(wider.iter().map(|weight| (weight.anchor, why)));
    }
    found
}

/// Whether a weight is only looked up.
fn is_table(graph: &Graph<'_>, constant: &Constant<'_>) -> bool {
    let mut nodes = constant.multipliers(graph).peekable();
    nodes.peek().is_some() && nodes.all(|node| matches!(&*node.op_type, "Gather" | "Slice"))
}

/// Whether a weight is a kernel whose outputs sum few elements.
fn sums_few(graph: &Graph<'_>, constant: &Constant<'_>) -> bool {
    let terms: usize = constant.shape.iter().skip(1).product();
    let mut nodes = constant.multipliers(graph).peekable();
    nodes.peek().is_some() && nodes.all(|node| node.op_type == "Conv") && terms <= FEW
}

/// The type of 8 bits with the sign of an integer type of fewer bits.
pub(super) fn eight_bits(requested: WeightType) -> Option<WeightType> {
    let qtype = requested.qtype();
    if qtype.is_float() || requested.bits() >= 8 {
        return None;
    }
    Some(WeightType::Of(if qtype.signed() { QType::Int8 } else { QType::UInt8 }))
}
