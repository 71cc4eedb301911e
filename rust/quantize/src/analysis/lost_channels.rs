//! Finds channels of an output that are lost, which the error of the whole output hides: scores
//! beside boxes in pixels, channels beside a loud one.

use crate::report::LostChannels;

/// The maximum number of channels along an axis; longer axes hold tokens, positions or a
/// vocabulary.
const MAX_CHANNELS: usize = 4096;

/// A channel is lost if its noise is more than this fraction of its power. A channel that is
/// rounded to 0 has noise of its power.
const LOST: f64 = 0.9;

/// If at least this fraction of the channels is lost, the output is reported.
const MANY: f64 = 0.15;

/// A channel with a smaller fraction of the power of the largest channel counts as 0.
const NOTHING: f64 = 1e-10;

/// The power and the noise of each channel of one output along one axis.
#[derive(Clone, Debug, Default)]
pub(super) struct ChannelErrors {
    axis: usize,
    channels: Vec<[f64; 2]>,
}

impl ChannelErrors {
    /// The errors along axis 1 and along the last axis, if these may hold channels.
    ///
    /// If `masked`, padding was removed from both: then axis 1 holds positions, and which
    /// they were is not known any more.
    pub(super) fn of(
        shape: &[usize],
        wanted: &[f32],
        values: &[f32],
        masked: bool,
    ) -> Vec<ChannelErrors> {
        let last = shape.len().saturating_sub(1);
        let mut axes = if masked { vec![last] } else { vec![1, last] };
        axes.dedup();
        axes.retain(|axis| {
            (1..shape.len()).contains(axis) && (2..=MAX_CHANNELS).contains(&shape[*axis])
        });
        let along = |axis: usize| {
            let inner = shape[axis + 1..].iter().product::<usize>().max(1);
            let mut channels = vec![[0.0; 2]; shape[axis]];
            for (at, (wanted, value)) in wanted.iter().zip(values).enumerate() {
                let (wanted, value) = (f64::from(*wanted), f64::from(*value));
                let [power, noise] = &mut channels[at / inner % shape[axis]];
                *power += wanted * wanted;
                *noise += (wanted - value).powi(2);
            }
            ChannelErrors { axis, channels }
        };
        axes.into_iter().map(along).collect()
    }

    /// Adds the errors of another sample; forgets axes whose length differs.
    pub(super) fn add(all: &mut Vec<ChannelErrors>, other: &[ChannelErrors]) {
        all.retain_mut(|errors| {
            let same = |it: &&ChannelErrors| {
                it.axis == errors.axis && it.channels.len() == errors.channels.len()
            };
            let Some(found) = other.iter().find(same) else { return false };
            for (sum, one) in errors.channels.iter_mut().zip(&found.channels) {
                sum[0] += one[0];
                sum[1] += one[1];
            }
            true
        });
    }

    /// The axis along which many channels are lost, if there is one.
    pub(super) fn lost(all: &[ChannelErrors]) -> Option<LostChannels> {
        let of_axis = |errors: &ChannelErrors| {
            let largest = errors.channels.iter().map(|[power, _]| *power).fold(0.0, f64::max);
            let counted = errors.channels.iter().filter(|[power, _]| *power > NOTHING * largest);
            let lost = counted.clone().filter(|[power, noise]| *noise > LOST * power).count();
            let (axis, channels) = (errors.axis, counted.count());
            LostChannels { axis, lost, channels }
        };
        #[expect(clippy::cast_precision_loss, reason = "a number of channels")]
        let fraction = |found: &LostChannels| found.lost as f64 / found.channels.max(1) as f64;
        let found = all.iter().map(of_axis).filter(|found| fraction(found) >= MANY);
        found.max_by(|one, other| fraction(one).total_cmp(&fraction(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_lost_along_the_axis_that_holds_them() {
        // Two samples of two rows: boxes of 100 with an error of 1, scores of 0.5 that became 0.
        let (wanted, values) = ([100.0, 100.0, 0.5, 0.25], [101.0, 99.0, 0.0, 0.0]);
        let mut all = ChannelErrors::of(&[1, 2, 2], &wanted, &values, false);
        ChannelErrors::add(&mut all, &ChannelErrors::of(&[1, 2, 2], &wanted, &values, false));
        let found = ChannelErrors::lost(&all).unwrap();
        assert_eq!((found.axis, found.lost, found.channels), (1, 1, 2));
        // Along the other axis each channel is fine.
        assert!(
            ChannelErrors::lost(&ChannelErrors::of(&[2, 2], &[1.0; 4], &[1.01; 4], false))
                .is_none()
        );
    }

    #[test]
    fn axes_of_varying_length_and_channels_of_zeros_do_not_count() {
        let mut all = ChannelErrors::of(&[1, 2, 3], &[1.0; 6], &[1.0; 6], false);
        ChannelErrors::add(&mut all, &ChannelErrors::of(&[1, 4, 3], &[1.0; 12], &[1.0; 12], false));
        assert_eq!(all.iter().map(|errors| errors.axis).collect::<Vec<_>>(), [2]);
        let silent = ChannelErrors::of(&[1, 2], &[1.0, 1e-7], &[1.0, 0.0], false);
        assert!(ChannelErrors::lost(&silent).is_none());
        assert!(ChannelErrors::of(&[3], &[1.0; 3], &[0.0; 3], false).is_empty());
    }
}
