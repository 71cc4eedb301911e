//! What calibration teaches a plan: values for which no scale can be had stay float.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Decision, Kept, Plan, Source};
use crate::Ranges;
use crate::ranges::Unfit;

impl Plan {
    /// The plan without the values that calibration did not look at, because another plan asked for
    /// less, and what follows from them.
    pub(crate) fn without_unseen(&self, ranges: &Ranges) -> Cow<'_, Plan> {
        let unseen = self.observed().into_iter();
        let unseen = unseen.filter(|name| !ranges.values.contains_key(name));
        self.without(unseen.map(|name| (name, Kept::Unseen)).collect())
    }

    /// The plan without the values for which no scale can be had, and what follows from them.
    ///
    /// A mask is a number far below all others (−10000, the smallest of its type, −∞) that an
    /// attention layer adds so that a softmax makes zeros of it. A scale that reaches it leaves
    /// nothing of the other numbers; one that does not turns the mask into one of them. And what was
    /// never seen but as 0 (a mask that hid nothing, a cache that was empty) may be anything later.
    pub(crate) fn without_unfit(&self, ranges: &Ranges) -> Cow<'_, Plan> {
        let observed = self.observed().into_iter();
        let kept = |why| match why {
            Unfit::Masked => Kept::Masked,
            Unfit::Blank => Kept::Blank,
        };
        let unfit = observed.filter_map(|name| Some((kept(ranges.unfit(&name)?), name)));
        self.without(unfit.map(|(kept, name)| (name, kept)).collect())
    }

    /// The plan without these values, and without what follows from them.
    fn without(&self, mut unfit: HashMap<String, Kept>) -> Cow<'_, Plan> {
        if unfit.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut plan = self.clone();
        for value in &mut plan.values {
            let Decision::Quantize(how) = &value.decision else { continue };
            let (source, is_bias) = match &how.source {
                Source::Observed => (&value.name, false),
                Source::SameAs(source) => (source, false),
                Source::Product { input, .. } => (input, true),
                _ => continue,
            };
            let Some(why) = unfit.get(source).cloned() else { continue };
            let kept = if is_bias { Kept::Bias } else { why.clone() };
            if !is_bias {
                unfit.insert(value.name.clone(), why);
            }
            value.decision = Decision::Keep(kept);
        }
        Cow::Owned(plan)
    }
}
