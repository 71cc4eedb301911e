//! What the report says of the bar: what was measured, and which layers stayed float for it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::output_row::worst_sqnr;
use super::{Accuracy, Bar, OutputRow, Speed};

/// How the result was judged, and what was tried for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// What it has to reach.
    pub bar: Bar,
    /// Samples it was judged on.
    pub samples: usize,
    /// Whether these are others than those that the ranges were found in.
    pub held_out: bool,
    /// Who ran them.
    pub engine: String,
    /// What was tried, each with more layers left float than the one before; the last is the result.
    pub attempts: Vec<Attempt>,
    /// The layers that stayed float for the bar, the most sensitive first.
    pub float_layers: Vec<FloatLayer>,
    /// How long both models take, where the result has to be faster.
    pub speed: Option<Speed>,
}

/// A model that was made and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The weights that were left float for it, the most sensitive first.
    pub float_layers: Vec<String>,
    /// Bytes of the model, with the data beside it.
    pub bytes: u64,
    /// How far each output is from that of the float model.
    pub outputs: Vec<OutputRow>,
    /// How often the class was right, where there are labels.
    pub accuracy: Option<Accuracy>,
    /// Whether it holds the bars of accuracy.
    pub holds: bool,
}

/// A layer that stayed float.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FloatLayer {
    /// The weight.
    pub name: String,
    /// How far each output is off when this layer alone is quantized.
    pub outputs: Vec<OutputRow>,
}

impl FloatLayer {
    /// The SQNR of the worst output when this layer alone is quantized, in decibels.
    pub fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }
}

impl Attempt {
    /// The SQNR of the worst output, in decibels.
    pub fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }

    /// The first bar of accuracy that is missed: its option, what was measured, what was expected.
    pub(crate) fn worst_miss(&self, bar: &Bar) -> (&'static str, Option<f64>, Option<f64>) {
        let (sqnr, drop) = (self.sqnr_db(), self.accuracy.as_ref().map(|found| found.drop));
        match bar.min_sqnr {
            Some(least) if sqnr.is_none_or(|found| found.is_nan() || found < least) => {
                ("min_sqnr", sqnr, bar.min_sqnr)
            }
            _ => ("max_accuracy_drop", drop, bar.max_accuracy_drop),
        }
    }

    /// `SQNR 31.20 dB, accuracy 97.10 % (-0.40 points)`
    fn measured(&self) -> String {
        let sqnr = self.sqnr_db().map(|db| match db {
            f64::INFINITY => "no difference".to_owned(),
            db => format!("SQNR {db:.2} dB"),
        });
        let accuracy = self.accuracy.as_ref().map(|found| {
            let (part, drop) = (found.quantized * 1e2, -found.drop * 1e2);
            format!("accuracy {part:.2} % ({drop:+.2} points)")
        });
        let parts: Vec<String> = sqnr.into_iter().chain(accuracy).collect();
        if parts.is_empty() { "no output of floats".to_owned() } else { parts.join(", ") }
    }
}

impl Verified {
    /// The options whose bars were set: `min_sqnr`.
    pub(crate) fn bar_names(&self) -> String {
        let Bar { min_sqnr, max_accuracy_drop, .. } = self.bar;
        let names = [("min_sqnr", min_sqnr), ("max_accuracy_drop", max_accuracy_drop)];
        let set: Vec<&str> =
            names.iter().filter(|(_, bar)| bar.is_some()).map(|(n, _)| *n).collect();
        set.join(" and ")
    }

    /// What the result measures, and on what: `SQNR 31.20 dB on 32 samples (onnxruntime)`.
    pub fn summary(&self) -> String {
        let measured = self.attempts.last().map_or_else(String::new, Attempt::measured);
        let plural = if self.samples == 1 { "" } else { "s" };
        let whose = if self.held_out { "" } else { " it was calibrated with" };
        format!("{measured} on {} sample{plural}{whose} ({})", self.samples, self.engine)
    }

    /// What it has to reach: `SQNR of 30 dB or more`.
    pub fn wanted(&self) -> Option<String> {
        let sqnr = self.bar.min_sqnr.map(|least| format!("SQNR of {least} dB or more"));
        let most = self.bar.max_accuracy_drop.map(|most| most * 1e2);
        let drop = most.map(|most| format!("{most:.2} points of accuracy lost at most"));
        let faster = self.bar.require_faster.then(|| "faster than the float model".to_owned());
        let parts: Vec<String> = sqnr.into_iter().chain(drop).chain(faster).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// What was tried, a line for each: which layers stayed float, and what was measured.
    pub fn steps(&self) -> Vec<String> {
        let mut before = 0;
        let mut lines = Vec::new();
        for attempt in &self.attempts {
            let more: Vec<String> = attempt.float_layers[before.min(attempt.float_layers.len())..]
                .iter()
                .map(|name| format!("`{name}`"))
                .collect();
            let what = match (before, more.len()) {
                (0, 0) => "as planned".to_owned(),
                (0, _) => format!("{} left float", listed(&more)),
                _ => format!("{} too", listed(&more)),
            };
            before = attempt.float_layers.len();
            let missed = if attempt.holds { "" } else { ", below the bar" };
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

/// Names that are shown of those that a step leaves float.
const SHOWN: usize = 4;

fn listed(names: &[String]) -> String {
    match names.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} and {more} more", names[..SHOWN].join(", ")),
        _ => names.join(", "),
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "verified: {}", self.summary())?;
        if let Some(wanted) = self.wanted() {
            writeln!(f, "  wanted: {wanted}")?;
        }
        self.steps().iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}
