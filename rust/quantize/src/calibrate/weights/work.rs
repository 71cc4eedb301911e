//! How much of the work of rounding is done.

use super::layers::{LayerInput, LayerWeight, Layers};
use crate::calibrate::Progress;

/// How many times as long as the first time a weight takes when it is rounded again for the inputs
/// of the quantized model: three corrections are tried, and the samples run twice.
const AGAIN: f64 = 4.0;

/// The work of rounding weights: operations of what dominates, the solution of each weight.
pub(super) struct Work {
    samples: usize,
    done: f64,
    total: f64,
}

impl Work {
    /// The work of all layers, which are rounded once more if `again`.
    pub(super) fn of(layers: &Layers, samples: usize, again: bool) -> Work {
        let times = if again { 1.0 + AGAIN } else { 1.0 };
        let all = layers.weights.iter().map(|weight| operations(weight, &layers.inputs));
        Work { samples, done: 0.0, total: times * all.sum::<f64>() }
    }

    /// A weight is rounded.
    pub(super) fn finish(&mut self, weight: &LayerWeight, inputs: &[LayerInput]) {
        self.done += operations(weight, inputs);
    }

    /// A weight is rounded again.
    pub(super) fn finish_again(&mut self, weight: &LayerWeight, inputs: &[LayerInput]) {
        self.done += AGAIN * operations(weight, inputs);
    }

    pub(super) fn progress(&self) -> Progress {
        let part = if self.total > 0.0 { self.done / self.total } else { 1.0 };
        let percent = (100.0 * part).clamp(0.0, 100.0) as u8;
        Progress { done: self.samples, total: None, rounding: Some(percent) }
    }
}

/// The operations of a weight: each column is solved with the moments of its inputs, which are
/// factored once.
pub(super) fn operations(weight: &LayerWeight, inputs: &[LayerInput]) -> f64 {
    let Some(input) = weight.inputs.first().and_then(|at| inputs.get(*at)) else { return 0.0 };
    let spans = input.spans().map(|span| {
        let depth = span.len() as f64;
        depth * depth * (weight.map.width as f64 + depth)
    });
    weight.map.groups as f64 * spans.sum::<f64>()
}
