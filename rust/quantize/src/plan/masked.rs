//! What calibration teaches a plan: values that carry a mask stay float.

use std::borrow::Cow;
use std::collections::HashSet;

use super::{Decision, Kept, Plan, Source};
use crate::Ranges;

impl Plan {
    /// The plan without the values that carry a mask, and what follows from them.
    ///
    /// A mask is a number far below all others (−10000, the smallest of its type, −∞) that an
    /// attention layer adds so that a softmax makes zeros of it. A scale that reaches it leaves
    /// nothing of the other numbers; one that does not turns the mask into one of them.
    pub(crate) fn without_masked(&self, ranges: &Ranges) -> Cow<'_, Plan> {
        let mut masked: HashSet<String> =
            self.observed().into_iter().filter(|name| ranges.is_masked(name)).collect();
        if masked.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut plan = self.clone();
        for value in &mut plan.values {
            let Decision::Quantize(how) = &value.decision else { continue };
            let kept = match &how.source {
                Source::Observed if masked.contains(&value.name) => Kept::Masked,
                Source::SameAs(source) if masked.contains(source) => Kept::Masked,
                Source::Product { input, .. } if masked.contains(input) => Kept::Bias,
                _ => continue,
            };
            if kept == Kept::Masked {
                masked.insert(value.name.clone());
            }
            value.decision = Decision::Keep(kept);
        }
        Cow::Owned(plan)
    }
}
