//! Every method side by side, from one pass over the samples.

use std::collections::BTreeMap;
use std::fmt;

use quantize_rs_math::range;
use quantize_rs_onnx::Model;
use serde::Serialize;

use super::gather::{Gathered, gather};
use super::judge::{Judge, LayerError};
use super::run::Control;
use crate::sample::{Engine, Samples};
use crate::{Method, Plan, QuantizeError, Ranges};

/// What each method makes of the same samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// One row a method, and one for `auto`, which takes the best for each value.
    pub methods: Vec<MethodRow>,
    /// The method whose quantized model comes nearest to the float model.
    pub best: String,
    /// Samples run.
    pub samples: usize,
    /// Samples held back to judge by.
    pub held_back: usize,
    /// Who ran them.
    pub engine: String,
    /// Ranges that each method found, from all samples.
    #[serde(skip)]
    pub ranges: Vec<Ranges>,
}

/// What one method makes of the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodRow {
    /// The method.
    pub method: String,
    /// SQNR of the outputs of the quantized model on the samples held back, in decibels, the mean
    /// over outputs; `None` for a model without float32 outputs.
    pub sqnr_db: Option<f64>,
    /// For how many values the method's layer outputs are the nearest.
    pub best_for: usize,
    /// An earlier method that finds the same ranges.
    pub same_as: Option<String>,
}

/// One method on trial.
struct Trial {
    method: String,
    /// What it finds without the samples held back.
    learnt: Ranges,
    /// What it finds in all samples.
    ranges: Ranges,
    same_as: Option<String>,
}

/// Gathers and compares; the ranges of the comparison stand in the order of its rows, `auto` last.
pub(super) fn compare(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
) -> Result<Comparison, QuantizeError> {
    let gathered = gather(model, plan, engine, samples, control, true)?;
    let mut trials = trials(model, &gathered)?;
    let mut judge =
        Judge { model, plan, engine, control, samples: gathered.samples, kept: &gathered.kept };
    let (auto, best_for) = nearest_layers(&mut judge, &trials)?;
    trials.push(auto);
    let reference = judge.reference()?;
    let mut methods: Vec<MethodRow> = Vec::new();
    for trial in &trials {
        let known = |name: &String| methods.iter().find(|row| row.method == *name)?.sqnr_db;
        let sqnr_db = match &trial.same_as {
            Some(name) => known(name),
            None => judge.sqnr(&trial.learnt, &reference)?,
        };
        methods.push(MethodRow {
            method: trial.method.clone(),
            sqnr_db,
            best_for: best_for.get(&trial.method).copied().unwrap_or(0),
            same_as: trial.same_as.clone(),
        });
    }
    let score = |row: &MethodRow| row.sqnr_db.map_or(f64::NEG_INFINITY, |db| db - doubt(row));
    // Of equals the first; without any output to judge by, what is best layer by layer.
    let nearer = methods
        .iter()
        .rev()
        .filter(|row| row.sqnr_db.is_some())
        .reduce(|best, row| if score(row) >= score(best) { row } else { best });
    let best = nearer.map_or_else(|| Method::Auto.name(), |row| row.method.clone());
    Ok(Comparison {
        methods,
        best,
        samples: gathered.samples,
        held_back: gathered.kept.len(),
        engine: gathered.engine().to_owned(),
        ranges: trials.into_iter().map(|trial| trial.ranges).collect(),
    })
}

/// Every method, with what it finds.
fn trials(model: &Model, gathered: &Gathered) -> Result<Vec<Trial>, QuantizeError> {
    let (learnt, all) = (gathered.learnt(model), gathered.all(model));
    let mut trials: Vec<Trial> = Vec::new();
    for finder in range::ALL {
        let method: Method = finder.name().parse()?;
        let (learnt, ranges) = (learnt.using(&method)?, all.using(&method)?);
        let same = trials.iter().find(|trial| trial.learnt.values == learnt.values);
        let same_as = same.map(|trial| trial.method.clone());
        trials.push(Trial { method: method.name(), learnt, ranges, same_as });
    }
    Ok(trials)
}

/// For each value the method whose layer outputs are the nearest, and how often each method was.
fn nearest_layers(
    judge: &mut Judge<'_, '_>,
    trials: &[Trial],
) -> Result<(Trial, BTreeMap<String, usize>), QuantizeError> {
    let trials: Vec<&Trial> =
        trials.iter().filter(|trial| !BLUNT.contains(&trial.method.as_str())).collect();
    let candidates =
        trials[0].learnt.values.keys().map(|name| {
            (name.clone(), trials.iter().map(|trial| trial.learnt.values[name]).collect())
        });
    let errors = judge.layer_errors(&candidates.collect())?;
    let (mut learnt, mut ranges) = (trials[0].learnt.clone(), trials[0].ranges.clone());
    let mut best_for = BTreeMap::new();
    let mut chosen = BTreeMap::new();
    for (name, errors) in errors {
        let trial = trials[safest(&errors)];
        learnt.values.insert(name.clone(), trial.learnt.values[&name]);
        ranges.values.insert(name.clone(), trial.ranges.values[&name]);
        *best_for.entry(trial.method.clone()).or_insert(0) += 1;
        chosen.insert(name, trial.method.clone());
    }
    let method = Method::Auto.name();
    for ranges in [&mut learnt, &mut ranges] {
        ranges.method.clone_from(&method);
        ranges.chosen.clone_from(&chosen);
    }
    let same = trials.iter().find(|trial| trial.learnt.values == learnt.values);
    let same_as = same.map(|trial| trial.method.clone());
    Ok((Trial { method, learnt, ranges, same_as }, best_for))
}

/// The candidate with the smallest error, of those that gain enough over the first, which clips
/// nothing, and cost no sample much more than it does: what is clipped away on most samples for
/// nothing may be all that matters on another.
fn safest(errors: &[LayerError]) -> usize {
    let total = |at: usize| errors[at].iter().sum::<f64>();
    let safe = |at: &usize| {
        let bearable =
            errors[*at].iter().zip(&errors[0]).all(|(error, first)| *error <= first * BEARABLE);
        *at == 0 || bearable && total(*at) < total(0) * WORTHWHILE
    };
    // Of equals the first.
    let candidates = (0..errors.len()).rev().filter(safe);
    candidates.reduce(|best, at| if total(at) <= total(best) { at } else { best }).unwrap_or(0)
}

/// How many times the error of the first candidate a sample may bear.
const BEARABLE: f64 = 1.25;

/// The part of the error of the first candidate that another may have, to be worth its risk.
const WORTHWHILE: f64 = 0.8;

/// By how much, in decibels, a method that clips must beat the first, which does not, and a choice
/// for each value every method for all: so much depends on which samples were held back.
const CLEARLY: f64 = 0.2;

/// Methods that cut off a part of most samples on purpose: on trial for all values alone, where the
/// outputs of the model speak, and never chosen for single ones.
const BLUNT: &[&str] = &["moving_average"];

/// What is taken off the score of a method, in decibels, for what the samples held back do not show.
fn doubt(row: &MethodRow) -> f64 {
    match row.method.as_str() {
        "minmax" => 0.0,
        "auto" => 2.0 * CLEARLY,
        _ => CLEARLY,
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16} {:>9}  best for", "method", "SQNR dB")?;
        for row in &self.methods {
            let sqnr = row.sqnr_db.map_or("-".to_owned(), |sqnr| format!("{sqnr:.2}"));
            let same =
                row.same_as.as_ref().map_or(String::new(), |same| format!("  same as {same}"));
            let best = if row.method == self.best { "  best" } else { "" };
            let values = match row.best_for {
                0 => String::new(),
                count => format!("{count} values"),
            };
            writeln!(f, "{:<16} {sqnr:>9}  {values}{same}{best}", row.method)?;
        }
        writeln!(
            f,
            "{} samples, {} of them held back to judge by ({})",
            self.samples, self.held_back, self.engine
        )
    }
}
