//! `AdaRound`: each element is rounded down or up, and which of both is found by gradient descent
//! on a relaxed choice.

use std::sync::atomic::AtomicBool;

use ndarray::Array2;
use rayon::prelude::*;

use super::panel::{Panel, WIDE, grid, panels};
use super::{ColumnIntegers, WeightColumns, stopped};
use crate::linalg::add_product;
use crate::{Params, QSpec};

/// Steps of gradient descent.
const STEPS: u32 = 300;

/// The part of the steps before choices are pushed to one side.
const WARM: f64 = 0.2;

/// The size of a step.
const RATE: f64 = 0.05;

/// The weight of the term that pushes choices to one side, relative to the output error of one
/// element that is wrong by a step.
const PUSH: f64 = 0.3;

/// The exponent of this term, at the beginning and at the end.
const EXPONENTS: (f64, f64) = (20.0, 2.0);

/// The range of the relaxed choice before it is clipped to 0 and 1.
const REACH: (f64, f64) = (-0.1, 1.1);

/// The decay of the means of gradients and of their squares (Adam).
const DECAY: (f64, f64) = (0.9, 0.999);

/// The integers of a part for given scales: the one below or above each element.
///
/// The choice of each element is `h = clip(1.2·σ(v) - 0.1, 0, 1)`, and the loss is
/// `tr(Eᵀ H E)` with the error of the relaxed weight, plus `Σ 1 - |2h - 1|^β` with a falling `β`:
/// equations 20 to 24 of Nagel et al., "Up or Down? Adaptive Rounding for Post-Training
/// Quantization", ICML 2020. The gradient of the quadratic form is `2·H·E`, so that no sample is
/// needed.
pub(super) fn round(
    part: &WeightColumns,
    params: &[Params],
    spec: &QSpec,
    stop: &AtomicBool,
) -> ColumnIntegers {
    let of_panel = |first: &usize| {
        let lanes = WIDE.min(part.width() - first);
        Choices::of(part, &Panel::of(part, params, *first, lanes), spec).found(part, stop)
    };
    panels(part, WIDE).par_iter().flat_map_iter(of_panel).collect()
}

/// The relaxed choices of the columns of a panel.
struct Choices {
    /// The integer below each element.
    below: Array2<f64>,
    /// The error of the weight where all are rounded down, and what rounding up adds.
    down: Array2<f64>,
    step: Array2<f64>,
    /// The variable of each choice.
    variables: Array2<f64>,
}

impl Choices {
    fn of(part: &WeightColumns, panel: &Panel, spec: &QSpec) -> Choices {
        let (low, high) = grid(spec);
        let mut below = panel.weight.clone();
        let (mut down, mut step) = (panel.weight.clone(), panel.weight.clone());
        let mut variables = panel.weight.clone();
        for ((at, lane), weight) in panel.weight.indexed_iter() {
            let place = [at / part.block, lane];
            let (scale, zero) = (panel.scale[place], panel.zero[place]);
            let exact = weight / scale + zero;
            let floor = exact.floor().clamp(low, high - 1.0);
            below[[at, lane]] = floor;
            down[[at, lane]] = (floor - zero) * scale - weight;
            step[[at, lane]] = scale;
            let share = ((exact - floor).clamp(0.0, 1.0) - REACH.0) / (REACH.1 - REACH.0);
            variables[[at, lane]] = match (*weight == 0.0, floor < exact) {
                // Zeros stay, also those of pruned weights.
                (true, false) => f64::NEG_INFINITY,
                (true, true) => f64::INFINITY,
                (false, _) => (share / (1.0 - share)).ln(),
            };
        }
        Choices { below, down, step, variables }
    }

    /// The integers, one column after the other.
    fn found(mut self, part: &WeightColumns, stop: &AtomicBool) -> ColumnIntegers {
        let (depth, lanes) = self.down.dim();
        let mean = part.moments.diag().mean().unwrap_or(0.0);
        let (mut means, mut squares) =
            (Array2::<f64>::zeros((depth, lanes)), Array2::<f64>::zeros((depth, lanes)));
        let mut errors = self.down.clone();
        for at in 1..=STEPS {
            if stopped(stop) || !mean.is_finite() || mean <= 0.0 {
                break;
            }
            errors.zip_mut_with(&self.variables, |error, v| *error = choice(*v).0);
            errors *= &self.step;
            errors += &self.down;
            let mut gradients = Array2::<f64>::zeros((depth, lanes));
            add_product(2.0, &part.moments.view(), &errors.view(), gradients.view_mut());
            let exponent = exponent(f64::from(at) / f64::from(STEPS));
            let rate = RATE * (1.0 - DECAY.1.powf(f64::from(at))).sqrt()
                / (1.0 - DECAY.0.powf(f64::from(at)));
            for (place, gradient) in gradients.indexed_iter() {
                let (h, slope) = choice(self.variables[place]);
                let step = self.step[place];
                let mut total = gradient * step;
                if let Some(exponent) = exponent {
                    let side = 2.0 * h - 1.0;
                    let push = 2.0 * exponent * side.abs().powf(exponent - 1.0) * side.signum();
                    total -= PUSH * mean * step * step * push;
                }
                // The scale of the gradient does not matter, but that its square is not denormal.
                let total = total * slope / (mean * step * step);
                let [first, second] = [&mut means[place], &mut squares[place]];
                *first = DECAY.0 * *first + (1.0 - DECAY.0) * total;
                *second = DECAY.1 * *second + (1.0 - DECAY.1) * total * total;
                self.variables[place] -= rate * *first / (second.sqrt() + 1e-8);
            }
        }
        let integer = |lane: usize, at: usize| {
            let up = choice(self.variables[[at, lane]]).0 >= 0.5;
            (self.below[[at, lane]] + f64::from(u8::from(up))) as i16
        };
        (0..lanes)
            .flat_map(|lane| (0..depth).map(move |at| (lane, at)))
            .map(|(lane, at)| integer(lane, at))
            .collect()
    }
}

/// The choice of a variable, and its slope.
fn choice(variable: f64) -> (f64, f64) {
    let sigmoid = 1.0 / (1.0 + (-variable).exp());
    let wide = (REACH.1 - REACH.0) * sigmoid + REACH.0;
    let slope = (REACH.1 - REACH.0) * sigmoid * (1.0 - sigmoid);
    if (0.0..=1.0).contains(&wide) { (wide, slope) } else { (wide.clamp(0.0, 1.0), 0.0) }
}

/// The exponent after this part of the steps; `None` before any push.
fn exponent(done: f64) -> Option<f64> {
    let rest = ((done - WARM) / (1.0 - WARM)).min(1.0);
    (rest >= 0.0).then_some(EXPONENTS.0 + (EXPONENTS.1 - EXPONENTS.0) * rest)
}
