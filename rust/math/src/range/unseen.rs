//! What a sample that was not seen may hold beyond all that were.

use super::density::Density;
use crate::stats::Sketch;
use crate::{Range, stats::SampleEnds};

/// The tails of one more sample, at both ends.
///
/// Few samples do not show how far values go: of sixteen photos, on average one in seventeen others goes further than all
/// of them. How much further, the ends of the samples tell: the largest of `N` is `β ln N` above their mean where
/// the ends follow Gumbel's distribution (E. J. Gumbel, *Statistics of Extremes*, 1958), whose tail is
/// exponential: beyond the largest value seen, one of the next sample is on average another `β` further.
///
/// Where samples share an end to the last bit there is no tail: pixels are not brighter than white, and nothing comes out
/// of a Clip that it does not let through.
pub(super) struct Unseen {
    below: Option<Tail>,
    above: Option<Tail>,
}

/// Beyond `end`, `count` values lie on average `scale` further, exponentially distributed. Distances from zero, both ways.
struct Tail {
    end: f64,
    scale: f64,
    count: f64,
}

impl Unseen {
    pub(super) fn of(seen: &Sketch, density: &Density) -> Unseen {
        let (full, ends) = (seen.range(), seen.sample_ends());
        let SampleEnds { samples, mean, at_min, at_max } = ends;
        let tail = |alone: u64, end: f32, mean: f32, beyond: &dyn Fn(f64) -> f64| {
            let (end, mean) = (f64::from(end), f64::from(mean));
            let scale = (end - mean) / (samples as f64).ln();
            // An end at zero, or on the other side of it, is not the grid's.
            let tail = alone == 1 && samples > 1 && end > 0.0 && scale > 0.0;
            // Of N samples, e reach up to `scale` below the largest value.
            let count = || (beyond(end - scale) / std::f64::consts::E).max(1.0);
            tail.then(|| Tail { end, scale, count: count() })
        };
        Unseen {
            below: tail(at_min, -full.min, -mean.min, &|x| density.below(-x)),
            above: tail(at_max, full.max, mean.max, &|x| density.above(x)),
        }
    }

    /// Whether values beyond the lower end, and beyond the upper end, may come.
    pub(super) fn ends(&self) -> [bool; 2] {
        [self.below.is_some(), self.above.is_some()]
    }

    /// The sum of the squares by which values of the next sample are expected to lie beyond the ends of a grid.
    pub(super) fn clipped(&self, ends: Range) -> f64 {
        let cost = |tail: &Option<Tail>, end: f32| {
            tail.as_ref().map_or(0.0, |tail| tail.clipped(f64::from(end)))
        };
        cost(&self.below, -ends.min) + cost(&self.above, ends.max)
    }
}

impl Tail {
    /// `count · E (x - to)²` over the part of the tail that lies beyond `to`.
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

    fn unseen(samples: &[Vec<f32>]) -> (Unseen, Sketch) {
        let mut seen = Sketch::default();
        for sample in samples {
            seen.observe(sample);
        }
        (Unseen::of(&seen, &Density::of(&seen.values())), seen)
    }

    /// What is as likely as `part` to be exceeded, of an exponential distribution with mean 1.
    fn exponential(part: f64) -> f64 {
        -part.ln()
    }

    #[test]
    fn the_tail_of_known_samples_is_found() {
        // Sixteen samples of a thousand values each, exponentially distributed but for the sign.
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            exponential(((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64) as f32
        };
        let (mut scales, mut clipped) = (0.0, 0.0);
        for _ in 0..64 {
            let samples: Vec<Vec<f32>> =
                (0..16).map(|_| (0..1000).map(|_| next()).collect()).collect();
            let (unseen, seen) = unseen(&samples);
            let tail = unseen.above.as_ref().unwrap();
            assert!(unseen.below.is_none());
            scales += tail.scale / 64.0;
            // Another sample has 1000 values, of which so many lie beyond an end, each on average 1 and by square 2.
            let end = seen.range().max + 1.0;
            let truth = 2.0 * 1000.0 * f64::from(-end).exp();
            let found = unseen.clipped(Range { min: 0.0, max: end }) / 16.0;
            clipped += (found / truth).ln() / 64.0;
        }
        assert!((scales - 1.0).abs() < 0.15, "{scales}");
        assert!(clipped.abs() < 0.7, "{clipped}");
    }

    #[test]
    fn both_ends_are_told_apart_and_the_cost_falls_without_a_step() {
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
    fn what_samples_share_or_what_one_has_alone_has_no_tail() {
        let white: Vec<Vec<f32>> = [0.9, 1.0, 0.8, 1.0].map(|max| vec![0.0, 0.25, max]).into();
        assert_eq!(unseen(&white).0.ends(), [false, false]);
        assert_eq!(unseen(&white).0.clipped(Range { min: 0.0, max: 0.5 }), 0.0);
        assert_eq!(unseen(&[vec![-1.0, 2.0]]).0.ends(), [false, false]);
        // Values on one side of zero: the grid ends at zero there, whatever comes.
        assert_eq!(unseen(&[vec![1.0, 2.0], vec![1.5, 3.0]]).0.ends(), [false, true]);
        assert_eq!(unseen(&[vec![-1.0, -2.0], vec![-1.5, -3.0]]).0.ends(), [true, false]);
    }
}
