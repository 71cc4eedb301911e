//! The problems of a weight.

use super::super::{Check, Validation};
use super::Comparison;
use super::nearest::{ElementErrors, WrongGroup};
use crate::graph::ValueId;

impl Comparison<'_> {
    /// Reports the problems: wrong elements, scales that are too large, and a weight of one value.
    pub(super) fn report(&self, reference: &[f32], errors: &ElementErrors, found: &mut Validation) {
        const MAX_REPORTED: usize = 5;
        let integers = self.name_of(self.stored.integers);
        for group in errors.wrong.iter().take(MAX_REPORTED) {
            self.report_group(group, reference, found);
        }
        if errors.wrong.len() > MAX_REPORTED {
            let what =
                format!("{} more scales have such integers", errors.wrong.len() - MAX_REPORTED);
            found.problem(Check::Weights, integers, what);
        }
        self.report_coarse_scales(&errors.coarse, found);
        self.report_single_value(reference, errors.is_right(), found);
    }

    fn name_of(&self, id: ValueId) -> &str {
        self.after.values[id].name
    }

    /// Reports a wrong integer if few elements of a scale are wrong, else a wrong scale.
    fn report_group(&self, wrong: &WrongGroup, reference: &[f32], found: &mut Validation) {
        let WrongGroup { group, count, first, steps } = wrong;
        let (integers, floats) = (self.name_of(self.stored.integers), &self.decoded.floats);
        let group_len = floats.len() / self.decoded.params.len().max(1);
        let one = *count == 1 || *count * 8 < group_len;
        let scale = self.stored.scale.filter(|_| !one || group_len == 1);
        let at = format!(
            "element {first} stands for {}, `{}` of the original holds {}",
            floats[*first], self.name, reference[*first]
        );
        let Some(scale) = scale else {
            let more = match count {
                1 => String::new(),
                _ => format!(", and {} more of this scale", count - 1),
            };
            let what = format!(
                "{at}: {steps:.1} steps of its scale apart, expected half a step at most{more}"
            );
            return found.problem(Check::Weights, integers, what);
        };
        let zero = self.stored.zero_point.map(|id| self.name_of(id));
        let zero = zero.map_or(String::new(), |zero| format!(", or its zero point in `{zero}`,"));
        let what = format!(
            "scale {group}, {}{zero} does not match {count} of the {group_len} integers in \
             `{integers}`, by up to {steps:.1} steps: {at}",
            self.decoded.params[*group].scale
        );
        found.problem(Check::Weights, self.name_of(scale), what);
    }

    fn report_coarse_scales(&self, coarse: &[usize], found: &mut Validation) {
        let (Some(group), Some(scale)) = (coarse.first(), self.stored.scale) else { return };
        let more = match coarse.len() {
            1 => String::new(),
            count => format!(", and so are {} more", count - 1),
        };
        let what = format!(
            "scale {group}, {}, is larger than the elements of `{}` need, at least twice{more}",
            self.decoded.params[*group].scale, self.name
        );
        found.problem(Check::Scale, self.name_of(scale), what);
    }

    /// Reports that all elements are 0, and notes that all are another value. `is_right` says that
    /// there is no other problem.
    fn report_single_value(&self, reference: &[f32], is_right: bool, found: &mut Validation) {
        let (integers, floats) = (self.name_of(self.stored.integers), &self.decoded.floats);
        // Runtimes flush subnormal numbers to 0.
        let nothing = reference.iter().all(|x| !x.is_normal());
        let same = |floats: &[f32]| floats.iter().all(|x| *x == floats[0]);
        match floats.first().filter(|_| same(floats)) {
            Some(value) if !nothing && *value == 0.0 => {
                let what =
                    format!("all integers stand for 0, `{}` of the original is not 0", self.name);
                // A scale may have been raised so that a very large bias fits; then this is all
                // that remains.
                if is_right {
                    found.notes.push(format!("`{integers}`: {what}, but less than half a step"));
                } else {
                    found.problem(Check::Weights, integers, what);
                }
            }
            Some(value) if floats.len() > 1 => {
                let also = if same(reference) {
                    ", as in the original"
                } else {
                    ", in the original they differ"
                };
                let note =
                    format!("`{}`: all {} elements are {value}{also}", self.name, floats.len());
                found.notes.push(note);
            }
            _ => {}
        }
    }
}
