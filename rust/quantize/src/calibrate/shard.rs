//! Calibrates on a part of the samples, whose ranges are merged with those of the other parts.

use quantize_rs_onnx::Model;

use super::engine::{Engine, Sample, Samples};
use super::{Control, Rounding, calibrated};
use crate::error::while_unchanged;
use crate::options::Shard;
use crate::{CalibrationError, CalibrationErrorKind, Method, Plan, QuantizeError, Ranges};

/// Runs the model on the samples of one part, as [`calibrate`](super::calibrate()) does on all.
///
/// The ranges hold the second moments that weights are rounded with, and [`Ranges::merge_all`]
/// those of all parts. [`Plan::apply`](crate::Plan::apply), or
/// [`round_weights`](crate::round_weights) before it, rounds the weights with them. The result
/// equals that of one calibration, bit for bit, unless that runs samples again
/// ([`RoundingEffort::Best`](crate::RoundingEffort::Best)).
///
/// # Errors
/// The method is `auto`, which selects by all samples; otherwise as
/// [`calibrate`](super::calibrate()).
pub fn calibrate_shard(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    (method, shard): (&Method, Shard),
    control: Control<'_>,
) -> Result<Ranges, QuantizeError> {
    while_unchanged(&[model], || {
        if matches!(method, Method::Auto) {
            let what = "the method auto selects by all samples: calibrate shards with another \
                        method, such as minmax or entropy";
            return Err(CalibrationError::data(what).into());
        }
        let mut part = Part { samples, shard, position: 0, is_empty: true };
        let how = (method, Rounding::Later);
        let mut ranges = calibrated((model, plan), engine, &mut part, how, control)?;
        if shard.count > 1 {
            ranges.shards = vec![shard];
        }
        Ok(ranges)
    })
}

/// The samples of a part.
struct Part<'a> {
    samples: &'a mut dyn Samples,
    shard: Shard,
    /// How many samples of all were read or passed over.
    position: usize,
    /// Whether none were read.
    is_empty: bool,
}

impl Part<'_> {
    /// What there is when the samples are at their end.
    fn at_end(&self) -> Option<Result<Sample, CalibrationError>> {
        let Part { shard, position, is_empty, .. } = self;
        (*is_empty && *position > 0).then(|| {
            let reason = format!("part {shard} has no sample, as there are {position}");
            Err(CalibrationError::new(CalibrationErrorKind::NoSamples { reason }))
        })
    }
}

impl Samples for Part<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        while !self.shard.holds(self.position) {
            match self.samples.skip_sample() {
                Some(Ok(())) => self.position += 1,
                Some(Err(error)) => return Some(Err(error)),
                None => return self.at_end(),
            }
        }
        let Some(own) = self.samples.next_sample() else { return self.at_end() };
        self.position += 1;
        self.is_empty = false;
        Some(own)
    }

    fn len_hint(&self) -> Option<usize> {
        let left = self.samples.len_hint()?;
        Some((self.position..self.position + left).filter(|at| self.shard.holds(*at)).count())
    }

    fn conversions(&self) -> Vec<String> {
        self.samples.conversions()
    }
}
