//! The rules of a recommendation: the first rule that applies decides, and gives its reason.

use quantize_rs_onnx::DataType;

use super::facts::{Facts, Family, Share};
use super::{RecommendedOptions, Request, Strategy};
use crate::options::format::ONNX_RUNTIME;
use crate::util::text::size;
use crate::{Format, Target};

/// A rule: a condition and the options that it recommends.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// A short description of its condition.
    pub about: &'static str,
    /// The recommended options.
    pub choice: RecommendedOptions,
    /// The reason from the model; `None` if the rule does not apply.
    pub(super) because: fn(&Facts, Request<'_>) -> Option<String>,
}

/// All rules, in order of precedence.
pub const ALL: &[Rule] = &[
    Rule {
        name: "quantized",
        about: "at least nine tenths of the weights are integers already",
        choice: RecommendedOptions::of(Strategy::Nothing),
        because: quantized,
    },
    Rule {
        name: "no_weights",
        about: "no operator multiplies by a float weight",
        choice: RecommendedOptions::of(Strategy::Nothing),
        because: no_weights,
    },
    Rule {
        name: "doubles",
        about: "weights are float64: activations are not quantized",
        choice: RecommendedOptions::of(Strategy::Weights),
        because: doubles,
    },
    Rule {
        name: "static_runtime",
        about: "the target needs calibrated ranges to compute on integers: tensorrt, openvino, qnn",
        choice: RecommendedOptions::of(Strategy::Static),
        because: static_runtime,
    },
    Rule {
        name: "convolutions",
        about: "convolutions do at least half of the work",
        choice: RecommendedOptions::of(Strategy::Static),
        because: convolutions,
    },
    Rule {
        name: "recurrent",
        about: "LSTM, GRU and RNN do at least half of the work",
        choice: RecommendedOptions::lstms(),
        because: recurrent,
    },
    Rule {
        name: "generative",
        about: "a language model of at least 100 MB, or one with a key-value cache",
        choice: RecommendedOptions::blocks(),
        because: generative,
    },
    Rule {
        name: "tables",
        about: "at least three quarters of the weights are embedding tables",
        choice: RecommendedOptions::blocks(),
        because: tables,
    },
    Rule {
        name: "attention_sampled",
        about: "matrix multiplications do at least half of the work, some multiply two \
                activations, and there are samples",
        choice: RecommendedOptions::of(Strategy::Static),
        because: attention_sampled,
    },
    Rule {
        name: "attention",
        about: "the same, without samples",
        choice: RecommendedOptions::of(Strategy::Dynamic),
        because: attention,
    },
    Rule {
        name: "products",
        about: "matrix multiplications do at least half of the work",
        choice: RecommendedOptions::of(Strategy::Dynamic),
        because: products,
    },
    Rule {
        name: "mixed",
        about: "anything else",
        choice: RecommendedOptions::of(Strategy::Weights),
        because: mixed,
    },
];

/// The fraction of the work from which on a family of operators decides.
const MOST: f64 = 0.5;

/// The fraction of the weights from which on embedding tables decide.
const TABLES: f64 = 0.75;

/// The size of the weights in bytes from which on a language model is bound by reading them.
const LARGE: u64 = 100_000_000;

fn quantized(facts: &Facts, _: Request<'_>) -> Option<String> {
    let Facts { integer_bytes, weight_bytes, .. } = *facts;
    (integer_bytes > 9 * weight_bytes).then(|| {
        format!(
            "it is quantized already: {} of its weights are integers, {} are float",
            size(integer_bytes),
            size(weight_bytes)
        )
    })
}

fn no_weights(facts: &Facts, _: Request<'_>) -> Option<String> {
    (facts.weight_bytes == 0).then(|| "no operator of it multiplies by a float weight".to_owned())
}

fn doubles(facts: &Facts, _: Request<'_>) -> Option<String> {
    let doubles = facts.dtype.as_deref() == Some(DataType::Double.name());
    doubles.then(|| {
        "its weights are float64: integer kernels support float32 only, so its activations are not \
         quantized"
            .to_owned()
    })
}

fn static_runtime(_: &Facts, wanted: Request<'_>) -> Option<String> {
    let target = wanted.target?;
    let known = matches!(target, Target::TensorRt | Target::OpenVino | Target::Qnn);
    known.then(|| {
        let name = target.profile().name;
        format!("{name} computes on integers only with calibrated ranges of activations")
    })
}

fn convolutions(facts: &Facts, _: Request<'_>) -> Option<String> {
    let share = deciding(facts, Family::Convolution)?;
    Some(format!(
        "{}: they are fast with calibrated ranges of activations, and the operators between them \
         run on integers, too",
        did(share)
    ))
}

fn recurrent(facts: &Facts, _: Request<'_>) -> Option<String> {
    let share = deciding(facts, Family::Recurrent)?;
    Some(format!(
        "{}: their states have no ranges that a file could store, so samples gain nothing; their \
         weights are stored in 8 bits, and other matrix multiplications run on integers",
        did(share)
    ))
}

fn generative(facts: &Facts, wanted: Request<'_>) -> Option<String> {
    let share = deciding(facts, Family::Product)?;
    let tokens = facts.vocabulary.map(|count| format!("it scores {count} tokens"));
    let cache = facts.caches.first().map(|name| format!("it reads `{name}` of earlier tokens"));
    let which = match (cache, tokens) {
        (Some(cache), _) => cache,
        (None, Some(tokens)) if facts.weight_bytes >= LARGE => tokens,
        _ => return None,
    };
    Some(format!(
        "{which}, one at a time, and each token reads {} of weights. {}{}",
        size(facts.weight_bytes),
        did(share),
        nbits(wanted.target)
    ))
}

fn tables(facts: &Facts, wanted: Request<'_>) -> Option<String> {
    let share = facts.share(Family::Table).filter(|share| share.weights >= TABLES)?;
    Some(format!(
        "{} of {} of weights, {:.0} %, are embedding tables ({}): only their size matters{}",
        size(share.bytes),
        size(facts.weight_bytes),
        share.weights * 1e2,
        operators(share),
        nbits(wanted.target)
    ))
}

fn attention_sampled(facts: &Facts, wanted: Request<'_>) -> Option<String> {
    let attends = attends(facts)?;
    wanted.samples.is_some().then(|| {
        format!(
            "{attends}: these run on integers only with calibrated ranges, and there are samples \
             to calibrate with"
        )
    })
}

fn attention(facts: &Facts, _: Request<'_>) -> Option<String> {
    let attends = attends(facts)?;
    Some(format!(
        "{attends}: these stay float; the others are quantized dynamically, which needs no samples"
    ))
}

/// The operators that do the work, if the model also multiplies two activations.
fn attends(facts: &Facts) -> Option<String> {
    let share = deciding(facts, Family::Product)?;
    let count = facts.activation_products;
    (count > 0).then(|| {
        format!("{}, and {count} MatMul multiply two activations, as attention does", did(share))
    })
}

fn products(facts: &Facts, _: Request<'_>) -> Option<String> {
    let share = deciding(facts, Family::Product)?;
    Some(format!("{}: quantized dynamically, they need no samples", did(share)))
}

#[allow(clippy::unnecessary_wraps)] // a row of the table
fn mixed(facts: &Facts, _: Request<'_>) -> Option<String> {
    let shares = facts.families.iter().map(did);
    let shares: Vec<String> = shares.collect();
    Some(format!("no other rule applies: {}", shares.join("; ")))
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

/// The output format of 4-bit blocks for a target.
pub(super) fn format_of(target: Option<Target>) -> Format {
    let known = Format::MatMulNBits.row().targets;
    let target = target.unwrap_or(Target::X86);
    if known.is_none_or(|targets| targets.contains(&target)) {
        Format::MatMulNBits
    } else {
        Format::Qdq
    }
}

/// The size of LSTM weights in bytes from which on integers are faster: an LSTM with 128 units and
/// 128 inputs took 0.65 of the time of floats, one with 32 units and 32 inputs took 1.25 (ONNX
/// Runtime 1.31).
const LARGE_LSTM: u64 = 500_000;

/// Whether large LSTMs hold most weights, and the target has an operator for LSTMs on integers.
pub(super) fn lstms_hold_most(facts: &Facts, target: Option<Target>) -> bool {
    let share = facts.share(Family::Recurrent).filter(|share| share.weights >= MOST);
    let most = share.is_some_and(|share| {
        let lstms = share.operators.get("LSTM").copied().unwrap_or(0);
        let all: usize = share.operators.values().sum();
        lstms * 2 > all && share.bytes >= LARGE_LSTM.saturating_mul(all as u64)
    });
    most && ONNX_RUNTIME.contains(&target.unwrap_or(Target::X86))
}

/// An alternative to the recommendation of a rule.
pub(super) struct Other {
    /// The rule that decided.
    pub(super) from: &'static str,
    /// When this one is better.
    pub(super) when: &'static str,
    pub(super) choice: RecommendedOptions,
}

const MORE_ACCURATE: &str = "more accurate, as small, and hardly faster";
const UNSAMPLED: &str = "without samples, as small, and hardly faster";
const SAMPLED: &str = "with samples";
const SMALLER: &str = "half as large, and less accurate";

/// All alternatives.
pub(super) const OTHERWISE: &[Other] = &[
    Other {
        from: "convolutions",
        when: UNSAMPLED,
        choice: RecommendedOptions::of(Strategy::Weights),
    },
    Other {
        from: "recurrent",
        when: "more accurate, as small, and LSTMs hardly faster",
        choice: RecommendedOptions::of(Strategy::Dynamic),
    },
    Other {
        from: "recurrent",
        when: MORE_ACCURATE,
        choice: RecommendedOptions::of(Strategy::Weights),
    },
    Other { from: "recurrent", when: SAMPLED, choice: RecommendedOptions::of(Strategy::Static) },
    Other {
        from: "generative",
        when: "more accurate",
        choice: RecommendedOptions::of(Strategy::Dynamic),
    },
    Other {
        from: "tables",
        when: "more accurate",
        choice: RecommendedOptions::of(Strategy::Weights),
    },
    Other {
        from: "attention_sampled",
        when: "without samples, or if inputs vary strongly",
        choice: RecommendedOptions::of(Strategy::Dynamic),
    },
    Other {
        from: "attention_sampled",
        when: MORE_ACCURATE,
        choice: RecommendedOptions::of(Strategy::Weights),
    },
    Other { from: "attention_sampled", when: SMALLER, choice: RecommendedOptions::blocks() },
    Other { from: "attention", when: SAMPLED, choice: RecommendedOptions::of(Strategy::Static) },
    Other {
        from: "attention",
        when: MORE_ACCURATE,
        choice: RecommendedOptions::of(Strategy::Weights),
    },
    Other { from: "attention", when: SMALLER, choice: RecommendedOptions::blocks() },
    Other { from: "products", when: SAMPLED, choice: RecommendedOptions::of(Strategy::Static) },
    Other {
        from: "products",
        when: MORE_ACCURATE,
        choice: RecommendedOptions::of(Strategy::Weights),
    },
    Other { from: "mixed", when: SAMPLED, choice: RecommendedOptions::of(Strategy::Static) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_names_are_unique_and_alternatives_belong_to_rules() {
        let mut names: Vec<&str> = ALL.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(OTHERWISE.iter().all(|other| names.contains(&other.from)));
        assert!(ALL.iter().all(|rule| !rule.about.is_empty()));
    }

    #[test]
    fn the_last_rule_always_applies() {
        let last = ALL.last().unwrap();
        assert!((last.because)(&Facts::default(), Request::default()).is_some());
    }
}
