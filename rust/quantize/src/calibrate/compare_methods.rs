//! Compares all range methods after one pass over the samples.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::rc::Rc;

use quantize_rs_math::range::{self, Clipping, RangeFinder};
use quantize_rs_math::{Range, params};
use quantize_rs_onnx::Model;
use serde::Serialize;

use super::collect::Collected;
use super::engine::Engine;
use super::evaluate::{Evaluator, LAYER_SAMPLES, LayerError};
use super::hidden_noise::hidden_noise;
use super::probe_matmuls::products;
use super::run::{Control, Progress};
use super::score::Score;
use crate::encode::WeightCache;
use crate::graph::Graph;
use crate::plan::Source;
use crate::{Method, Plan, QuantizeError, Ranges};

/// The results of each range method on the same samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodComparison {
    /// One row for each method, and one for `auto`, which takes the best method for each value
    /// whatever the number of samples; [`Method::Auto`] does so from 512 samples on.
    pub methods: Vec<MethodRow>,
    /// The method with the most accurate quantized model, as far as the samples can tell.
    pub best: String,
    /// The number of samples.
    pub samples: usize,
    /// The number of samples held back: no range was computed from them.
    pub held_back: usize,
    /// The number of evaluation samples: those held back, up to a limit, and others if they are
    /// few.
    pub evaluated: usize,
    /// The engine that ran them.
    pub engine: String,
    /// The ranges of each method, from all samples.
    #[serde(skip)]
    pub ranges: Vec<Ranges>,
}

/// The result of one range method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodRow {
    /// The method.
    pub method: String,
    /// SQNR of the outputs of the quantized model on the evaluation samples, in decibels, the mean
    /// over the outputs; `None` for a model without float32 outputs.
    pub sqnr_db: Option<f64>,
    /// The number of values for which the choice for each value takes this method.
    pub best_for: usize,
    /// An earlier method with the same ranges.
    pub same_as: Option<String>,
}

/// A method under evaluation.
struct Trial {
    method: String,
    clips: Clipping,
    /// Its ranges without the samples held back.
    learnt: Ranges,
    /// Its ranges from all samples.
    ranges: Ranges,
    same_as: Option<usize>,
}

/// What is compared.
#[derive(Clone, Copy)]
pub(super) struct ComparisonScope {
    /// Every method, also those that clip most samples and those that turn out not to be the best.
    pub(super) all: bool,
    /// Also another method for single inputs of `MatMul` and Gemm.
    pub(super) single: bool,
}

/// Compares the methods, whose ranges are those of `learnt` without the samples held back, and
/// those of `all` samples.
///
/// The ranges of the comparison have the order of its rows, with `auto` last.
pub(super) fn compare(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    (collected, [learnt, all]): (&Collected, [&Ranges; 2]),
    control: &mut Control<'_>,
    extent: ComparisonScope,
) -> Result<MethodComparison, QuantizeError> {
    let begun = Progress::of(collected.samples, None);
    let mut trials = trials(plan, [learnt, all], (control, begun), extent)?;
    let distinct = trials.iter().filter(|trial| trial.same_as.is_none()).count();
    // The runs for single values are added below.
    let kept = collected.kept.len();
    let total = collected.samples + distinct * kept;
    let mut evaluator = Evaluator {
        model,
        plan,
        engine,
        control,
        kept: &collected.kept,
        progress: Progress::of(collected.samples, Some(total)),
        known: WeightCache::default(),
    };
    let clips: Vec<Clipping> = trials.iter().map(|trial| trial.clips).collect();
    let twins: Vec<Option<usize>> = trials.iter().map(|trial| trial.same_as).collect();
    let hidden_noise = |learnt: &Ranges| hidden_noise(collected, all, learnt);
    let hidden: Vec<f64> = trials.iter().map(|trial| hidden_noise(&trial.learnt)).collect();
    let (whole, mut scores) = best(&clips, &twins, &hidden, |at, rival| {
        let rival = rival.filter(|_| !extent.all);
        let score = evaluator.score(&trials[at].learnt, &collected.reference, rival)?;
        Ok(score.map(Rc::new))
    })?;
    // A choice that is based on all samples could not be evaluated.
    let tried = extent.single && kept > LAYER_SAMPLES || scores[whole].is_none();
    let (auto, best_for) = best_layers(&mut evaluator, &trials, whole, tried)?;
    let runs = if auto.same_as.is_none() { kept } else { 0 };
    evaluator.progress.total = Some(evaluator.progress.done + runs);
    let rival = scores[whole].as_deref().filter(|_| !extent.all);
    let score = match auto.same_as {
        Some(twin) => scores[twin].clone(),
        None => evaluator.score(&auto.learnt, &collected.reference, rival)?.map(Rc::new),
    };
    let margin = hidden_noise(&auto.learnt) - hidden[whole];
    let taken = is_taken(score.as_deref(), scores[whole].as_deref(), margin);
    let best = if taken { trials.len() } else { whole };
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
        samples: collected.samples,
        held_back: collected.held_back,
        evaluated: collected.kept.len(),
        engine: collected.engine().to_owned(),
        ranges: trials.into_iter().map(|trial| trial.ranges).collect(),
    })
}

/// The scores of all methods; those with the same ranges share one. A method that was found not to
/// be the best before all samples were run has none.
type Scores = Vec<Option<Rc<Score>>>;

/// The method to take for all values, with the scores. The full range cannot be far wrong on other
/// samples, and neither can the last of all methods, which also minimizes the error of values that
/// were not seen. Of these two the more accurate one is taken, and any other method only if it is
/// significantly better: these are scored with the best one so far as their rival. What the
/// evaluation samples hide of the noise of a method, more than of that of the other, is taken off.
///
/// Without an output to evaluate, the full range is taken.
fn best(
    clips: &[Clipping],
    twins: &[Option<usize>],
    hidden: &[f64],
    mut score: impl FnMut(usize, Option<&Score>) -> Result<Option<Rc<Score>>, QuantizeError>,
) -> Result<(usize, Scores), QuantizeError> {
    let last = clips.len() - 1;
    let full = clips.iter().position(|clips| *clips == Clipping::Nothing).unwrap_or(last);
    let own = |at: usize| twins[at].unwrap_or(at);
    let mut scores: BTreeMap<usize, Option<Rc<Score>>> = BTreeMap::new();
    for at in BTreeSet::from([own(full), own(last)]) {
        scores.insert(at, score(at, None)?);
    }
    let both = |scores: &BTreeMap<usize, Option<Rc<Score>>>, at: usize, best: usize| {
        scores[&own(at)].clone().zip(scores[&own(best)].clone())
    };
    let gains = |at: usize, best: usize, this: &Score, than: &Score| {
        this.decibels() - than.decibels() > (hidden[at] - hidden[best]).max(0.0)
    };
    // One sample does not show the values of others.
    let last_is_better = both(&scores, last, full)
        .is_some_and(|(this, whole)| whole.samples() > 1 && gains(last, full, &this, &whole));
    let mut best = if last_is_better { last } else { full };
    for at in 0..clips.len() {
        if !scores.contains_key(&own(at)) {
            let rival = scores[&own(best)].clone();
            scores.insert(own(at), score(own(at), rival.as_deref())?);
        }
        let better = both(&scores, at, best);
        if better.is_some_and(|(this, than)| {
            this.is_significantly_better(&than) && gains(at, best, &this, &than)
        }) {
            best = at;
        }
    }
    Ok((best, (0..clips.len()).map(|at| scores[&own(at)].clone()).collect()))
}

/// Whether a choice for each value replaces the method for all: if it is significantly better, by
/// more than `margin` decibels, or if there is no output to evaluate and the best layers decide.
fn is_taken(choice: Option<&Score>, whole: Option<&Score>, margin: f64) -> bool {
    let is_better = |it: &Score, whole: &Score| {
        it.chooses_significantly_better(whole) && it.decibels() - whole.decibels() > margin.max(0.0)
    };
    whole.is_none_or(|whole| choice.is_some_and(|it| is_better(it, whole)))
}

/// Every method with its ranges.
fn trials(
    plan: &Plan,
    [learnt, all]: [&Ranges; 2],
    (control, begun): (&mut Control<'_>, Progress),
    extent: ComparisonScope,
) -> Result<Vec<Trial>, QuantizeError> {
    let mut trials: Vec<Trial> = Vec::new();
    let asked = |clips| extent.all || clips != Clipping::MostSamples;
    let wide = if extent.all { BTreeSet::new() } else { wide_values(plan) };
    let with_headroom: Method = last_method().name().parse()?;
    for finder in range::ALL.iter().filter(|finder| asked(finder.clipping())) {
        control.go_on(begun)?;
        let method: Method = finder.name().parse()?;
        let using = |ranges: &Ranges| ranges.using_for(&method, &wide, &with_headroom);
        let (learnt, ranges) = (using(learnt)?, using(all)?);
        let same_as = trials.iter().position(|trial| trial.learnt.values == learnt.values);
        let (method, clips) = (method.name(), finder.clipping());
        trials.push(Trial { method, clips, learnt, ranges, same_as });
    }
    Ok(trials)
}

/// The last of all methods, which leaves room for values that no sample shows.
pub(super) fn last_method() -> &'static dyn RangeFinder {
    range::ALL[range::ALL.len() - 1]
}

/// The observed values that get 16 bits. Rounding them costs next to nothing, so that clipping is
/// nearly all of their error; and a few evaluation samples seldom show what new samples clip. They
/// get the last method without a comparison.
pub(super) fn wide_values(plan: &Plan) -> BTreeSet<String> {
    let wide = plan.quantized().filter(|(_, how)| how.spec.qtype.bits() == 16);
    let wide = wide.filter(|(_, how)| how.source == Source::Observed);
    wide.map(|(value, _)| value.name.clone()).collect()
}

/// The methods that are compared for single values, the method for all values first. Methods that
/// clip most samples are left out: they are compared for all values only, by the outputs of the
/// model.
fn fine(trials: &[Trial], whole: usize) -> Vec<&Trial> {
    let others = trials.iter().enumerate();
    let others = others.filter(|(at, trial)| *at != whole && trial.clips != Clipping::MostSamples);
    std::iter::once(&trials[whole]).chain(others.map(|(_, trial)| trial)).collect()
}

/// For each input of `MatMul` or Gemm whose ranges differ between methods: the methods that may be
/// worth their risk, as positions among those that are compared. The first is the method for all
/// values.
///
/// The inputs of convolutions all use one method: there the method that was best layer by layer on
/// some images made the outputs less accurate on others (a face detector lost 2 to 4 dB, a residual
/// network 0.2).
///
/// Rounding noise grows with the square of the scale: similar scales make similar noise. Of several
/// similar scales only the last is tried.
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
        let enough = MAX_TOTAL_ERROR_RATIO.sqrt();
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

/// For each value the method with clearly more accurate layer outputs than the method for all
/// values, else that method; and how many values each method got. Unless `tried`, all values get
/// the method for all.
fn best_layers(
    evaluator: &mut Evaluator<'_, '_>,
    trials: &[Trial],
    whole: usize,
    tried: bool,
) -> Result<(Trial, BTreeMap<String, usize>), QuantizeError> {
    let fine = fine(trials, whole);
    let contests =
        if tried { contests(evaluator.model, evaluator.plan, &fine)? } else { BTreeMap::new() };
    let ranges_of = |(name, entries): (&String, &Vec<usize>)| {
        (name.clone(), entries.iter().map(|at| fine[*at].learnt.values[name]).collect())
    };
    let errors = if contests.is_empty() {
        BTreeMap::new()
    } else {
        evaluator.progress.total =
            Some(evaluator.progress.done + evaluator.kept.len().min(LAYER_SAMPLES));
        evaluator.layer_errors(&contests.iter().map(ranges_of).collect())?
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

/// The candidate with the smallest error, of those that gain enough over the first and increase the
/// error of no sample by much: what is clipped without loss on most samples may be what matters on
/// another.
fn safest(errors: &[LayerError]) -> usize {
    let total = |at: usize| errors[at].iter().sum::<f64>();
    let safe = |at: &usize| {
        let bearable = errors[*at]
            .iter()
            .zip(&errors[0])
            .all(|(error, first)| *error <= first * MAX_SAMPLE_ERROR_RATIO);
        *at == 0 || bearable && total(*at) < total(0) * MAX_TOTAL_ERROR_RATIO
    };
    // Ties go to the first.
    let candidates = (0..errors.len()).rev().filter(safe);
    candidates.reduce(|best, at| if total(at) <= total(best) { at } else { best }).unwrap_or(0)
}

/// The maximum error of a sample, relative to that of the first candidate.
const MAX_SAMPLE_ERROR_RATIO: f64 = 1.25;

/// The maximum total error relative to the first candidate that is worth the risk.
const MAX_TOTAL_ERROR_RATIO: f64 = 0.8;

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
                "{} is taken: a higher SQNR is not significant in every output, or not likely on \
                 all samples",
                self.best
            )?;
        }
        writeln!(
            f,
            "{} samples, {} of them held back; evaluated on {} ({})",
            self.samples, self.held_back, self.evaluated, self.engine
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

    /// The method that is taken, given the score of each.
    fn best_of(scores: [Option<Score>; 3]) -> usize {
        let scores = scores.map(|score| score.map(Rc::new));
        best(&CLIPS, &[None; 3], &[0.0; 3], |at, _| Ok(scores[at].clone())).unwrap().0
    }

    /// The method that is taken, given the errors of each on eight samples.
    fn taken(errors: [[f32; 8]; 3]) -> usize {
        best_of(errors.map(|errors| Some(score(&errors))))
    }

    #[test]
    fn the_full_range_or_the_last_is_taken_unless_another_is_significantly_better() {
        let torn = [0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.34];
        assert_eq!(taken([[0.125; 8], torn, torn]), 2);
        assert_eq!(taken([[0.125; 8], [0.1; 8], [0.06; 8]]), 2);
        assert_eq!(taken([[0.01; 8], [0.1; 8], [0.06; 8]]), 0);
        // One of the two for a small difference; another method not for a small difference.
        let [a, b] =
            [[0.03, 0.08, 0.03, 0.08], [0.07, 0.04, 0.07, 0.04]].map(|it| [it, it].concat());
        let [a, b]: [[f32; 8]; 2] = [a, b].map(|it| it.try_into().unwrap());
        assert_eq!((taken([a, [0.1; 8], b]), taken([b, [0.1; 8], a])), (2, 0));
        assert_eq!(taken([a, b, [0.1; 8]]), 0);
        assert_eq!(taken([[0.125; 8], [f32::NAN; 8], [0.06; 8]]), 2);
        let as_good = [0.03, 0.08, 0.03, 0.08, 0.03, 0.08, 0.03, 0.06];
        assert_eq!(taken([[0.125; 8], as_good, [0.06; 8]]), 2, "by chance");
        assert_eq!(taken([[0.125; 8], [0.05; 8], [0.06; 8]]), 1);
    }

    #[test]
    fn a_choice_for_each_value_is_taken_if_it_is_significantly_better() {
        let torn = score(&[0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.34]);
        let (good, poor) = (score(&[0.03; 8]), score(&[0.06; 8]));
        assert!(is_taken(Some(&good), Some(&poor), 0.0));
        assert!(!is_taken(Some(&good), Some(&poor), 7.0), "6 dB better");
        assert!(!is_taken(Some(&poor), Some(&good), 0.0));
        assert!(!is_taken(Some(&poor), Some(&poor), 0.0));
        assert!(!is_taken(Some(&torn), Some(&poor), 0.0));
    }

    #[test]
    fn noise_that_the_evaluation_samples_hide_is_taken_off() {
        let taken = |hidden: [f64; 3]| {
            let scores = [0.125, 0.02, 0.06].map(|error| Some(Rc::new(score(&[error; 8]))));
            best(&CLIPS, &[None; 3], &hidden, |at, _| Ok(scores[at].clone())).unwrap().0
        };
        assert_eq!(taken([0.0; 3]), 1);
        assert_eq!(taken([0.0, 10.0, 0.0]), 2, "9.5 dB better");
        assert_eq!(taken([2.0, 10.0, 2.0]), 1);
        assert_eq!(taken([0.0, 17.0, 8.0]), 0);
    }

    #[test]
    fn one_sample_clips_nothing() {
        assert_eq!(best_of([0.1, 0.05, 0.01].map(|error| Some(score(&[error])))), 0);
    }

    #[test]
    fn without_outputs_the_best_layers_decide() {
        assert_eq!(best_of([None, None, None]), 0);
        assert!(is_taken(None, None, 0.0));
    }

    #[test]
    fn methods_are_scored_once_and_compared_with_the_best_so_far() {
        let errors = [0.125, 0.05, 0.1, 0.06];
        let mut asked = Vec::new();
        let clips = [Clipping::Nothing, Clipping::Rare, Clipping::Rare, Clipping::Rare];
        let twins = [None, None, Some(1), None];
        let found = best(&clips, &twins, &[0.0; 4], |at, rival| {
            asked.push((at, rival.map(Score::decibels)));
            Ok((at != 1).then(|| Rc::new(score(&[errors[at]; 8]))))
        });
        let (best, scores) = found.unwrap();
        let of_last = score(&[0.06; 8]).decibels();
        assert_eq!(asked, [(0, None), (3, None), (1, Some(of_last))]);
        assert_eq!(best, 3);
        assert_eq!(
            scores.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, false, false, true]
        );
    }

    #[test]
    fn a_choice_without_a_score_is_not_taken() {
        assert!(!is_taken(None, Some(&score(&[0.1; 8])), 0.0));
    }
}
