//! Statistics of each channel of a tensor.

use serde::{Deserialize, Serialize};

use super::distribution;
use super::exact_sum::Sum;
use super::histogram_scratch::CHUNK;
use super::sketch::Sketch;
use crate::MathError;
use crate::layout::product;
use crate::simd::{SimdLoop, vectorized};

/// The mean and the largest magnitude of each channel of a tensor, over all samples, independent of
/// their order.
///
/// Values that are not finite are left out. The number of channels is that of the first sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "Serialized", try_from = "Serialized")]
pub struct ChannelStats {
    sums: Vec<Sum>,
    absmax: Vec<f32>,
    counts: Vec<u64>,
}

/// How channels are laid out: runs of `inner` consecutive values belong to one channel, the next
/// run to the next channel.
#[derive(Clone, Copy)]
struct Layout {
    channels: usize,
    inner: usize,
}

impl Layout {
    /// The layout of channels along `axis` of `shape`, whose number of elements must be that of
    /// `values`.
    fn of(values: &[f32], shape: &[usize], axis: usize) -> Result<Layout, MathError> {
        let &channels =
            shape.get(axis).ok_or_else(|| MathError::Axis { axis, shape: shape.to_vec() })?;
        let (elements, inner) = (product(shape, shape)?, product(&shape[axis + 1..], shape)?);
        agree("elements", values.len(), elements)?;
        Ok(Layout { channels, inner })
    }
}

/// Channels with runs of at least this length are processed one at a time.
const MIN_RUN: usize = 1 << 11;

impl Sketch {
    /// As [`observe`](Sketch::observe), and also updates the statistics of the channels along
    /// `axis` of `shape`, in the same pass where that is faster. `channels` becomes `None` if the
    /// axis does not exist or the number of channels changes.
    pub fn observe_channels(
        &mut self,
        channels: &mut Option<ChannelStats>,
        values: &[f32],
        shape: &[usize],
        axis: usize,
    ) {
        // Only the shape decides how values are processed.
        let layout = Layout::of(values, shape, axis).ok().filter(|layout| layout.inner >= MIN_RUN);
        let observed = if let Some(layout) = layout {
            let count = layout.channels;
            let (mut sums, mut absmax) = (vec![0.0; count], vec![0.0; count]);
            self.observe_runs(values, layout.inner, |run, summary| {
                let channel = run % count;
                sums[channel] += summary.sum;
                absmax[channel] = larger(absmax[channel], summary.range.absmax());
            });
            channels.as_mut().map(|channels| {
                channels.fit(count).map(|()| channels.take(values, layout, (sums, absmax)))
            })
        } else {
            self.observe(values);
            channels.as_mut().map(|channels| channels.observe(values, shape, axis))
        };
        if !matches!(observed, Some(Ok(()))) {
            *channels = None;
        }
    }
}

impl ChannelStats {
    /// Adds a sample, with its channels along `axis` of `shape`.
    ///
    /// # Errors
    ///
    /// The axis does not exist, or the number of values or of channels differs from the shape or
    /// from earlier samples.
    pub fn observe(
        &mut self,
        values: &[f32],
        shape: &[usize],
        axis: usize,
    ) -> Result<(), MathError> {
        let layout = Layout::of(values, shape, axis)?;
        let Layout { channels, inner } = layout;
        self.fit(channels)?;
        // An axis of no elements leaves nothing to divide into channels.
        if values.is_empty() {
            return Ok(());
        }
        let found = if inner == 1 { rows(values, channels) } else { runs(values, channels, inner) };
        self.take(values, layout, found);
        Ok(())
    }

    /// Adds the largest magnitudes of a sample, and nothing to the means.
    ///
    /// # Errors
    ///
    /// As for [`observe`](ChannelStats::observe).
    pub fn observe_peaks(
        &mut self,
        values: &[f32],
        shape: &[usize],
        axis: usize,
    ) -> Result<(), MathError> {
        let mut found = ChannelStats::default();
        found.observe(values, shape, axis)?;
        self.fit(found.channels())?;
        self.absmax.iter_mut().zip(found.absmax).for_each(|(peak, own)| *peak = peak.max(own));
        Ok(())
    }

    /// Adds the sum and the largest magnitude of each channel.
    fn take(
        &mut self,
        values: &[f32],
        Layout { channels, inner }: Layout,
        (sums, absmax): (Vec<f64>, Vec<f32>),
    ) {
        if values.is_empty() {
            return;
        }
        let count = (values.len() / channels) as u64;
        for (channel, (sum, absmax)) in sums.into_iter().zip(absmax).enumerate() {
            if sum.is_finite() {
                self.add(channel, sum, absmax, count);
            } else {
                let values = values.chunks(inner).skip(channel).step_by(channels).flatten();
                self.add_finite(channel, values.copied().filter(|x| x.is_finite()));
            }
        }
    }

    /// Merges other statistics into these.
    ///
    /// # Errors
    ///
    /// The numbers of channels differ.
    pub fn merge(&mut self, other: &ChannelStats) -> Result<(), MathError> {
        if other.sums.is_empty() {
            return Ok(());
        }
        self.fit(other.sums.len())?;
        for (sum, other) in self.sums.iter_mut().zip(&other.sums) {
            sum.merge(other);
        }
        for (absmax, other) in self.absmax.iter_mut().zip(&other.absmax) {
            *absmax = absmax.max(*other);
        }
        for (count, other) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*other);
        }
        Ok(())
    }

    /// The statistics of the tensor with each channel multiplied by a factor, rounded to f64.
    ///
    /// # Errors
    ///
    /// The number of factors differs from the number of channels.
    pub fn scaled(&self, factors: &[f32]) -> Result<ChannelStats, MathError> {
        agree("factors", factors.len(), self.sums.len())?;
        let scale = |(sum, factor): (&Sum, &f32)| {
            let mut scaled = Sum::default();
            scaled.add(sum.value() * f64::from(*factor));
            scaled
        };
        Ok(ChannelStats {
            sums: self.sums.iter().zip(factors).map(scale).collect(),
            absmax: self.absmax.iter().zip(factors).map(|(x, factor)| x * factor.abs()).collect(),
            counts: self.counts.clone(),
        })
    }

    /// The number of channels; 0 before the first sample.
    pub fn channels(&self) -> usize {
        self.sums.len()
    }

    /// The mean of the values of a channel; `None` when it has no values.
    pub fn mean(&self, channel: usize) -> Option<f64> {
        let (sum, &count) = (self.sums.get(channel)?, self.counts.get(channel)?);
        (count > 0).then(|| sum.value() / count as f64)
    }

    /// The largest number of values of a channel.
    pub fn count(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// The largest magnitude of each channel; 0 when it has no values.
    pub fn absmax(&self) -> &[f32] {
        &self.absmax
    }

    fn fit(&mut self, channels: usize) -> Result<(), MathError> {
        if self.sums.is_empty() {
            *self = ChannelStats {
                sums: vec![Sum::default(); channels],
                absmax: vec![0.0; channels],
                counts: vec![0; channels],
            };
        }
        agree("channels", channels, self.sums.len())
    }

    fn add(&mut self, channel: usize, sum: f64, absmax: f32, count: u64) {
        self.sums[channel].add(sum);
        self.absmax[channel] = self.absmax[channel].max(absmax);
        self.counts[channel] = self.counts[channel].saturating_add(count);
    }

    fn add_finite(&mut self, channel: usize, values: impl Iterator<Item = f32>) {
        let (mut sum, mut absmax, mut count) = (0.0, 0.0_f32, 0);
        for x in values {
            sum += f64::from(x);
            absmax = absmax.max(x.abs());
            count += 1;
        }
        self.add(channel, sum, absmax, count);
    }
}

fn agree(what: &'static str, found: usize, expected: usize) -> Result<(), MathError> {
    if found == expected { Ok(()) } else { Err(MathError::Length { what, found, expected }) }
}

/// The number of values processed at once.
const LANES: usize = 16;

/// The sum and the largest magnitude of each channel, when consecutive values belong to different
/// channels.
fn rows(values: &[f32], channels: usize) -> (Vec<f64>, Vec<f32>) {
    let (mut sums, mut absmax) = (vec![0.0; channels], vec![0.0; channels]);
    vectorized(AddRows { values, sums: &mut sums, absmax: &mut absmax });
    (sums, absmax)
}

/// Accumulates rows with one value per channel.
struct AddRows<'a> {
    values: &'a [f32],
    sums: &'a mut [f64],
    absmax: &'a mut [f32],
}

impl SimdLoop for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (wide_sums, few_sums) = self.sums.as_chunks_mut::<LANES>();
        let (wide_absmax, few_absmax) = self.absmax.as_chunks_mut::<LANES>();
        let channels = wide_sums.len() * LANES + few_sums.len();
        for row in self.values.chunks_exact(channels) {
            let (wide, few) = row.as_chunks::<LANES>();
            for ((sums, absmax), row) in wide_sums.iter_mut().zip(&mut *wide_absmax).zip(wide) {
                // All lanes at once: from a comparison alone the compiler would generate a masked
                // store.
                let (mut more, mut larger_of) = (*sums, *absmax);
                for lane in 0..LANES {
                    more[lane] += f64::from(row[lane]);
                    larger_of[lane] = larger(larger_of[lane], row[lane].abs());
                }
                (*sums, *absmax) = (more, larger_of);
            }
            for ((sum, absmax), x) in few_sums.iter_mut().zip(&mut *few_absmax).zip(few) {
                *sum += f64::from(*x);
                *absmax = larger(*absmax, x.abs());
            }
        }
    }
}

/// The sum and the largest magnitude of each channel, when `inner` consecutive values belong to the
/// same channel.
fn runs(values: &[f32], channels: usize, inner: usize) -> (Vec<f64>, Vec<f32>) {
    let (mut sums, mut absmax) = (vec![0.0; channels], vec![0.0; channels]);
    for block in values.chunks_exact(channels * inner) {
        for ((sum, absmax), run) in sums.iter_mut().zip(&mut absmax).zip(block.chunks_exact(inner))
        {
            vectorized(Add { run, sum, absmax });
        }
    }
    (sums, absmax)
}

/// Accumulates a run of values of one channel.
struct Add<'a> {
    run: &'a [f32],
    sum: &'a mut f64,
    absmax: &'a mut f32,
}

impl SimdLoop for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for chunk in self.run.chunks(CHUNK) {
            *self.sum += distribution::sum(chunk);
            *self.absmax = larger(*self.absmax, absmax_of(chunk));
        }
    }
}

#[inline(always)]
fn absmax_of(values: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        for (lane, x) in row.iter().enumerate() {
            lanes[lane] = larger(lanes[lane], x.abs());
        }
    }
    let rest = rest.iter().fold(0.0, |most, x| larger(most, x.abs()));
    lanes.into_iter().fold(rest, larger)
}

/// The larger of two numbers, and `this` when the other is NaN: one instruction, unlike `f32::max`.
#[inline(always)]
fn larger(this: f32, other: f32) -> f32 {
    if other > this { other } else { this }
}

/// The JSON form of [`ChannelStats`].
#[derive(Serialize, Deserialize)]
struct Serialized {
    sums: Vec<Sum>,
    /// As f64, which JSON round-trips exactly.
    absmax: Vec<f64>,
    counts: Vec<u64>,
}

impl From<ChannelStats> for Serialized {
    fn from(of: ChannelStats) -> Serialized {
        let absmax = of.absmax.into_iter().map(f64::from).collect();
        Serialized { sums: of.sums, absmax, counts: of.counts }
    }
}

impl TryFrom<Serialized> for ChannelStats {
    type Error = &'static str;

    fn try_from(Serialized { sums, absmax, counts }: Serialized) -> Result<Self, &'static str> {
        let absmax: Vec<f32> = absmax.into_iter().map(|absmax| absmax as f32).collect();
        if sums.len() != absmax.len() || sums.len() != counts.len() {
            return Err("lists of different lengths for the same channels");
        }
        if !absmax.iter().all(|absmax| absmax.is_finite() && *absmax >= 0.0) {
            return Err("a magnitude that is negative or infinite");
        }
        Ok(ChannelStats { sums, absmax, counts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32], shape: &[usize], axis: usize) -> ChannelStats {
        let mut stats = ChannelStats::default();
        stats.observe(values, shape, axis).unwrap();
        stats
    }

    #[test]
    fn an_axis_of_no_elements_adds_nothing() {
        for (shape, axis) in [([1, 4, 0], 1), ([0, 4, 3], 1), ([2, 4, 0], 1), ([1, 0, 4], 2)] {
            let mut seen = ChannelStats::default();
            seen.observe(&[], &shape, axis).unwrap();
            assert_eq!((seen.channels(), seen.count()), (4, 0));
        }
        let mut none = ChannelStats::default();
        none.observe(&[], &[5, 0], 1).unwrap();
        assert_eq!(none.channels(), 0);
    }

    #[test]
    fn every_axis_equals_a_plain_loop() {
        let shape = [3, 5, 7, 4];
        let values: Vec<f32> = (0..420).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        for axis in 0..4 {
            let (inner, channels) = (shape[axis + 1..].iter().product::<usize>(), shape[axis]);
            let stats = of(&values, &shape, axis);
            assert_eq!(stats.channels(), channels);
            for channel in 0..channels {
                let own: Vec<f32> = (0..values.len())
                    .filter(|i| i / inner % channels == channel)
                    .map(|i| values[i])
                    .collect();
                let mean = own.iter().sum::<f32>() / own.len() as f32;
                assert!((stats.mean(channel).unwrap() - f64::from(mean)).abs() < 1e-5);
                let absmax = own.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
                assert_eq!(stats.absmax()[channel], absmax);
            }
        }
    }

    #[test]
    fn samples_and_merges_are_independent_of_order() {
        let samples: Vec<Vec<f32>> = (0..9_u8)
            .map(|sample| {
                (0..60).map(|i| (f32::from(sample) + 0.1) * 1e3_f32.powi(i % 5 - 2)).collect()
            })
            .collect();
        let mut forth = ChannelStats::default();
        for sample in &samples {
            forth.observe(sample, &[1, 5, 12], 1).unwrap();
        }
        let mut back = ChannelStats::default();
        for shard in samples.rchunks(2) {
            let mut part = ChannelStats::default();
            for sample in shard.iter().rev() {
                part.observe(sample, &[5, 12], 0).unwrap();
            }
            back.merge(&part).unwrap();
        }
        assert_eq!(forth, back);
        let json = serde_json::to_string(&forth).unwrap();
        assert_eq!(serde_json::from_str::<ChannelStats>(&json).unwrap(), back);
    }

    #[test]
    fn non_finite_values_are_left_out_of_their_channel() {
        let values = [1.0, f32::NAN, 3.0, f32::INFINITY, -5.0, f32::NEG_INFINITY];
        for (shape, axis) in [(&[3, 2][..], 1), (&[2, 3], 1), (&[1, 3, 2], 1)] {
            let stats = of(&values, shape, axis);
            let absmax = stats.absmax().iter().fold(0.0_f32, |max, &x| max.max(x));
            assert_eq!(absmax, 5.0);
            assert!(
                (0..stats.channels()).filter_map(|channel| stats.mean(channel)).all(f64::is_finite)
            );
        }
        let stats = of(&values, &[3, 2], 1);
        assert_eq!((stats.mean(0), stats.mean(1)), (Some(-1.0 / 3.0), None));
    }

    #[test]
    fn observing_with_a_sketch_equals_observing_separately() {
        let mut values: Vec<f32> =
            (0..2 * 3 * 9000).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        for (at, x) in [(5, f32::NAN), (9001, -1e4), (30_000, f32::NEG_INFINITY), (44_000, 7e5)] {
            values[at] = x;
        }
        for (shape, axis) in [
            (&[2, 3, 9000][..], 1),
            (&[3, 18_000], 0),
            (&[3, 18_000], 1),
            (&[2, 3, 9000], 2),
            (&[54_000], 0),
        ] {
            let (mut channels, mut sketch) = (Some(ChannelStats::default()), Sketch::default());
            sketch.observe_channels(&mut channels, &values, shape, axis);
            assert_eq!(channels, Some(of(&values, shape, axis)), "{shape:?} {axis}");
            let mut alone = Sketch::default();
            alone.observe(&values);
            assert_eq!(sketch.samples(), 1);
            assert_eq!((sketch.nan(), sketch.mask()), (alone.nan(), alone.mask()));
            assert_eq!(sketch.mean_range(), alone.mean_range());
            let (seen, wanted) = (sketch.values(), alone.values());
            assert_eq!(seen.histogram(), wanted.histogram());
            assert_eq!((seen.range(), seen.zeros()), (wanted.range(), wanted.zeros()));
            let (mean, wanted) = (seen.mean().unwrap(), wanted.mean().unwrap());
            assert!((mean - wanted).abs() <= wanted.abs() * 1e-12, "{mean} {wanted}");
        }
    }

    #[test]
    fn observing_with_a_sketch_is_independent_of_order_even_with_changing_channels() {
        let samples: Vec<(Vec<f32>, [usize; 2])> = [(4, 2500), (4, 9000), (3, 5000), (4, 7)]
            .map(|(channels, inner)| {
                let value = |i: usize| (i as f32).sin() * 1e4_f32.powi((i % 9) as i32 - 4);
                let values = (0..channels * inner).map(value);
                (values.collect(), [channels, inner])
            })
            .to_vec();
        let seen = |order: &[usize]| {
            let (mut channels, mut sketch) = (Some(ChannelStats::default()), Sketch::default());
            for &at in order {
                let (values, shape) = &samples[at];
                sketch.observe_channels(&mut channels, values, shape, 0);
            }
            (channels, sketch)
        };
        assert_eq!(seen(&[0, 1, 3]), seen(&[3, 1, 0]));
        let (none, forth) = seen(&[0, 1, 2, 3]);
        assert_eq!((none, &forth), (None, &seen(&[2, 3, 0, 1]).1));
        let (mut one, other) = (seen(&[2, 1]).1, seen(&[3, 0]).1);
        one.merge(&other);
        assert_eq!(one, forth);
    }

    #[test]
    fn peaks_leave_the_means_alone() {
        let mut stats = ChannelStats::default();
        stats.observe_peaks(&[-5.0, 1.0], &[1, 2], 1).unwrap();
        stats.observe(&[2.0, 3.0, 4.0, 5.0], &[2, 2], 1).unwrap();
        assert_eq!(stats.absmax(), [5.0, 5.0]);
        assert_eq!((stats.mean(0), stats.mean(1)), (Some(3.0), Some(4.0)));
        assert!(stats.observe_peaks(&[1.0], &[1, 1], 1).is_err());
    }

    #[test]
    fn mismatched_shapes_are_refused() {
        let mut stats = of(&[1.0, 2.0], &[2], 0);
        assert!(matches!(stats.observe(&[1.0], &[1], 1), Err(MathError::Axis { .. })));
        assert!(matches!(stats.observe(&[1.0], &[2], 0), Err(MathError::Length { .. })));
        assert!(matches!(stats.observe(&[1.0], &[1], 0), Err(MathError::Length { .. })));
        assert!(stats.merge(&of(&[1.0], &[1], 0)).is_err());
        assert_eq!(stats.merge(&ChannelStats::default()), Ok(()));
        assert_eq!(stats.observe(&[], &[0, 2], 1), Ok(()));
        for json in [
            r#"{"sums":["1"],"absmax":[],"counts":[1]}"#,
            r#"{"sums":["1"],"absmax":[1e99],"counts":[1]}"#,
        ] {
            assert!(serde_json::from_str::<ChannelStats>(json).is_err());
        }
    }
}
