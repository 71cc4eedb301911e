//! Chooses which activations get 16 bits, so that a model with quantized activations meets an SQNR
//! or a metric.

use std::borrow::Cow;

use quantize_rs_math::QType;
use quantize_rs_onnx::Model;

use super::{Goal, Measured, MixedPrecision, result::ActivationWidth};
use crate::analysis::SliceSamples;
use crate::analysis::compare::compare_outputs;
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample};
use crate::calibrate::{StagedProgress, calibrate};
use crate::error::QuantizeErrorKind;
use crate::report::worst_sqnr;
use crate::{
    CompareOptions, Config, Method, MetricHandle, PreprocessedModel, QuantizeError, Ranges,
};

/// The most samples that activations are ranked on: more cost time and hardly change the order.
const MAX_RANKING_SAMPLES: usize = 32;

/// With this many samples, activations are ranked on samples that their ranges were not found with.
const MIN_DIVIDED_SAMPLES: usize = 8;

/// Quantizes a model with 16 bits for some activations, and measures it.
pub(super) struct ActivationSolver<'s, 'a> {
    pub(super) model: &'s Model,
    pub(super) config: &'s Config,
    pub(super) engine: &'s dyn Engine,
    pub(super) samples: &'s [Sample],
    pub(super) stages: &'s mut StagedProgress<'a>,
    pub(super) metric: Option<&'s MetricHandle>,
}

/// An activation, and the SQNR of the model if it alone has 16 bits.
struct Ranked {
    name: String,
    sqnr_db: Option<f64>,
}

impl ActivationSolver<'_, '_> {
    /// As few activations of 16 bits as the goal needs; those that gain most come first.
    ///
    /// # Errors
    /// The goal is missed with 16 bits for all activations.
    pub(super) fn solve(mut self, goal: &Goal) -> Result<MixedPrecision, QuantizeError> {
        let wide = wide_type(self.config)?;
        let prepared = PreprocessedModel::of(self.model, self.config.clone())?;
        let observed = prepared.plan().observed();
        let ranges = self.calibrated(&prepared, self.samples)?;
        let enough = |found: &Measured| match goal {
            Goal::Sqnr(least) => found.sqnr_db().is_none_or(|db| db >= *least),
            Goal::Drop(most) => found.drop().is_some_and(|drop| drop <= *most),
            Goal::Bytes(_) => true,
        };
        let of = |count: usize, ranked: &[Ranked]| -> Vec<String> {
            ranked[..count].iter().map(|value| value.name.clone()).collect()
        };
        let mut made = self.made(&[], wide, &ranges)?;
        let mut found = self.measured(&made, self.samples)?;
        let mut ranked = Vec::new();
        let mut count = 0;
        if !enough(&found) {
            let mut best = Best::of(&found);
            ranked = self.ranked(&observed, wide, &prepared, &ranges)?;
            // Doubles the number until the goal is met, then bisects: an engine may compute some
            // operators less accurately between values of 16 bits.
            let (mut below, mut above) = (0, None);
            count = loop {
                let tried = match above {
                    Some(above) if above - below <= 1 => break above,
                    Some(above) => usize::midpoint(below, above),
                    None if below == ranked.len() => return Err(best.missed(goal, ranked.len())),
                    None => (2 * below).clamp(1, ranked.len()),
                };
                let made = self.made(&of(tried, &ranked), wide, &ranges)?;
                let found = self.measured(&made, self.samples)?;
                if enough(&found) {
                    above = Some(tried);
                } else {
                    below = tried;
                    best.see(tried, &found, goal);
                }
            };
            // Weights are rounded for the activations that they meet.
            loop {
                let values = of(count, &ranked);
                let prepared = PreprocessedModel::of(self.model, self.config_with(&values, wide))?;
                let ranges = self.calibrated(&prepared, self.samples)?;
                made = prepared.plan().apply_cached(&prepared.model, Some(&ranges), None)?;
                found = self.measured(&made, self.samples)?;
                if enough(&found) {
                    break;
                }
                best.see(count, &found, goal);
                if count == ranked.len() {
                    return Err(best.missed(goal, ranked.len()));
                }
                count += 1;
            }
        }
        let row = |(at, value): (usize, Ranked)| ActivationWidth {
            qtype: if at < count { wide } else { self.config.activations.unwrap_or(wide) },
            why: why(at < count, goal),
            name: value.name,
            sqnr_db: value.sqnr_db,
        };
        let unranked = || observed.iter().map(|name| Ranked { name: name.clone(), sqnr_db: None });
        let ranked = if ranked.is_empty() { unranked().collect() } else { ranked };
        Ok(MixedPrecision {
            layers: Vec::new(),
            activations: ranked.into_iter().enumerate().map(row).collect(),
            bytes_before: made.report().bytes_before,
            bytes_after: made.report().bytes_after,
            outputs: found.outputs,
            accuracy: found.accuracy,
            samples: self.samples.len(),
            engine: found.engine,
            notes: Vec::new(),
        })
    }

    /// The activations, those first with which alone in 16 bits the outputs are the most accurate.
    ///
    /// The samples that ranges were found with do not show what 8 bits clip of others. So half of
    /// the samples give ranges, and the other half evaluates them.
    fn ranked(
        &mut self,
        observed: &[String],
        wide: QType,
        prepared: &PreprocessedModel,
        ranges: &Ranges,
    ) -> Result<Vec<Ranked>, QuantizeError> {
        let all = self.samples;
        let (seen, others) = all.split_at(all.len() / 2);
        let (ranges, some) = if all.len() < MIN_DIVIDED_SAMPLES {
            (Cow::Borrowed(ranges), all)
        } else {
            (Cow::Owned(self.calibrated(prepared, seen)?), others)
        };
        let some = &some[..some.len().min(MAX_RANKING_SAMPLES)];
        let mut ranked = Vec::with_capacity(observed.len());
        for name in observed {
            let made = self.made(std::slice::from_ref(name), wide, &ranges)?;
            let found = self.measured(&made, some)?;
            ranked.push(Ranked { name: name.clone(), sqnr_db: worst_sqnr(&found.outputs) });
        }
        // Outputs that are all 0 have no SQNR.
        let gain = |value: &Ranked| value.sqnr_db.unwrap_or(f64::INFINITY);
        ranked.sort_by(|one, other| gain(other).total_cmp(&gain(one)));
        Ok(ranked)
    }

    /// The ranges of a plan, found with these samples.
    fn calibrated(
        &mut self,
        prepared: &PreprocessedModel,
        samples: &[Sample],
    ) -> Result<Ranges, QuantizeError> {
        let plan = prepared.plan();
        let (engine, given) = (self.engine, &mut SliceSamples(samples.iter()));
        self.stages.next(|control| {
            calibrate(&prepared.model, &plan, engine, given, &Method::default(), control)
        })
    }

    fn config_with(&self, values: &[String], wide: QType) -> Config {
        let mut config = self.config.clone();
        config.activation_types.extend(values.iter().map(|name| (name.clone(), wide)));
        config
    }

    /// The model with 16 bits for these activations.
    fn made(
        &self,
        values: &[String],
        wide: QType,
        ranges: &Ranges,
    ) -> Result<Quantized, QuantizeError> {
        let prepared = PreprocessedModel::of(self.model, self.config_with(values, wide))?;
        // Beside values of other types, some are quantized that shared a scale before.
        let plan = prepared.plan();
        plan.without_unseen(ranges).apply_cached(&prepared.model, Some(ranges), None)
    }

    fn measured(
        &mut self,
        made: &Quantized,
        samples: &[Sample],
    ) -> Result<Measured, QuantizeError> {
        let given = &mut SliceSamples(samples.iter());
        let options = CompareOptions { metric: self.metric.cloned(), ..CompareOptions::default() };
        let (model, made, engine) = (self.model, made.model(), self.engine);
        let found = self
            .stages
            .next(|control| compare_outputs(model, made, engine, given, &options, control))?;
        let (outputs, accuracy, engine) = (found.outputs, found.accuracy, Some(found.engine));
        Ok(Measured { outputs, accuracy, engine })
    }
}

/// The type of 16 bits with the sign of the activations.
fn wide_type(config: &Config) -> Result<QType, QuantizeError> {
    match config.activations {
        Some(QType::UInt8) => Ok(QType::UInt16),
        Some(QType::Int8) => Ok(QType::Int16),
        other => {
            let is = other.map_or_else(|| "nothing".to_owned(), |qtype| qtype.to_string());
            let what = format!("is {is}, expected uint8 or int8: some of them get 16 bits");
            Err(QuantizeError::option("activations", what))
        }
    }
}

fn why(is_wide: bool, goal: &Goal) -> String {
    let goal = match goal {
        Goal::Sqnr(least) => format!("{least} dB"),
        Goal::Drop(most) => format!("a drop of at most {most}"),
        Goal::Bytes(_) => String::new(),
    };
    if is_wide {
        format!("with fewer activations of 16 bits, {goal} is missed")
    } else {
        format!("{goal} is met without it")
    }
}

/// The best candidate that misses the goal.
struct Best {
    /// The number of activations of 16 bits.
    count: usize,
    sqnr_db: Option<f64>,
    drop: Option<f64>,
}

impl Best {
    fn of(found: &Measured) -> Best {
        Best { count: 0, sqnr_db: found.sqnr_db(), drop: found.drop() }
    }

    fn see(&mut self, count: usize, found: &Measured, goal: &Goal) {
        let new = Best { count, ..Best::of(found) };
        let is_better = match goal {
            Goal::Drop(_) => new.drop < self.drop,
            _ => new.sqnr_db > self.sqnr_db,
        };
        if is_better {
            *self = new;
        }
    }

    fn missed(&self, goal: &Goal, all: usize) -> QuantizeError {
        let (criterion, expected, measured) = match goal {
            Goal::Drop(most) => ("max_accuracy_drop", Some(*most), self.drop),
            Goal::Sqnr(least) => ("min_sqnr", Some(*least), self.sqnr_db),
            Goal::Bytes(_) => ("target_size", None, None),
        };
        let show = |value: Option<f64>| value.map_or("unknown".to_owned(), |it| format!("{it:.4}"));
        let what = format!(
            "below the accuracy criterion: {criterion} is {}, and the best that 16 bits for \
             activations reach, with {} of {all}, is {}; what is left may be the error of weights: \
             give them more bits, or scales for channels",
            show(expected),
            self.count,
            show(measured)
        );
        let criterion = criterion.to_owned();
        QuantizeError::new(QuantizeErrorKind::BelowCriteria { criterion, measured, expected, what })
    }
}
