//! Warnings about ways of scaling and rounding weights that change no weight.

use quantize_rs_math::WeightMethod;

use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Source, ValuePlan};
use crate::Format;
use crate::graph::Graph;
use crate::graph::uses::Constant;
use crate::options::Rounding;

/// Warns about `weight_method` and `rounding` where they have no effect on any weight.
pub(super) fn warn(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let Context { graph, constants, config, .. } = *context;
    let weights: Vec<(&Constant<'_>, &ValuePlan)> = constants
        .iter()
        .filter_map(|constant| Some((constant, decisions.quantized(constant.anchor)?)))
        .filter(|(_, how)| how.source == Source::Weights)
        .collect();
    if weights.is_empty() {
        return Outcome::default();
    }
    let method = config.weight_method.and_then(|method| {
        let idle = weights.iter().all(|(_, how)| !has_effect(method, how));
        idle.then(|| format!("weight_method={} has no effect: {}", method.name(), scope(method)))
    });
    let rounding = config.rounding.filter(|rounding| {
        let sums = |(constant, how): &(&Constant<'_>, &ValuePlan)| is_summed(graph, constant, how);
        *rounding == Rounding::PreserveSums && !weights.iter().any(sums)
    });
    let rounding = rounding.map(|rounding| {
        format!(
            "rounding={rounding} has no effect: it is for integers of convolutions, and of \
             matrices without blocks, whose inputs lie on one side of 0, as after Relu"
        )
    });
    Outcome::warn(method.into_iter().chain(rounding))
}

/// Whether a method may choose other scales or zero points for a weight than its range.
fn has_effect(method: WeightMethod, how: &ValuePlan) -> bool {
    match method {
        WeightMethod::Hqq => method.has_float_zero_points(&how.spec),
        _ => how.spec.qtype.is_scaled(),
    }
}

/// The weights that a method is for.
fn scope(method: WeightMethod) -> &'static str {
    match method {
        WeightMethod::Hqq => {
            "it is for integers of up to 8 bits with zero points, which symmetric=False gives \
             where the target takes them"
        }
        _ => "16-bit floats have no scale",
    }
}

/// Whether the sums of a weight are preserved.
fn is_summed(graph: &Graph<'_>, constant: &Constant<'_>, how: &ValuePlan) -> bool {
    let spec = &how.spec;
    let in_integers = !spec.qtype.is_float() && spec.codebook.is_none();
    let shape = how.matrix.as_ref().map_or(&constant.shape[..], |matrix| &matrix[..]);
    in_integers
        && how.format != Format::MatMulNBits
        && Rounding::PreserveSums.summed(graph, constant, shape, spec).is_some()
}
