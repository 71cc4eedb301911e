//! Converts the float32 computations of a model to float16 or bfloat16.
//!
//! A node stays float32 where 16 bits would overflow or lose what counts, and the result names each
//! such node with its reason. Casts stand where two types meet, one for each value and type.

mod constant_kinds;
mod constants;
mod control;
mod decide;
mod dequantized;
mod fits;
mod numbers;
mod operators;
mod reasons;
mod scope;
mod write;
mod written;

use std::collections::BTreeMap;
use std::fmt;

use quantize_rs_onnx::{DataType, Model, NodeProto, Tensor};
use serde::Serialize;

use super::{Purpose, convert_opset};
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::elements::to_f32;
use crate::graph::infer::Inferred;
use crate::options::HalfType;
use decide::Settings;
use scope::Scope;

pub(crate) use operators::type_attribute;

/// Why a node stays float32.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum KeptReason {
    /// The caller excludes it.
    Excluded,
    /// The model computed in 16 bits before, and this node did not.
    Before,
    /// The outputs on the samples were too far from those of the model, and come nearer with
    /// operators of this kind in float32.
    Measured {
        /// By how much the SQNR of the worst output is higher, in decibels.
        gain_db: f64,
    },
    /// The operator is not defined for the type.
    Operator,
    /// The type of a value is not known.
    UnknownType {
        /// The name of the value.
        value: String,
    },
    /// It quantizes activations, with scales in float32 as integer kernels read them.
    Quantization,
    /// It dequantizes a weight, and its scales are float32 in the opset of the model.
    Float32Scales {
        /// The opset of the model.
        opset: i64,
    },
    /// It computes what one iteration of a loop passes on to the next.
    Carried,
    /// A constant is larger than the type holds.
    LargeConstant {
        /// The name of the constant.
        value: String,
        /// The largest magnitude; of a quantized constant, the largest that its scales allow.
        magnitude: f32,
    },
    /// A constant is so small that it would lose its precision, or become 0.
    SmallConstant {
        /// The name of the constant.
        value: String,
        /// The magnitude.
        magnitude: f32,
    },
    /// A value is larger than the type holds, or nearly, on the samples.
    LargeValue {
        /// The name of the value.
        value: String,
        /// The largest magnitude on the samples.
        magnitude: f32,
    },
    /// A value is so small on the samples that it would lose its precision.
    SmallValue {
        /// The name of the value.
        value: String,
        /// The largest magnitude on the samples.
        magnitude: f32,
    },
    /// Results of the operator often leave the range of float16, and no samples say how large they
    /// are.
    MayOverflow,
    /// It reads a value that may be larger than the type holds.
    ReadsLarge,
    /// ONNX Runtime crashes when it loads the node in 16 bits.
    Crashes,
    /// It computes with whole numbers, such as positions, which 16 bits do not hold exactly.
    WholeNumbers,
    /// It stands between nodes in float32.
    Between,
}

impl fmt::Display for KeptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptReason::Excluded => write!(f, "it is excluded"),
            KeptReason::Before => write!(f, "the model left it in float32 before"),
            KeptReason::Measured { gain_db } => {
                write!(f, "the outputs are {gain_db:.1} dB nearer to those of the model")
            }
            KeptReason::Operator => write!(f, "the operator is not defined for the type"),
            KeptReason::UnknownType { value } => write!(f, "the type of `{value}` is not known"),
            KeptReason::Quantization => write!(f, "it quantizes activations"),
            KeptReason::Float32Scales { opset } => write!(
                f,
                "its scales are float32 in opset {opset}; convert the model to opset \
                 {SCALES_SINCE} or later first"
            ),
            KeptReason::Carried => {
                write!(f, "it computes what one iteration passes on to the next")
            }
            KeptReason::LargeConstant { value, magnitude } => {
                write!(f, "constant `{value}` has magnitudes of up to {magnitude:e}")
            }
            KeptReason::SmallConstant { value, magnitude } => {
                write!(f, "constant `{value}` is as small as {magnitude:e}")
            }
            KeptReason::LargeValue { value, magnitude } => {
                write!(f, "`{value}` reaches {magnitude:e} on the samples")
            }
            KeptReason::SmallValue { value, magnitude } => {
                write!(f, "`{value}` is at most {magnitude:e} on the samples")
            }
            KeptReason::MayOverflow => {
                write!(f, "results of the operator may be too large; samples would tell")
            }
            KeptReason::ReadsLarge => write!(f, "it reads a value that may be too large"),
            KeptReason::Crashes => write!(
                f,
                "ONNX Runtime 1.32 crashes while it loads this Transpose before a MatMul in 16 bits"
            ),
            KeptReason::WholeNumbers => {
                write!(f, "it computes with whole numbers, such as positions")
            }
            KeptReason::Between => write!(f, "it stands between nodes in float32"),
        }
    }
}

/// The opset since which the scales of `DequantizeLinear` may have 16 bits.
const SCALES_SINCE: i64 = 19;

/// A node that stays float32.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptNode {
    /// The name of the node, or of its first output if it has none.
    pub node: String,
    /// The operator.
    pub op_type: String,
    /// Why.
    pub reason: KeptReason,
    /// The reason in words.
    pub why: String,
}

/// The nodes that stay float32, those with the same reason together: the reason, how many, and the
/// names of the first ones.
pub(crate) fn kept_by_reason(all: &[KeptNode]) -> Vec<(String, usize, Vec<String>)> {
    let mut groups: Vec<(String, usize, Vec<String>)> = Vec::new();
    for kept in all {
        let named = format!("{} ({})", kept.node, kept.op_type);
        match groups.iter_mut().find(|(why, _, _)| *why == kept.why) {
            Some((_, count, names)) => {
                *count += 1;
                if names.len() < NAMES_SHOWN {
                    names.push(named);
                }
            }
            None => groups.push((kept.why.clone(), 1, vec![named])),
        }
    }
    groups
}

/// How many nodes with the same reason are named.
const NAMES_SHOWN: usize = 3;

/// How a model is converted to 16-bit floats.
pub(crate) struct HalfSettings<'a> {
    pub(crate) half: HalfType,
    /// Whether inputs and outputs of the model stay float32.
    pub(crate) keep_io: bool,
    /// Whether the result is a float32 model that rounds each value as 16 bits would. Engines that
    /// have no kernels for 16 bits skip that rounding where they can.
    pub(crate) simulated: bool,
    /// The largest magnitude of each float of the main graph on samples; without them, operators
    /// whose results are often large stay float32.
    pub(crate) magnitudes: Option<&'a BTreeMap<String, f32>>,
    /// Why the caller leaves a node in float32, if it does.
    pub(crate) excluded: &'a dyn Fn(&NodeProto) -> Option<KeptReason>,
}

/// What a conversion to 16-bit floats did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HalfChanges {
    /// How many nodes compute in 16 bits.
    pub(crate) converted: usize,
    /// The nodes that stay float32.
    pub(crate) kept: Vec<KeptNode>,
    /// How many casts were added.
    pub(crate) casts: usize,
}

/// The passes that run before the conversion. Runtimes have few kernels for 16 bits on a CPU, and
/// evaluate in advance only what they have kernels for: what they evaluate in float32 has to be
/// constant before.
pub(crate) const PASSES: [&str; 5] =
    [super::REMOVE_WEIGHT_INPUTS, super::INLINE_FUNCTIONS, "fold_constants", "fold_shapes", "dead"];

/// How many of them run for models that compute in 16 bits already.
pub(crate) const OF_HALVES: usize = 2;

/// The model with its functions inlined and constant expressions evaluated, in an opset with the
/// type, and with the large constants of masks clipped; and a description of each that was.
///
/// # Errors
/// The graph is not well-formed.
pub(crate) fn prepared(
    model: &Model,
    half: HalfType,
) -> Result<(Model, Vec<String>), QuantizeError> {
    // What computes in 16 bits is converted already, and stays as it is.
    let passes = if computes_in(model, half)? { &PASSES[..OF_HALVES] } else { &PASSES[..] };
    let mut model = super::run(model, &super::these(passes), Purpose::Optimizing)?.0;
    if model.opset("").is_some_and(|opset| opset < half.since_opset()) {
        model = convert_opset(&model, half.since_opset())?.0;
    }
    let (edits, clipped) = {
        let inferred = Inferred::of(&model);
        constants::clip_masks(&Scope::main(&model, &inferred)?, half)?
    };
    if !edits.is_empty() {
        model.apply(edits)?;
    }
    Ok((model, clipped))
}

/// Whether a node of a model computes in a type.
///
/// # Errors
/// The graph is not well-formed.
pub(crate) fn computes_in(model: &Model, half: HalfType) -> Result<bool, QuantizeError> {
    let inferred = Inferred::of(model);
    Scope::main(model, &inferred)?.computes_in(half.data_type())
}

/// How many nodes of a model compute with values of a type, whatever the type of their result is.
///
/// # Errors
/// The graph is not well-formed.
pub(crate) fn readers_of(model: &Model, half: HalfType) -> Result<usize, QuantizeError> {
    let inferred = Inferred::of(model);
    Scope::main(model, &inferred)?.readers_of(half.data_type())
}

/// Whether a float32 constant became this one, each element rounded to 16 bits, or clipped as those
/// of masks are.
pub(crate) fn rounds_to(before: &Tensor, after: &Tensor, half: HalfType) -> bool {
    let same = |before: f32, after: f32| {
        half.rounded(before).to_bits() == after.to_bits() || is_clipped(before, after, half)
    };
    let all = to_f32(before).zip(to_f32(after)).filter(|_| before.dtype == DataType::Float);
    all.is_some_and(|(before, after)| {
        before.len() == after.len() && before.iter().zip(&after).all(|(a, b)| same(*a, *b))
    })
}

/// Whether a number became this one, which masks as well and fits the type: see [`prepared`].
pub(crate) fn is_clipped(before: f32, after: f32, half: HalfType) -> bool {
    constants::is_too_large(before, half) && after == constants::clipped(before, half)
}

/// Converts a [`prepared`] model.
///
/// # Errors
/// The graph is not well-formed.
pub(crate) fn narrowed(
    model: &Model,
    settings: &HalfSettings<'_>,
) -> Result<(Model, HalfChanges), QuantizeError> {
    let inferred = Inferred::of(model);
    let scope = Scope::main(model, &inferred)?;
    let deciding = Settings {
        half: settings.half,
        opset: model.opset("").unwrap_or(1),
        magnitudes: settings.magnitudes,
        mixed: scope.computes_in(settings.half.data_type())?,
        excluded: settings.excluded,
    };
    let graph = Graph::of(model)?;
    let (edits, changes) = write::write(&scope, &graph, &deciding, settings)?;
    let mut narrowed = model.clone();
    if !edits.is_empty() {
        narrowed.apply(edits)?;
    }
    Ok((narrowed, changes))
}
