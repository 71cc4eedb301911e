//! Reverts as few layers to float, or to activations of 16 bits, as the accuracy criteria need.

use std::ops::Range;

use quantize_rs_math::QType;

use super::candidate::{CandidateEvaluator, EvaluatedCandidate, Reverted, Wide};
use super::{AccuracyControl, advice, missed};
use crate::analysis::{SliceSamples, activations};
use crate::graph::Graph;
use crate::options::Placement;
use crate::report::{Candidate, RevertedLayer, worst_sqnr};
use crate::{
    AccuracyCriteria, Config, DataType, LayerRow, Plan, PreprocessedModel, QuantizeError,
    SensitivityOptions,
};
use crate::{Decision, sensitivity};

/// The maximum number of samples that layers are ranked on: more cost time and hardly change the
/// order.
const MAX_RANKING_SAMPLES: usize = 32;

/// The maximum number of candidates that are tried with fewer float layers than the first that
/// meets the criteria.
const MAX_RETURNS: usize = 12;

/// The maximum number of layers that are tried alone.
const MAX_ALONE: usize = 3;

/// A candidate that meets the criteria, with the layers that are not quantized as planned.
struct Holding {
    layers: Reverted,
    candidate: EvaluatedCandidate,
}

/// What becomes of the layers of a candidate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Becomes {
    Float,
    Wide,
}

/// The search for layers to revert.
struct Search<'s, 'e> {
    evaluator: &'s mut CandidateEvaluator<'e>,
    config: &'s Config,
    /// The layers, those first that are to be reverted first.
    ranked: Vec<RevertedLayer>,
    /// How activations get 16 bits, where that is of use to the target.
    wide: Option<Wide>,
    criteria: AccuracyCriteria,
    /// The candidates that missed the criteria.
    failed: Vec<Candidate>,
    /// The one of them that came closest. Models are large: of the failed ones only this is kept.
    closest: EvaluatedCandidate,
}

/// The model with the fewest float layers that meets the criteria, the layers that are not
/// quantized as planned, and the failed candidates.
pub(super) fn to_wider(
    evaluator: &mut CandidateEvaluator<'_>,
    config: &Config,
    first: EvaluatedCandidate,
    options: &AccuracyControl,
) -> Result<(EvaluatedCandidate, Reverted, Vec<Candidate>), QuantizeError> {
    let (ranked, wide) = ranked(evaluator, config)?;
    let mut search = Search {
        evaluator,
        config,
        ranked,
        wide,
        criteria: options.criteria,
        failed: vec![first.attempt.clone()],
        closest: first,
    };
    // Where they are of use, a float operator is what the target is slow at.
    if search.wide.is_some()
        && let Some(mut found) = search.fewest(Becomes::Wide, search.ranked.len())?
    {
        search.return_layers(Becomes::Wide, &mut found)?;
        return Ok((found.candidate, found.layers, search.failed));
    }
    // With all layers float nothing would be quantized.
    let most = search.ranked.len().saturating_sub(1);
    let found = match search.fewest(Becomes::Float, most)? {
        None => search.one_alone()?,
        found => found,
    };
    let Some(mut found) = found else {
        let why = search.why_missed();
        return Err(missed(&search.closest, options, &why));
    };
    search.return_layers(Becomes::Float, &mut found)?;
    search.widen(&mut found)?;
    Ok((found.candidate, found.layers, search.failed))
}

impl Search<'_, '_> {
    /// Measures a candidate. `None` if the engine cannot run values of 16 bits: then no further
    /// candidate has them.
    fn evaluate(&mut self, layers: &Reverted) -> Result<Option<EvaluatedCandidate>, QuantizeError> {
        let found = self.evaluator.evaluate(self.config, self.wide.as_ref(), layers);
        match found {
            Err(error) if !layers.wide.is_empty() && error.is_of_engine() => {
                self.wide = None;
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// Takes note of a candidate that missed the criteria.
    fn reject(&mut self, tried: EvaluatedCandidate) {
        self.failed.push(tried.attempt.clone());
        if tried.attempt.is_closer(&self.closest.attempt, &self.criteria) {
            self.closest = tried;
        }
    }

    /// What the closest candidate is, and what helps.
    fn why_missed(&self) -> String {
        let Candidate { float_layers, wide_layers, .. } = &self.closest.attempt;
        let all = self.ranked.len();
        let which = match (float_layers.len(), wide_layers.len()) {
            (0, 0) => "no candidate with float layers is closer".to_owned(),
            (0, wide) => format!("even with activations of 16 bits in {wide} of {all} layers"),
            (float, _) if all - float == 1 => {
                format!("even with one of {all} layers quantized and all others float")
            }
            (float, _) => {
                format!("with {float} of {all} layers float, and no candidate is closer")
            }
        };
        format!("{which}: relax the criterion, or {}", advice(self.config))
    }

    /// The smallest number of the first layers, at most `most`, with which the criteria are met.
    fn fewest(&mut self, becomes: Becomes, most: usize) -> Result<Option<Holding>, QuantizeError> {
        let mut holding: Option<(usize, Holding)> = None;
        let mut below = 0;
        loop {
            // Doubles the number until the criteria are met, then bisects.
            let count = match holding.as_ref().map(|(count, _)| *count) {
                Some(above) if above - below <= 1 => break,
                Some(above) => below + (above - below) / 2,
                None if below == most => break,
                None => (below * 2).clamp(1, most),
            };
            let layers = becomes.of(self.ranked[..count].to_vec());
            let Some(tried) = self.evaluate(&layers)? else { break };
            if tried.misses.is_empty() {
                holding = Some((count, Holding { layers, candidate: tried }));
            } else {
                below = count;
                self.reject(tried);
            }
        }
        Ok(holding.map(|(_, found)| found))
    }

    /// Quantizes one layer alone, the most accurate ones first. The order in which layers are
    /// reverted also counts what they cost in float, so that its last layer need not be the most
    /// accurate one.
    fn one_alone(&mut self) -> Result<Option<Holding>, QuantizeError> {
        let accuracy = |layer: &RevertedLayer| worst_sqnr(&layer.outputs).unwrap_or(f64::NAN);
        let tried_before = self.ranked.len().saturating_sub(1);
        let mut order: Vec<usize> = (0..tried_before).collect();
        order.sort_by(|one, other| {
            accuracy(&self.ranked[*other]).total_cmp(&accuracy(&self.ranked[*one]))
        });
        for kept in order.into_iter().take(MAX_ALONE) {
            let mut others = self.ranked.clone();
            others.remove(kept);
            let layers = Becomes::Float.of(others);
            let Some(tried) = self.evaluate(&layers)? else { break };
            if tried.misses.is_empty() {
                return Ok(Some(Holding { layers, candidate: tried }));
            }
            self.reject(tried);
        }
        Ok(None)
    }

    /// Quantizes layers again as long as the criteria are met: what each layer gains was measured
    /// with no other layer quantized, and others may have made up for it.
    fn return_layers(
        &mut self,
        becomes: Becomes,
        found: &mut Holding,
    ) -> Result<(), QuantizeError> {
        let all = match becomes {
            Becomes::Float => found.layers.float.len(),
            Becomes::Wide => found.layers.wide.len(),
        };
        // Without the last one the criteria are missed, so that it stays.
        let end = all.saturating_sub(1);
        self.replace(found, end, end.div_ceil(2), |layers, piece| {
            let own = match becomes {
                Becomes::Float => &mut layers.float,
                Becomes::Wide => &mut layers.wide,
            };
            own.drain(piece);
        })
    }

    /// Gives layers activations of 16 bits instead of leaving them in float, as long as the
    /// criteria are met.
    fn widen(&mut self, found: &mut Holding) -> Result<(), QuantizeError> {
        let Some(wide) = &self.wide else { return Ok(()) };
        let has_values =
            |layer: &RevertedLayer| wide.values.get(&layer.name).is_some_and(|all| !all.is_empty());
        if !found.layers.float.iter().any(has_values) {
            return Ok(());
        }
        let all = found.layers.float.len();
        self.replace(found, all, all, |layers, piece| {
            let mut more: Vec<RevertedLayer> = layers.float.drain(piece).collect();
            more.append(&mut layers.wide);
            layers.wide = more;
        })
    }

    /// Changes pieces of the reverted layers, the last first, and keeps what meets the criteria.
    fn replace(
        &mut self,
        found: &mut Holding,
        mut end: usize,
        mut length: usize,
        change: impl Fn(&mut Reverted, Range<usize>),
    ) -> Result<(), QuantizeError> {
        for _ in 0..MAX_RETURNS {
            if end == 0 {
                break;
            }
            let begin = end.saturating_sub(length);
            let mut layers = found.layers.clone();
            change(&mut layers, begin..end);
            let Some(tried) = self.evaluate(&layers)? else { break };
            if tried.misses.is_empty() {
                *found = Holding { layers, candidate: tried };
                end = begin;
            } else {
                self.failed.push(tried.attempt);
                // One layer of several may be needed, and the others not.
                if length == 1 {
                    end = begin;
                }
                length = (length / 2).max(1);
            }
        }
        Ok(())
    }
}

impl Becomes {
    fn of(self, layers: Vec<RevertedLayer>) -> Reverted {
        match self {
            Becomes::Float => Reverted { float: layers, wide: Vec::new() },
            Becomes::Wide => Reverted { float: Vec::new(), wide: layers },
        }
    }
}

/// The layers of the plan, those first that are to be reverted first: they have the most noise for
/// what they cost in float; and how their activations get 16 bits.
///
/// The cost of a layer is the bytes that it takes more in float, plus the same number for each
/// layer: the mean of all layers. It stands for the time that a float operator takes more, and
/// makes an operator without weight, which costs no bytes, come first only if it is worth it.
fn ranked(
    evaluator: &mut CandidateEvaluator<'_>,
    config: &Config,
) -> Result<(Vec<RevertedLayer>, Option<Wide>), QuantizeError> {
    let prepared = PreprocessedModel::of(evaluator.model, config.clone())?;
    let plan = prepared.plan();
    let samples = evaluator.samples;
    let some = &samples[..samples.len().min(MAX_RANKING_SAMPLES)];
    let (engine, ranges, given) =
        (evaluator.engine, evaluator.ranges.as_deref(), &mut SliceSamples(some.iter()));
    let options = SensitivityOptions::default();
    let found = evaluator.stages.next(|control| {
        sensitivity(&prepared.model, &plan, ranges, engine, given, &options, control)
    })?;
    let bytes: Vec<f64> = found.layers.iter().map(|row| saved(&plan, row)).collect();
    #[expect(clippy::cast_precision_loss, reason = "a number of layers")]
    let mean = bytes.iter().sum::<f64>() / bytes.len().max(1) as f64;
    let noise = |row: &LayerRow| match worst_sqnr(&row.outputs) {
        Some(db) if !db.is_nan() => 10f64.powf(-db / 10.0),
        _ => f64::INFINITY,
    };
    let costs = bytes.into_iter().map(|saved| (saved + mean).max(1.0));
    let mut layers: Vec<(f64, LayerRow)> =
        found.layers.into_iter().zip(costs).map(|(row, cost)| (noise(&row) / cost, row)).collect();
    layers.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let reverted =
        |(_, row): (f64, LayerRow)| RevertedLayer { name: row.name, outputs: row.outputs };
    let wide = wide_type(config)
        .map(|qtype| {
            let values = activations(&Graph::of(&prepared.model)?, &plan)?;
            Ok::<_, QuantizeError>(Wide { qtype, values })
        })
        .transpose()?;
    Ok((layers.into_iter().map(reverted).collect(), wide))
}

/// The type of 16 bits for activations, if the target computes with them in integers and has one
/// with the sign that they have. ONNX Runtime on a CPU does not: float layers are faster there.
fn wide_type(config: &Config) -> Option<QType> {
    if config.profile().placement != Placement::AllOps {
        return None;
    }
    let wide = match config.activations? {
        QType::UInt8 => QType::UInt16,
        QType::Int8 => QType::Int16,
        _ => return None,
    };
    config.profile().activations.contains(&wide).then_some(wide)
}

/// The bytes that quantizing the weight of a layer saves.
#[expect(clippy::cast_precision_loss, reason = "a number of bytes that layers are compared by")]
fn saved(plan: &Plan, row: &LayerRow) -> f64 {
    let found = plan.value(&row.name);
    match found.map(|value| (value.dtype, &value.decision)) {
        Some((dtype, Decision::Quantize(how))) => {
            let float = dtype.map_or(32, DataType::bits);
            let less = (float as f64 - f64::from(how.stored.bits())).max(0.0);
            row.elements as f64 * less / 8.0
        }
        _ => 0.0,
    }
}
