//! How near a quantized model comes to the float model, and how sure that is.

/// Signal and noise of each output of a model, on each of some samples.
pub(super) struct Score {
    /// For each output, of each sample: the sum of the squares of the float model's values, and that
    /// of the squares of the differences.
    outputs: Vec<Vec<Energy>>,
    /// Of each sample, whether a choice for each value was made by it.
    chose: Vec<bool>,
}

#[derive(Clone, Copy, Default)]
struct Energy {
    signal: f64,
    noise: f64,
}

/// Less noise than this part of the signal is none: float32 has no more digits.
const NOISELESS: f64 = 1e-15;

impl Score {
    /// What the float model and the quantized one give, sample by sample and output by output, and whether a choice
    /// for each value was made by the sample. `None` where there is nothing to compare.
    pub(super) fn of<'s>(
        samples: impl Iterator<Item = (&'s [Vec<f32>], &'s [Vec<f32>], bool)>,
    ) -> Option<Score> {
        let mut outputs: Vec<Vec<Energy>> = Vec::new();
        let mut chose = Vec::new();
        for (wanted, got, by_it) in samples {
            chose.push(by_it);
            outputs.resize_with(wanted.len(), Vec::new);
            for (output, (wanted, got)) in outputs.iter_mut().zip(wanted.iter().zip(got)) {
                output.push(Energy::of(wanted, got));
            }
        }
        outputs.retain(|output| Energy::sum(output).signal > 0.0);
        (!outputs.is_empty()).then_some(Score { outputs, chose })
    }

    /// The same of the samples alone by which no choice for each value was made.
    fn of_others(&self) -> Score {
        let others = |output: &Vec<Energy>| {
            let samples = output.iter().zip(&self.chose).filter(|(_, chose)| !**chose);
            samples.map(|(energy, _)| *energy).collect()
        };
        let outputs: Vec<Vec<Energy>> = self.outputs.iter().map(others).collect();
        let chose = vec![false; outputs.first().map_or(0, Vec::len)];
        Score { outputs, chose }
    }

    /// How many samples there are.
    pub(super) fn samples(&self) -> usize {
        self.outputs.first().map_or(0, Vec::len)
    }

    /// The mean over the outputs of their SQNR, in decibels; −∞ for an output that is NaN.
    #[allow(clippy::cast_precision_loss)] // as many as a model has outputs
    pub(super) fn decibels(&self) -> f64 {
        let outputs = self.outputs.iter().map(|output| Energy::sum(output).decibels());
        outputs.sum::<f64>() / self.outputs.len() as f64
    }

    /// Whether this is nearer than `other` in every output that they differ in, by more than could be
    /// an accident of which samples there are.
    pub(super) fn is_surely_nearer(&self, other: &Score) -> bool {
        let outputs = || self.outputs.iter().zip(&other.outputs);
        let mut differing = outputs().filter(|(this, other)| differ(this, other)).peekable();
        self.outputs.len() == other.outputs.len()
            && differing.peek().is_some()
            && differing.all(|(this, other)| surely(this, other))
    }

    /// The same, and on the samples alone by which no choice for each value was made: by the others this choice
    /// looks better than it is.
    pub(super) fn chooses_surely_nearer(&self, other: &Score) -> bool {
        self.is_surely_nearer(other) && self.of_others().is_surely_nearer(&other.of_others())
    }
}

/// Whether any sample tells them apart.
fn differ(this: &[Energy], other: &[Energy]) -> bool {
    this.iter().zip(other).any(|(this, other)| this.noise.to_bits() != other.noise.to_bits())
}

/// Whether most samples lead, the mean of what each leads by is larger than its standard error, and what all together
/// lead by larger than half of its own.
///
/// The sums of all are what counts in the end, but a few samples with much noise decide them: on
/// trained models their standard error was up to twice that of the mean. Because of these few, sums
/// are asked too.
fn surely(this: &[Energy], other: &[Energy]) -> bool {
    let (these, others) = (Energy::sum(this), Energy::sum(other));
    if these.noise.is_infinite() || others.noise.is_infinite() {
        return these.noise.is_finite();
    }
    let lead = |this: Energy, other: Energy| this.decibels() - other.decibels();
    let pairs = || this.iter().zip(other);
    let with_signal = pairs().filter(|(this, _)| this.signal > 0.0);
    let alone: Vec<f64> = with_signal.map(|(this, other)| lead(*this, *other)).collect();
    let without: Vec<f64> =
        pairs().map(|(this, other)| lead(these.less(*this), others.less(*other))).collect();
    let leading = alone.iter().filter(|lead| **lead > 0.0).count();
    // Not so of fewer than two samples, whose error is NaN.
    leading * 2 > alone.len()
        && mean(&alone) > error_of_mean(&alone)
        && lead(these, others) > jackknife_error(&without) / 2.0
}

#[allow(clippy::cast_precision_loss)] // as many as there are samples
fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len() as f64
}

/// The standard error of the mean of these.
#[allow(clippy::cast_precision_loss)] // as many as there are samples
fn error_of_mean(all: &[f64]) -> f64 {
    let count = all.len() as f64;
    (squared_deviations(all) / (count * (count - 1.0))).sqrt()
}

/// The standard error of a figure of all samples, from what it would be without each of them: the
/// jackknife's (Efron & Stein, 1981).
#[allow(clippy::cast_precision_loss)] // as many as there are samples
fn jackknife_error(without: &[f64]) -> f64 {
    let count = without.len() as f64;
    (squared_deviations(without) * (count - 1.0) / count).sqrt()
}

/// The sum of the squares of their distances from their mean.
fn squared_deviations(all: &[f64]) -> f64 {
    let mean = mean(all);
    all.iter().map(|x| (x - mean).powi(2)).sum()
}

impl Energy {
    /// What is not finite in the float model has no error that could be measured.
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

    /// Without a part of it; sums may be off by their last digits.
    fn less(self, part: Energy) -> Energy {
        let noise = if part.noise < self.noise { self.noise - part.noise } else { 0.0 };
        Energy { signal: (self.signal - part.signal).max(f64::MIN_POSITIVE), noise }
    }

    fn decibels(self) -> f64 {
        10.0 * (self.signal / self.noise.max(self.signal * NOISELESS)).log10()
    }
}

#[cfg(test)]
impl Score {
    /// Samples of one output that is 1 throughout, and wrong by so much.
    pub(super) fn with_errors(errors: &[f32]) -> Score {
        let wanted = [vec![1.0_f32; 4]];
        let got: Vec<[Vec<f32>; 1]> = errors.iter().map(|error| [vec![1.0 + error; 4]]).collect();
        Score::of(got.iter().map(|got| (&wanted[..], &got[..], false))).unwrap()
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
    fn nan_is_the_worst_there_is_and_never_nearer() {
        let broken = score(&[0.125, f32::NAN]);
        assert_eq!(broken.decibels(), f64::NEG_INFINITY);
        let sound = score(&[0.5, 0.5]);
        assert!(!broken.is_surely_nearer(&sound) && !broken.is_surely_nearer(&broken));
        // What the float model itself does not know is not held against anybody.
        let (wanted, got) = ([vec![f32::NEG_INFINITY, 1.0]], [vec![0.0, 1.5]]);
        let masked = Score::of(std::iter::once((&wanted[..], &got[..], false))).unwrap();
        assert!((masked.decibels() - 10.0 * 4_f64.log10()).abs() < 1e-9);
    }

    #[test]
    fn a_lead_that_one_sample_makes_is_no_lead() {
        let even = score(&[0.125; 8]);
        assert!(score(&[0.0625; 8]).is_surely_nearer(&even));
        // Better on seven, and so much worse on one that it might as well have been more.
        let torn = score(&[0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.34]);
        assert!(torn.decibels() > even.decibels());
        assert!(!torn.is_surely_nearer(&even));
        assert!(!even.is_surely_nearer(&even));
        // The other way round: all the lead is that of a sample with much noise.
        let loud = [0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 1.0];
        let tame = score(&[0.012, 0.012, 0.012, 0.012, 0.012, 0.012, 0.012, 0.25]);
        assert!(tame.decibels() > score(&loud).decibels() + 6.0);
        assert!(!tame.is_surely_nearer(&score(&loud)));
    }

    #[test]
    fn a_lead_on_nearly_all_samples_is_one_although_the_loud_decide_the_sums() {
        let of = |part: [f32; 8]| {
            let noise = [0.01, 0.02, 0.01, 0.03, 0.02, 0.01, 0.2, 0.3];
            let errors: Vec<f32> = noise.iter().zip(part).map(|(x, part)| x * part).collect();
            score(&errors)
        };
        let (even, nearer) = (of([1.0; 8]), of([0.8, 0.75, 0.8, 0.7, 0.8, 0.75, 1.05, 0.85]));
        assert!(nearer.is_surely_nearer(&even));
    }

    #[test]
    fn what_most_samples_say_nothing_of_is_no_lead() {
        let even = score(&[0.125; 24]);
        let mut two = [0.125; 24];
        (two[3], two[9]) = (0.04, 0.04);
        assert!(!score(&two).is_surely_nearer(&even));
        // One leads and all others tie: mean and standard error are the same but for rounding.
        for count in 3..24 {
            let mut one = vec![0.125; count];
            one[0] = 0.05;
            assert!(!score(&one).is_surely_nearer(&score(&vec![0.125; count])));
        }
    }

    #[test]
    fn of_one_sample_nothing_is_sure() {
        assert!(!score(&[0.1]).is_surely_nearer(&score(&[0.2])));
    }

    #[test]
    fn whatever_is_finite_is_nearer_than_what_is_not() {
        let (sound, broken) = (score(&[0.5; 4]), score(&[0.1, f32::NAN, 0.1, 0.1]));
        assert!(sound.is_surely_nearer(&broken) && !broken.is_surely_nearer(&sound));
        assert!(sound.is_surely_nearer(&score(&[f32::NAN; 4])));
        assert!(!broken.is_surely_nearer(&score(&[f32::NAN; 4])));
    }

    #[test]
    fn outputs_that_are_the_same_either_way_have_no_say() {
        let of = |error: f32| {
            let wanted = [vec![1.0_f32; 4], vec![2.0], vec![3.0]];
            let got = [vec![1.0 + error; 4], vec![2.0], vec![3.5]];
            Score::of((0..6).map(|_| (&wanted[..], &got[..], false))).unwrap()
        };
        assert!(of(0.1).is_surely_nearer(&of(0.2)));
        assert!(!of(0.1).is_surely_nearer(&of(0.1)));
    }

    #[test]
    fn a_choice_has_to_lead_on_samples_that_it_was_not_made_by_too() {
        let of = |errors: &[f32], chose: usize| {
            let wanted = [vec![1.0_f32; 4]];
            let got: Vec<_> = errors.iter().map(|error| [vec![1.0 + error; 4]]).collect();
            let pairs = got.iter().enumerate();
            Score::of(pairs.map(|(at, got)| (&wanted[..], &got[..], at < chose))).unwrap()
        };
        let even = [0.125; 24];
        let other = |at: u8| if at.is_multiple_of(2) { 0.135 } else { 0.115 };
        let nearer: Vec<f32> =
            (0..24_u8).map(|at| if at < 12 { 0.01 } else { other(at) }).collect();
        let clearly: Vec<f32> = (0..24_u8).map(|at| 0.1 + 0.01 * f32::from(at % 2)).collect();
        for (errors, chose, expected) in
            [(&nearer, 0, true), (&nearer, 12, false), (&clearly, 12, true), (&clearly, 24, false)]
        {
            let found = of(errors, chose).chooses_surely_nearer(&of(&even, chose));
            assert_eq!(found, expected, "{errors:?} {chose}");
        }
        // What is broken on a sample that it was made by is broken.
        let broken: Vec<f32> = std::iter::once(f32::NAN).chain(clearly[1..].to_vec()).collect();
        assert!(!of(&broken, 12).chooses_surely_nearer(&of(&even, 12)));
        assert!(of(&nearer, 12).is_surely_nearer(&of(&even, 12)));
    }

    #[test]
    fn without_numbers_there_is_no_score() {
        assert!(Score::of(std::iter::empty()).is_none());
        let zeros = [vec![0.0; 3]];
        assert!(Score::of(std::iter::once((&zeros[..], &zeros[..], false))).is_none());
    }
}
