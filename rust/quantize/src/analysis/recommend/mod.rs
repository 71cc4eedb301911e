//! Recommends how to quantize a model: one of four strategies with its options, the reasons from
//! the model, and the call.
//!
//! `recommend` runs nothing: the recommendation follows from the file. `recommend_measured` runs
//! the result on samples, and corrects the recommendation by what it measures.

mod facts;
mod measure;
mod reasons;
mod render_call;
mod rules;

use std::fmt;

use quantize_rs_onnx::Model;
use serde::Serialize;

use crate::error::while_unchanged;
use crate::{Config, Format, PreprocessedModel, QuantizeError, Role, Target};

pub use facts::{Facts, Family, Largest, Share};
pub use measure::{MeasuredStrategy, recommend_measured};
use render_call::Files;
pub use rules::{ALL, Rule};

/// The target and the samples of a recommendation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    /// The runtime; `None` is treated as x86.
    pub target: Option<Target>,
    /// The source of real inputs, if there are any.
    pub samples: Option<SampleSource<'a>>,
}

/// The source of real inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleSource<'a> {
    /// A file, a folder or a file pattern, which the call names.
    File(&'a str),
    /// A folder or a pattern of images that flags of the command prepare: the command has them, and
    /// the Python call names the samples `data`.
    Images {
        /// The folder or the pattern.
        path: &'a str,
        /// The flags, each followed by its value.
        flags: &'a [String],
    },
    /// In memory: the Python call names them `data`.
    Memory,
}

/// A quantization strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Weights and activations, with calibrated ranges.
    Static,
    /// Weights, and activations at run time.
    Dynamic,
    /// Weights only.
    Weights,
    /// No quantization.
    Nothing,
}

impl Strategy {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Static => "static",
            Strategy::Dynamic => "dynamic",
            Strategy::Weights => "weights",
            Strategy::Nothing => "nothing",
        }
    }
}

/// A strategy and its options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecommendedOptions {
    /// The strategy.
    pub way: Strategy,
    /// Bits of weights.
    pub bits: u8,
    /// Whether each output channel has a scale.
    pub per_channel: bool,
    /// The number of elements that share a scale, if weights are quantized in blocks.
    pub block_size: Option<usize>,
    /// The output format.
    #[serde(rename = "output_format")]
    pub format: Format,
    /// The type in which `MatMulNBits` multiplies, see [`Config::accuracy_level`]; `None` leaves it
    /// out.
    pub accuracy_level: Option<u8>,
    /// Operators that stay float.
    pub exclude: Vec<String>,
    /// Whether LSTMs compute on integers, see [`Config::dynamic_lstm`].
    pub dynamic_lstm: bool,
}

impl RecommendedOptions {
    /// 8 bits with one scale for each channel.
    const fn of(way: Strategy) -> RecommendedOptions {
        let format = match way {
            Strategy::Dynamic => Format::Dynamic,
            _ => Format::Qdq,
        };
        RecommendedOptions {
            way,
            bits: 8,
            per_channel: true,
            block_size: None,
            format,
            accuracy_level: None,
            exclude: Vec::new(),
            dynamic_lstm: false,
        }
    }

    /// Dynamic quantization, including LSTMs.
    const fn lstms() -> RecommendedOptions {
        let mut choice = RecommendedOptions::of(Strategy::Dynamic);
        choice.dynamic_lstm = true;
        choice
    }

    /// Weights only, 4 bits in blocks of 32.
    const fn blocks() -> RecommendedOptions {
        RecommendedOptions {
            way: Strategy::Weights,
            bits: 4,
            per_channel: false,
            block_size: Some(32),
            format: Format::MatMulNBits,
            accuracy_level: Some(4),
            exclude: Vec::new(),
            dynamic_lstm: false,
        }
    }
}

/// One reason for a recommendation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The rule that gives it.
    pub rule: &'static str,
    /// The facts of the model that led to it.
    pub text: String,
}

/// Another strategy, and when it is better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// The strategy and its options.
    #[serde(flatten)]
    pub choice: RecommendedOptions,
    /// When to use it.
    pub when: &'static str,
    /// The call in Python.
    pub python: String,
    /// The command.
    pub command: String,
    /// What was measured of it, by [`recommend_measured`].
    pub measured: Option<MeasuredStrategy>,
}

/// How to quantize a model, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// The model; `None` for bytes.
    pub model: Option<String>,
    /// The runtime; `None` is treated as x86.
    pub target: Option<Target>,
    /// The strategy and its options.
    #[serde(flatten)]
    pub choice: RecommendedOptions,
    /// The rule that decided.
    pub rule: &'static str,
    /// The reasons: first that of the deciding rule, then those of the options.
    pub reasons: Vec<Reason>,
    /// The samples that the call reads; `None` if it needs none.
    pub samples: Option<String>,
    /// The call in Python; empty if there is nothing to do.
    pub python: String,
    /// The command; empty if there is nothing to do.
    pub command: String,
    /// What was measured of it, by [`recommend_measured`].
    pub measured: Option<MeasuredStrategy>,
    /// Other strategies, and when they are better.
    pub otherwise: Vec<Alternative>,
    /// The facts of the model.
    pub facts: Facts,
}

/// Recommends how to quantize a model.
///
/// ```
/// use quantize_rs::{Model, Request, Strategy, recommend};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let found = recommend(&Model::open(path)?, Request::default())?;
/// assert_eq!(found.choice.way, Strategy::Static);
/// assert!(found.reasons[0].text.contains("Conv do"));
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
///
/// # Errors
/// A model that cannot be quantized at all, such as one with a node that lacks inputs.
pub fn recommend(model: &Model, wanted: Request<'_>) -> Result<Recommendation, QuantizeError> {
    while_unchanged(&[model], || {
        let Request { target, samples } = wanted;
        let facts = Facts::of(model)?;
        let (mut refused, mut in_vain) = (None, false);
        let mut decided = None;
        for rule in ALL {
            let Some(because) = (rule.because)(&facts, wanted) else { continue };
            match fitted(model, &rule.choice, &facts, target) {
                Ok(Some(fitted)) => {
                    decided = Some((rule.name, because, fitted));
                    break;
                }
                Ok(None) => in_vain = true,
                // Another strategy may work; if none does, this error is returned.
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        let (rule, because, Fitted { choice, bytes }) = match (decided, refused) {
            (Some(decided), _) => decided,
            (None, Some(error)) if !in_vain => return Err(error),
            (None, _) => {
                let why =
                    "none of its weights would be quantized: `plan` shows the reasons".to_owned();
                (
                    "none",
                    why,
                    Fitted {
                        choice: RecommendedOptions::of(Strategy::Nothing),
                        bytes: facts.bytes,
                    },
                )
            }
        };
        let mut reasons = vec![Reason { rule, text: because }];
        if choice.way != Strategy::Nothing {
            reasons.push(Reason { rule: "size", text: reasons::bytes(&facts, bytes) });
            reasons.extend(reasons::ALL.iter().filter_map(|(rule, say)| {
                Some(Reason { rule, text: say(&facts, &choice, wanted)? })
            }));
        }
        let files = Files::of(model.path(), samples);
        let others = rules::OTHERWISE.iter().filter(|other| other.from == rule);
        let otherwise = others
            .filter_map(|other| {
                // A strategy that does not work for this model is not an alternative.
                let fitted = fitted(model, &other.choice, &facts, target).ok()??;
                Some((other.when, fitted.choice)).filter(|(_, other)| *other != choice)
            })
            .map(|(when, choice)| Alternative {
                when,
                python: render_call::python(&choice, target, &files),
                command: render_call::command(&choice, target, &files),
                choice,
                measured: None,
            })
            .collect();
        Ok(Recommendation {
            model: model.path().map(|path| path.display().to_string()),
            target,
            rule,
            reasons,
            samples: (choice.way == Strategy::Static).then(|| files.samples()),
            python: render_call::python(&choice, target, &files),
            command: render_call::command(&choice, target, &files),
            choice,
            measured: None,
            otherwise,
            facts,
        })
    })
}

/// Options that fit a model and a target.
struct Fitted {
    choice: RecommendedOptions,
    /// The approximate size of the result in bytes.
    bytes: u64,
}

/// The options for this model and this target; `None` if no weight would be quantized, or no
/// activation though that is what the options are for.
fn fitted(
    model: &Model,
    choice: &RecommendedOptions,
    facts: &Facts,
    target: Option<Target>,
) -> Result<Option<Fitted>, QuantizeError> {
    let mut choice = choice.clone();
    if choice.way == Strategy::Nothing {
        return Ok(Some(Fitted { choice, bytes: facts.bytes }));
    }
    if choice.format == Format::MatMulNBits {
        choice.format = rules::format_of(target);
        choice.accuracy_level =
            choice.accuracy_level.filter(|_| choice.format == Format::MatMulNBits);
    }
    if choice.way == Strategy::Dynamic
        && let Some(convolutions) = facts.share(Family::Convolution)
    {
        choice.exclude = convolutions.operators.keys().cloned().collect();
    }
    choice.dynamic_lstm &= rules::lstms_hold_most(facts, target);
    let planned = |choice: &RecommendedOptions| {
        Ok::<_, QuantizeError>(
            PreprocessedModel::of(model, render_call::config(choice, target)?)?.plan(),
        )
    };
    let mut plan = planned(&choice)?;
    if choice.dynamic_lstm {
        let without = RecommendedOptions { dynamic_lstm: false, ..choice.clone() };
        let other = planned(&without)?;
        // No LSTM of the model supports it.
        if other.values == plan.values {
            (choice, plan) = (without, other);
        }
    }
    let mut weights = plan.quantized().filter(|(value, _)| value.role == Role::Weight).peekable();
    // Samples would be of no use if no activation is quantized with them.
    let in_vain = choice.way == Strategy::Static && !plan.needs_calibration();
    if weights.peek().is_none() || in_vain {
        return Ok(None);
    }
    let bytes = weights.fold(facts.bytes, |bytes, (value, how)| {
        let (before, after) = reasons::weight_bytes(value, how);
        bytes.saturating_sub(before).saturating_add(after)
    });
    Ok(Some(Fitted { choice, bytes }))
}

impl Recommendation {
    /// The recommended options, for [`PreprocessedModel::of`](crate::PreprocessedModel::of).
    ///
    /// # Errors
    /// None that this crate causes.
    pub fn config(&self) -> Result<Config, QuantizeError> {
        render_call::config(&self.choice, self.target)
    }

    /// The recommendation as JSON.
    pub fn to_json(&self) -> String {
        // Names and numbers, no maps with odd keys: this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for RecommendedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits;
        match self.way {
            Strategy::Static => write!(f, "static: weights and activations in {bits} bits")?,
            Strategy::Dynamic => {
                write!(f, "dynamic: weights in {bits} bits, activations at run time")?;
            }
            Strategy::Weights => write!(f, "weights only, in {bits} bits")?,
            Strategy::Nothing => return f.write_str("nothing to do"),
        }
        if self.per_channel {
            f.write_str(", per channel")?;
        }
        if let Some(size) = self.block_size {
            write!(f, ", blocks of {size}")?;
        }
        if self.dynamic_lstm {
            f.write_str(", LSTMs too")?;
        }
        if self.format == Format::Qdq || self.format == Format::Dynamic {
            return Ok(());
        }
        write!(f, ", as {}", self.format.row().name)
    }
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.choice)?;
        for Reason { text, .. } in &self.reasons {
            writeln!(f, "  - {text}")?;
        }
        if let Some(measured) = &self.measured {
            writeln!(f, "measured: {measured}")?;
        }
        if self.choice.way == Strategy::Nothing {
            return Ok(());
        }
        writeln!(f, "Python:  {}", self.python)?;
        writeln!(f, "command: {}", self.command)?;
        for Alternative { choice, when, python, command, measured } in &self.otherwise {
            writeln!(f, "{when}: {choice}")?;
            if let Some(measured) = measured {
                writeln!(f, "  measured: {measured}")?;
            }
            writeln!(f, "  Python:  {python}")?;
            writeln!(f, "  command: {command}")?;
        }
        Ok(())
    }
}
