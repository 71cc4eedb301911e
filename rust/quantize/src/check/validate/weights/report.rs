//! The problems of a weight.

use super::super::{Check, Validation};
use super::Comparison;
use super::nearest::{ElementErrors, WrongGroup};
use crate::graph::ValueId;

impl Comparison<'_> {
    /// Reports the problem: a wrong integer if few elements of a scale are off, else a wrong scale.
    pub(super) fn report(&self, reference: &[f32], errors: &ElementErrors, found: &mut Validation) {
        const MAX_REPORTED: usize = 5;
        let name = |id: ValueId| self.after.values[id].name;
        let (integers, floats) = (name(self.stored.integers), &self.decoded.floats);
        let group_len = floats.len() / self.decoded.params.len().max(1);
        for off in errors.wrong.iter().take(MAX_REPORTED) {
            let WrongGroup { group, count, first, steps } = off;
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
                found.problem(Check::Weights, integers, what);
                continue;
            };
            let zero = self.stored.zero_point.map(name);
            let zero =
                zero.map_or(String::new(), |zero| format!(", or its zero point in `{zero}`,"));
            let what = format!(
                "scale {group}, {}{zero} does not match {count} of the {group_len} integers in \
                 `{integers}`, by up to {steps:.1} steps: {at}",
                self.decoded.params[*group].scale
            );
            found.problem(Check::Weights, name(scale), what);
        }
        if errors.wrong.len() > MAX_REPORTED {
            let what =
                format!("{} more scales have such integers", errors.wrong.len() - MAX_REPORTED);
            found.problem(Check::Weights, integers, what);
        }
        if let (Some(group), Some(scale)) = (errors.coarse.first(), self.stored.scale) {
            let more = match errors.coarse.len() {
                1 => String::new(),
                count => format!(", and so are {} more", count - 1),
            };
            let what = format!(
                "scale {group}, {}, is larger than the elements of `{}` need, at least twice{more}",
                self.decoded.params[*group].scale, self.name
            );
            found.problem(Check::Scale, name(scale), what);
        }
        // Runtimes flush subnormal numbers to 0.
        let nothing = reference.iter().all(|x| !x.is_normal());
        let same = |floats: &[f32]| floats.iter().all(|x| *x == floats[0]);
        let (here, there) = (same(floats), same(reference));
        match floats.first() {
            Some(value) if here && !nothing && *value == 0.0 => {
                let what =
                    format!("all integers stand for 0, `{}` of the original is not 0", self.name);
                // A scale may have been raised so that a very large bias fits; then this is all
                // that remains.
                if errors.is_right() {
                    found.notes.push(format!("`{integers}`: {what}, but less than half a step"));
                } else {
                    found.problem(Check::Weights, integers, what);
                }
            }
            Some(value) if here && floats.len() > 1 => {
                let also =
                    if there { ", as in the original" } else { ", in the original they differ" };
                let note =
                    format!("`{}`: all {} elements are {value}{also}", self.name, floats.len());
                found.notes.push(note);
            }
            _ => {}
        }
    }
}
