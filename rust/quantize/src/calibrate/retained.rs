//! A few of the samples of a calibration, kept to evaluate its result.

use std::collections::BTreeMap;

use super::engine::{Sample, Samples};
use crate::CalibrationError;
use crate::ranges::ENOUGH_SAMPLES;

/// The maximum number of samples that are kept.
pub(super) const MAX_RETAINED: usize = ENOUGH_SAMPLES / 8;

/// The maximum size of all kept samples together in bytes; a single sample may be larger.
const MAX_RETAINED_BYTES: usize = 64 << 20;

/// Of small models, this many samples are kept that are held back, if the values that are observed
/// of them together are no more than the second number. They hardly take time, and where samples
/// are single rows, a few of them seldom show what is rare.
const SMALL: (usize, usize) = (ENOUGH_SAMPLES, 1 << 22);

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
    /// As an alternative, the most samples, and the most values that are observed of all of them.
    small: (usize, usize),
    samples: BTreeMap<Rank, Retained>,
    bytes: usize,
    values: usize,
    /// The first rank that did not fit.
    end: Option<Rank>,
}

/// A sample that is kept.
struct Retained {
    sample: Sample,
    /// The outputs of the model, if they are recorded.
    outputs: Vec<Vec<f32>>,
    /// How many values were observed.
    values: usize,
}

impl Default for RetainedSamples {
    fn default() -> RetainedSamples {
        RetainedSamples::of_at_most(MAX_RETAINED, MAX_RETAINED_BYTES)
    }
}

impl RetainedSamples {
    fn of_at_most(samples: usize, bytes: usize) -> RetainedSamples {
        let (samples, most) = (BTreeMap::new(), (samples, bytes));
        RetainedSamples { most, small: (0, 0), samples, bytes: 0, values: 0, end: None }
    }

    /// As many as methods are evaluated on. What was observed of each sample has to be recorded.
    pub(super) fn for_evaluation() -> RetainedSamples {
        RetainedSamples { small: SMALL, ..RetainedSamples::default() }
    }

    pub(super) fn keep(&mut self, rank: Rank, sample: Sample) {
        if self.end.is_some_and(|end| end <= rank) {
            return;
        }
        self.bytes += sample.bytes();
        let kept = Retained { sample, outputs: Vec::new(), values: 0 };
        if let Some(twin) = self.samples.insert(rank, kept) {
            self.bytes -= twin.sample.bytes();
            self.values -= twin.values;
        }
        self.drop_last();
    }

    /// Records the outputs of the model for a sample, if it is kept, and how many values were
    /// observed.
    pub(super) fn record(&mut self, rank: Rank, outputs: &mut Vec<Vec<f32>>, values: usize) {
        let Some(kept) = self.samples.get_mut(&rank) else { return };
        std::mem::swap(&mut kept.outputs, outputs);
        self.values = self.values - kept.values + values;
        kept.values = values;
        self.drop_last();
    }

    /// Drops samples of the highest ranks until the others fit.
    fn drop_last(&mut self) {
        let fits = |all: &RetainedSamples| {
            let (count, (samples, bytes)) = (all.samples.len(), all.most);
            let (small, in_all) = all.small;
            let all_held_back = all.samples.keys().next_back().is_none_or(|(learnt, _)| !learnt);
            count <= samples && (count <= 1 || all.bytes <= bytes)
                || count <= small
                    && all.values + all.bytes / size_of::<f32>() <= in_all
                    && all_held_back
        };
        while !fits(self) {
            let Some((rank, last)) = self.samples.pop_last() else { return };
            self.bytes -= last.sample.bytes();
            self.values -= last.values;
            self.end = Some(rank);
        }
    }

    /// The samples, those of the lowest rank first, with their outputs.
    pub(super) fn into_samples(self) -> impl Iterator<Item = (Sample, Vec<Vec<f32>>)> {
        self.samples.into_values().map(|kept| (kept.sample, kept.outputs))
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
        self.kept.into_samples().map(|(sample, _)| sample).collect()
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
        let kept = self.kept.into_iter().flat_map(RetainedSamples::into_samples);
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

    #[test]
    fn more_samples_of_small_models_are_kept() {
        let kept = |values: usize, count: usize| {
            let mut kept = RetainedSamples::for_evaluation();
            for key in (0..count as u64).rev() {
                let sample = Sample { inputs: Vec::new() };
                kept.keep((false, key), sample);
                kept.record((false, key), &mut Vec::new(), values);
            }
            let ranks: Vec<u64> = kept.samples.keys().map(|(_, key)| *key).collect();
            assert!(ranks.iter().copied().eq(0..ranks.len() as u64), "the lowest ranks");
            assert_eq!(kept.values, values * ranks.len());
            ranks.len()
        };
        assert_eq!(kept(1000, 500), SMALL.0);
        assert_eq!(kept(SMALL.1 / 32, 500), 32);
        assert_eq!(kept(SMALL.1, 500), MAX_RETAINED);
        assert_eq!(kept(1000, 20), 20);
        let mut few = RetainedSamples::for_evaluation();
        for key in 0..100 {
            few.keep((key % 4 != 0, key), Sample { inputs: Vec::new() });
        }
        assert_eq!(few.samples.len(), 25, "those that are held back");
    }
}
