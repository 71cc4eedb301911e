//! How accurate a quantized model is, and whether a difference in accuracy is significant.

/// Signal and noise of each output of a model, for each of some samples.
pub(super) struct Score {
    /// For each output and each sample: the sum of squares of the float model's values, and the sum
    /// of squares of the differences.
    outputs: Vec<Vec<Energy>>,
    /// For each output: whether it has a signal. Others do not count.
    counts: Vec<bool>,
    /// The samples, in the same order.
    samples: Vec<Scored>,
}

/// A sample of a score.
#[derive(Clone, Copy)]
pub(super) struct Scored {
    pub(super) key: u64,
    /// Whether the choice of a method for each value was based on it.
    pub(super) chose: bool,
}

#[derive(Clone, Copy, Default)]
struct Energy {
    signal: f64,
    noise: f64,
}

/// Noise below this fraction of the signal counts as none: float32 has no more digits.
const NOISELESS: f64 = 1e-15;

impl Score {
    /// The score of float outputs and quantized outputs, sample by sample and output by output.
    /// Returns `None` if there is nothing to compare.
    pub(super) fn of<'s>(
        shown: impl Iterator<Item = (Scored, &'s [Vec<f32>], &'s [Vec<f32>])>,
    ) -> Option<Score> {
        let mut outputs: Vec<Vec<Energy>> = Vec::new();
        let mut samples = Vec::new();
        for (sample, wanted, got) in shown {
            samples.push(sample);
            outputs.resize_with(wanted.len(), Vec::new);
            for (output, (wanted, got)) in outputs.iter_mut().zip(wanted.iter().zip(got)) {
                output.push(Energy::of(wanted, got));
            }
        }
        let counts: Vec<bool> =
            outputs.iter().map(|output| Energy::sum(output).signal > 0.0).collect();
        counts.contains(&true).then_some(Score { outputs, counts, samples })
    }

    /// The score on some of the samples.
    fn on(&self, is_wanted: impl Fn(&Scored) -> bool) -> Score {
        let wanted = |output: &Vec<Energy>| {
            let samples = output.iter().zip(&self.samples).filter(|(_, it)| is_wanted(it));
            samples.map(|(energy, _)| *energy).collect()
        };
        let samples = self.samples.iter().filter(|it| is_wanted(it)).copied().collect();
        let outputs = self.outputs.iter().map(wanted).collect();
        Score { outputs, counts: self.counts.clone(), samples }
    }

    /// The outputs that count, beside those of `other`.
    fn beside<'s>(
        &'s self,
        other: &'s Score,
    ) -> impl Iterator<Item = (&'s Vec<Energy>, &'s Vec<Energy>)> {
        let pairs = self.outputs.iter().zip(&other.outputs).zip(&self.counts);
        pairs.filter(|(_, counts)| **counts).map(|(pair, _)| pair)
    }

    /// The score on the samples on which no choice for a value was based.
    fn of_others(&self) -> Score {
        self.on(|sample| !sample.chose)
    }

    /// The number of samples.
    pub(super) fn samples(&self) -> usize {
        self.outputs.first().map_or(0, Vec::len)
    }

    /// The mean SQNR over the outputs, in decibels; −∞ for an output that is NaN.
    #[allow(clippy::cast_precision_loss)] // as many as a model has outputs
    pub(super) fn decibels(&self) -> f64 {
        let all = || self.beside(self).map(|(output, _)| Energy::sum(output).decibels());
        all().sum::<f64>() / all().count() as f64
    }

    /// Whether this is significantly more accurate than `other` in every output in which they
    /// differ: beyond what the choice of samples could explain.
    pub(super) fn is_significantly_better(&self, other: &Score) -> bool {
        let mut differing =
            self.beside(other).filter(|(this, other)| differ(this, other)).peekable();
        self.outputs.len() == other.outputs.len()
            && differing.peek().is_some()
            && differing.all(|(this, other)| is_significant(this, other))
    }

    /// Whether this, a score on some of the samples of `other`, is better there on average, in
    /// every output in which they differ. Only then is it likely to be significantly better on all.
    pub(super) fn is_ahead_of(&self, other: &Score) -> bool {
        let keys: Vec<u64> = self.samples.iter().map(|sample| sample.key).collect();
        let same = other.on(|sample| keys.contains(&sample.key));
        self.beside(&same).filter(|(this, same)| differ(this, same)).all(|(this, same)| {
            let (these, others) = (Energy::sum(this), Energy::sum(same));
            if these.noise.is_infinite() || others.noise.is_infinite() {
                return these.noise.is_finite();
            }
            mean(&gains(this, same)) > 0.0
        })
    }

    /// As [`Score::is_significantly_better`], and also on the samples on which no choice for a
    /// value was based. On the other samples, such a choice looks better than it is.
    pub(super) fn chooses_significantly_better(&self, other: &Score) -> bool {
        self.is_significantly_better(other)
            && self.of_others().is_significantly_better(&other.of_others())
    }
}

/// The gain on each sample with a signal, in decibels.
fn gains(this: &[Energy], other: &[Energy]) -> Vec<f64> {
    let with_signal = this.iter().zip(other).filter(|(this, _)| this.signal > 0.0);
    with_signal.map(|(this, other)| this.gain_over(*other)).collect()
}

/// Whether any sample distinguishes them.
fn differ(this: &[Energy], other: &[Energy]) -> bool {
    this.iter().zip(other).any(|(this, other)| this.noise.to_bits() != other.noise.to_bits())
}

/// Whether `this` is better on most samples, the mean difference in decibels exceeds its standard
/// error, and the difference of the total SQNR exceeds half of its standard error.
///
/// The totals are what counts in the end, but a few samples with much noise dominate them: on
/// trained models their standard error was up to twice that of the mean. Because of these few
/// samples the totals are tested too.
fn is_significant(this: &[Energy], other: &[Energy]) -> bool {
    let (these, others) = (Energy::sum(this), Energy::sum(other));
    if these.noise.is_infinite() || others.noise.is_infinite() {
        return these.noise.is_finite();
    }
    let pairs = || this.iter().zip(other);
    let alone = gains(this, other);
    let without: Vec<f64> =
        pairs().map(|(this, other)| these.less(*this).gain_over(others.less(*other))).collect();
    let better = alone.iter().filter(|gain| **gain > 0.0).count();
    // This is false for fewer than two samples, whose error is NaN.
    better * 2 > alone.len()
        && mean(&alone) > error_of_mean(&alone)
        && these.gain_over(others) > jackknife_error(&without) / 2.0
}

#[allow(clippy::cast_precision_loss)] // as many as there are samples
fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len() as f64
}

/// The standard error of the mean.
#[allow(clippy::cast_precision_loss)] // as many as there are samples
fn error_of_mean(all: &[f64]) -> f64 {
    let count = all.len() as f64;
    (squared_deviations(all) / (count * (count - 1.0))).sqrt()
}

/// The standard error of a statistic of all samples, from its values without each one of them: the
/// jackknife (Efron & Stein, 1981).
#[allow(clippy::cast_precision_loss)] // as many as there are samples
fn jackknife_error(without: &[f64]) -> f64 {
    let count = without.len() as f64;
    (squared_deviations(without) * (count - 1.0) / count).sqrt()
}

/// The sum of squared deviations from the mean.
fn squared_deviations(all: &[f64]) -> f64 {
    let mean = mean(all);
    all.iter().map(|x| (x - mean).powi(2)).sum()
}

impl Energy {
    /// Elements that are not finite in the float model have no error that can be measured.
    fn of(wanted: &[f32], got: &[f32]) -> Energy {
        let mut found = Energy::default();
        for (x, y) in wanted.iter().zip(got).filter(|(x, _)| x.is_finite()) {
            let (x, y) = (f64::from(*x), f64::from(*y));
            found.signal += x * x;
            found.noise += if y.is_finite() { (x - y) * (x - y) } else { f64::INFINITY };
        }
        found
    }

    fn sum(all: &[Energy]) -> Energy {
        let add = |a: Energy, b: &Energy| Energy {
            signal: a.signal + b.signal,
            noise: a.noise + b.noise,
        };
        all.iter().fold(Energy::default(), add)
    }

    /// The energy without `part`; the last digits of the sums may be off.
    fn less(self, part: Energy) -> Energy {
        let noise = if part.noise < self.noise { self.noise - part.noise } else { 0.0 };
        Energy { signal: (self.signal - part.signal).max(f64::MIN_POSITIVE), noise }
    }

    /// How much less noise there is, in decibels.
    fn gain_over(self, other: Energy) -> f64 {
        self.decibels() - other.decibels()
    }

    fn decibels(self) -> f64 {
        10.0 * (self.signal / self.noise.max(self.signal * NOISELESS)).log10()
    }
}

#[cfg(test)]
impl Score {
    /// Samples of one output whose elements are all 1, with these errors.
    pub(super) fn with_errors(errors: &[f32]) -> Score {
        let wanted = [vec![1.0_f32; 4]];
        let got: Vec<[Vec<f32>; 1]> = errors.iter().map(|error| [vec![1.0 + error; 4]]).collect();
        let scored = |key| Scored { key, chose: false };
        Score::of((0..).map(scored).zip(&got).map(|(it, got)| (it, &wanted[..], &got[..]))).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(errors: &[f32]) -> Score {
        Score::with_errors(errors)
    }

    #[test]
    fn decibels_are_those_of_the_sums() {
        assert!((score(&[0.125; 5]).decibels() - 20.0 * 8_f64.log10()).abs() < 1e-9);
        assert!((score(&[0.0; 5]).decibels() - 150.0).abs() < 1e-9);
    }

    #[test]
    fn nan_is_the_worst_there_is_and_never_better() {
        let broken = score(&[0.125, f32::NAN]);
        assert_eq!(broken.decibels(), f64::NEG_INFINITY);
        let sound = score(&[0.5, 0.5]);
        assert!(
            !broken.is_significantly_better(&sound) && !broken.is_significantly_better(&broken)
        );
        // Elements that are not finite in the float model do not count.
        let (wanted, got) = ([vec![f32::NEG_INFINITY, 1.0]], [vec![0.0, 1.5]]);
        let sample = Scored { key: 0, chose: false };
        let masked = Score::of(std::iter::once((sample, &wanted[..], &got[..]))).unwrap();
        assert!((masked.decibels() - 10.0 * 4_f64.log10()).abs() < 1e-9);
    }

    #[test]
    fn a_difference_from_one_sample_is_not_significant() {
        let even = score(&[0.125; 8]);
        assert!(score(&[0.0625; 8]).is_significantly_better(&even));
        // Better on seven samples, but so much worse on one that the difference is not significant.
        let torn = score(&[0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.34]);
        assert!(torn.decibels() > even.decibels());
        assert!(!torn.is_significantly_better(&even));
        assert!(!even.is_significantly_better(&even));
        // The reverse: the whole difference comes from one sample with much noise.
        let loud = [0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 1.0];
        let tame = score(&[0.012, 0.012, 0.012, 0.012, 0.012, 0.012, 0.012, 0.25]);
        assert!(tame.decibels() > score(&loud).decibels() + 6.0);
        assert!(!tame.is_significantly_better(&score(&loud)));
    }

    #[test]
    fn a_difference_on_nearly_all_samples_is_significant() {
        let of = |part: [f32; 8]| {
            let noise = [0.01, 0.02, 0.01, 0.03, 0.02, 0.01, 0.2, 0.3];
            let errors: Vec<f32> = noise.iter().zip(part).map(|(x, part)| x * part).collect();
            score(&errors)
        };
        let (even, better) = (of([1.0; 8]), of([0.8, 0.75, 0.8, 0.7, 0.8, 0.75, 1.05, 0.85]));
        assert!(better.is_significantly_better(&even));
    }

    #[test]
    fn ties_on_most_samples_are_not_significant() {
        let even = score(&[0.125; 24]);
        let mut two = [0.125; 24];
        (two[3], two[9]) = (0.04, 0.04);
        assert!(!score(&two).is_significantly_better(&even));
        // One is better and all others tie: mean and standard error are equal except for rounding.
        for count in 3..24 {
            let mut one = vec![0.125; count];
            one[0] = 0.05;
            assert!(!score(&one).is_significantly_better(&score(&vec![0.125; count])));
        }
    }

    #[test]
    fn one_sample_is_never_significant() {
        assert!(!score(&[0.1]).is_significantly_better(&score(&[0.2])));
    }

    #[test]
    fn finite_outputs_are_better_than_non_finite_ones() {
        let (sound, broken) = (score(&[0.5; 4]), score(&[0.1, f32::NAN, 0.1, 0.1]));
        assert!(sound.is_significantly_better(&broken) && !broken.is_significantly_better(&sound));
        assert!(sound.is_significantly_better(&score(&[f32::NAN; 4])));
        assert!(!broken.is_significantly_better(&score(&[f32::NAN; 4])));
    }

    #[test]
    fn equal_outputs_do_not_count() {
        let of = |error: f32| {
            let wanted = [vec![1.0_f32; 4], vec![2.0], vec![3.0]];
            let got = [vec![1.0 + error; 4], vec![2.0], vec![3.5]];
            let scored = |key| Scored { key, chose: false };
            Score::of((0..6).map(|key| (scored(key), &wanted[..], &got[..]))).unwrap()
        };
        assert!(of(0.1).is_significantly_better(&of(0.2)));
        assert!(!of(0.1).is_significantly_better(&of(0.1)));
    }

    #[test]
    fn a_choice_must_also_be_better_on_other_samples() {
        let of = |errors: &[f32], chose: u64| {
            let wanted = [vec![1.0_f32; 4]];
            let got: Vec<_> = errors.iter().map(|error| [vec![1.0 + error; 4]]).collect();
            let scored = |key| Scored { key, chose: key < chose };
            let samples = (0..).map(scored).zip(&got);
            Score::of(samples.map(|(it, got)| (it, &wanted[..], &got[..]))).unwrap()
        };
        let even = [0.125; 24];
        let other = |at: u8| if at.is_multiple_of(2) { 0.135 } else { 0.115 };
        let better: Vec<f32> =
            (0..24_u8).map(|at| if at < 12 { 0.01 } else { other(at) }).collect();
        let clearly: Vec<f32> = (0..24_u8).map(|at| 0.1 + 0.01 * f32::from(at % 2)).collect();
        for (errors, chose, expected) in
            [(&better, 0, true), (&better, 12, false), (&clearly, 12, true), (&clearly, 24, false)]
        {
            let found = of(errors, chose).chooses_significantly_better(&of(&even, chose));
            assert_eq!(found, expected, "{errors:?} {chose}");
        }
        // NaN on a sample that the choice was based on still counts.
        let broken: Vec<f32> = std::iter::once(f32::NAN).chain(clearly[1..].to_vec()).collect();
        assert!(!of(&broken, 12).chooses_significantly_better(&of(&even, 12)));
        assert!(of(&better, 12).is_significantly_better(&of(&even, 12)));
    }

    #[test]
    fn a_score_on_some_samples_is_compared_on_these() {
        let rival = score(&[0.125, 0.125, 0.125, 0.125, 0.01, 0.01, 0.01, 0.01]);
        let is_ahead = |errors: &[f32]| score(errors).is_ahead_of(&rival);
        assert!(is_ahead(&[0.12; 4]) && !is_ahead(&[0.13; 4]));
        assert!(is_ahead(&[0.13, 0.13, 0.13, 0.1]) && !is_ahead(&[0.12, 0.12, 0.12, 0.2]));
        assert!(is_ahead(&[0.125; 4]), "equal outputs do not count");
        assert!(!is_ahead(&[f32::NAN, 0.01, 0.01, 0.01]));
        // An output that is 0 in these samples does not count, and the next one keeps its partner.
        let two = |errors: [f32; 2], count: u64| {
            let wanted = |key: u64| [vec![if key < 2 { 0.0 } else { 1.0_f32 }; 4], vec![1.0; 4]];
            let shown: Vec<_> = (0..count)
                .map(|key| {
                    let wanted = wanted(key);
                    let got = [0, 1].map(|at| wanted[at].iter().map(|x| x + errors[at]).collect());
                    (key, wanted, got)
                })
                .collect();
            let samples = shown.iter().map(|(key, wanted, got): &(u64, _, [Vec<f32>; 2])| {
                (Scored { key: *key, chose: false }, &wanted[..], &got[..])
            });
            Score::of(samples).unwrap()
        };
        assert!(two([0.9, 0.05], 2).is_ahead_of(&two([0.01, 0.1], 4)));
        assert!(!two([0.001, 0.2], 2).is_ahead_of(&two([0.01, 0.1], 4)));
        let broken = score(&[0.125, f32::NAN, 0.125, 0.125]);
        assert!(score(&[0.5; 2]).is_ahead_of(&broken) && !broken.is_ahead_of(&score(&[0.5; 4])));
    }

    #[test]
    fn without_numbers_there_is_no_score() {
        assert!(Score::of(std::iter::empty()).is_none());
        let zeros = [vec![0.0; 3]];
        let sample = Scored { key: 0, chose: false };
        assert!(Score::of(std::iter::once((sample, &zeros[..], &zeros[..]))).is_none());
    }
}
