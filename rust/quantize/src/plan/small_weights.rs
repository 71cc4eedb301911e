//! The smallest weights of a network of convolutions, which stay float where only weights are
//! quantized: they are mostly at the start, where an error affects all later layers, and their
//! bytes do not matter.

use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Decision, KeepReason, Source};
use crate::Format;
use crate::graph::uses::Constant;

/// The number of weights from which on some stay float.
const MIN_WEIGHTS: usize = 20;

/// The fraction of all elements, one in this many, that may stay float.
const SHARE: usize = 200;

/// The largest number of bits of weights that are coarse enough to gain from it.
const COARSE_BITS: u32 = 8;

/// Keeps the smallest weights of convolutions in float, unless the options name what to quantize.
pub(super) fn keep(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let Context { graph, constants, config, selection, .. } = *context;
    let alone = config.activations.is_none() && config.output_format == Format::Qdq;
    if !alone || config.include.is_some() || config.op_types.is_some() {
        return Outcome::default();
    }
    let elements = |constant: &Constant<'_>| constant.shape.iter().product::<usize>();
    let quantized: Vec<&Constant<'_>> = constants
        .iter()
        .filter(|constant| {
            decisions.quantized(constant.anchor).is_some_and(|plan| {
                let coarse = plan.spec.qtype.is_scaled() && plan.spec.qtype.bits() <= COARSE_BITS;
                plan.source == Source::Weights && coarse
            })
        })
        .collect();
    if quantized.len() < MIN_WEIGHTS {
        return Outcome::default();
    }
    let convolves = |constant: &Constant<'_>| {
        let mut nodes = constant.multipliers(graph);
        nodes.any(|node| matches!(&*node.op_type, "Conv" | "ConvTranspose"))
    };
    let unnamed = |constant: &Constant<'_>| {
        selection.weight_type(&constant.names(graph), constant.multipliers(graph)).is_none()
    };
    let mut left = quantized.iter().map(|constant| elements(constant)).sum::<usize>() / SHARE;
    let mut small: Vec<&Constant<'_>> =
        quantized.into_iter().filter(|constant| convolves(constant) && unnamed(constant)).collect();
    small.sort_by_key(|constant| elements(constant));
    let kept = small
        .iter()
        .take_while(|constant| {
            let rest = left.checked_sub(elements(constant));
            left = rest.unwrap_or(0);
            rest.is_some()
        })
        .count();
    let largest = small.last().map_or(0, |constant| elements(constant));
    let min_elements = small.get(kept).map_or(largest + 1, |constant| elements(constant));
    let keep = |constant: &&Constant<'_>| {
        let kept = KeepReason::TooSmall { elements: elements(constant), min_elements };
        Outcome::revise(constant.anchor, Decision::KeepFloat(kept))
    };
    small.iter().filter(|constant| elements(constant) < min_elements).map(keep).collect()
}
