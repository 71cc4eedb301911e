//! What is remembered of one tensor over all samples.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::distribution::{Distribution, Summary};
use super::exact_sum::Sum;
use super::histogram_scratch::{CHUNK, Scratch, with_scratch};
use super::json;
use crate::Range;

/// What is remembered of one tensor over all samples: of fixed size, and the same to the last bit, in whatever order
/// samples come and partial sketches are merged.
///
/// Everything in it is a count, an end, or an exact [`Sum`]; only within a sample are values added in f64, in an order
/// that the shape of the tensor decides, and whether its channels are looked at too.
///
/// # Attention masks
///
/// A mask is added to scores to make them vanish in a softmax: −10⁴, −65504, −10⁹, the lowest float or −∞. As a range it
/// would leave one step to all that matters. So values up to −4096 are kept apart, and whether they are a mask is
/// decided from all that was seen: they are when every other value is less than an eighth as far from zero, and when
/// they are not rarer than one in 65 536, as a single outlier is. If they are no mask, they are put back, with the
/// same result as if they had never been apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sketch {
    samples: u64,
    nan: u64,
    positive_infinities: u64,
    negative_infinities: u64,
    /// Values above [`MASK_THRESHOLD`], and the others.
    near: Distribution,
    far: Distribution,
    /// The ends of samples, by their near values and by all.
    near_ends: Ends,
    all_ends: Ends,
}

/// Values up to here may be a mask.
const MASK_THRESHOLD: f32 = -4096.0;

/// How many times further from zero than all others the values of a mask are.
const MIN_MASK_GAP: f32 = 8.0;

/// The most values among which there is at least one of a mask's.
const MAX_UNMASKED_PER_MASKED: u64 = 1 << 16;

/// From this many values on, counting them aside pays for moving the counts afterwards.
const MIN_SCRATCH_VALUES: usize = 1 << 13;

/// Values that mean "not here", and are left out of the range of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaskedValues {
    /// How many values are finite.
    pub count: u64,
    /// The range of these; [`Range::EMPTY`] when there are none.
    pub range: Range,
    /// How many are −∞.
    pub infinite: u64,
}

/// The ends of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ends {
    /// Samples that have ends.
    samples: u64,
    /// The sums of their ends.
    min: Sum,
    max: Sum,
    /// The smallest of their smallest values, and the largest of their largest: at most [`KEPT_SAMPLE_ENDS`] each, the outermost
    /// first.
    #[serde(with = "json::floats")]
    lowest: Vec<f32>,
    #[serde(with = "json::floats")]
    highest: Vec<f32>,
}

/// So many ends of samples are kept.
pub(crate) const KEPT_SAMPLE_ENDS: usize = 8;

/// What is known of the ends of samples; values of a mask left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SampleEnds<'a> {
    /// How many samples have values.
    pub(crate) samples: u64,
    /// The mean of their smallest values, and that of their largest; [`Range::EMPTY`] when there are none.
    pub(crate) mean: Range,
    /// The smallest of their smallest values, the lowest first.
    pub(crate) lowest: &'a [f32],
    /// The largest of their largest values, the highest first.
    pub(crate) highest: &'a [f32],
}

impl Sketch {
    /// Take the values of a sample into account.
    pub fn observe(&mut self, values: &[f32]) {
        self.observe_runs(values, values.len(), |_, _| ());
    }

    /// Take the values of a sample into account, which are looked at in runs of so many: `each` is given the number of
    /// the run and a look at a part of it.
    pub(super) fn observe_runs(
        &mut self,
        values: &[f32],
        length: usize,
        each: impl FnMut(usize, &Summary),
    ) {
        with_scratch(|scratch| self.observe_with(values, length, scratch, each));
    }

    fn observe_with(
        &mut self,
        values: &[f32],
        length: usize,
        scratch: &mut Scratch,
        mut each: impl FnMut(usize, &Summary),
    ) {
        let Scratch { places, tally, near, far } = scratch;
        let many = values.len() >= MIN_SCRATCH_VALUES;
        let (mut near_range, mut far_range) = (Range::EMPTY, Range::EMPTY);
        let runs = values.chunks(length.max(1)).enumerate();
        for (run, chunk) in runs.flat_map(|(at, run)| run.chunks(CHUNK).map(move |it| (at, it))) {
            let summary = Summary::of(chunk);
            each(run, &summary);
            if summary.is_finite() && summary.range.min > MASK_THRESHOLD {
                near_range = near_range.merge(summary.range);
                self.near.observe(chunk, &summary, &mut places[..], many.then_some(&mut *tally));
                continue;
            }
            let (near, far) = self.split(chunk, near, far);
            if !near.is_empty() {
                let summary = Summary::of(near);
                near_range = near_range.merge(summary.range);
                self.near.observe(near, &summary, &mut places[..], many.then_some(&mut *tally));
            }
            if !far.is_empty() {
                let summary = Summary::of(far);
                far_range = far_range.merge(summary.range);
                self.far.observe(far, &summary, &mut places[..], None);
            }
        }
        self.near.settle(tally);
        self.samples = self.samples.saturating_add(1);
        self.near_ends.merge(&Ends::of(near_range));
        self.all_ends.merge(&Ends::of(near_range.merge(far_range)));
    }

    /// Count what is not finite, and part the rest. Without branches, which such values would mislead.
    fn split<'a>(
        &mut self,
        values: &[f32],
        near: &'a mut [f32; CHUNK],
        far: &'a mut [f32; CHUNK],
    ) -> (&'a [f32], &'a [f32]) {
        let (mut nears, mut fars, mut nan, mut positive) = (0, 0, 0, 0);
        for &x in values {
            near[nears % CHUNK] = x;
            nears += usize::from(x > MASK_THRESHOLD && x <= f32::MAX);
            far[fars % CHUNK] = x;
            fars += usize::from((f32::MIN..=MASK_THRESHOLD).contains(&x));
            nan += usize::from(x.is_nan());
            positive += usize::from(x == f32::INFINITY);
        }
        let negative = values.len() - nears - fars - nan - positive;
        for (count, more) in [
            (&mut self.nan, nan),
            (&mut self.positive_infinities, positive),
            (&mut self.negative_infinities, negative),
        ] {
            *count = count.saturating_add(more as u64);
        }
        (&near[..nears], &far[..fars])
    }

    /// Take what another has seen into account.
    pub fn merge(&mut self, other: &Sketch) {
        for (count, more) in [
            (&mut self.samples, other.samples),
            (&mut self.nan, other.nan),
            (&mut self.positive_infinities, other.positive_infinities),
            (&mut self.negative_infinities, other.negative_infinities),
        ] {
            *count = count.saturating_add(more);
        }
        self.near.merge(&other.near);
        self.far.merge(&other.far);
        self.near_ends.merge(&other.near_ends);
        self.all_ends.merge(&other.all_ends);
    }

    /// How many samples were observed.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// How many values were NaN.
    pub fn nan(&self) -> u64 {
        self.nan
    }

    /// How many values were +∞.
    pub fn positive_infinities(&self) -> u64 {
        self.positive_infinities
    }

    /// How many values were −∞, be they a mask or not.
    pub fn negative_infinities(&self) -> u64 {
        self.negative_infinities
    }

    /// The exact range of the finite values that are no mask; [`Range::EMPTY`] when there are none.
    pub fn range(&self) -> Range {
        let near = self.near.range();
        if self.far_is_mask() { near } else { near.merge(self.far.range()) }
    }

    /// The finite values that are no mask.
    pub fn values(&self) -> Cow<'_, Distribution> {
        if self.far.count() == 0 || self.far_is_mask() {
            return Cow::Borrowed(&self.near);
        }
        let mut all = self.near.clone();
        all.merge(&self.far);
        Cow::Owned(all)
    }

    /// The mean over the samples of their smallest values, and that of their largest; what is masked left out.
    ///
    /// [`Range::EMPTY`] when no sample has values.
    pub fn mean_range(&self) -> Range {
        self.ends().mean()
    }

    /// What is known of the ends of samples.
    pub(crate) fn sample_ends(&self) -> SampleEnds<'_> {
        let ends @ Ends { samples, lowest, highest, .. } = self.ends();
        SampleEnds { samples: *samples, mean: ends.mean(), lowest, highest }
    }

    fn ends(&self) -> &Ends {
        if self.far_is_mask() { &self.near_ends } else { &self.all_ends }
    }

    /// The attention mask that the tensor carries, if it does.
    pub fn mask(&self) -> Option<MaskedValues> {
        let finite = self.near.count() > 0 || self.far.count() > 0;
        let infinite = if finite { self.negative_infinities } else { 0 };
        let (count, range) = if self.far_is_mask() {
            (self.far.count(), self.far.range())
        } else {
            (0, Range::EMPTY)
        };
        (count > 0 || infinite > 0).then_some(MaskedValues { count, range, infinite })
    }

    fn far_is_mask(&self) -> bool {
        let (near, far) = (&self.near, &self.far);
        near.count() > 0
            && far.count() > 0
            && near.range().absmax() < far.range().max.abs() / MIN_MASK_GAP
            && far.count() >= near.count() / MAX_UNMASKED_PER_MASKED
    }
}

impl Ends {
    /// Those of a sample with this range.
    fn of(range: Range) -> Ends {
        if range.is_empty() {
            return Ends::default();
        }
        let end = |value: f32| {
            let mut sum = Sum::default();
            sum.add(f64::from(value));
            sum
        };
        let (lowest, highest) = (vec![range.min], vec![range.max]);
        Ends { samples: 1, min: end(range.min), max: end(range.max), lowest, highest }
    }

    fn merge(&mut self, other: &Ends) {
        self.samples = self.samples.saturating_add(other.samples);
        self.min.merge(&other.min);
        self.max.merge(&other.max);
        let outermost = |all: &mut Vec<f32>, more: &[f32], order: fn(&f32, &f32) -> Ordering| {
            all.extend(more);
            all.sort_by(order);
            all.truncate(KEPT_SAMPLE_ENDS);
        };
        outermost(&mut self.lowest, &other.lowest, f32::total_cmp);
        outermost(&mut self.highest, &other.highest, |a, b| b.total_cmp(a));
    }

    fn mean(&self) -> Range {
        if self.samples == 0 {
            return Range::EMPTY;
        }
        let mean = |sum: &Sum| (sum.value() / self.samples as f64) as f32;
        Range { min: mean(&self.min), max: mean(&self.max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[&[f32]]) -> Sketch {
        let mut sketch = Sketch::default();
        for sample in samples {
            sketch.observe(sample);
        }
        sketch
    }

    /// Scores between -12 and 12, of which every third is masked.
    fn scores(mask: f32) -> Vec<f32> {
        let masked = |i: usize, score: f32| if i.is_multiple_of(3) { score + mask } else { score };
        (0..999).map(|i| masked(i, ((i * 7919 % 2401) as f32 - 1200.0) / 100.0)).collect()
    }

    #[test]
    fn masks_of_every_kind_leave_the_range_of_the_scores() {
        let honest = of(&[&scores(0.0)]);
        for mask in [-1e4, -65504.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
            let sketch = of(&[&scores(mask)]);
            let masked = sketch.mask().unwrap();
            assert_eq!(masked.count + masked.infinite, 333, "{mask}");
            assert_eq!(masked.infinite > 0, mask.is_infinite());
            let (range, all) = (sketch.range(), honest.range());
            assert!(range.min >= all.min && range.max <= all.max && range.absmax() > 11.0);
            assert_eq!(sketch.values().range(), range);
            assert_eq!(sketch.values().histogram().count(), 666);
            assert_eq!(sketch.mean_range(), range);
        }
        assert_eq!(honest.mask(), None);
    }

    #[test]
    fn honest_values_are_no_mask() {
        let wide: Vec<f32> = (-20_000_i16..20_000).map(f32::from).collect();
        let mut outlier: Vec<f32> = (0..200_000_u32).map(|i| (i % 100) as f32).collect();
        outlier.push(-5000.0);
        for values in [&wide[..], &outlier, &[-1e5; 9], &[-9e3, 5e3, 0.0]] {
            let sketch = of(&[values]);
            assert_eq!(sketch.mask(), None);
            let min = values.iter().copied().fold(f32::INFINITY, f32::min);
            assert_eq!(sketch.range().min, min);
            assert_eq!(sketch.values().count(), values.len() as u64);
            assert_eq!(sketch.values().histogram().count(), values.len() as u64);
        }
    }

    #[test]
    fn what_is_not_finite_is_counted_and_never_binned() {
        let sketch = of(&[&[f32::NAN, 1.0, f32::INFINITY], &[f32::NAN, 0.0, f32::NEG_INFINITY]]);
        assert_eq!((sketch.nan(), sketch.samples()), (2, 2));
        assert_eq!((sketch.positive_infinities(), sketch.negative_infinities()), (1, 1));
        assert_eq!(sketch.range(), Range { min: 0.0, max: 1.0 });
        assert_eq!((sketch.values().count(), sketch.values().zeros()), (2, 1));
        assert_eq!(
            sketch.mask(),
            Some(MaskedValues { count: 0, range: Range::EMPTY, infinite: 1 })
        );
        let nothing = of(&[&[f32::NEG_INFINITY; 3], &vec![f32::NAN; 9000], &[]]);
        assert_eq!((nothing.range(), nothing.mean_range()), (Range::EMPTY, Range::EMPTY));
        assert_eq!((nothing.mask(), nothing.values().mean()), (None, None));
    }

    #[test]
    fn mean_ends_are_those_of_the_samples() {
        let sketch = of(&[&[-1.0, 4.0], &[-3.0, 2.0, 0.0], &[], &[f32::NAN]]);
        assert_eq!(sketch.mean_range(), Range { min: -2.0, max: 3.0 });
        let masked = of(&[&[-1.0, -1e4], &[-3.0, 1.0], &[-1e4]]);
        assert_eq!(masked.mean_range(), Range { min: -2.0, max: 0.0 });
        let honest = of(&[&[-1.0, -1e4], &[-3e3, 3e3]]);
        assert_eq!(honest.mean_range(), Range { min: -6500.0, max: 1499.5 });
    }

    #[test]
    fn the_outermost_ends_are_kept_in_whatever_order_they_come() {
        let samples: Vec<[f32; 3]> = [3, 9, 1, 9, 4, 0, 7, 5, 8, 2]
            .map(|i: u8| [-1e4, -0.5 * f32::from(i), f32::from(i)])
            .into();
        let ends = |order: &[usize]| {
            let mut merged = Sketch::default();
            for at in order {
                merged.merge(&of(&[&samples[*at]]));
            }
            merged
        };
        let all = ends(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let SampleEnds { samples: count, lowest, highest, .. } = all.sample_ends();
        assert_eq!((count, highest), (10, &[9.0, 9.0, 8.0, 7.0, 5.0, 4.0, 3.0, 2.0][..]));
        assert_eq!(lowest, [-4.5, -4.5, -4.0, -3.5, -2.5, -2.0, -1.5, -1.0]);
        assert_eq!(all, ends(&[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]));
        let rows: Vec<&[f32]> = samples.iter().map(|row| &row[..]).collect();
        assert_eq!(all, of(&rows));
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Sketch>(&text).unwrap(), all);
    }

    #[test]
    fn moments_of_known_values() {
        let values: Vec<f32> = (0..10_000_u16).map(|i| f32::from(i % 100)).collect();
        let seen = of(&[&values]);
        let seen = seen.values();
        assert_eq!(seen.mean(), Some(49.5));
        let std = (9999.0_f64 / 12.0).sqrt();
        assert!((seen.std().unwrap() / std - 1.0).abs() < 1e-3, "{:?}", seen.std());
        assert_eq!(of(&[&vec![2.5; 9000], &vec![2.5; 9000]]).values().std(), Some(0.0));
        assert_eq!(of(&[&[0.0; 9]]).values().std(), Some(0.0));
    }

    #[test]
    fn extremes_fit() {
        let extremes = [f32::MAX, f32::MIN, 1e-45, -1e-45, f32::MIN_POSITIVE, 0.0, -0.0];
        let seen = of(&[&extremes]);
        assert_eq!(seen.range(), Range { min: f32::MIN, max: f32::MAX });
        let values = seen.values();
        assert_eq!((values.zeros(), values.histogram().count()), (2, 7));
        assert_eq!(values.mean(), Some(0.0));
        let edges: Vec<_> = values.bins().map(|bin| (bin.from, bin.to, bin.count)).collect();
        let (width, max) = (values.histogram().width(), f64::from(f32::MAX));
        let last = width * 4095.0;
        let expected =
            [(-max, -last, 1), (-width, 0.0, 1), (0.0, 0.0, 2), (0.0, width, 2), (last, max, 1)];
        assert_eq!(edges, expected);
        let tiny = of(&[&[1e-45, -2e-45]]);
        assert_eq!(tiny.values().bins().map(|bin| bin.count).sum::<u64>(), 2);
    }
}
