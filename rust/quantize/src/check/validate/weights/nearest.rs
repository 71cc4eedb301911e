//! The elements of a weight whose integer is not the nearest.

use std::collections::{BTreeMap, HashSet};

use quantize_rs_math::Layout;

use super::super::grid::Grid;
use super::super::reference::Reference;
use super::super::rounding::{Sum, Sums};
use super::Comparison;
use crate::encode::dequantize::Decoded;

/// The errors of the elements.
pub(super) struct ElementErrors {
    /// The scales with wrong elements.
    pub(super) wrong: Vec<WrongGroup>,
    /// The number of wrong elements.
    pub(super) count: usize,
    /// The largest error in steps.
    pub(super) max_steps: f64,
    /// Groups whose scale is larger than their elements need.
    pub(super) coarse: Vec<usize>,
}

/// The wrong elements of a scale.
pub(super) struct WrongGroup {
    pub(super) group: usize,
    pub(super) count: usize,
    /// The index of the first one.
    pub(super) first: usize,
    /// The largest error in steps.
    pub(super) steps: f64,
}

/// A wrong element, and its error in steps.
#[derive(Clone, Copy)]
pub(super) struct WrongElement {
    pub(super) at: usize,
    pub(super) steps: f64,
}

impl ElementErrors {
    /// Whether neither an element nor a scale is wrong.
    pub(super) fn is_right(&self) -> bool {
        self.wrong.is_empty() && self.coarse.is_empty()
    }
}

impl Comparison<'_> {
    pub(super) fn errors(&self, reference: &Reference) -> ElementErrors {
        let grid = self.grid();
        let params = &self.decoded.params;
        let relative_errors = params.iter().map(|params| grid.relative_error(params.scale));
        let relative_errors = relative_errors.collect();
        let elements = Elements { of: self, reference, grid, relative_errors };
        let scan = elements.scan();
        let (max_steps, coarse) = (scan.max_steps, elements.coarse_scales(&scan));
        let wrong = if self.sampled {
            self.beyond_any_rounding(&reference.floats)
        } else {
            elements.wrong(scan)
        };
        let count = wrong.len();
        ElementErrors { wrong: by_scale(wrong, &self.decoded.layout), count, max_steps, coarse }
    }
}

/// The elements of a weight and of its original, and the numbers that may be written.
struct Elements<'a> {
    of: &'a Comparison<'a>,
    reference: &'a Reference,
    grid: Grid,
    /// See [`Grid::relative_error`], for each scale.
    relative_errors: Vec<f64>,
}

/// An element in units of its scale.
#[derive(Clone, Copy)]
struct Element {
    at: usize,
    /// The index of its scale.
    group: usize,
    /// Its value in the original.
    exact: f64,
    written: f64,
}

/// The distance of each element from what is written.
struct Scan<'a> {
    /// The smallest and the largest element of each scale.
    ends: Vec<(f64, f64)>,
    /// Whether all elements of a scale are 0 or subnormal: runtimes flush subnormal numbers to 0,
    /// and the scale of zeros is arbitrary.
    zero: Vec<bool>,
    max_steps: f64,
    /// Elements that no rounding has moved this far.
    wrong: Vec<WrongElement>,
    /// Elements that sum-preserving rounding may have moved.
    moved: Vec<WrongElement>,
    /// The sums that it may have preserved.
    sums: Option<Sums<'a>>,
}

/// The move of an element to the other neighboring integer that gains most.
struct Move {
    gain: f64,
    element: WrongElement,
}

impl<'a> Elements<'a> {
    /// All elements except NaN and those with a scale of 0.
    fn all(&self) -> impl Iterator<Item = Element> {
        let Decoded { floats, layout, params, .. } = self.of.decoded;
        let elements = self.reference.floats.iter().zip(floats).enumerate();
        elements.filter_map(|(at, (original, float))| {
            let group = layout.group_of(at);
            let scale = f64::from(params[group].scale);
            let (exact, written) = (f64::from(*original) / scale, f64::from(*float) / scale);
            (scale != 0.0 && !original.is_nan()).then_some(Element { at, group, exact, written })
        })
    }

    /// What an element adds to the sums that rounding may have preserved.
    fn addend(&self, element: Element) -> Sum {
        Sum {
            error: element.written - element.exact,
            scale_error: self.relative_errors[element.group] * element.exact,
        }
    }

    fn scan(&self) -> Scan<'a> {
        let groups = self.of.decoded.params.len();
        let mut scan = Scan {
            ends: vec![(f64::INFINITY, f64::NEG_INFINITY); groups],
            zero: vec![true; groups],
            max_steps: 0.0,
            wrong: Vec::new(),
            moved: Vec::new(),
            sums: self.of.summed.as_ref().map(Sums::new),
        };
        for element in self.all() {
            let Element { at, group, exact, written } = element;
            let zero_point = self.of.zero_point(group);
            let relative_error = self.relative_errors[group];
            let (steps, right) = self.grid.distance(exact, written, zero_point, relative_error);
            scan.max_steps = scan.max_steps.max(steps);
            scan.ends[group] = (scan.ends[group].0.min(exact), scan.ends[group].1.max(exact));
            scan.zero[group] &= !self.reference.floats[at].is_normal();
            if let Some(sums) = &mut scan.sums {
                sums.add(self.reference.source(at), self.addend(element));
            }
            if right || self.of.sampled {
                continue;
            }
            let may_have_moved = scan.sums.is_some() && Sums::may_have_moved(self.addend(element));
            let of = if may_have_moved { &mut scan.moved } else { &mut scan.wrong };
            of.push(WrongElement { at, steps });
        }
        scan
    }

    /// The wrong elements. Sum-preserving rounding leaves nothing to gain; with other rounding,
    /// each element is the nearest.
    fn wrong(&self, scan: Scan<'_>) -> Vec<WrongElement> {
        let moves = self.moves_that_gain(&scan);
        let summed = self.of.summed.as_ref();
        let group_of = |element: &WrongElement| {
            summed.map(|summed| summed.groups.group_of(self.reference.source(element.at)))
        };
        let groups = summed.map_or(0, |summed| summed.groups.groups());
        let preserves_sums = moves.len() * 2 <= groups;
        let gains = |element: &WrongElement| {
            group_of(element).is_some_and(|group| moves.contains_key(&group))
        };
        let mut wrong = scan.wrong;
        let moved = scan.moved.into_iter();
        wrong.extend(moved.filter(|element| !preserves_sums || gains(element)));
        let reported: HashSet<_> = wrong.iter().filter_map(group_of).collect();
        if preserves_sums {
            let others = moves.into_iter().filter(|(group, _)| !reported.contains(group));
            wrong.extend(others.map(|(_, best)| best.element));
        }
        wrong.sort_by_key(|element| element.at);
        wrong
    }

    /// The groups of summed elements in which a move would gain, with the best move.
    fn moves_that_gain(&self, scan: &Scan<'_>) -> BTreeMap<usize, Move> {
        let mut moves: BTreeMap<usize, Move> = BTreeMap::new();
        let Some(sums) = scan.sums.as_ref().filter(|_| !scan.moved.is_empty()) else {
            return moves;
        };
        for element in self.all() {
            let Element { at, group, exact, written } = element;
            if !self.grid.may_move(exact, written, self.of.zero_point(group)) {
                continue;
            }
            if let Some((group, gain)) = sums.gain(self.reference.source(at), self.addend(element))
                && moves.get(&group).is_none_or(|best| gain >= best.gain)
            {
                let element = WrongElement { at, steps: (written - exact).abs() };
                moves.insert(group, Move { gain, element });
            }
        }
        moves
    }

    /// The scales that are larger than their elements need. The scale that suits few integers best
    /// may be.
    fn coarse_scales(&self, scan: &Scan<'_>) -> Vec<usize> {
        if self.of.stored.scale.is_none() || self.of.sampled {
            return Vec::new();
        }
        let params = &self.of.decoded.params;
        let smallest = self.of.smallest_scale();
        let is_coarse = |group: &usize| {
            params[*group].scale.abs() > smallest
                && !scan.zero[*group]
                && !self.grid.is_used(scan.ends[*group], self.of.zero_point(*group))
                && !self.of.is_raised(*group)
        };
        (0..params.len()).filter(is_coarse).collect()
    }
}

/// The wrong elements of each scale.
fn by_scale(wrong: Vec<WrongElement>, layout: &Layout) -> Vec<WrongGroup> {
    let mut groups: BTreeMap<usize, WrongGroup> = BTreeMap::new();
    for WrongElement { at, steps } in wrong {
        let group = layout.group_of(at);
        let new = WrongGroup { group, count: 0, first: at, steps };
        let found = groups.entry(group).or_insert(new);
        found.count += 1;
        found.steps = found.steps.max(steps);
    }
    groups.into_values().collect()
}
