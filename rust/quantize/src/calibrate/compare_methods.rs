//! Every method side by side, from one pass over the samples.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::rc::Rc;

use quantize_rs_math::range::{self, Clipping};
use quantize_rs_math::{Range, params};
use quantize_rs_onnx::Model;
use serde::Serialize;

use super::collect::Gathered;
use super::engine::Engine;
use super::evaluate::{FOR_LAYERS, Judge, LayerError};
use super::probe_matmuls::products;
use super::run::{Control, Progress};
use super::score::Score;
use crate::encode::WeightCache;
use crate::graph::Graph;
use crate::{Method, Plan, QuantizeError, Ranges};

/// What each method makes of the same samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodComparison {
    /// One row a method, and one for `auto`, which takes the best for each value by any number of samples;
    /// [`Method::Auto`] does so from 512 on.
    pub methods: Vec<MethodRow>,
    /// The method whose quantized model comes nearest to the float model, as far as can be told.
    pub best: String,
    /// Samples run.
    pub samples: usize,
    /// Samples held back: methods did not learn from them.
    pub held_back: usize,
    /// Samples to judge by: those held back, up to a limit, and others when they are few.
    pub judged: usize,
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
    /// SQNR of the outputs of the quantized model on the samples to judge by, in decibels, the mean
    /// over outputs; `None` for a model without float32 outputs.
    pub sqnr_db: Option<f64>,
    /// For how many values a choice for each value takes the method.
    pub best_for: usize,
    /// An earlier method that finds the same ranges.
    pub same_as: Option<String>,
}

/// One method on trial.
struct Trial {
    method: String,
    clips: Clipping,
    /// What it finds without the samples held back.
    learnt: Ranges,
    /// What it finds in all samples.
    ranges: Ranges,
    same_as: Option<usize>,
}

/// What is on trial.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// What cuts off a part of most samples, too.
    pub(super) blunt: bool,
    /// Other methods for what matrices multiply, beside the one for all values.
    pub(super) single: bool,
}

/// Compares by what was gathered; the ranges of the comparison stand in the order of its rows, `auto` last.
pub(super) fn compare(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    mut gathered: Gathered,
    control: &mut Control<'_>,
    extent: Extent,
) -> Result<MethodComparison, QuantizeError> {
    let mut trials = trials(plan, &mut gathered, control, extent)?;
    let distinct = trials.iter().filter(|trial| trial.same_as.is_none()).count();
    // What is run for single values follows from this.
    let kept = gathered.kept.len();
    let total = gathered.samples + distinct * kept;
    let mut judge = Judge {
        model,
        plan,
        engine,
        control,
        kept: &gathered.kept,
        progress: Progress { done: gathered.samples, total: Some(total) },
        known: WeightCache::default(),
    };
    let mut scores: Vec<Option<Rc<Score>>> = Vec::new();
    for trial in &trials {
        scores.push(scored(trial, &scores, &mut judge, &gathered)?);
    }
    let clips: Vec<Clipping> = trials.iter().map(|trial| trial.clips).collect();
    let whole = best(&clips, &scores);
    // A choice that all samples were asked for could not be judged.
    let tried = extent.single && kept > FOR_LAYERS || scores[whole].is_none();
    let (auto, best_for) = nearest_layers(&mut judge, &trials, whole, tried)?;
    let runs = if auto.same_as.is_none() { kept } else { 0 };
    judge.progress.total = Some(judge.progress.done + runs);
    let score = scored(&auto, &scores, &mut judge, &gathered)?;
    let best =
        if is_taken(score.as_deref(), scores[whole].as_deref()) { trials.len() } else { whole };
    scores.push(score);
    trials.push(auto);
    let methods: Vec<MethodRow> = trials
        .iter()
        .zip(&scores)
        .map(|(trial, score)| MethodRow {
            method: trial.method.clone(),
            sqnr_db: score.as_ref().map(|score| score.decibels()),
            best_for: best_for.get(&trial.method).copied().unwrap_or(0),
            same_as: trial.same_as.map(|twin| trials[twin].method.clone()),
        })
        .collect();
    Ok(MethodComparison {
        best: methods[best].method.clone(),
        methods,
        samples: gathered.samples,
        held_back: gathered.held_back,
        judged: gathered.kept.len(),
        engine: gathered.engine().to_owned(),
        ranges: trials.into_iter().map(|trial| trial.ranges).collect(),
    })
}

/// How near a trial comes; twins come as near as each other.
fn scored(
    trial: &Trial,
    before: &[Option<Rc<Score>>],
    judge: &mut Judge<'_, '_>,
    gathered: &Gathered,
) -> Result<Option<Rc<Score>>, QuantizeError> {
    match trial.same_as {
        Some(twin) => Ok(before[twin].clone()),
        None => Ok(judge.score(&trial.learnt, &gathered.reference)?.map(Rc::new)),
    }
}

/// The method to take for all values. What clips nothing cannot be far wrong on other samples, nor the last of all
/// methods, which looks for the least error on what was not seen too: of these two the nearer, and another only
/// where it is surely nearer.
///
/// Without any output to judge by, it is what clips nothing.
fn best(clips: &[Clipping], scores: &[Option<Rc<Score>>]) -> usize {
    let last = clips.len() - 1;
    let both = |at: usize, best: usize| scores[at].as_ref().zip(scores[best].as_ref());
    let full = clips.iter().position(|clips| *clips == Clipping::Nothing).unwrap_or(last);
    // One sample does not show what others hold.
    let leads = both(last, full)
        .is_some_and(|(this, whole)| whole.samples() > 1 && this.decibels() > whole.decibels());
    let nearer = |best: usize, at: usize| {
        let surely = both(at, best).is_some_and(|(this, than)| this.is_surely_nearer(than));
        if surely { at } else { best }
    };
    (0..clips.len()).fold(if leads { last } else { full }, nearer)
}

/// Whether a choice for each value is taken instead of the method for all: where it is clearly nearer, and where
/// there is no output to judge by, as what is best layer by layer.
fn is_taken(choice: Option<&Score>, whole: Option<&Score>) -> bool {
    choice.zip(whole).is_none_or(|(choice, whole)| choice.chooses_surely_nearer(whole))
}

/// Every method, with what it finds.
fn trials(
    plan: &Plan,
    gathered: &mut Gathered,
    control: &mut Control<'_>,
    extent: Extent,
) -> Result<Vec<Trial>, QuantizeError> {
    let (learnt, all) = gathered.ranges(plan);
    let mut trials: Vec<Trial> = Vec::new();
    let asked = |clips| extent.blunt || clips != Clipping::MostSamples;
    for finder in range::ALL.iter().filter(|finder| asked(finder.clipping())) {
        control.go_on(gathered.samples)?;
        let method: Method = finder.name().parse()?;
        let (learnt, ranges) = (learnt.using(&method)?, all.using(&method)?);
        let same_as = trials.iter().position(|trial| trial.learnt.values == learnt.values);
        let (method, clips) = (method.name(), finder.clipping());
        trials.push(Trial { method, clips, learnt, ranges, same_as });
    }
    Ok(trials)
}

/// Methods that are on trial for single values, those for all of them first: not what cuts off a part of most samples,
/// which is on trial for all values alone, where the outputs of the model speak.
fn fine(trials: &[Trial], whole: usize) -> Vec<&Trial> {
    let others = trials.iter().enumerate();
    let others = others.filter(|(at, trial)| *at != whole && trial.clips != Clipping::MostSamples);
    std::iter::once(&trials[whole]).chain(others.map(|(_, trial)| trial)).collect()
}

/// For each value that matrices multiply and on which methods differ, those that may be worth their risk: positions
/// among those that are on trial, the first of them what is taken for all values.
///
/// Of what goes into convolutions one choice serves all: there what is nearest layer by layer, on some photos, was
/// farther from the outputs on others (a face detector lost 2 to 4 dB, a residual network 0.2).
///
/// The noise of rounding to integers grows with the square of the scale: a scale that is about as large
/// makes about as much of it. Of several like each other, the last is tried.
fn contests(
    model: &Model,
    plan: &Plan,
    fine: &[&Trial],
) -> Result<BTreeMap<String, Vec<usize>>, QuantizeError> {
    let graph = Graph::of(model)?;
    let products = products(&graph, plan);
    let multiplied: HashSet<&str> =
        products.iter().map(|(value, _)| graph.values[*value].name).collect();
    let mut contests = BTreeMap::new();
    for (value, how) in plan.quantized().filter(|(value, _)| multiplied.contains(&*value.name)) {
        let Some(whole) = fine[0].learnt.values.get(&value.name) else { continue };
        let scale = |range: Range| f64::from(params(range, &how.spec).scale.abs());
        let enough = WORTHWHILE.sqrt();
        let mut entries: Vec<(usize, f64)> = vec![(0, scale(*whole))];
        for (at, trial) in fine.iter().enumerate().skip(1).rev() {
            let found = scale(trial.learnt.values[&value.name]);
            let unlike =
                |(_, other): &(usize, f64)| found < other * enough || *other < found * enough;
            if entries.iter().all(unlike) {
                entries.push((at, found));
            }
        }
        if entries.len() > 1 {
            contests.insert(value.name.clone(), entries.into_iter().map(|(at, _)| at).collect());
        }
    }
    Ok(contests)
}

/// For each value the method whose layer outputs are clearly nearer than those of the method for all of them, else
/// that; and how often each method was. Unless they are to be `tried`, that for all of them.
fn nearest_layers(
    judge: &mut Judge<'_, '_>,
    trials: &[Trial],
    whole: usize,
    tried: bool,
) -> Result<(Trial, BTreeMap<String, usize>), QuantizeError> {
    let fine = fine(trials, whole);
    let contests = if tried { contests(judge.model, judge.plan, &fine)? } else { BTreeMap::new() };
    let ranges_of = |(name, entries): (&String, &Vec<usize>)| {
        (name.clone(), entries.iter().map(|at| fine[*at].learnt.values[name]).collect())
    };
    let errors = if contests.is_empty() {
        BTreeMap::new()
    } else {
        judge.progress.total = Some(judge.progress.done + judge.kept.len().min(FOR_LAYERS));
        judge.layer_errors(&contests.iter().map(ranges_of).collect())?
    };
    let (mut learnt, mut ranges) = (fine[0].learnt.clone(), fine[0].ranges.clone());
    let mut best_for = BTreeMap::new();
    let mut chosen = BTreeMap::new();
    for name in fine[0].learnt.values.keys() {
        let won = errors.get(name).map_or(0, |errors| contests[name][safest(errors)]);
        let trial = fine[won];
        learnt.values.insert(name.clone(), trial.learnt.values[name]);
        ranges.values.insert(name.clone(), trial.ranges.values[name]);
        *best_for.entry(trial.method.clone()).or_insert(0) += 1;
        chosen.insert(name.clone(), trial.method.clone());
    }
    let method = Method::Auto.name();
    for ranges in [&mut learnt, &mut ranges] {
        ranges.method.clone_from(&method);
        ranges.chosen.clone_from(&chosen);
    }
    let same_as = trials.iter().position(|trial| trial.learnt.values == learnt.values);
    Ok((Trial { method, clips: Clipping::Rare, learnt, ranges, same_as }, best_for))
}

/// The candidate with the smallest error, of those that gain enough over the first and cost no sample much more
/// than it does: what is clipped away on most samples for nothing may be all that matters on another.
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

impl fmt::Display for MethodComparison {
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
        if let Some(row) = self.methods.iter().find(|row| row.method == self.best)
            && self.methods.iter().any(|other| other.sqnr_db > row.sqnr_db)
        {
            writeln!(
                f,
                "{} is taken: what looks nearer is not so in every output, or may be so by chance",
                self.best
            )?;
        }
        writeln!(
            f,
            "{} samples, {} of them held back; judged by {} ({})",
            self.samples, self.held_back, self.judged, self.engine
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIPS: [Clipping; 3] = [Clipping::Nothing, Clipping::Rare, Clipping::Rare];

    fn score(errors: &[f32]) -> Score {
        Score::with_errors(errors)
    }

    /// The method that is taken of those with such errors on eight samples.
    fn taken(errors: [[f32; 8]; 3]) -> usize {
        best(&CLIPS, &errors.map(|errors| Some(Rc::new(score(&errors)))))
    }

    #[test]
    fn the_full_range_or_the_last_is_taken_unless_another_is_surely_nearer() {
        let torn = [0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.34];
        assert_eq!(taken([[0.125; 8], torn, torn]), 2);
        assert_eq!(taken([[0.125; 8], [0.1; 8], [0.06; 8]]), 2);
        assert_eq!(taken([[0.01; 8], [0.1; 8], [0.06; 8]]), 0);
        // Either of the two by a little; another not by a little.
        let [a, b] =
            [[0.03, 0.08, 0.03, 0.08], [0.07, 0.04, 0.07, 0.04]].map(|it| [it, it].concat());
        let [a, b]: [[f32; 8]; 2] = [a, b].map(|it| it.try_into().unwrap());
        assert_eq!((taken([a, [0.1; 8], b]), taken([b, [0.1; 8], a])), (2, 0));
        assert_eq!(taken([a, b, [0.1; 8]]), 0);
        assert_eq!(taken([[0.125; 8], [f32::NAN; 8], [0.06; 8]]), 2);
        let as_near = [0.03, 0.08, 0.03, 0.08, 0.03, 0.08, 0.03, 0.06];
        assert_eq!(taken([[0.125; 8], as_near, [0.06; 8]]), 2, "by chance");
        assert_eq!(taken([[0.125; 8], [0.05; 8], [0.06; 8]]), 1);
    }

    #[test]
    fn a_choice_for_each_value_is_taken_where_it_is_clearly_nearer() {
        let torn = score(&[0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.34]);
        let (near, far) = (score(&[0.03; 8]), score(&[0.06; 8]));
        assert!(is_taken(Some(&near), Some(&far)));
        assert!(!is_taken(Some(&far), Some(&near)) && !is_taken(Some(&far), Some(&far)));
        assert!(!is_taken(Some(&torn), Some(&far)));
    }

    #[test]
    fn of_one_sample_nothing_is_clipped() {
        let of = |error| Some(Rc::new(score(&[error])));
        assert_eq!(best(&CLIPS, &[0.1, 0.05, 0.01].map(of)), 0);
    }

    #[test]
    fn without_outputs_it_is_what_is_best_layer_by_layer() {
        assert_eq!(best(&CLIPS, &[None, None, None]), 0);
        assert!(is_taken(None, None));
    }
}
