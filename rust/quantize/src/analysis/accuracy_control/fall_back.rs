//! Reverts as few layers to float as the accuracy criteria need.

use super::candidate::{CandidateEvaluator, EvaluatedCandidate};
use super::{AccuracyControl, advice, missed};
use crate::analysis::SliceSamples;
use crate::report::{Candidate, RevertedLayer, worst_sqnr};
use crate::{
    Config, DataType, LayerRow, Plan, PreprocessedModel, QuantizeError, SensitivityOptions,
};
use crate::{Decision, sensitivity};

/// The maximum number of samples that layers are ranked on: more cost time and hardly change the
/// order.
const MAX_RANKING_SAMPLES: usize = 32;

/// The maximum number of candidates that are tried with fewer float layers than the first that
/// meets the criteria.
const MAX_RETURNS: usize = 12;

/// A candidate that meets the criteria, with its float layers.
struct Holding {
    layers: Vec<RevertedLayer>,
    candidate: EvaluatedCandidate,
}

/// The model with the fewest float layers that meets the criteria, these layers, and the failed
/// candidates.
pub(super) fn to_float(
    evaluator: &mut CandidateEvaluator<'_>,
    config: &Config,
    first: EvaluatedCandidate,
    options: &AccuracyControl,
) -> Result<(EvaluatedCandidate, Vec<RevertedLayer>, Vec<Candidate>), QuantizeError> {
    let ranked = ranked(evaluator, config)?;
    // With all layers float nothing would be quantized.
    let most = ranked.len().saturating_sub(1);
    // Models are large: of the failed ones only the last is kept, for the error message.
    let (mut failed, mut last) = (Vec::new(), first);
    let mut holding: Option<Holding> = None;
    let mut below = 0;
    loop {
        // Doubles the number until the criteria are met, then bisects.
        let count = match holding.as_ref().map(|found| found.layers.len()) {
            Some(above) if above - below <= 1 => break,
            Some(above) => below + (above - below) / 2,
            None if below == most => break,
            None => (below * 2).clamp(1, most),
        };
        let tried = evaluator.evaluate(config, &ranked[..count])?;
        if tried.misses.is_empty() {
            holding = Some(Holding { layers: ranked[..count].to_vec(), candidate: tried });
        } else {
            below = count;
            failed.push(std::mem::replace(&mut last, tried).attempt);
        }
    }
    let Some(mut found) = holding else {
        let why = format!(
            "with {most} of {} layers left float; with all of them nothing would be quantized: \
             relax the criterion, or {}",
            ranked.len(),
            advice(config)
        );
        return Err(missed(&last, options, &why));
    };
    failed.push(last.attempt);
    return_layers(evaluator, config, &mut found, &mut failed)?;
    Ok((found.candidate, found.layers, failed))
}

/// Quantizes layers again as long as the criteria are met: what each layer gains was measured with
/// no other layer quantized, and others may have made up for it.
fn return_layers(
    evaluator: &mut CandidateEvaluator<'_>,
    config: &Config,
    found: &mut Holding,
    failed: &mut Vec<Candidate>,
) -> Result<(), QuantizeError> {
    // Without the last one the criteria are missed, so that it stays.
    let mut end = found.layers.len() - 1;
    let mut length = end.div_ceil(2);
    for _ in 0..MAX_RETURNS {
        if end == 0 {
            break;
        }
        let begin = end.saturating_sub(length);
        let layers = [&found.layers[..begin], &found.layers[end..]].concat();
        let tried = evaluator.evaluate(config, &layers)?;
        if tried.misses.is_empty() {
            *found = Holding { layers, candidate: tried };
            end = begin;
        } else {
            failed.push(tried.attempt);
            // One layer of several may be needed, and the others not.
            if length == 1 {
                end = begin;
            }
            length = (length / 2).max(1);
        }
    }
    Ok(())
}

/// The layers of the plan, those first that are to be reverted first: they have the most noise for
/// what they cost in float.
///
/// The cost of a layer is the bytes that it takes more in float, plus the same number for each
/// layer: the mean of all layers. It stands for the time that a float operator takes more, and
/// makes an operator without weight, which costs no bytes, come first only if it is worth it.
fn ranked(
    evaluator: &mut CandidateEvaluator<'_>,
    config: &Config,
) -> Result<Vec<RevertedLayer>, QuantizeError> {
    let prepared = PreprocessedModel::of(evaluator.model, config.clone())?;
    let plan = prepared.plan();
    let samples = evaluator.samples;
    let some = &samples[..samples.len().min(MAX_RANKING_SAMPLES)];
    let (engine, ranges, given) =
        (evaluator.engine, evaluator.ranges, &mut SliceSamples(some.iter()));
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
    Ok(layers.into_iter().map(reverted).collect())
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
