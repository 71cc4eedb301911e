//! The result of accuracy control: what was measured, and which layers were reverted to float.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::output_row::worst_sqnr;
use super::{Accuracy, AccuracyCriteria, IntegerOutputRow, OutputRow, Speed};

/// The measured accuracy of the result, and the candidates that were tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The accuracy criteria.
    pub criteria: AccuracyCriteria,
    /// The number of samples.
    pub samples: usize,
    /// Whether they differ from the calibration samples.
    pub held_out: bool,
    /// The engine that ran them.
    pub engine: String,
    /// The candidates that missed the criteria, in the order in which they were tried; the last
    /// candidate is the result.
    pub attempts: Vec<Candidate>,
    /// The layers that were reverted to float, those with the most noise for their cost first.
    pub float_layers: Vec<RevertedLayer>,
    /// The layers whose activations were given 16 bits instead, in the same order.
    #[serde(default)]
    pub wide_layers: Vec<RevertedLayer>,
    /// The latency of both models, if the result has to be faster.
    pub speed: Option<Speed>,
}

/// A model that was quantized and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The layers that were reverted to float, in the same order.
    pub float_layers: Vec<String>,
    /// The layers whose activations were given 16 bits.
    #[serde(default)]
    pub wide_layers: Vec<String>,
    /// The size of the model in bytes, including external data.
    pub bytes: u64,
    /// The error of each float output.
    pub outputs: Vec<OutputRow>,
    /// How far each output of integers or booleans is that of the float model.
    #[serde(default)]
    pub integer_outputs: Vec<IntegerOutputRow>,
    /// The accuracy, if there are labels.
    pub accuracy: Option<Accuracy>,
    /// Whether it meets the accuracy criteria.
    pub holds: bool,
}

/// A layer that was reverted to float, or whose activations were given 16 bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RevertedLayer {
    /// The name of its weight or, without weight, of its operator.
    pub name: String,
    /// The error of each output when only this layer is quantized.
    pub outputs: Vec<OutputRow>,
}

impl RevertedLayer {
    /// The SQNR of the worst output when only this layer is quantized, in decibels.
    pub fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }
}

impl Candidate {
    /// The SQNR of the worst output, in decibels.
    pub fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }

    /// The first accuracy criterion that is missed: its option, the measured and the expected
    /// value.
    pub(crate) fn first_missed(
        &self,
        criteria: &AccuracyCriteria,
    ) -> (&'static str, Option<f64>, Option<f64>) {
        let (sqnr, drop) = (self.sqnr_db(), self.accuracy.as_ref().map(|found| found.drop));
        match criteria.min_sqnr {
            Some(least) if sqnr.is_none_or(|found| found.is_nan() || found < least) => {
                ("min_sqnr", sqnr, criteria.min_sqnr)
            }
            _ => ("max_accuracy_drop", drop, criteria.max_accuracy_drop),
        }
    }

    /// Whether this candidate comes closer to the criteria than another: in what misses them, SQNR
    /// before accuracy, and else in the SQNR.
    pub(crate) fn is_closer(&self, than: &Candidate, criteria: &AccuracyCriteria) -> bool {
        // Higher is closer. What meets a criterion counts as exactly that.
        let closeness = |candidate: &Candidate| {
            let number = |found: Option<f64>| {
                found.filter(|found| !found.is_nan()).unwrap_or(f64::NEG_INFINITY)
            };
            let sqnr = number(candidate.sqnr_db());
            let kept = number(candidate.accuracy.as_ref().map(|found| -found.drop));
            let of_sqnr = criteria.min_sqnr.map_or(0.0, |least| sqnr.min(least));
            let of_drop = criteria.max_accuracy_drop.map_or(0.0, |most| kept.min(-most));
            [of_sqnr, of_drop, sqnr]
        };
        closeness(self)
            .into_iter()
            .zip(closeness(than))
            .map(|(one, other)| one.total_cmp(&other))
            .find(|order| order.is_ne())
            .is_some_and(std::cmp::Ordering::is_gt)
    }

    /// `an accuracy of 97.10 % (-0.40 points)`
    pub(crate) fn accuracy_text(&self) -> Option<String> {
        let found = self.accuracy.as_ref()?;
        if found.metric.is_some() {
            return Some(found.short());
        }
        let (part, change) = (found.quantized * 1e2, found.change());
        Some(format!("an accuracy of {part:.2} % ({change} points)"))
    }

    /// `SQNR 31.20 dB, accuracy 97.10 % (-0.40 points)`
    fn measured(&self) -> String {
        let sqnr = self.sqnr_db().map(|db| match db {
            f64::INFINITY => "no difference".to_owned(),
            db => format!("SQNR {db:.2} dB"),
        });
        let accuracy = self.accuracy.as_ref().map(Accuracy::short);
        let parts: Vec<String> = sqnr.into_iter().chain(accuracy).collect();
        if parts.is_empty() { "no float output".to_owned() } else { parts.join(", ") }
    }
}

impl Evaluation {
    /// The options that set accuracy criteria: `min_sqnr`.
    pub(crate) fn criteria_names(&self) -> String {
        let AccuracyCriteria { min_sqnr, max_accuracy_drop, .. } = self.criteria;
        let names = [("min_sqnr", min_sqnr), ("max_accuracy_drop", max_accuracy_drop)];
        let set: Vec<&str> =
            names.iter().filter(|(_, wanted)| wanted.is_some()).map(|(n, _)| *n).collect();
        set.join(" and ")
    }

    /// The measurement of the result: `SQNR 31.20 dB on 32 samples (onnxruntime)`.
    pub fn summary(&self) -> String {
        let measured = self.attempts.last().map_or_else(String::new, Candidate::measured);
        format!("{measured} on {}", self.on())
    }

    /// `32 samples (onnxruntime)`
    pub(crate) fn on(&self) -> String {
        let plural = if self.samples == 1 { "" } else { "s" };
        let kind = if self.held_out { "" } else { "calibration " };
        format!("{} {kind}sample{plural} ({})", self.samples, self.engine)
    }

    /// The accuracy criteria: `SQNR of 30 dB or more`.
    pub fn wanted(&self) -> Option<String> {
        let sqnr = self.criteria.min_sqnr.map(|least| format!("SQNR of {least} dB or more"));
        let metric = self.attempts.iter().find_map(|attempt| attempt.accuracy.as_ref());
        let metric = metric.and_then(|accuracy| accuracy.metric.as_ref());
        let drop = self.criteria.max_accuracy_drop.map(|most| match metric {
            Some(metric) => format!("{metric} worse by at most {most}"),
            None => format!("accuracy drop of at most {:.2} points", most * 1e2),
        });
        let faster = self.criteria.require_faster.then(|| "faster than the float model".to_owned());
        let parts: Vec<String> = sqnr.into_iter().chain(drop).chain(faster).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// A line for each candidate: the layers that were reverted to float, and the measurement.
    pub fn steps(&self) -> Vec<String> {
        let mut before: &[String] = &[];
        let mut lines = Vec::new();
        for attempt in &self.attempts {
            let (layers, wide) = (&attempt.float_layers[..], &attempt.wide_layers[..]);
            let what = match (layers.strip_prefix(before), wide) {
                (_, [_, ..]) if layers.is_empty() => format!("{} with {WIDE}", listed(wide)),
                (_, [_, ..]) => {
                    format!("{} left float, {} with {WIDE}", listed(layers), listed(wide))
                }
                (Some([]), _) => "as planned".to_owned(),
                (Some(more), _) if !before.is_empty() => format!("{} too", listed(more)),
                _ => format!("{} left float", listed(layers)),
            };
            before = if wide.is_empty() { layers } else { &[] };
            let missed = if attempt.holds { "" } else { ", below the criterion" };
            lines.push(format!("{what}: {}{missed}", attempt.measured()));
        }
        if let Some(speed) = &self.speed {
            lines.push(format!(
                "{:.2} times as fast: {:.3} ms, and the float model {:.3} ms",
                speed.speedup, speed.quantized.median_ms, speed.original.median_ms
            ));
        }
        lines
    }
}

/// What the layers of a candidate were given.
const WIDE: &str = "activations of 16 bits";

/// The number of layer names that are shown for a candidate.
const MAX_NAMES: usize = 4;

fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match names.len().checked_sub(MAX_NAMES) {
        Some(more @ 1..) => format!("{} and {more} more", names[..MAX_NAMES].join(", ")),
        _ => names.join(", "),
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "accuracy control: {}", self.summary())?;
        if let Some(wanted) = self.wanted() {
            writeln!(f, "  required: {wanted}")?;
        }
        self.steps().iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}
