//! Measures whether a calibrated result is slower than the float model, which no plan can tell for
//! certain.

use super::Check;
use crate::analysis::latency::{QUICK, how_to_be_faster};
use crate::analysis::speed;
use crate::apply::Quantized;
use crate::options::target::Placement;
use crate::report::Speed;
use crate::{Progress, QuantizeError};

/// The number of runs of both models that a measurement takes at least, with one to warm up.
const MIN_RUNS: f64 = 6.0;

impl Check<'_> {
    /// The latency of both models on a calibration sample. `None` for targets other than CPUs, for
    /// models that are too small for the clock or take too long, and for tract, which computes
    /// quantized models in float. `seconds` is how long both took for `samples`, with preparation.
    pub(super) fn speed(
        &mut self,
        quantized: &Quantized,
        samples: usize,
        seconds: f64,
    ) -> Result<Option<Speed>, QuantizeError> {
        let config = &quantized.report().config;
        let on_cpu = config.profile().placement == Placement::WeightedAndInterior;
        #[expect(clippy::cast_precision_loss, reason = "at most a few samples")]
        let pair = seconds / samples.max(1) as f64;
        let affordable = 2.0 * MIN_RUNS * pair < self.budget().as_secs_f64();
        // Of results without samples, the plan knows whether they are slower.
        if !self.given.inputs.are_real() || !on_cpu || !affordable {
            return Ok(None);
        }
        let first = self.timed(quantized)?;
        // What a busy machine makes slow once, it seldom makes slow twice.
        match first {
            Some(first) if first.is_slower() => {
                let second = self.timed(quantized)?;
                Ok(Some(second.filter(|second| second.speedup > first.speedup).unwrap_or(first)))
            }
            first => Ok(first),
        }
    }

    fn timed(&mut self, quantized: &Quantized) -> Result<Option<Speed>, QuantizeError> {
        let Some(sample) = self.given.samples.first() else { return Ok(None) };
        let converted = self.converted(quantized)?;
        let float = converted.as_ref().unwrap_or(self.model);
        let mut go_on = || (self.progress)(Progress::of(0, None));
        let models = [float, quantized.model()];
        match speed(self.engine, models, sample, &QUICK, &mut go_on) {
            Ok(found) => Ok(found.filter(Speed::is_reliable)),
            Err(error) if error.is_cancelled() => Err(error),
            // The outputs are measured, and that is what the check is for.
            Err(_) => Ok(None),
        }
    }
}

/// A warning if the result takes noticeably longer than the float model.
pub(super) fn slower(found: &Speed, quantized: &Quantized) -> Option<String> {
    found.is_slower().then(|| {
        let plural = if found.threads == 1 { "" } else { "s" };
        format!(
            "slower than the float model: {:.2} times its time, {:.3} ms for a sample ({}, {} \
             thread{plural}); {}",
            1.0 / found.speedup,
            found.quantized.median_ms,
            found.engine,
            found.threads,
            how_to_be_faster(quantized)
        )
    })
}
