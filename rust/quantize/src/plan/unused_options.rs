//! Warnings about options of weights that change no weight.

use quantize_rs_math::{Granularity, WeightMethod};

use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Source, ValuePlan};
use crate::graph::Graph;
use crate::graph::uses::Constant;
use crate::options::Rounding;
use crate::{Config, Format};

/// An option that may have no effect on the weights of a model.
struct WeightOption {
    /// The option and its value, where it asks for something.
    asked: fn(&Config) -> Option<String>,
    /// Whether it applies to a weight.
    applies: fn(&Config, &Graph<'_>, &Constant<'_>, &ValuePlan) -> bool,
    /// What it is for.
    scope: fn(&Config) -> &'static str,
}

const OPTIONS: &[WeightOption] = &[
    WeightOption {
        asked: |config| Some(format!("weight_method={}", config.weight_method?.name())),
        applies: |config, _, _, how| {
            config.weight_method.is_some_and(|method| match method {
                WeightMethod::Hqq => method.has_float_zero_points(&how.spec),
                _ => how.spec.qtype.is_scaled(),
            })
        },
        scope: |config| match config.weight_method {
            Some(WeightMethod::Hqq) => {
                "it is for integers of up to 8 bits with zero points, which symmetric=False gives \
                 where the target takes them"
            }
            _ => "16-bit floats have no scale",
        },
    },
    WeightOption {
        asked: |config| {
            let rounding = config.rounding.filter(|found| *found == Rounding::PreserveSums)?;
            Some(format!("rounding={rounding}"))
        },
        applies: |_, graph, constant, how| {
            let shape = how.matrix.as_ref().map_or(&constant.shape[..], |matrix| &matrix[..]);
            has_integers(how)
                && how.format != Format::MatMulNBits
                && Rounding::PreserveSums.summed(graph, constant, shape, &how.spec).is_some()
        },
        scope: |_| {
            "it is for integers of convolutions, and of matrices without blocks, whose inputs lie \
             on one side of 0, as after Relu"
        },
    },
    WeightOption {
        asked: |config| (config.symmetric == Some(false)).then(|| "symmetric=False".to_owned()),
        applies: |_, _, _, how| has_integers(how),
        scope: |_| "floats have no zero point",
    },
    WeightOption {
        asked: |config| (config.narrow_range == Some(true)).then(|| "narrow_range=True".to_owned()),
        applies: |_, _, _, how| has_integers(how) && how.spec.symmetric,
        scope: |config| match config.symmetric {
            Some(true) => "it is for integers",
            _ => "it is for integers without zero points, which symmetric=True gives",
        },
    },
    WeightOption {
        asked: |config| (config.per_channel == Some(false)).then(|| "per_channel=False".to_owned()),
        applies: |_, _, _, how| how.spec.qtype.is_scaled() && !is_blocked(how),
        scope: |_| "every weight has a scale for each block, or no scale",
    },
    WeightOption {
        asked: |config| Some(format!("block_size={}", config.block_size?)),
        applies: |_, _, _, how| how.spec.qtype.is_scaled(),
        scope: |_| "16-bit floats have no scale",
    },
];

/// Warns about options that have no effect on any weight.
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
    let unused = |option: &WeightOption| {
        let asked = (option.asked)(config)?;
        let applies = |(constant, how): &(&Constant<'_>, &ValuePlan)| {
            (option.applies)(config, graph, constant, how)
        };
        let scope = (option.scope)(config);
        (!weights.iter().any(applies)).then(|| format!("{asked} has no effect: {scope}"))
    };
    Outcome::warn(OPTIONS.iter().filter_map(unused))
}

/// Whether a weight becomes integers with a scale.
fn has_integers(how: &ValuePlan) -> bool {
    !how.spec.qtype.is_float() && how.spec.codebook.is_none()
}

fn is_blocked(how: &ValuePlan) -> bool {
    matches!(how.spec.granularity, Granularity::Blocked { .. })
}
