//! The elements of a weight whose integer is not the nearest.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::reference::Reference;
use super::super::rounding::{Sum, Sums};
use super::Comparison;
use crate::encode::dequantize::Decoded;

/// The errors of the elements.
pub(super) struct ElementErrors {
    /// For each group with elements that are too far off: their number, the first one, and the
    /// largest error in steps.
    pub(super) wrong: Vec<WrongGroup>,
    /// The number of elements that are too far off.
    pub(super) count: usize,
    /// The largest error in steps.
    pub(super) max_steps: f64,
    /// Groups whose scale is larger than their elements need.
    pub(super) coarse: Vec<usize>,
}

pub(super) struct WrongGroup {
    pub(super) group: usize,
    pub(super) count: usize,
    pub(super) first: usize,
    pub(super) steps: f64,
}

impl Comparison<'_> {
    pub(super) fn errors(&self, reference: &Reference) -> ElementErrors {
        let Decoded { floats, layout, params, .. } = self.decoded;
        let grid = self.grid();
        let mut ends = vec![(f64::INFINITY, f64::NEG_INFINITY); params.len()];
        // Runtimes flush subnormal numbers to 0, and the scale of zeros is arbitrary.
        let mut nothing = vec![true; params.len()];
        let mut largest = 0.0_f64;
        let mut wrong: Vec<(usize, f64)> = Vec::new();
        let mut moved: Vec<(usize, f64)> = Vec::new();
        let mut sums = self.summed.as_ref().map(Sums::new);
        // Each element in units of its scale: the exact and the written value.
        let elements = || {
            let known = reference.floats.iter().zip(floats).enumerate();
            let known = known.map(|(at, pair)| (at, params[layout.group_of(at)].scale, pair));
            let known = known.filter(|(_, scale, (w, _))| *scale != 0.0 && !w.is_nan());
            known.map(|(at, scale, (w, float))| {
                (at, f64::from(*w) / f64::from(scale), f64::from(*float) / f64::from(scale))
            })
        };
        let relative_errors: Vec<f64> =
            params.iter().map(|params| grid.relative_error(params.scale)).collect();
        let sum = |at: usize, exact: f64, there: f64| Sum {
            error: there - exact,
            scale_error: relative_errors[layout.group_of(at)] * exact,
        };
        for (at, exact, there) in elements() {
            let group = layout.group_of(at);
            let (steps, right) =
                grid.distance(exact, there, self.zero_point(group), relative_errors[group]);
            largest = largest.max(steps);
            ends[group] = (ends[group].0.min(exact), ends[group].1.max(exact));
            nothing[group] &= !reference.floats[at].is_normal();
            if let Some(sums) = &mut sums {
                sums.add(reference.source(at), sum(at, exact, there));
            }
            if right || self.sampled {
                continue;
            }
            match &sums {
                Some(_) if Sums::may_have_moved(sum(at, exact, there)) => moved.push((at, steps)),
                _ => wrong.push((at, steps)),
            }
        }
        // The groups in which a move would gain, and the element with the largest gain.
        let mut gains: BTreeMap<usize, (f64, usize, f64)> = BTreeMap::new();
        for (at, exact, there) in elements().filter(|_| !moved.is_empty()) {
            let free = grid.may_move(exact, there, self.zero_point(layout.group_of(at)));
            let element = sum(at, exact, there);
            let gain = |sums: &Sums<'_>| sums.gain(reference.source(at), element);
            if let Some((group, gain)) = sums.as_ref().filter(|_| free).and_then(gain) {
                let most = gains.entry(group).or_insert((gain, at, 0.0));
                if gain >= most.0 {
                    *most = (gain, at, (there - exact).abs());
                }
            }
        }
        // Sum-preserving rounding leaves nothing to gain. With other rounding, each element is the
        // nearest.
        let group_of = |at: usize| {
            self.summed.as_ref().map(|summed| summed.groups.group_of(reference.source(at)))
        };
        let groups = self.summed.as_ref().map_or(0, |summed| summed.groups.groups());
        let kept = gains.len() * 2 <= groups;
        for (at, steps) in moved {
            let group = group_of(at);
            if !kept || group.is_some_and(|group| gains.contains_key(&group)) {
                wrong.push((at, steps));
            }
        }
        let reported: HashSet<_> = wrong.iter().filter_map(|(at, _)| group_of(*at)).collect();
        let others = gains.into_iter().filter(|(group, _)| kept && !reported.contains(group));
        wrong.extend(others.map(|(_, (_, at, steps))| (at, steps)));
        wrong.sort_by_key(|(at, _)| *at);
        if self.sampled {
            wrong = self.beyond_any_rounding(&reference.floats);
        }
        let many = wrong.len();
        let mut off: HashMap<usize, WrongGroup> = HashMap::new();
        for (at, steps) in wrong {
            let group = layout.group_of(at);
            let off = off.entry(group).or_insert(WrongGroup { group, count: 0, first: at, steps });
            off.count += 1;
            off.steps = off.steps.max(steps);
        }
        let mut off: Vec<WrongGroup> = off.into_values().collect();
        off.sort_by_key(|off| off.group);
        let smallest = self.smallest_scale();
        let is_coarse = |group: &usize| {
            params[*group].scale.abs() > smallest
                && !nothing[*group]
                && !grid.is_used(ends[*group], self.zero_point(*group))
                && !self.is_raised(*group)
        };
        // The scale that suits few integers best may be larger than their elements.
        let scaled = self.stored.scale.is_some() && !self.sampled;
        let coarse = (0..params.len()).filter(|_| scaled).filter(is_coarse).collect();
        ElementErrors { wrong: off, count: many, max_steps: largest, coarse }
    }
}
