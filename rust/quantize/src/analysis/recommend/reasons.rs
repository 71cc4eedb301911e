//! The reasons for the options of a recommended call: each row of the table looks at the model and
//! the options, and returns a reason or nothing.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::DataType;

use super::facts::{Facts, Family};
use super::render_call::{FILE, VARIABLE};
use super::{RecommendedOptions, Request, SampleSource, Strategy};
use crate::util::text::size;
use crate::{ENOUGH_SAMPLES, Format, Planned, ValuePlan};

/// Returns a reason if there is one.
type Say = fn(&Facts, &RecommendedOptions, Request<'_>) -> Option<String>;

/// All reasons except those of the deciding rule and of the size, by name.
pub(super) const ALL: &[(&str, Say)] = &[
    ("largest", largest),
    ("bits", bits),
    ("per_channel", per_channel),
    ("block_size", block_size),
    ("accuracy_level", accuracy_level),
    ("samples", samples),
    ("varying", varying),
    ("operators", operators),
    ("dynamic_lstm", lstms),
    ("opset", opset),
    ("partly", partly),
    ("target", target),
];

/// The reason about the size of the model, of which about `left` bytes are left.
pub(super) fn bytes(facts: &Facts, left: u64) -> String {
    let Facts { bytes, weight_bytes, .. } = *facts;
    let (weights, bytes, left) = (size(weight_bytes.min(bytes)), size(bytes), size(left));
    format!("{weights} of its {bytes} are float weights: about {left} will be left")
}

/// The approximate size of a weight in bytes, before and after, including its scales.
pub(super) fn weight_bytes(value: &Planned, how: &ValuePlan) -> (u64, u64) {
    let shape: Option<Vec<usize>> = value.shape.iter().flatten().copied().collect();
    let shape = shape.unwrap_or_default();
    let elements = shape.iter().map(|length| *length as u64).product::<u64>();
    let width = value.dtype.map_or(32, DataType::bits) as u64;
    let groups = match how.matrix {
        Some([rows, _]) => rows,
        None => match how.spec.granularity {
            Granularity::PerTensor => 1,
            Granularity::PerAxis { axis } => shape.get(axis).copied().unwrap_or(1),
            Granularity::Blocked { block_size, .. } => {
                usize::try_from(elements).unwrap_or(usize::MAX) / block_size.max(1)
            }
        },
    };
    let stored = elements.saturating_mul(how.stored.bits().into()).div_ceil(8);
    // A scale of 4 bytes, and a zero point.
    (elements.saturating_mul(width).div_ceil(8), stored + groups as u64 * 5)
}

fn largest(facts: &Facts, _: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    let largest = facts.largest.as_ref()?;
    #[allow(clippy::cast_precision_loss)] // shown without digits
    let part = largest.bytes as f64 / facts.weight_bytes.max(1) as f64;
    Some(format!(
        "the largest weight is `{}` ({} {:?}): {}, {:.0} % of all",
        largest.name,
        largest.op_type,
        largest.shape,
        size(largest.bytes),
        part * 1e2
    ))
}

#[allow(clippy::unnecessary_wraps)] // a row of the table
fn bits(_: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    Some(match choice.bits {
        8 => "8 bits: integer kernels use them, and the loss of accuracy is small".to_owned(),
        bits => format!(
            "{bits} bits: reading the weights takes most of the time, and blocks keep them accurate"
        ),
    })
}

fn per_channel(_: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    let which = "a scale for each output channel costs nothing, and a channel of large weights \
                 does not make the others coarser";
    choice.per_channel.then(|| format!("per channel: {which}"))
}

fn block_size(_: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    let size = choice.block_size?;
    Some(format!("blocks of {size}: 4 bits have 16 steps, too few for a whole channel"))
}

fn accuracy_level(_: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    let level = choice.accuracy_level?;
    Some(format!(
        "accuracy level {level}: activations are quantized to 8 bits for each product, which makes \
         single tokens faster; without it, long prompts may be"
    ))
}

fn samples(facts: &Facts, choice: &RecommendedOptions, wanted: Request<'_>) -> Option<String> {
    if choice.way != Strategy::Static {
        return None;
    }
    let one = facts.inputs == 1;
    let file = if one { "a .npy file, or a folder of images" } else { "an .npz file" };
    match wanted.samples {
        Some(SampleSource::File(_)) => None,
        Some(SampleSource::Images { flags, .. }) => Some(format!(
            "samples: `{VARIABLE}` stands for an ImageFolder with the options of {}",
            flags.join(" ")
        )),
        Some(SampleSource::Memory) => Some(format!(
            "samples: `{VARIABLE}` stands for those in memory, and {FILE} for {file} with them"
        )),
        None => {
            let inputs = if one { "its input" } else { "its inputs" };
            Some(format!(
                "samples: give at least {ENOUGH_SAMPLES} real examples of {inputs}, instead of \
                 `{VARIABLE}` in Python, and of {FILE} in the command as {file}"
            ))
        }
    }
}

fn varying(facts: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    if facts.varying.is_empty() {
        return None;
    }
    let axes = facts.varying.join(", ");
    match choice.way {
        Strategy::Static => {
            Some(format!("{axes} is dynamic: use samples with the lengths of production inputs"))
        }
        Strategy::Dynamic => Some(format!("{axes} is dynamic, and ranges vary with it")),
        _ => None,
    }
}

fn operators(facts: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    let others = |family: Family| facts.share(family).filter(|share| share.work < 0.5);
    match choice.way {
        Strategy::Dynamic => others(Family::Convolution).map(|share| {
            let count: usize = share.operators.values().sum();
            format!(
                "{count} convolutions stay float: dynamic quantization makes them slower, and they \
                 do {:.0} % of the work",
                share.work * 1e2
            )
        }),
        _ => None,
    }
}

fn lstms(_: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    let which = "ONNX Runtime has an operator for LSTMs on integers: faster, and less accurate \
                 than 8-bit weights alone";
    choice.dynamic_lstm.then(|| format!("dynamic_lstm: {which}"))
}

fn opset(facts: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    let (need, what) = match (choice.format, choice.block_size) {
        (Format::MatMulNBits, _) => return None,
        (_, Some(_)) => (21, "blocks and 4 bits"),
        _ if choice.per_channel => (13, "scales for each channel"),
        _ => (10, "integers"),
    };
    (facts.opset < need).then(|| {
        format!("{what} need opset {need}, to which the model is converted from {}", facts.opset)
    })
}

fn partly(facts: &Facts, choice: &RecommendedOptions, _: Request<'_>) -> Option<String> {
    (facts.integer_bytes > 0 && choice.way != Strategy::Nothing).then(|| {
        format!(
            "{} of weights are integers already, and are not changed",
            size(facts.integer_bytes)
        )
    })
}

fn target(_: &Facts, _: &RecommendedOptions, wanted: Request<'_>) -> Option<String> {
    let profile = wanted.target?.profile();
    Some(format!("{}: {}", profile.name, profile.about))
}
