//! The smallest weights, which get 16 bits where only weights are quantized, to int8 by default:
//! the error of a small weight is as large as that of any other, and its bytes do not matter.
//!
//! Where weights have another type, the smallest ones of a deep network of convolutions stay float.

use half::f16;
use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Decision, KeepReason, QuantizeReason, Source, ValuePlan};
use crate::Config;
use crate::graph::Graph;
use crate::graph::ops;
use crate::graph::uses::Constant;

/// The most bits of weights that gain from more.
const COARSE_BITS: u32 = 8;

/// The fraction of all elements, one in this many, that gets 16 bits: at one more byte for each,
/// the file takes up to 2 % of the float model more.
const SHARE_OF_HALVES: usize = 12;

/// The number of weights of another type from which on some stay float.
const MIN_WEIGHTS: usize = 20;

/// The fraction of all elements of another type, one in this many, that may stay float.
const SHARE_OF_FLOATS: usize = 200;

/// A weight of fewer elements stays float: the node that converts it takes as many bytes as it
/// saves.
const MIN_HALVES: usize = 64;

/// The smallest magnitude of the largest element of a weight that halves represent better than 8
/// bits do, with a margin: the step of small halves is 2⁻²⁴.
const MIN_ABSMAX: f32 = 1.0 / 8192.0;

/// Keeps the smallest weights more accurate, unless the options name what to quantize, or ask for
/// the weights of onnxruntime.
pub(super) fn keep(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let Context { graph, constants, config, selection, .. } = *context;
    let named = config.include.is_some() || config.op_types.is_some() || config.onnxruntime_names;
    if !config.only_dequantizes() || named {
        return Outcome::default();
    }
    let quantized: Vec<Weight<'_, '_>> = constants
        .iter()
        .filter_map(|constant| Some((constant, decisions.quantized(constant.anchor)?)))
        .filter(|(_, plan)| plan.source == Source::Weights && is_coarse(plan))
        .map(|(constant, plan)| Weight { constant, plan, elements: elements(constant) })
        .collect();
    let excluded = || constants.iter().filter(|constant| is_excluded(decisions, constant));
    let known = quantized.iter().map(|weight| weight.elements).chain(excluded().map(elements));
    let all = known.fold(stored_in_integers(graph), usize::saturating_add);
    let mut unnamed: Vec<Weight<'_, '_>> = quantized
        .iter()
        .filter(|Weight { constant, .. }| {
            selection.weight_type(&constant.names(graph), constant.multipliers(graph)).is_none()
        })
        .copied()
        .collect();
    unnamed.sort_by_key(|weight| weight.elements);
    if config.weights == Config::default().weights {
        let smallest = smallest(&unnamed, all, SHARE_OF_HALVES);
        return smallest.iter().filter_map(|weight| weight.in_halves(graph)).collect();
    }
    unnamed.retain(|weight| convolves(graph, weight.constant));
    if quantized.len() + excluded().count() < MIN_WEIGHTS {
        return Outcome::default();
    }
    let kept = smallest(&unnamed, all, SHARE_OF_FLOATS);
    let largest = unnamed.last().map_or(0, |weight| weight.elements);
    let min_elements = unnamed.get(kept.len()).map_or(largest + 1, |weight| weight.elements);
    let keep = |weight: &Weight<'_, '_>| {
        let kept = KeepReason::TooSmall { elements: weight.elements, min_elements };
        Outcome::revise(weight.constant.anchor, Decision::KeepFloat(kept))
    };
    kept.iter().map(keep).collect()
}

/// A weight that is quantized.
#[derive(Clone, Copy)]
struct Weight<'a, 'm> {
    constant: &'a Constant<'m>,
    plan: &'a ValuePlan,
    elements: usize,
}

impl Weight<'_, '_> {
    /// The weight in 16-bit floats, if they represent it well. One that has them stays as it is.
    fn in_halves(&self, graph: &Graph<'_>) -> Option<Outcome> {
        let anchor = self.constant.anchor;
        let keep = |kept: KeepReason| Some(Outcome::revise(anchor, Decision::KeepFloat(kept)));
        let (elements, min_elements) = (self.elements, MIN_HALVES);
        // The type in the file, from which it may be cast.
        match self.constant.tensor.dtype() {
            Some(DataType::Float16 | DataType::BFloat16) => keep(KeepReason::In16Bits),
            _ if elements < MIN_HALVES => keep(KeepReason::TooSmall { elements, min_elements }),
            Some(DataType::Float) if fits_halves(graph, self.constant) => {
                let QuantizeReason::WeightOf(node) = &self.plan.because else { return None };
                let plan = ValuePlan {
                    spec: QSpec::new(QType::Float16, true, Granularity::PerTensor),
                    stored: QType::Float16,
                    matrix: None,
                    because: QuantizeReason::SmallWeightOf(node.clone()),
                    ..self.plan.clone()
                };
                Some(Outcome::revise(anchor, Decision::Quantize(plan)))
            }
            _ => None,
        }
    }
}

/// Those of weights sorted by size that hold at most one in `share` of all elements. Of equal sizes
/// all are among them, or none.
fn smallest<'a, 'b, 'm>(
    sorted: &'a [Weight<'b, 'm>],
    all: usize,
    share: usize,
) -> &'a [Weight<'b, 'm>] {
    let mut left = all / share;
    let fit = sorted
        .iter()
        .take_while(|weight| {
            let rest = left.checked_sub(weight.elements);
            left = rest.unwrap_or(0);
            rest.is_some()
        })
        .count();
    let next = sorted.get(fit).map(|weight| weight.elements);
    let smaller = |weight: &&Weight<'_, '_>| next.is_none_or(|next| weight.elements < next);
    &sorted[..sorted[..fit].iter().take_while(smaller).count()]
}

/// Whether an option leaves a weight in float. It counts as if it was quantized, so that an option
/// for one weight decides about no other.
fn is_excluded(decisions: &Decisions, constant: &Constant<'_>) -> bool {
    let decision = decisions.get(constant.anchor);
    constant.is_weight()
        && matches!(decision, Some(Decision::KeepFloat(KeepReason::Excluded { .. })))
}

fn elements(constant: &Constant<'_>) -> usize {
    constant.shape.iter().product()
}

/// The elements of constants that are dequantized in the model as it is.
fn stored_in_integers(graph: &Graph<'_>) -> usize {
    let dequantized = (0..graph.nodes.len())
        .filter(|index| graph.nodes[*index].op_type == "DequantizeLinear")
        .filter_map(|index| graph.constant(graph.input(index, 0)?));
    let length = |dim: &i64| usize::try_from(*dim).unwrap_or(0);
    let count = |dims: &[i64]| dims.iter().map(length).fold(1, usize::saturating_mul);
    dequantized.map(|proto| count(&proto.dims)).fold(0, usize::saturating_add)
}

fn is_coarse(plan: &ValuePlan) -> bool {
    plan.spec.qtype.is_scaled() && plan.spec.bits() <= COARSE_BITS
}

fn convolves(graph: &Graph<'_>, constant: &Constant<'_>) -> bool {
    constant.multipliers(graph).any(ops::is_convolution)
}

fn fits_halves(graph: &Graph<'_>, constant: &Constant<'_>) -> bool {
    let tensor = || graph.model.tensor(constant.tensor).ok()?.to_f32();
    tensor().is_some_and(|elements| {
        let absmax = elements.iter().fold(0f32, |most, x| most.max(x.abs()));
        (MIN_ABSMAX..=f16::MAX.to_f32()).contains(&absmax) && elements.iter().all(|x| x.is_finite())
    })
}
