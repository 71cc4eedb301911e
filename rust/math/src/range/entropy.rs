//! The range with the smallest loss of information.

use std::borrow::Cow;

use super::density::Density;
use super::{Degenerate, FoundRange, RangeFinder, clipped, not_zero};
use crate::stats::{Distribution, Histogram, Sketch};
use crate::{MathError, QSpec, Range};

/// Minimizes the Kullback-Leibler divergence between the distributions before and after
/// quantization, as `TensorRT` and ONNX Runtime's tool define it.
///
/// For each of some hundred thresholds `t`:
/// - `P` is the histogram up to `t` on either side of zero, with the values beyond added to its
///   outermost bins;
/// - `Q` is that part of the histogram without the values beyond, divided into as many equal pieces
///   as the type has levels, with the values of each piece spread evenly over those of its bins
///   that are not empty in `P`;
/// - the divergence is `Σ p·ln(p / q)`, where `p` and `q` are the shares of a bin.
///
/// With a symmetric grid, the histogram is that of the magnitudes, and the levels are those of one
/// side: 128 for int8. Otherwise it is that of the values, with all levels. Zeros are left out:
/// every grid represents them exactly, and after a `Relu` they would dominate the histogram. No
/// threshold clips more than one value in twenty. The full range is a candidate, and wins ties.
/// Floats have no equal pieces, and do not gain from clipping: their steps are fine where most
/// values are.
///
/// The divergence counts how many values are clipped, and not by how much. The squared error can be
/// limited to a multiple of that of the full range.
#[derive(Debug)]
pub(super) struct Entropy {
    /// The largest squared error, by that of the full range.
    max_error_ratio: f64,
}

impl Entropy {
    pub(super) const USUAL: Entropy = Entropy { max_error_ratio: f64::INFINITY };
}

/// How often the distance between two thresholds is halved: to a step of 8 bits.
const HALVINGS: u32 = 8;

/// The approximate number of thresholds tried.
const CANDIDATES: usize = 512;

/// The maximum share of clipped values. In a distribution away from zero, a threshold just above
/// its beginning would lose no information by the definition: all values are in one bin, before and
/// after.
const MAX_CLIPPED: f64 = 0.05;

/// The share of `Q` in an outermost bin that is empty in `Q` but has the values beyond in `P`; with
/// 0 the logarithm would be infinite.
const EPSILON: f64 = 1e-9;

impl RangeFinder for Entropy {
    fn name(&self) -> Cow<'static, str> {
        if self.max_error_ratio.is_finite() {
            format!("entropy:{}", self.max_error_ratio).into()
        } else {
            "entropy".into()
        }
    }

    fn about(&self) -> &'static str {
        "the smallest Kullback-Leibler divergence after quantizing"
    }

    fn range(&self, seen: &Sketch, spec: &QSpec) -> FoundRange {
        let values = seen.values();
        let full = values.range();
        if let Some(found) = FoundRange::trivial(full) {
            return found;
        }
        if spec.qtype.is_float() {
            return FoundRange::full(full, Degenerate::Floats);
        }
        let (lo, hi) = spec.grid();
        let lowest = if spec.symmetric { spec.zero_point_midpoint() } else { lo };
        let levels = (i64::from(hi) - i64::from(lowest) + 1) as usize;
        if levels > Histogram::BINS / 2 {
            return FoundRange::full(full, Degenerate::TooFine);
        }
        let bins = Bins::of(&values, spec.symmetric);
        if bins.count(0, bins.len()) < (Histogram::BINS / 2) as f64 {
            return FoundRange::full(full, Degenerate::TooFew { values: not_zero(&values) });
        }
        let mut best = bins.best(full, levels);
        if self.max_error_ratio.is_finite() {
            best = self.within_error(best, full, &Density::of(&values), spec);
        }
        FoundRange::of(best, full)
    }

    fn parameter(&self) -> Option<&'static str> {
        Some("RATIO")
    }

    fn with(&self, parameter: &str) -> Result<Box<dyn RangeFinder>, MathError> {
        let ratio = parameter.parse().ok().filter(|ratio: &f64| *ratio >= 1.0 && ratio.is_finite());
        let max_error_ratio =
            ratio.ok_or_else(|| MathError::ErrorRatio { found: parameter.to_owned() })?;
        Ok(Box::new(Entropy { max_error_ratio }))
    }
}

impl Entropy {
    /// The range, or the one nearest to it whose squared error is small enough.
    fn within_error(&self, best: Range, full: Range, density: &Density, spec: &QSpec) -> Range {
        let most = self.max_error_ratio * density.error(spec, full);
        if density.error(spec, best) <= most {
            return best;
        }
        // The error of clipping falls as the threshold rises.
        let (mut too_low, mut enough) = (f64::from(best.absmax()), f64::from(full.absmax()));
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(too_low, enough);
            let fits = density.error(spec, clipped(full, middle as f32)) <= most;
            *(if fits { &mut enough } else { &mut too_low }) = middle;
        }
        clipped(full, enough as f32)
    }
}

/// The histogram as one list of bins, with cumulative sums.
struct Bins {
    /// The index of the bin that begins at zero.
    zero: usize,
    width: f64,
    /// The number of bins on the longer side of zero.
    reach: usize,
    /// Up to each bin: the number of values, `Σ n·ln n`, and the number of bins that are not empty.
    counts: Vec<f64>,
    logs: Vec<f64>,
    occupied: Vec<u32>,
}

impl Bins {
    fn of(values: &Distribution, magnitudes: bool) -> Bins {
        let histogram = values.histogram();
        let trimmed = |bins: &[u64]| {
            let used = bins.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
            bins[..used].to_vec()
        };
        let (mut row, mut above) = if magnitudes {
            (Vec::new(), trimmed(&histogram.magnitudes()))
        } else {
            (trimmed(histogram.below()), trimmed(histogram.above()))
        };
        if let Some(first) = above.first_mut() {
            *first = first.saturating_sub(values.zeros());
        }
        let zero = row.len();
        let reach = zero.max(above.len());
        row.reverse();
        row.append(&mut above);
        let mut bins = Bins {
            zero,
            width: histogram.width(),
            reach,
            counts: vec![0.0],
            logs: vec![0.0],
            occupied: vec![0],
        };
        let (mut counts, mut logs, mut occupied) = (0.0, 0.0, 0);
        for count in row {
            counts += count as f64;
            logs += x_ln_x(count as f64);
            occupied += u32::from(count > 0);
            bins.counts.push(counts);
            bins.logs.push(logs);
            bins.occupied.push(occupied);
        }
        bins
    }

    fn len(&self) -> usize {
        self.counts.len() - 1
    }

    /// The number of values in a range of bins.
    fn count(&self, from: usize, to: usize) -> f64 {
        self.counts[to] - self.counts[from]
    }

    /// The range with the smallest divergence.
    fn best(&self, full: Range, levels: usize) -> Range {
        let stride = self.reach.div_ceil(CANDIDATES);
        let mut best = (self.reach, self.divergence(self.reach, levels));
        let mut consider = |threshold: usize| {
            let divergence = self.divergence(threshold, levels);
            if divergence < best.1 {
                best = (threshold, divergence);
            }
            best.0
        };
        let mut coarse = self.reach;
        for threshold in (1..self.reach).rev().step_by(stride) {
            coarse = consider(threshold);
        }
        for threshold in (coarse.saturating_sub(stride)..coarse + stride).rev() {
            if (1..self.reach).contains(&threshold) {
                consider(threshold);
            }
        }
        clipped(full, (best.0 as f64 * self.width).min(f64::from(f32::MAX)) as f32)
    }

    /// The divergence when everything beyond `threshold` bins from zero is clipped; infinite when
    /// fewer bins than levels would be left.
    fn divergence(&self, threshold: usize, levels: usize) -> f64 {
        let from = self.zero.saturating_sub(threshold);
        let to = (self.zero + threshold).min(self.len());
        let inside = self.count(from, to);
        let total = self.count(0, self.len());
        if to - from < levels || inside < (1.0 - MAX_CLIPPED) * total || inside == 0.0 {
            return f64::INFINITY;
        }
        let (below, above) = (self.count(0, from), self.count(to, self.len()));
        // Σ P·ln P, minus Σ P·ln Q, in values. With the shares p = P / total and q = Q / inside, Σ
        // p·ln(p / q) = (Σ P·ln P - Σ P·ln Q) / total - ln total + ln inside.
        let (first, last) = (self.count(from, from + 1), self.count(to - 1, to));
        let mut sum = self.logs[to] - self.logs[from];
        sum += x_ln_x(first + below) - x_ln_x(first) + x_ln_x(last + above) - x_ln_x(last);
        let mut start = from;
        for level in 1..=levels {
            let end = from + (to - from) * level / levels;
            let count = self.count(start, end);
            let mut bins = self.occupied[end] - self.occupied[start];
            let mut clipped = 0.0;
            if level == 1 {
                clipped += below;
                bins += u32::from(first == 0.0 && below > 0.0);
            }
            if level == levels {
                clipped += above;
                bins += u32::from(last == 0.0 && above > 0.0);
            }
            if count > 0.0 {
                sum -= (count + clipped) * (count / f64::from(bins)).ln();
            } else if clipped > 0.0 {
                sum -= clipped * (EPSILON * inside).ln();
            }
            start = end;
        }
        sum / total - total.ln() + inside.ln()
    }
}

fn x_ln_x(x: f64) -> f64 {
    if x > 0.0 { x * x.ln() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, QType};

    /// The definition, bin by bin.
    fn by_definition(row: &[u64], from: usize, to: usize, levels: usize) -> f64 {
        let inside = &row[from..to];
        let mut p: Vec<f64> = inside.iter().map(|&count| count as f64).collect();
        let sum = |bins: &[u64]| bins.iter().sum::<u64>() as f64;
        p[0] += sum(&row[..from]);
        p[to - from - 1] += sum(&row[to..]);
        let mut q = vec![0.0; inside.len()];
        for level in 0..levels {
            let piece = inside.len() * level / levels..inside.len() * (level + 1) / levels;
            let occupied = piece.clone().filter(|&bin| p[bin] > 0.0).count();
            for bin in piece.clone().filter(|&bin| p[bin] > 0.0) {
                q[bin] = sum(&inside[piece.clone()]) / occupied as f64;
            }
        }
        let terms = p.iter().zip(&q).filter(|(p, _)| **p > 0.0).map(|(p, q)| {
            let p = p / sum(row);
            let q = if *q > 0.0 { q / sum(inside) } else { EPSILON };
            p * (p / q).ln()
        });
        terms.sum()
    }

    /// A long tail on one side, a shorter one on the other, gaps, and many zeros.
    fn seen() -> Sketch {
        let mut seen = Sketch::default();
        let tail = |i: u32| (f64::from(i % 5000 + 1) / 5000.0).powf(-0.4) as f32 - 1.0;
        seen.observe(&(0..50_000).map(tail).collect::<Vec<_>>());
        seen.observe(&(0..50_000).map(|i| -0.3 * tail(i)).collect::<Vec<_>>());
        seen.observe(&[0.0; 3000]);
        seen
    }

    #[test]
    fn cumulative_sums_equal_the_definition() {
        let seen = seen();
        let values = seen.values();
        let histogram = values.histogram();
        for magnitudes in [false, true] {
            let bins = Bins::of(&values, magnitudes);
            let mut row: Vec<u64> = if magnitudes {
                histogram.magnitudes()
            } else {
                let below = histogram.below().iter().rev();
                below.chain(histogram.above()).copied().collect()
            };
            let zero = row.len() - Histogram::BINS;
            row[zero] -= values.zeros();
            for levels in [16, 128, 256] {
                for threshold in [130, 257, 258, 300, 511, 1000, 1999, bins.reach] {
                    let found = bins.divergence(threshold, levels);
                    let (from, to) = (zero.saturating_sub(threshold), zero + threshold);
                    // Empty bins at an end are not part of the list.
                    let from = from.max(zero - bins.zero);
                    let to = to.min(zero - bins.zero + bins.len());
                    let sum = |bins: &[u64]| bins.iter().sum::<u64>() as f64;
                    if to - from < levels || sum(&row[from..to]) < 0.95 * sum(&row) {
                        assert_eq!(found, f64::INFINITY);
                    } else {
                        let expected = by_definition(&row, from, to, levels);
                        assert!((found - expected).abs() < 1e-10, "{found} for {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn values_away_from_zero_are_not_clipped_to_their_minimum() {
        let spec = QSpec::new(QType::UInt8, false, Granularity::PerTensor);
        let even = |i: u16| 1.0 + 2.0 * f32::from(i) / 50_000.0;
        let two = |i: u16| if i.is_multiple_of(2) { 1.0 + f32::from(i) * 1e-7 } else { 3.0 };
        for of in [even, two] {
            let mut seen = Sketch::default();
            seen.observe(&(0..=50_000).map(of).collect::<Vec<f32>>());
            let FoundRange { range, .. } = Entropy::USUAL.range(&seen, &spec);
            assert!(range.max > 2.95, "{range:?}");
            let mut below = Sketch::default();
            below.observe(&(0..=50_000).map(|i| -of(i)).collect::<Vec<f32>>());
            assert!(Entropy::USUAL.range(&below, &spec).range.min < -2.95);
        }
    }

    #[test]
    fn the_squared_error_can_be_limited() {
        // As outputs of GELU: most are close to the minimum, and three in a hundred are up to 12.
        let mut seen = Sketch::default();
        let low = |i: u16| 1.2 * (f32::from(i) / 48_500.0).powi(6) - 0.17;
        seen.observe(&(0..48_500).map(low).collect::<Vec<_>>());
        seen.observe(&(0..1500).map(|i| 1.0 + 11.0 * (i as f32 / 1500.0)).collect::<Vec<_>>());
        let density = Density::of(&seen.values());
        for symmetric in [false, true] {
            let spec = QSpec::new(QType::UInt8, symmetric, Granularity::PerTensor);
            let error = |range| density.error(&spec, range);
            let full = error(seen.values().range());
            let free = Entropy::USUAL.range(&seen, &spec).range;
            assert!(error(free) > 100.0 * full, "{free:?}");
            let mut last = free.max;
            for ratio in [50.0, 4.0, 1.0] {
                let finder = Entropy::USUAL.with(&ratio.to_string()).unwrap();
                let range = finder.range(&seen, &spec).range;
                assert!(range.max > last, "{range:?} {last} {ratio}");
                assert!(error(range) <= ratio * full, "{} {full} {ratio}", error(range));
                // A threshold that is much lower would clip too much.
                assert!(error(Range { max: 0.7 * range.max, ..range }) > ratio * full);
                last = range.max;
            }
        }
    }

    #[test]
    fn the_threshold_is_a_local_minimum() {
        let seen = seen();
        let bins = Bins::of(&seen.values(), true);
        let best = bins.best(seen.range(), 128);
        let threshold = (f64::from(best.absmax()) / bins.width) as usize;
        let least = bins.divergence(threshold, 128);
        for other in threshold - 4..=threshold + 4 {
            assert!(least <= bins.divergence(other, 128));
        }
        assert!(least < bins.divergence(bins.reach, 128));
    }
}
