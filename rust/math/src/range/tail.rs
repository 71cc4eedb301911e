//! Estimates the tails of a distribution beyond the observed samples.

use super::density::Density;
use crate::Range;
use crate::stats::{KEPT_SAMPLE_ENDS, SampleEnds, Sketch};

/// The estimated tails beyond the observed range, at both ends.
///
/// Few samples do not show how far values can go: one in seventeen further samples exceeds the
/// maximum of sixteen. The extremes of the samples give two estimates of how far. If they follow a
/// Gumbel distribution (E. J. Gumbel, *Statistics of Extremes*, 1958), the largest of `N` is
/// `β ln N` above their mean. If their tail is exponential (I. Weissman, *Estimation of Parameters
/// and Large Quantiles Based on the k Largest Observations*, 1978), the `k` largest exceed the
/// smallest of them by `β` on average. The smaller estimate of `β` is used, because headroom makes
/// the steps of all values coarser. The same number of further samples is then expected to have
/// `n / e` values beyond the observed maximum, on average `β` beyond it, where `n` is the number of
/// values within `β` below the maximum.
///
/// There is no tail if samples share an extreme bit for bit, or if most values within `β` of the
/// extreme are equal to it: pixels do not exceed white, and the output of a `Clip` does not exceed
/// its bounds. A duplicated sample looks the same, and adds no headroom.
pub(super) struct TailEstimate {
    below: Option<Tail>,
    above: Option<Tail>,
}

/// `count` values beyond `end`, exponentially distributed with the mean distance `scale`. All
/// distances are from zero, on either side.
struct Tail {
    end: f64,
    scale: f64,
    count: f64,
}

/// The estimate uses one extreme per this many samples.
const SAMPLES_PER_END: u64 = 2;

/// Values within this fraction of `β` count as equal to the extreme.
const END_TOLERANCE: f64 = 1.0 / 64.0;

/// Fewer equal values at an extreme can be a coincidence.
const MIN_END_VALUES: f64 = 3.0;

impl TailEstimate {
    pub(super) fn of(seen: &Sketch, density: &Density) -> TailEstimate {
        let SampleEnds { samples, mean, lowest, highest } = seen.sample_ends();
        let many = (samples / SAMPLES_PER_END).clamp(2, KEPT_SAMPLE_ENDS as u64) as usize;
        let tail = |sign: f64, ends: &[f32], mean: f32, beyond: &dyn Fn(f64) -> f64| {
            let ends = ends.iter().take(many).map(|end| sign * f64::from(*end));
            // An end at zero, or on the other side of it, is not an end of the grid.
            let ends: Vec<f64> = ends.take_while(|end| *end > 0.0).collect();
            Tail::of(&ends, sign * f64::from(mean), samples, beyond)
        };
        TailEstimate {
            below: tail(-1.0, lowest, mean.min, &|x| density.below(-x)),
            above: tail(1.0, highest, mean.max, &|x| density.above(x)),
        }
    }

    /// Whether values are expected beyond the lower and beyond the upper end.
    pub(super) fn ends(&self) -> [bool; 2] {
        [self.below.is_some(), self.above.is_some()]
    }

    /// The expected sum of squared distances of values of as many further samples beyond the ends
    /// of a grid, without the part within the observed range.
    pub(super) fn clipped(&self, ends: Range) -> f64 {
        let cost = |tail: &Option<Tail>, end: f32| {
            tail.as_ref().map_or(0.0, |tail| tail.clipped(f64::from(end)))
        };
        cost(&self.below, -ends.min) + cost(&self.above, ends.max)
    }
}

impl Tail {
    /// Estimates a tail from the outermost extremes of the samples in descending order, the mean of
    /// all extremes, the number of samples, and the number of values beyond a point.
    fn of(ends: &[f64], mean: f64, samples: u64, beyond: impl Fn(f64) -> f64) -> Option<Tail> {
        let [end, next, ..] = *ends else { return None };
        let last = *ends.last()?;
        let excess = ends.iter().map(|end| end - last).sum::<f64>() / (ends.len() - 1) as f64;
        let scale = excess.min((end - mean) / (samples as f64).ln());
        if end <= next || scale <= 0.0 {
            return None;
        }
        let (near, at) = (beyond(end - scale), beyond(end - scale * END_TOLERANCE));
        let is_limit = at >= MIN_END_VALUES && at * 2.0 > near;
        (!is_limit).then(|| Tail { end, scale, count: near / std::f64::consts::E })
    }

    /// `count · E (x - to)²` over the part of the tail beyond `to`.
    fn clipped(&self, to: f64) -> f64 {
        let Tail { end, scale, count } = *self;
        let short = end - to;
        let twice = 2.0 * scale * scale;
        count
            * if short > 0.0 {
                short * short + 2.0 * short * scale + twice
            } else {
                twice * (short / scale).exp()
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unseen(samples: &[Vec<f32>]) -> (TailEstimate, Sketch) {
        let mut seen = Sketch::default();
        for sample in samples {
            seen.observe(sample);
        }
        (TailEstimate::of(&seen, &Density::of(&seen.values())), seen)
    }

    /// The quantile of an exponential distribution with mean 1 that is exceeded with the
    /// probability `part`.
    fn exponential(part: f64) -> f64 {
        -part.ln()
    }

    #[test]
    fn the_tail_of_known_samples_is_estimated() {
        // Sixteen samples of a thousand values, exponentially distributed with random signs.
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            exponential(((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64) as f32
        };
        let (mut scales, mut parts) = (0.0, Vec::new());
        for _ in 0..64 {
            let samples: Vec<Vec<f32>> =
                (0..16).map(|_| (0..1000).map(|_| next()).collect()).collect();
            let (unseen, _) = unseen(&samples);
            let tail = unseen.above.as_ref().unwrap();
            assert!(unseen.below.is_none());
            scales += tail.scale / 64.0;
            // The same number of further samples has 16,000 values; the expected number beyond an
            // end, with a mean squared distance of 2.
            let end = 16_000_f64.ln() + 1.0;
            let truth = 2.0 * 16_000.0 * (-end).exp();
            parts.push(unseen.clipped(Range { min: 0.0, max: end as f32 }) / truth);
        }
        assert!(scales > 0.85 && scales < 1.05, "{scales}");
        // Estimates from so few samples vary widely, so compare the mean.
        let mean = parts.iter().sum::<f64>() / 64.0;
        assert!(mean > 0.5 && mean < 3.0, "{mean}");
    }

    #[test]
    fn both_ends_are_distinguished_and_the_cost_is_continuous() {
        let samples: Vec<Vec<f32>> =
            (1..9_u8).map(|i| vec![-f32::from(i), 0.5, 100.0 + f32::from(i * i)]).collect();
        let (unseen, seen) = unseen(&samples);
        assert_eq!(unseen.ends(), [true, true]);
        let cost = |part: f32| {
            let Range { min, max } = seen.range();
            unseen.clipped(Range { min: min * part, max: max * part })
        };
        let costs: Vec<f64> = (50_u16..200).map(|part| cost(f32::from(part) / 100.0)).collect();
        assert!(costs.windows(2).all(|pair| pair[1] < pair[0]));
        assert!((cost(1.0 - 1e-5) / cost(1.0 + 1e-5) - 1.0).abs() < 1e-2);
    }

    #[test]
    fn many_extremes_near_the_maximum_give_a_short_tail() {
        // The mean alone would estimate that other samples go 1.7 further.
        let end = |i: u8| if i < 8 { 10.0 - 0.125 * f32::from(i) } else { 1.0 };
        let (unseen, _) = unseen(&(0..16).map(|i| vec![0.5, end(i)]).collect::<Vec<_>>());
        let tail = unseen.above.unwrap();
        assert!((tail.scale - 0.5).abs() < 1e-9, "{}", tail.scale);
    }

    #[test]
    fn shared_and_single_extremes_have_no_tail() {
        let white: Vec<Vec<f32>> = [0.9, 1.0, 0.8, 1.0].map(|max| vec![0.0, 0.25, max]).into();
        assert_eq!(unseen(&white).0.ends(), [false, false]);
        assert_eq!(unseen(&white).0.clipped(Range { min: 0.0, max: 0.5 }), 0.0);
        // A limit that only one of the samples reaches, with many values.
        let even = |max: u8| (0..200).map(move |i| f32::from(max) * f32::from(i as u8) / 200.0);
        let mut dark: Vec<Vec<f32>> = (1..9).map(|max| even(max).collect()).collect();
        assert_eq!(unseen(&dark).0.ends(), [false, true]);
        dark[7].extend([8.0; 100]);
        assert_eq!(unseen(&dark).0.ends(), [false, false]);
        assert_eq!(unseen(&[vec![-1.0, 2.0]]).0.ends(), [false, false]);
        // Nonzero ends in a single sample, then in two.
        assert_eq!(unseen(&[vec![5.0], vec![0.0], vec![-0.5]]).0.ends(), [false, false]);
        assert_eq!(unseen(&[vec![5.0], vec![3.0], vec![-0.5]]).0.ends(), [false, true]);
        // Values on one side of zero: the grid always ends at zero.
        assert_eq!(unseen(&[vec![1.0, 2.0], vec![1.5, 3.0]]).0.ends(), [false, true]);
        assert_eq!(unseen(&[vec![-1.0, -2.0], vec![-1.5, -3.0]]).0.ends(), [true, false]);
    }
}
