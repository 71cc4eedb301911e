//! What smoothing gains for one value, and what is known of it from before.

use std::collections::HashMap;

use quantize_rs_math::QSpec;

use super::Product;
use crate::Plan;
use crate::graph::ValueId;
use crate::plan::Decision;

/// The fraction of the expected error that smoothing must remove to justify an additional node:
/// three decibels.
const MIN_ERROR_REDUCTION: f64 = 0.5;

/// The variance of a uniform distribution of width 1.
const UNIFORM: f64 = 1.0 / 12.0;

/// All that the gain for a value depends on besides the model.
#[derive(Clone, PartialEq)]
pub(super) struct SmoothingCase {
    /// The largest magnitude of each channel.
    pub(super) peaks: Vec<f64>,
    /// How the value is quantized.
    pub(super) spec: QSpec,
    /// The nodes that multiply it, and how their weights are quantized.
    products: Vec<(usize, Option<QSpec>)>,
}

impl SmoothingCase {
    pub(super) fn of(
        plan: &Plan,
        products: &[Product],
        peaks: Vec<f64>,
        spec: QSpec,
    ) -> SmoothingCase {
        let how = |weight: ValueId| match &plan.values.get(weight)?.decision {
            Decision::Quantize(how) => Some(how.spec),
            Decision::KeepFloat(_) => None,
        };
        let products = products.iter().map(|it| (it.node, how(it.weight))).collect();
        SmoothingCase { peaks, spec, products }
    }
}

/// The expected noise of the products of a value.
#[derive(Clone)]
pub(super) struct Noise {
    /// The energy of the inputs.
    pub(super) inputs: f64,
    /// For each weight: its energy, and the sum of the squares of its steps.
    pub(super) weights: Vec<(f64, f64)>,
}

impl Noise {
    /// The expected squared error if the value has the step size `step`.
    pub(super) fn of_step(&self, step: f64) -> f64 {
        let of =
            |(energy, steps): &(f64, f64)| UNIFORM * (step * step * energy + self.inputs * steps);
        self.weights.iter().map(of).sum()
    }
}

/// What smoothing gains for a value, whatever the range that its method found.
#[derive(Clone)]
pub(super) struct Gain {
    /// The noise without factors.
    pub(super) without: Noise,
    /// The least expected error with factors.
    pub(super) error: f64,
    /// The factors that have it.
    pub(super) factors: Vec<f32>,
    /// The largest magnitude of the divided value.
    pub(super) reach: f32,
}

impl Gain {
    /// The factors and the largest magnitude of the divided value, if smoothing improves enough on
    /// the value with the step size `step`.
    pub(super) fn worthwhile(&self, step: f64) -> Option<(&[f32], f32)> {
        let enough = self.error < self.without.of_step(step) * MIN_ERROR_REDUCTION;
        (enough && self.reach > 0.0).then_some((&self.factors, self.reach))
    }
}

/// The gains for the values of one model, found while it was quantized with other ranges.
#[derive(Default)]
pub(crate) struct KnownGains(HashMap<ValueId, (SmoothingCase, Gain)>);

impl KnownGains {
    pub(super) fn find(&self, value: ValueId, case: &SmoothingCase) -> Option<&Gain> {
        self.0.get(&value).filter(|(known, _)| known == case).map(|(_, gain)| gain)
    }

    pub(super) fn learn(&mut self, value: ValueId, case: &SmoothingCase, gain: Gain) {
        self.0.insert(value, (case.clone(), gain));
    }
}
