//! Is a quantized file what its original became? Reads the stored integers back and compares them
//! with the weights of the original, and the wiring of one graph with that of the other.
//!
//! The file says nothing of how it was made: what the passes make of the original is made of it
//! again, and what smoothing multiplied weights by is read off the file. What cannot be known from
//! two files is listed as not compared.

mod biases;
mod constants;
mod grid;
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
use crate::graph::Graph;
use crate::transform;
use crate::transform::Step;
use crate::{QuantizeError, Target, convert_opset};

/// What a comparison of a quantized model with its original found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Validation {
    /// The original; `None` for bytes.
    pub original: Option<String>,
    /// The quantized model; `None` for bytes.
    pub quantized: Option<String>,
    /// What was done to the original before it was compared, as it was before it was quantized.
    pub prepared: Vec<Step>,
    /// What is wrong; nothing when the model is what the original became.
    pub problems: Vec<Problem>,
    /// Every weight that is stored in integers or narrow floats, against the original's.
    pub weights: Vec<StoredWeight>,
    /// What could not be compared, and why.
    pub not_compared: Vec<Uncompared>,
    /// What is no fault but worth a look: constants of a single value, what a target runs slower.
    pub notes: Vec<String>,
    /// The runtime that it was held against.
    pub target: Option<Target>,
}

/// Something that is wrong with a quantized model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What was looked at.
    pub check: Check,
    /// The constant, value or node.
    pub name: String,
    /// What was found and what would have been right.
    pub what: String,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The file is a model that a runtime could load.
    Structure,
    /// Inputs and outputs are those of the original.
    Interface,
    /// Every node reads what it read in the original.
    Connectivity,
    /// Scales and zero points can be what they are.
    Scale,
    /// Constants are those of the original, integers as near to them as their scale allows.
    Weights,
    /// The runtime takes it.
    Target,
}

/// A weight that is stored in integers or narrow floats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoredWeight {
    /// The weight of the original.
    pub name: String,
    /// The constant that holds the integers.
    pub integers: String,
    /// Their type.
    pub dtype: String,
    /// The shape of the original.
    pub shape: Vec<usize>,
    /// How many scales there are.
    pub scales: usize,
    /// Whether each channel was multiplied by a number that the value before it is divided by.
    pub smoothed: bool,
    /// What the integers stand for, against the original.
    pub error: Metrics,
    /// The largest distance from the original, in steps of the scale; up to three quarters of one
    /// where sums were kept.
    pub max_steps: f64,
}

/// Something that could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uncompared {
    /// The constant.
    pub name: String,
    /// Why not.
    pub why: String,
}

/// Compares a quantized model with its original. `passes` are those that ran before it was
/// quantized; `None` finds out whether those that usually run did.
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
/// A pass that there is none of, or a model that cannot be looked at, such as one with a node of too
/// few inputs.
pub fn validate(
    original: &Model,
    quantized: &Model,
    passes: Option<&[String]>,
) -> Result<Validation, QuantizeError> {
    let candidates = if let Some(names) = passes {
        vec![transform::named(names)?]
    } else {
        let widening = transform::named(&[transform::WIDEN_FLOATS.to_owned()])?;
        vec![transform::planning(true), transform::planning(false), widening, Vec::new()]
    };
    // Weights that nothing of the original was found for, problems, what was not compared: who finds
    // no fault because it finds no original explains nothing.
    let mut best: Option<([usize; 3], Validation)> = None;
    let mut bare = false;
    for tried in candidates {
        if best.as_ref().is_some_and(|([lost, problems, _], _)| lost + problems == 0) {
            break;
        }
        let (model, mut steps) = transform::run(original, &tried, passes.is_none())?;
        if bare && steps.is_empty() {
            continue;
        }
        bare |= steps.is_empty();
        let model = match (model.opset(""), quantized.opset("")) {
            (Some(from), Some(to)) if from < to => {
                let (model, conversion) = convert_opset(&model, to)?;
                let pass = format!("opset {} → {}", conversion.from, conversion.to);
                steps.push(Step { pass, did: conversion.changed });
                model
            }
            _ => model,
        };
        let (found, lost) = against(&model, quantized, steps)?;
        let faults = [lost, found.problems.len(), found.not_compared.len()];
        if best.as_ref().is_none_or(|(least, _)| faults < *least) {
            best = Some((faults, found));
        }
    }
    let mut found = best.map(|(_, found)| found).unwrap_or_default();
    let path = |model: &Model| model.path().map(|path| path.display().to_string());
    (found.original, found.quantized) = (path(original), path(quantized));
    Ok(found)
}

/// What is found, and how many weights nothing of the original was found for.
fn against(
    original: &Model,
    quantized: &Model,
    prepared: Vec<Step>,
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
    structure::check(&before, &after, &mut found);
    let stored = stored::all(&before, &after, &mut found);
    let pairs = wiring::check(&before, &after, &stored, &mut found);
    let seen = weights::check(&before, &after, &stored, &mut found)?;
    constants::check(&before, &after, &seen.smoothing, &mut found)?;
    biases::check(&before, &after, &seen, &pairs, &mut found)?;
    Ok((found, seen.lost))
}

impl Validation {
    /// What is said of a quantized file that is no model at all.
    pub fn unreadable(path: Option<&Path>, error: impl Into<String>) -> Validation {
        let path = path.map(|path| path.display().to_string());
        let mut found = Validation { quantized: path.clone(), ..Validation::default() };
        found.problem(Check::Structure, path.unwrap_or_default(), error);
        found
    }

    /// The same, the quantized model held against what a runtime takes, too, as [`conformance`]
    /// does: what it refuses or computes otherwise is a problem, what merely runs slower a note.
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
    /// A node of a known operator has fewer inputs or outputs than the operator takes.
    pub fn on(mut self, quantized: &Model, target: Target) -> Result<Validation, QuantizeError> {
        let runtime = target.profile().name;
        for Violation { node, name, rule, what } in conformance(quantized, target)? {
            if rule.is_strict() {
                self.problem(Check::Target, name, format!("{what}, which {runtime} does not take"));
            } else {
                self.notes.push(format!("{node}: {what}, which {runtime} runs slower"));
            }
        }
        self.target = Some(target);
        Ok(self)
    }

    /// Whether nothing is wrong.
    pub fn passed(&self) -> bool {
        self.problems.is_empty()
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
        self.not_compared.push(Uncompared { name: name.into(), why: why.into() });
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
        for Uncompared { name, why } in &self.not_compared {
            writeln!(f, "not compared: `{name}`: {why}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "problem: {problem}"))?;
        writeln!(f, "{}", if self.passed() { "passed" } else { "failed" })
    }
}
