//! Measures whether a calibrated result is slower than the float model, which no plan can tell for
//! certain.

use super::{Check, is_cancelled};
use crate::analysis::latency::how_to_be_faster;
use crate::analysis::speed;
use crate::apply::Quantized;
use crate::options::target::Placement;
use crate::report::Speed;
use crate::{LatencyOptions, Progress, QuantizeError};

/// A result that takes this many times as long as the float model gets a warning.
const SLOWER: f64 = 1.1;

/// A smaller difference gets no warning, in milliseconds: it is that of starting an operator.
const NOTICED_MS: f64 = 0.005;

/// A float model that takes less time is too small for a latency that can be relied upon, in
/// milliseconds.
const MIN_MS: f64 = 0.01;

/// How latency is measured.
const OPTIONS: LatencyOptions = LatencyOptions { runs: 50, warm_up: 2, threads: 1, seconds: 0.5 };

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
            Some(first) if is_slower(&first) => {
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
        let mut go_on = || (self.progress)(Progress { done: 0, total: None });
        let models = [float, quantized.model()];
        match speed(self.engine, models, sample, &OPTIONS, &mut go_on) {
            Ok(found) => Ok(found.filter(is_reliable)),
            Err(error) if is_cancelled(&error) => Err(error),
            // The outputs are measured, and that is what the check is for.
            Err(_) => Ok(None),
        }
    }
}

fn is_reliable(found: &Speed) -> bool {
    found.original.median_ms >= MIN_MS && found.engine != "tract"
}

fn is_slower(found: &Speed) -> bool {
    let (float, ours) = (found.original.median_ms, found.quantized.median_ms);
    ours > SLOWER * float && ours - float > NOTICED_MS
}

/// A warning if the result takes noticeably longer than the float model.
pub(super) fn slower(found: &Speed, quantized: &Quantized) -> Option<String> {
    is_slower(found).then(|| {
        let plural = if found.threads == 1 { "" } else { "s" };
        format!(
            "slower than the float model: {:.2} times its time, {:.3} ms for a sample ({}, {} \
             thread{plural}); {}",
            1.0 / found.speedup,
            found.quantized.median_ms,
            found.engine,
            found.threads,
            how_to_be_faster(&quantized.report().config)
        )
    })
}
