//! Compares a quantized model with its original: the stored integers with the weights, and the
//! connections of one graph with those of the other.
//!
//! The file does not record how it was produced. So the passes run again on the original, and the
//! factors of smoothing are read from the file. Everything that two files do not determine is
//! listed as not compared.

mod activation_scales;
mod biases;
mod candidates;
mod constants;
mod experts;
mod factors;
mod grid;
mod kv_cache;
mod products;
mod qlinear_ops;
mod reference;
mod replaced;
mod rounding;
mod stored;
mod structure;
mod subgraphs;
mod weights;
mod wiring;

use std::fmt;
use std::path::Path;

use quantize_rs_math::Metrics;
use quantize_rs_onnx::Model;
use serde::Serialize;

use super::conformance::{Violation, conformance};
use crate::error::while_unchanged;
use crate::graph::Graph;
use crate::options::HalfType;
use crate::transform;
use crate::transform::half_precision::{self, OF_HALVES};
use crate::transform::{Purpose, Step, widened_without_casts};
use crate::{QuantizeError, Target, convert_opset};
use weights::pruned::is_pruned;

/// The result of the comparison of a quantized model with its original.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Validation {
    /// The path of the original; `None` for bytes.
    pub original: Option<String>,
    /// The path of the quantized model; `None` for bytes.
    pub quantized: Option<String>,
    /// The passes that changed the original before the comparison, as before quantization.
    pub prepared: Vec<Step>,
    /// The problems; empty if the model is the quantized original.
    pub problems: Vec<Problem>,
    /// Each weight that is stored as integers or narrow floats, compared with the original.
    pub weights: Vec<StoredWeight>,
    /// Constants that could not be compared, with the reason.
    pub not_compared: Vec<Uncompared>,
    /// Remarks: constants of a single value, nodes that a target runs slower.
    pub notes: Vec<String>,
    /// The target that it was checked for.
    pub target: Option<Target>,
}

/// A problem of a quantized model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The check that found it.
    pub check: Check,
    /// The name of the constant, value or node.
    pub name: String,
    /// What was found and what was expected.
    pub what: String,
}

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The file is a valid model.
    Structure,
    /// Inputs and outputs equal those of the original.
    Interface,
    /// Every node reads the same values as in the original.
    Connectivity,
    /// Scales and zero points are valid.
    Scale,
    /// Constants equal those of the original, as exactly as their scale allows.
    Weights,
    /// The target supports it.
    Target,
}

/// A weight that is stored as integers or narrow floats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoredWeight {
    /// The name of the weight in the original.
    pub name: String,
    /// The name of the constant with the integers.
    pub integers: String,
    /// Their type.
    pub dtype: String,
    /// The shape in the original.
    pub shape: Vec<usize>,
    /// The number of scales.
    pub scales: usize,
    /// Whether smoothing multiplied each channel by a factor by which the preceding value is
    /// divided.
    pub smoothed: bool,
    /// The error of the dequantized integers against the original.
    pub error: Metrics,
    /// The maximum error in steps of the scale: half a step, up to three quarters with
    /// sum-preserving rounding, and several for weights that were rounded with samples.
    pub max_steps: f64,
}

/// A constant that could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uncompared {
    /// The name of the constant.
    pub name: String,
    /// The reason.
    pub why: String,
    /// Whether it is a stored weight, of whose integers nothing is known.
    pub weight: bool,
}

/// Compares a quantized model with its original. `passes` are the passes that ran before
/// quantization; with `None` the function finds out whether the default passes ran.
///
/// ```
/// use quantize_rs::{Config, Model, PreprocessedModel, validate};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let model = Model::open(path)?;
/// let prepared = PreprocessedModel::of(&model, Config::default())?;
/// let quantized = prepared.plan().apply(&prepared.model, None)?;
/// let validation = validate(&model, quantized.model(), None)?;
/// assert!(validation.passed(), "{validation}");
/// assert!(validation.weights.iter().all(|weight| weight.max_steps < 0.76));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An unknown pass, or a model that cannot be processed, such as one with a node that lacks inputs.
pub fn validate(
    original: &Model,
    quantized: &Model,
    passes: Option<&[String]>,
) -> Result<Validation, QuantizeError> {
    while_unchanged(&[original, quantized], || {
        let half = computed_half(original, quantized)?;
        let (as_given, wide) = (quantized.path(), half.map(|_| widened_without_casts(quantized)));
        let wide = wide.transpose()?;
        let quantized = wide.as_ref().unwrap_or(quantized);
        let candidates = candidates::all(original, quantized, passes)?;
        // Counts of weights without an original, problems, and constants that were not compared. A
        // candidate that finds no problem because it finds no original is not an explanation. One
        // that explains all but pruned weights is better than others.
        let mut best: Option<([usize; 4], Validation)> = None;
        let mut bare = false;
        for (tried, purpose) in candidates {
            if is_explained(best.as_ref()) {
                break;
            }
            let (model, steps) = transform::run(original, &tried, purpose)?;
            if bare && steps.is_empty() {
                continue;
            }
            bare |= steps.is_empty();
            let forms = match half {
                Some(_) => before_narrowing(&model)?,
                None => vec![(model, Vec::new())],
            };
            for (model, more) in forms {
                if is_explained(best.as_ref()) {
                    break;
                }
                let mut steps = steps.clone();
                steps.extend(more);
                let model = match (model.opset(""), quantized.opset("")) {
                    (Some(from), Some(to)) if from < to => {
                        let (model, conversion) = convert_opset(&model, to)?;
                        let pass = format!("opset {} → {}", conversion.from, conversion.to);
                        steps.push(Step { pass, did: conversion.changed });
                        model
                    }
                    _ => model,
                };
                let (found, without_original) = against(&model, quantized, steps, half)?;
                let pruned = found.problems.iter().filter(|problem| is_pruned(problem)).count();
                let problems = found.problems.len();
                let faults =
                    [without_original, problems - pruned, problems, found.not_compared.len()];
                if best.as_ref().is_none_or(|(least, _)| faults < *least) {
                    best = Some((faults, found));
                }
            }
        }
        let mut found = best.map(|(_, found)| found).unwrap_or_default();
        let path = |path: Option<&Path>| path.map(|path| path.display().to_string());
        (found.original, found.quantized) = (path(original.path()), path(as_given));
        if found.uncompared_weights() > 0 {
            let note = "nothing is known about the integers of weights that could not be \
                        compared, which not_compared lists";
            found.notes.insert(0, note.to_owned());
        }
        found.notes.extend(half.map(|half| {
            format!(
                "the model computes in {half}: constants that are not quantized are compared as \
                 {half}"
            )
        }));
        Ok(found)
    })
}

/// Whether a candidate has an original for each weight and no problem. With it is how many weights
/// have none, how many problems there are that pruning does not explain, and how many in all.
fn is_explained(best: Option<&([usize; 4], Validation)>) -> bool {
    best.is_some_and(|([missing, _, problems, _], _)| missing + problems == 0)
}

/// The 16-bit type that a model computes in, and its original does not. The results of comparisons
/// and searches have another type: then more nodes read the 16-bit type than in the original.
fn computed_half(original: &Model, quantized: &Model) -> Result<Option<HalfType>, QuantizeError> {
    use half_precision::{computes_in, readers_of};
    for half in HalfType::ALL {
        if !computes_in(original, *half)?
            && (computes_in(quantized, *half)?
                || readers_of(quantized, *half)? > readers_of(original, *half)?)
        {
            return Ok(Some(*half));
        }
    }
    Ok(None)
}

/// What a model may have been before it was converted to 16 bits, and the passes that made it so:
/// without functions, which no model that computes in 16 bits calls, and with its constant
/// expressions evaluated or not. What it had in 16 bits is in float32, as in the result that it is
/// compared with.
fn before_narrowing(model: &Model) -> Result<Vec<(Model, Vec<Step>)>, QuantizeError> {
    let mut forms = Vec::new();
    for passes in [&half_precision::PASSES[..], &half_precision::PASSES[..OF_HALVES]] {
        let passes = transform::these(passes);
        let (model, steps) = transform::run(model, &passes, Purpose::Optimizing)?;
        forms.push((widened_without_casts(&model)?, steps));
    }
    Ok(forms)
}

/// The result, and the number of weights without an original.
fn against(
    original: &Model,
    quantized: &Model,
    prepared: Vec<Step>,
    half: Option<HalfType>,
) -> Result<(Validation, usize), QuantizeError> {
    let mut found = Validation { prepared, ..Validation::default() };
    let before = Graph::of(original)?;
    let after = match Graph::of(quantized) {
        Ok(after) => after,
        Err(error) => {
            found.problem(Check::Structure, "graph", error.to_string());
            return Ok((found, 0));
        }
    };
    structure::check(&before, &after, half, &mut found);
    let mut stored = stored::all(&before, &after, &mut found);
    let counterparts = wiring::check(&before, &after, &mut stored, half, &mut found);
    let compared = weights::check(&before, &after, &stored, half, &mut found)?;
    constants::check(&before, &after, &stored, &compared.smoothing, half, &mut found)?;
    biases::check(&before, &after, &compared, &counterparts, half, &mut found)?;
    Ok((found, compared.without_original))
}

impl Validation {
    /// The result for a quantized file that is not a model.
    pub fn unreadable(path: Option<&Path>, error: impl Into<String>) -> Validation {
        let path = path.map(|path| path.display().to_string());
        let mut found = Validation { quantized: path.clone(), ..Validation::default() };
        found.problem(Check::Structure, path.unwrap_or_default(), error);
        found
    }

    /// Adds the check for a target, see [`conformance`]: what it rejects or computes differently is
    /// a problem, what only runs slower is a note.
    ///
    /// ```
    /// use quantize_rs::{Config, Model, PreprocessedModel, Target, validate};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
    /// let model = Model::open(path)?;
    /// let prepared = PreprocessedModel::of(&model, Config::default())?;
    /// let quantized = prepared.plan().apply(&prepared.model, None)?;
    /// let validation = validate(&model, quantized.model(), None)?;
    /// assert!(validation.on(quantized.model(), Target::TensorRt)?.passed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A node of a known operator has fewer inputs or outputs than the operator needs.
    pub fn on(mut self, quantized: &Model, target: Target) -> Result<Validation, QuantizeError> {
        let runtime = target.profile().name;
        for Violation { node, name, rule, what } in conformance(quantized, target)? {
            if rule.is_strict() {
                self.problem(
                    Check::Target,
                    name,
                    format!("{what}, which {runtime} does not support"),
                );
            } else {
                self.notes.push(format!("{node}: {what}, which {runtime} runs slower"));
            }
        }
        self.target = Some(target);
        Ok(self)
    }

    /// Whether there are no problems. A weight that could not be compared is none:
    /// [`Validation::summary`] counts them.
    pub fn passed(&self) -> bool {
        self.problems.is_empty()
    }

    /// Whether it passed, and how many stored weights could not be compared, as a text.
    pub fn summary(&self) -> String {
        let result = if self.passed() { "passed" } else { "failed" };
        match self.uncompared_weights() {
            0 => result.to_owned(),
            1 => format!("{result}, but 1 stored weight could not be compared"),
            count => format!("{result}, but {count} stored weights could not be compared"),
        }
    }

    fn uncompared_weights(&self) -> usize {
        self.not_compared.iter().filter(|constant| constant.weight).count()
    }

    /// The validation as JSON, with `passed`.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.document()).unwrap_or_default()
    }

    /// What [`Validation::to_json`] writes, for any format of serde.
    pub fn document(&self) -> impl Serialize + use<> {
        // Names and numbers, no maps with odd keys: this cannot fail.
        let mut document = serde_json::to_value(self).unwrap_or_default();
        document["passed"] = self.passed().into();
        document
    }

    fn problem(&mut self, check: Check, name: impl Into<String>, what: impl Into<String>) {
        let problem = Problem { check, name: name.into(), what: what.into() };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn skip(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.not_compared.push(Uncompared { name: name.into(), why: why.into(), weight: false });
    }

    fn skip_weight(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.not_compared.push(Uncompared { name: name.into(), why: why.into(), weight: true });
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Structure => "structure",
            Check::Interface => "interface",
            Check::Connectivity => "connectivity",
            Check::Scale => "scale",
            Check::Weights => "weights",
            Check::Target => "target",
        })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}", self.check, self.name, self.what)
    }
}

impl fmt::Display for StoredWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metrics { sqnr_db, max_abs, .. } = self.error;
        write!(f, "{}: {} {:?}, ", self.name, self.dtype, self.shape)?;
        match sqnr_db {
            f64::INFINITY => f.write_str("no error")?,
            db => write!(f, "SQNR {db:.1} dB, off by at most {max_abs:.3e}")?,
        }
        write!(f, " ({:.2} steps)", self.max_steps)?;
        if self.smoothed { f.write_str(", smoothed") } else { Ok(()) }
    }
}

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.weights.len();
        let plural = if count == 1 { "" } else { "s" };
        writeln!(f, "{count} stored weight{plural} compared")?;
        self.prepared.iter().try_for_each(|step| writeln!(f, "original: {step}"))?;
        self.weights.iter().try_for_each(|weight| writeln!(f, "  {weight}"))?;
        for Uncompared { name, why, .. } in &self.not_compared {
            writeln!(f, "not compared: `{name}`: {why}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "problem: {problem}"))?;
        writeln!(f, "{}", self.summary())
    }
}
