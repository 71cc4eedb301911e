//! Why the options of a recommended call are what they are: each row looks at the model and the
//! choice, and is silent where it has nothing to say.

use super::facts::{Facts, Family};
use super::{Choice, Wanted, Way};
use crate::Format;
use crate::text::size;

/// Says why, if there is something to say.
type Say = fn(&Facts, &Choice, Wanted<'_>) -> Option<String>;

/// Every reason beside that of the rule which decided, by its name.
pub(super) const ALL: &[(&str, Say)] = &[
    ("size", bytes),
    ("largest", largest),
    ("bits", bits),
    ("per_channel", per_channel),
    ("block_size", block_size),
    ("samples", samples),
    ("varying", varying),
    ("operators", operators),
    ("opset", opset),
    ("partly", partly),
    ("target", target),
];

fn bytes(facts: &Facts, choice: &Choice, _: Wanted<'_>) -> Option<String> {
    let Facts { bytes, weight_bytes, .. } = *facts;
    let width = match facts.dtype.as_deref()? {
        "float64" => 64,
        "float32" => 32,
        _ => 16,
    };
    // A scale and a zero point for each block.
    let extra = choice.block_size.map_or(0, |size| weight_bytes * 20 / (width * size as u64));
    let left =
        bytes.saturating_sub(weight_bytes) + weight_bytes * u64::from(choice.bits) / width + extra;
    Some(format!(
        "{} of its {} are float weights: about {} will be left",
        size(weight_bytes.min(bytes)),
        size(bytes),
        size(left)
    ))
}

fn largest(facts: &Facts, _: &Choice, _: Wanted<'_>) -> Option<String> {
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
fn bits(_: &Facts, choice: &Choice, _: Wanted<'_>) -> Option<String> {
    Some(match choice.bits {
        8 => "8 bits: integer kernels multiply bytes, and they cost little accuracy".to_owned(),
        bits => format!(
            "{bits} bits: what takes long is to read the weights, and blocks keep them near"
        ),
    })
}

fn per_channel(_: &Facts, choice: &Choice, _: Wanted<'_>) -> Option<String> {
    let which = "a scale for each output channel costs nothing, and one channel of large weights then \
                 coarsens no other";
    choice.per_channel.then(|| format!("per channel: {which}"))
}

fn block_size(_: &Facts, choice: &Choice, _: Wanted<'_>) -> Option<String> {
    let size = choice.block_size?;
    Some(format!("blocks of {size}: 4 bits have 16 steps, too few for a whole channel"))
}

fn samples(facts: &Facts, choice: &Choice, wanted: Wanted<'_>) -> Option<String> {
    let needed = choice.way == Way::Static && wanted.samples.is_none();
    needed.then(|| {
        let inputs = if facts.inputs == 1 { "its input" } else { "its inputs" };
        let usual = super::call::usual_samples(facts.inputs);
        format!("samples: `{usual}` stands for some hundred real examples of {inputs}")
    })
}

fn varying(facts: &Facts, choice: &Choice, _: Wanted<'_>) -> Option<String> {
    if facts.varying.is_empty() {
        return None;
    }
    let axes = facts.varying.join(", ");
    match choice.way {
        Way::Static => {
            Some(format!("{axes} varies: samples should have the lengths of real inputs"))
        }
        Way::Dynamic => Some(format!("{axes} varies, and ranges with it")),
        _ => None,
    }
}

fn operators(facts: &Facts, choice: &Choice, _: Wanted<'_>) -> Option<String> {
    let others = |family: Family| facts.share(family).filter(|share| share.work < 0.5);
    match choice.way {
        Way::Dynamic => others(Family::Convolution).map(|share| {
            let count: usize = share.operators.values().sum();
            format!(
                "{count} convolutions stay float: dynamic ones are slower than those, and they do {:.0} \
                 % of the work",
                share.work * 1e2
            )
        }),
        _ => None,
    }
}

fn opset(facts: &Facts, choice: &Choice, _: Wanted<'_>) -> Option<String> {
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

fn partly(facts: &Facts, choice: &Choice, _: Wanted<'_>) -> Option<String> {
    (facts.integer_bytes > 0 && choice.way != Way::Nothing).then(|| {
        format!(
            "{} of weights are integers already, and stay what they are",
            size(facts.integer_bytes)
        )
    })
}

fn target(_: &Facts, _: &Choice, wanted: Wanted<'_>) -> Option<String> {
    let profile = wanted.target?.profile();
    Some(format!("{}: {}", profile.name, profile.about))
}
