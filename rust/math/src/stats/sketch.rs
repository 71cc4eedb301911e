//! Statistics of one tensor over all samples.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::distribution::{Distribution, Summary};
use super::exact_sum::Sum;
use super::histogram_scratch::{CHUNK, Scratch, with_scratch};
use super::json;
use crate::Range;

/// Statistics of one tensor over all samples. Their size is fixed, and they are bit-identical for
/// every order in which samples are observed and partial sketches are merged.
///
/// They consist of counts, extremes and exact [`Sum`]s. Only within a sample are values added in
/// f64, in an order that depends on the shape of the tensor and on whether channels are observed
/// too.
///
/// # Attention masks
///
/// An attention mask is added to scores so that they vanish in the softmax: −10⁴, −65504, −10⁹, the
/// lowest float or −∞. If the range included it, all relevant values would share one step. Values
/// up to −4096 are therefore collected separately, and all observed values decide whether they are
/// a mask. They are a mask when the magnitude of every other value is less than an eighth of
/// theirs, and when there are many of them, unlike outliers: 16 and more than one in 65 536 values,
/// or more than one in 256, or all others are 0, as in the mask itself. Otherwise they are merged
/// with the other values, with the same result as without the separation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sketch {
    samples: u64,
    nan: u64,
    positive_infinities: u64,
    negative_infinities: u64,
    /// Values above [`MASK_THRESHOLD`], and all others.
    near: Distribution,
    far: Distribution,
    /// The extremes of samples, of near values only and of all values.
    near_ends: Ends,
    all_ends: Ends,
}

/// Values up to this one may be a mask.
const MASK_THRESHOLD: f32 = -4096.0;

/// The minimum ratio of the magnitudes of mask values to that of all other values.
const MIN_MASK_GAP: f32 = 8.0;

/// The maximum number of unmasked values per mask value, and where there are fewer than
/// [`MANY_MASKED`].
const MAX_UNMASKED_PER_MASKED: u64 = 1 << 16;
const MAX_UNMASKED_PER_FEW: u64 = 1 << 8;
const MANY_MASKED: u64 = 16;

/// The minimum number of values for which counting in scratch memory is faster.
const MIN_SCRATCH_VALUES: usize = 1 << 13;

/// Values of an attention mask, which the range of a tensor does not include.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaskedValues {
    /// The number of finite mask values.
    pub count: u64,
    /// Their range; [`Range::EMPTY`] when there are none.
    pub range: Range,
    /// The number of values that are −∞.
    pub infinite: u64,
}

/// Extremes of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ends {
    /// The number of samples with values.
    samples: u64,
    /// The sums of the extremes.
    min: Sum,
    max: Sum,
    /// The smallest minima and the largest maxima of samples: at most [`KEPT_SAMPLE_ENDS`] each,
    /// the most extreme first.
    #[serde(with = "json::floats")]
    lowest: Vec<f32>,
    #[serde(with = "json::floats")]
    highest: Vec<f32>,
}

/// The number of sample extremes that are stored per side.
pub(crate) const KEPT_SAMPLE_ENDS: usize = 8;

/// Extremes of samples, without mask values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SampleEnds<'a> {
    /// The number of samples with values.
    pub(crate) samples: u64,
    /// The mean of the minima and the mean of the maxima; [`Range::EMPTY`] when there are none.
    pub(crate) mean: Range,
    /// The smallest minima, in ascending order.
    pub(crate) lowest: &'a [f32],
    /// The largest maxima, in descending order.
    pub(crate) highest: &'a [f32],
}

impl Sketch {
    /// Adds a sample.
    pub fn observe(&mut self, values: &[f32]) {
        self.observe_runs(values, values.len(), |_, _| ());
    }

    /// Adds a sample, processed in runs of `length` values. `each` is called with the index of the
    /// run and the summary of a part of it.
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

    /// Counts values that are not finite, and separates the others. Without branches, which such
    /// values would make unpredictable.
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

    /// Merges another sketch into this one.
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

    /// The number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The number of NaN values.
    pub fn nan(&self) -> u64 {
        self.nan
    }

    /// The number of values that are +∞.
    pub fn positive_infinities(&self) -> u64 {
        self.positive_infinities
    }

    /// The number of values that are −∞, mask or not.
    pub fn negative_infinities(&self) -> u64 {
        self.negative_infinities
    }

    /// The exact range of the finite values that are not a mask; [`Range::EMPTY`] when there are
    /// none.
    pub fn range(&self) -> Range {
        let near = self.near.range();
        if self.far_is_mask() { near } else { near.merge(self.far.range()) }
    }

    /// The finite values that are not a mask.
    pub fn values(&self) -> Cow<'_, Distribution> {
        if self.far.count() == 0 || self.far_is_mask() {
            return Cow::Borrowed(&self.near);
        }
        let mut all = self.near.clone();
        all.merge(&self.far);
        Cow::Owned(all)
    }

    /// The mean of the minima of the samples and the mean of their maxima, without mask values.
    ///
    /// [`Range::EMPTY`] when no sample has values.
    pub fn mean_range(&self) -> Range {
        self.ends().mean()
    }

    /// The extremes of samples.
    pub(crate) fn sample_ends(&self) -> SampleEnds<'_> {
        let ends @ Ends { samples, lowest, highest, .. } = self.ends();
        SampleEnds { samples: *samples, mean: ends.mean(), lowest, highest }
    }

    fn ends(&self) -> &Ends {
        if self.far_is_mask() { &self.near_ends } else { &self.all_ends }
    }

    /// The attention mask of the tensor, if it has one.
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
        let many = far.count() >= MANY_MASKED;
        let others = if many { MAX_UNMASKED_PER_MASKED } else { MAX_UNMASKED_PER_FEW };
        near.count() > 0
            && far.count() > 0
            && near.range().absmax() < far.range().max.abs() / MIN_MASK_GAP
            && (near.range().absmax() == 0.0 || far.count().saturating_mul(others) > near.count())
    }
}

impl Ends {
    /// The extremes of one sample with this range.
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

    /// Attention scores between -12 and 12, a third of which are masked.
    fn scores(mask: f32) -> Vec<f32> {
        let masked = |i: usize, score: f32| if i.is_multiple_of(3) { score + mask } else { score };
        (0..999).map(|i| masked(i, ((i * 7919 % 2401) as f32 - 1200.0) / 100.0)).collect()
    }

    #[test]
    fn masks_of_every_kind_do_not_change_the_range_of_the_scores() {
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
        let mut rare = vec![0.0; 100_000];
        rare[7] = -1e4;
        assert_eq!(of(&[&rare]).mask().map(|mask| mask.count), Some(1));
    }

    #[test]
    fn unmasked_values_are_not_taken_for_a_mask() {
        let wide: Vec<f32> = (-20_000_i16..20_000).map(f32::from).collect();
        let mut outlier: Vec<f32> = (0..200_000_u32).map(|i| (i % 100) as f32).collect();
        outlier.push(-5000.0);
        let fewer = |values: usize| outlier[outlier.len() - values..].to_vec();
        for values in [
            &wide[..],
            &outlier,
            &fewer(20_480),
            &fewer(100_000),
            &fewer(300),
            &[-1e5; 9],
            &[-9e3, 5e3, 0.0],
        ] {
            let sketch = of(&[values]);
            assert_eq!(sketch.mask(), None);
            let min = values.iter().copied().fold(f32::INFINITY, f32::min);
            assert_eq!(sketch.range().min, min);
            assert_eq!(sketch.values().count(), values.len() as u64);
            assert_eq!(sketch.values().histogram().count(), values.len() as u64);
        }
    }

    #[test]
    fn non_finite_values_are_counted_and_never_binned() {
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
    fn the_mean_range_is_the_mean_of_the_sample_ranges() {
        let sketch = of(&[&[-1.0, 4.0], &[-3.0, 2.0, 0.0], &[], &[f32::NAN]]);
        assert_eq!(sketch.mean_range(), Range { min: -2.0, max: 3.0 });
        let masked = of(&[&[-1.0, -1e4], &[-3.0, 1.0], &[-1e4]]);
        assert_eq!(masked.mean_range(), Range { min: -2.0, max: 0.0 });
        let honest = of(&[&[-1.0, -1e4], &[-3e3, 3e3]]);
        assert_eq!(honest.mean_range(), Range { min: -6500.0, max: 1499.5 });
    }

    #[test]
    fn the_outermost_sample_ends_do_not_depend_on_the_order() {
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
    fn extreme_floats_are_counted() {
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
