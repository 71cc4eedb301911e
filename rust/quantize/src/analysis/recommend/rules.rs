//! Which way to quantize a model: the first rule that holds decides, and says what in the model led
//! to it.

use quantize_rs_onnx::DataType;

use super::facts::{Facts, Family, Share};
use super::{Choice, Wanted, Way};
use crate::options::format::ONNX_RUNTIME;
use crate::util::text::size;
use crate::{Format, Target};

/// A rule: when it holds, and what is done then.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// When it holds, in a few words.
    pub about: &'static str,
    /// What is done then.
    pub choice: Choice,
    /// What in the model led to it; `None` where it does not hold.
    pub(super) because: fn(&Facts, Wanted<'_>) -> Option<String>,
}

/// Every rule, in the order in which they are asked.
pub const ALL: &[Rule] = &[
    Rule {
        name: "quantized",
        about: "nine tenths of the weights are integers already",
        choice: Choice::of(Way::Nothing),
        because: quantized,
    },
    Rule {
        name: "no_weights",
        about: "no operator multiplies by a float weight",
        choice: Choice::of(Way::Nothing),
        because: no_weights,
    },
    Rule {
        name: "doubles",
        about: "weights are of float64: activations stay what they are",
        choice: Choice::of(Way::Weights),
        because: doubles,
    },
    Rule {
        name: "static_runtime",
        about: "the target computes on integers with known ranges only: tensorrt, openvino, qnn",
        choice: Choice::of(Way::Static),
        because: static_runtime,
    },
    Rule {
        name: "convolutions",
        about: "convolutions do half of the work or more",
        choice: Choice::of(Way::Static),
        because: convolutions,
    },
    Rule {
        name: "recurrent",
        about: "LSTM, GRU and RNN do half of the work or more",
        choice: Choice::lstms(),
        because: recurrent,
    },
    Rule {
        name: "generative",
        about: "a language model of 100 MB or more, or one that is given keys and values",
        choice: Choice::blocks(),
        because: generative,
    },
    Rule {
        name: "tables",
        about: "three quarters of the weights are only looked up",
        choice: Choice::blocks(),
        because: tables,
    },
    Rule {
        name: "attention_sampled",
        about: "products by matrices do half of the work or more, some are of two activations, and \
                there are samples",
        choice: Choice::of(Way::Static),
        because: attention_sampled,
    },
    Rule {
        name: "attention",
        about: "the same without samples",
        choice: Choice::of(Way::Dynamic),
        because: attention,
    },
    Rule {
        name: "products",
        about: "products by matrices do half of the work or more",
        choice: Choice::of(Way::Dynamic),
        because: products,
    },
    Rule {
        name: "mixed",
        about: "anything else",
        choice: Choice::of(Way::Weights),
        because: mixed,
    },
];

/// A family that does this part of the work decides.
const MOST: f64 = 0.5;

/// Tables that are this part of the weights decide.
const TABLES: f64 = 0.75;

/// Weights of a language model that take so many bytes are what it waits for.
const LARGE: u64 = 100_000_000;

fn quantized(facts: &Facts, _: Wanted<'_>) -> Option<String> {
    let Facts { integer_bytes, weight_bytes, .. } = *facts;
    (integer_bytes > 9 * weight_bytes).then(|| {
        format!(
            "it is quantized already: {} of its weights are integers, {} floats",
            size(integer_bytes),
            size(weight_bytes)
        )
    })
}

fn no_weights(facts: &Facts, _: Wanted<'_>) -> Option<String> {
    (facts.weight_bytes == 0).then(|| "no operator of it multiplies by a float weight".to_owned())
}

fn doubles(facts: &Facts, _: Wanted<'_>) -> Option<String> {
    let doubles = facts.dtype.as_deref() == Some(DataType::Double.name());
    doubles.then(|| {
        "its weights are float64: integer kernels are fused with float32 only, so its activations \
         stay what they are"
            .to_owned()
    })
}

fn static_runtime(_: &Facts, wanted: Wanted<'_>) -> Option<String> {
    let target = wanted.target?;
    let known = matches!(target, Target::TensorRt | Target::OpenVino | Target::Qnn);
    known.then(|| {
        let name = target.profile().name;
        format!("{name} computes on integers only where ranges of activations are in the file")
    })
}

fn convolutions(facts: &Facts, _: Wanted<'_>) -> Option<String> {
    let share = deciding(facts, Family::Convolution)?;
    Some(format!(
        "{}: they become fast where the ranges of activations are in the file, and between them \
         everything else stays on integers",
        did(share)
    ))
}

fn recurrent(facts: &Facts, _: Wanted<'_>) -> Option<String> {
    let share = deciding(facts, Family::Recurrent)?;
    Some(format!(
        "{}: their states have no ranges that a file could hold, so nothing is gained by samples; \
         their weights are stored in 8 bits, products beside them run on integers",
        did(share)
    ))
}

fn generative(facts: &Facts, wanted: Wanted<'_>) -> Option<String> {
    let share = deciding(facts, Family::Product)?;
    let tokens = facts.vocabulary.map(|count| format!("it scores {count} tokens"));
    let cache = facts.caches.first().map(|name| format!("it is handed `{name}` of earlier tokens"));
    let which = match (cache, tokens) {
        (Some(cache), _) => cache,
        (None, Some(tokens)) if facts.weight_bytes >= LARGE => tokens,
        _ => return None,
    };
    Some(format!(
        "{which}, one at a time, and waits for {} of weights. {}{}",
        size(facts.weight_bytes),
        did(share),
        nbits(wanted.target)
    ))
}

fn tables(facts: &Facts, wanted: Wanted<'_>) -> Option<String> {
    let share = facts.share(Family::Table).filter(|share| share.weights >= TABLES)?;
    Some(format!(
        "{} of {} of weights, {:.0} %, are only looked up ({}): what counts is their size{}",
        size(share.bytes),
        size(facts.weight_bytes),
        share.weights * 1e2,
        operators(share),
        nbits(wanted.target)
    ))
}

fn attention_sampled(facts: &Facts, wanted: Wanted<'_>) -> Option<String> {
    let attends = attends(facts)?;
    wanted.samples.is_some().then(|| {
        format!(
            "{attends}: only with ranges in the file do these run on integers too, and samples to \
             find them are there"
        )
    })
}

fn attention(facts: &Facts, _: Wanted<'_>) -> Option<String> {
    let attends = attends(facts)?;
    Some(format!(
        "{attends}: these stay float, the others have ranges that each run finds for itself, for \
         which no samples are needed"
    ))
}

/// What does the work, where products of two activations are beside it.
fn attends(facts: &Facts) -> Option<String> {
    let share = deciding(facts, Family::Product)?;
    let count = facts.activation_products;
    (count > 0).then(|| {
        format!("{}, and {count} MatMul multiply two activations, as attention does", did(share))
    })
}

fn products(facts: &Facts, _: Wanted<'_>) -> Option<String> {
    let share = deciding(facts, Family::Product)?;
    Some(format!("{}: with ranges that each run finds for itself they need no samples", did(share)))
}

#[allow(clippy::unnecessary_wraps)] // a row of the table
fn mixed(facts: &Facts, _: Wanted<'_>) -> Option<String> {
    let shares = facts.families.iter().map(did);
    let shares: Vec<String> = shares.collect();
    Some(format!("no other way fits: {}", shares.join("; ")))
}

fn deciding(facts: &Facts, family: Family) -> Option<&Share> {
    facts.share(family).filter(|share| share.work >= MOST)
}

/// `53 Conv do 97 % of the work and hold 96 % of the weights`.
fn did(share: &Share) -> String {
    format!(
        "{} do {:.0} % of the work and hold {:.0} % of the weights",
        operators(share),
        share.work * 1e2,
        share.weights * 1e2
    )
}

fn operators(share: &Share) -> String {
    let counts = share.operators.iter().map(|(op_type, count)| format!("{count} {op_type}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn nbits(target: Option<Target>) -> String {
    match format_of(target) {
        Format::MatMulNBits => {
            "; ONNX Runtime has MatMulNBits and GatherBlockQuantized for blocks of 4 bits"
                .to_owned()
        }
        _ => String::new(),
    }
}

/// In what blocks of 4 bits are written for a target.
pub(super) fn format_of(target: Option<Target>) -> Format {
    let known = Format::MatMulNBits.row().targets;
    let target = target.unwrap_or(Target::X86);
    if known.is_none_or(|targets| targets.contains(&target)) {
        Format::MatMulNBits
    } else {
        Format::Qdq
    }
}

/// Weights of an LSTM that take so many bytes are multiplied faster as integers: 128 units that read
/// 128 numbers took 0.65 of the time of floats, 32 that read 32 took 1.25 (ONNX Runtime 1.31).
const LARGE_LSTM: u64 = 500_000;

/// Whether most weights are those of large LSTMs, and the target has an operator for these on
/// integers.
pub(super) fn lstms_hold_most(facts: &Facts, target: Option<Target>) -> bool {
    let share = facts.share(Family::Recurrent).filter(|share| share.weights >= MOST);
    let most = share.is_some_and(|share| {
        let lstms = share.operators.get("LSTM").copied().unwrap_or(0);
        let all: usize = share.operators.values().sum();
        lstms * 2 > all && share.bytes >= LARGE_LSTM.saturating_mul(all as u64)
    });
    most && ONNX_RUNTIME.contains(&target.unwrap_or(Target::X86))
}

/// Another way for what a rule decided.
pub(super) struct Other {
    /// The rule that decided.
    pub(super) from: &'static str,
    /// When this one is better.
    pub(super) when: &'static str,
    pub(super) choice: Choice,
}

const NEARER: &str = "nearer to the float model, as small, and hardly faster";
const UNSAMPLED: &str = "without samples, as small, and hardly faster";
const SAMPLED: &str = "with samples";
const SMALLER: &str = "half as large, and further from the float model";

/// Every other way.
pub(super) const OTHERWISE: &[Other] = &[
    Other { from: "convolutions", when: UNSAMPLED, choice: Choice::of(Way::Weights) },
    Other {
        from: "recurrent",
        when: "nearer to the float model, as small, and LSTMs hardly faster",
        choice: Choice::of(Way::Dynamic),
    },
    Other { from: "recurrent", when: NEARER, choice: Choice::of(Way::Weights) },
    Other {
        from: "generative",
        when: "nearer to the float model",
        choice: Choice::of(Way::Dynamic),
    },
    Other { from: "tables", when: "nearer to the float model", choice: Choice::of(Way::Weights) },
    Other {
        from: "attention_sampled",
        when: "without samples, and where inputs vary wildly",
        choice: Choice::of(Way::Dynamic),
    },
    Other { from: "attention_sampled", when: NEARER, choice: Choice::of(Way::Weights) },
    Other { from: "attention_sampled", when: SMALLER, choice: Choice::blocks() },
    Other { from: "attention", when: SAMPLED, choice: Choice::of(Way::Static) },
    Other { from: "attention", when: NEARER, choice: Choice::of(Way::Weights) },
    Other { from: "attention", when: SMALLER, choice: Choice::blocks() },
    Other { from: "products", when: SAMPLED, choice: Choice::of(Way::Static) },
    Other { from: "products", when: NEARER, choice: Choice::of(Way::Weights) },
    Other { from: "mixed", when: SAMPLED, choice: Choice::of(Way::Static) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_name_of_its_own_and_other_ways_lead_from_rules() {
        let mut names: Vec<&str> = ALL.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(OTHERWISE.iter().all(|other| names.contains(&other.from)));
        assert!(ALL.iter().all(|rule| !rule.about.is_empty()));
    }

    #[test]
    fn the_last_rule_holds_always() {
        let last = ALL.last().unwrap();
        assert!((last.because)(&Facts::default(), Wanted::default()).is_some());
    }
}
