//! How much more noise a method makes on all samples than on those held back.
//!
//! Methods are evaluated on samples that were held back. What is rare, as one row in hundreds that
//! is far larger than the others, seldom is among them, so that clipping it seems to cost nothing.
//! The statistics of all samples have seen it.

use quantize_rs_math::range::expected_error;

use super::collect::Collected;
use crate::Ranges;

/// By how many decibels the evaluation samples understate the noise of the values with these
/// ranges, if all samples are as those of a deployed model: the expected noise of each value,
/// relative to its mean square, added up over all values. 0 if they overstate it.
pub(super) fn hidden_noise(collected: &Collected, all: &Ranges, learnt: &Ranges) -> f64 {
    let (mut of_all, mut of_held_back) = (0.0, 0.0);
    for (name, held_back) in collected.held_back() {
        let seen = all.statistics.get(name);
        let sketches = seen.and_then(|seen| seen.sketch.as_ref()).zip(held_back.sketch.as_ref());
        let (Some((seen, held_back)), Some(spec), Some(range)) =
            (sketches, held_back.spec, learnt.values.get(name))
        else {
            continue;
        };
        let values = seen.values();
        let Some((mean, deviation)) = values.mean().zip(values.std()) else { continue };
        let power = mean * mean + deviation * deviation;
        if power > 0.0 && held_back.values().count() > 0 {
            of_all += expected_error(seen, &spec, *range) / power;
            of_held_back += expected_error(held_back, &spec, *range) / power;
        }
    }
    let hidden = 10.0 * (of_all / of_held_back).log10();
    if hidden.is_finite() { hidden.max(0.0) } else { 0.0 }
}
