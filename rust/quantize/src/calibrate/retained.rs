//! A few of the samples of a calibration, kept to evaluate its result.

use std::collections::BTreeMap;

use super::engine::{Sample, Samples};
use crate::CalibrationError;
use crate::ranges::ENOUGH_SAMPLES;

/// The maximum number of samples that are kept.
pub(super) const MAX_RETAINED: usize = ENOUGH_SAMPLES / 8;

/// The maximum size of all kept samples together in bytes; a single sample may be larger.
const MAX_RETAINED_BYTES: usize = 64 << 20;

/// One of this many samples is held back for the evaluation of methods.
const HOLD_BACK_ONE_OF: u64 = 4;

/// The rank of a sample: samples held back first, then by content.
pub(super) type Rank = (bool, u64);

/// Whether the sample with this key is held back, if some are.
pub(super) fn is_held_back(key: u64) -> bool {
    key.is_multiple_of(HOLD_BACK_ONE_OF)
}

/// The most samples, and the most bytes of all of them together, that are run again to round
/// weights layer after layer.
const MANY: (usize, usize) = (128, 256 << 20);

/// The samples of the lowest ranks that fit. The result does not depend on the order of arrival.
pub(super) struct RetainedSamples {
    /// The most samples, and the most bytes of all of them together.
    most: (usize, usize),
    /// Each sample with the outputs of the model, if they are recorded.
    pub(super) samples: BTreeMap<Rank, (Sample, Vec<Vec<f32>>)>,
    bytes: usize,
    /// The first rank that did not fit.
    end: Option<Rank>,
}

impl Default for RetainedSamples {
    fn default() -> RetainedSamples {
        RetainedSamples::of_at_most(MAX_RETAINED, MAX_RETAINED_BYTES)
    }
}

impl RetainedSamples {
    fn of_at_most(samples: usize, bytes: usize) -> RetainedSamples {
        RetainedSamples { most: (samples, bytes), samples: BTreeMap::new(), bytes: 0, end: None }
    }

    pub(super) fn keep(&mut self, rank: Rank, sample: Sample) {
        if self.end.is_some_and(|end| end <= rank) {
            return;
        }
        self.bytes += sample.bytes();
        if let Some((twin, _)) = self.samples.insert(rank, (sample, Vec::new())) {
            self.bytes -= twin.bytes();
        }
        let (samples, bytes) = self.most;
        while self.samples.len() > samples || self.samples.len() > 1 && self.bytes > bytes {
            let Some((rank, (sample, _))) = self.samples.pop_last() else { return };
            self.bytes -= sample.bytes();
            self.end = Some(rank);
        }
    }
}

/// Passes samples on, and keeps a few of them: at most 16, and at most 64 MiB if there are several.
/// Which ones are kept follows from their content, and not from their order.
pub struct RetainingSamples<'a> {
    samples: &'a mut dyn Samples,
    kept: RetainedSamples,
}

impl<'a> RetainingSamples<'a> {
    /// Passes on `samples`.
    pub fn new(samples: &'a mut dyn Samples) -> RetainingSamples<'a> {
        RetainingSamples { samples, kept: RetainedSamples::default() }
    }

    /// The samples that were kept. If none was read yet, some are read now.
    pub fn kept(mut self) -> Vec<Sample> {
        if self.kept.samples.is_empty() {
            while self.kept.samples.len() < MAX_RETAINED && self.kept.end.is_none() {
                // An error of a sample that is not needed is no error.
                let Some(Ok(_)) = self.next_sample() else { break };
            }
        }
        self.kept.samples.into_values().map(|(sample, _)| sample).collect()
    }
}

/// Passes samples on, and keeps those that are run again: at most 128, and at most 256 MiB. Which
/// ones follows from their content, if they are to be kept at all.
pub(super) struct RepeatedSamples<'a> {
    samples: &'a mut dyn Samples,
    kept: Option<RetainedSamples>,
}

impl<'a> RepeatedSamples<'a> {
    pub(super) fn new(samples: &'a mut dyn Samples, keeps: bool) -> RepeatedSamples<'a> {
        let kept = keeps.then(|| RetainedSamples::of_at_most(MANY.0, MANY.1));
        RepeatedSamples { samples, kept }
    }

    /// The samples that were kept.
    pub(super) fn kept(self) -> Vec<Sample> {
        let kept = self.kept.into_iter().flat_map(|kept| kept.samples.into_values());
        kept.map(|(sample, _)| sample).collect()
    }
}

impl Samples for RepeatedSamples<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let sample = self.samples.next_sample();
        if let (Some(kept), Some(Ok(sample))) = (&mut self.kept, &sample) {
            kept.keep((false, sample.key()), sample.clone());
        }
        sample
    }

    fn len_hint(&self) -> Option<usize> {
        self.samples.len_hint()
    }
}

impl Samples for RetainingSamples<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let sample = self.samples.next_sample();
        if let Some(Ok(sample)) = &sample {
            // In the order in which calibration keeps them, so that both share their memory.
            let key = sample.key();
            self.kept.keep((!is_held_back(key), key), sample.clone());
        }
        sample
    }

    fn len_hint(&self) -> Option<usize> {
        self.samples.len_hint()
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs_onnx::Tensor;

    use super::*;

    /// A sample of this many MiB.
    fn sample(mebibytes: usize) -> Sample {
        let values = vec![0.0; mebibytes << 18];
        Sample { inputs: vec![("x".to_owned(), Tensor::from_f32_vec(vec![values.len()], values))] }
    }

    #[test]
    fn the_order_of_arrival_does_not_change_the_retained_samples() {
        // The second does not fit beside the first, and the third does not take its place.
        let samples = [((false, 1), 24), ((false, 2), 48), ((false, 3), 8), ((true, 0), 8)];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 1, 0, 3], [1, 3, 0, 2]] {
            let mut kept = RetainedSamples::default();
            for (rank, mebibytes) in order.map(|at| samples[at]) {
                kept.keep(rank, sample(mebibytes));
            }
            let ranks: Vec<Rank> = kept.samples.keys().copied().collect();
            assert_eq!((ranks, kept.bytes), (vec![(false, 1)], 24 << 20), "{order:?}");
        }
        let mut one = RetainedSamples::default();
        one.keep((false, 0), sample(80));
        assert_eq!(one.samples.len(), 1, "a single sample is kept, however large");
    }
}
