//! Values that stay float after calibration because they have no usable scale.

use std::collections::HashMap;

use super::{Decision, KeepReason, Plan, Source};
use crate::Ranges;
use crate::ranges::Unscalable;

impl Plan {
    /// The plan without the values that calibration did not observe, because it ran for another
    /// plan, and without the values that depend on them.
    pub(crate) fn without_unseen(self, ranges: &Ranges) -> Plan {
        let unseen = self.observed().into_iter();
        let unseen = unseen.filter(|name| !ranges.values.contains_key(name));
        self.without(unseen.map(|name| (name, KeepReason::Unseen)).collect())
    }

    /// The plan without the values that have no usable scale, and without the values that depend on
    /// them.
    ///
    /// An attention mask adds a value far below all others (−10000, the smallest of its type, −∞),
    /// so that Softmax returns 0 for it. A scale that includes it rounds all other values to 0; a
    /// scale that does not turns the mask into an ordinary value. And a value that was 0 in all
    /// samples (an attention mask that was all zeros, an empty cache) may have any range at
    /// inference.
    pub(crate) fn without_unscalable(self, ranges: &Ranges) -> Plan {
        let observed = self.observed().into_iter();
        let kept = |why| match why {
            Unscalable::AttentionMask => KeepReason::AttentionMask,
            Unscalable::AllZero => KeepReason::AllZero,
        };
        let unscalable = observed.filter_map(|name| Some((kept(ranges.unscalable(&name)?), name)));
        self.without(unscalable.map(|(kept, name)| (name, kept)).collect())
    }

    /// The plan without these values, and without those that depend on them.
    pub(super) fn without(mut self, mut unscalable: HashMap<String, KeepReason>) -> Plan {
        if unscalable.is_empty() {
            return self;
        }
        for value in &mut self.values {
            let Decision::Quantize(how) = &value.decision else { continue };
            let (source, is_bias) = match &how.source {
                Source::Observed => (&value.name, false),
                Source::SameAs(source) => (source, false),
                Source::Product { input, .. } => (input, true),
                _ => continue,
            };
            let Some(why) = unscalable.get(source).cloned() else { continue };
            let kept = if is_bias { KeepReason::Bias } else { why.clone() };
            if !is_bias {
                unscalable.insert(value.name.clone(), why);
            }
            value.decision = Decision::KeepFloat(kept);
        }
        self
    }
}
