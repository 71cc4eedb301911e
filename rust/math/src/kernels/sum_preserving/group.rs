//! Sum-preserving rounding of one group at a time, with parts whose sums count too.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rayon::prelude::*;

use super::super::quantize::encode;
use super::{MIN_MOVE_ERROR, Move, STEP, SumGroups, Weight, reference};
use crate::float_source::Element;
use crate::metrics::Sums;
use crate::simd::{SimdLoop, vectorized};
use crate::{Granularity, Layout, Params};

/// Quantizes all groups, and returns their adjustments.
pub(super) fn all<X: Element>(weight: &Weight<'_, X>, bytes: &mut [u8]) -> (Sums, Vec<Move>) {
    let sums = nearest(weight, bytes);
    let groups = (0..weight.summed.groups.groups()).into_par_iter();
    (sums, groups.flat_map_iter(|group| of(weight, bytes, group)).collect())
}

fn nearest<X: Element>(weight: &Weight<'_, X>, bytes: &mut [u8]) -> Sums {
    let Weight { data, layout, params, spec, .. } = weight;
    Sums::total(encode::<_, Sums>(data, layout, params, spec, bytes))
}

/// The adjustments of one group.
pub(super) fn of<X: Element>(weight: &Weight<'_, X>, bytes: &[u8], group: usize) -> Vec<Move> {
    let stretches = Stretches::of(&weight.summed.groups, group);
    let (codes, errors) = vectorized(Load { weight, bytes, stretches });
    let mut parts = Parts::new(weight.summed, weight.spec.grid(), codes, errors);
    let moved = parts.settle().into_iter().enumerate().filter(|(_, steps)| *steps != 0);
    moved.map(|(at, steps)| Move { index: stretches.index(at), steps }).collect()
}

/// The elements of a group: `count` spans of `len` elements, `apart` elements from start to start.
#[derive(Clone, Copy, Debug)]
struct Stretches {
    start: usize,
    count: usize,
    apart: usize,
    len: usize,
}

impl Stretches {
    fn of(layout: &Layout, group: usize) -> Stretches {
        let (outer, axis_len, inner) = layout.sides();
        let slab = axis_len * inner;
        match layout.granularity() {
            Granularity::PerTensor => Stretches { start: 0, count: 1, apart: 0, len: inner },
            Granularity::PerAxis { .. } => {
                Stretches { start: group * inner, count: outer, apart: slab, len: inner }
            }
            Granularity::Blocked { block_size, .. } => {
                let blocks = axis_len.div_ceil(block_size);
                let (row, at) = (group / inner, group % inner);
                let from = row % blocks * block_size;
                let depth = block_size.min(axis_len - from);
                let start = row / blocks * slab + from * inner + at;
                match inner {
                    1 => Stretches { start, count: 1, apart: 0, len: depth },
                    _ => Stretches { start, count: depth, apart: inner, len: 1 },
                }
            }
        }
    }

    /// The flat index of an element.
    fn index(self, at: usize) -> usize {
        self.start + at / self.len * self.apart + at % self.len
    }
}

/// Loads the integers of a group and computes their errors.
struct Load<'a, X> {
    weight: &'a Weight<'a, X>,
    bytes: &'a [u8],
    stretches: Stretches,
}

impl<X: Element> SimdLoop for Load<'_, X> {
    type Output = (Vec<i32>, Vec<i32>);

    #[inline(always)]
    fn run(self) -> Self::Output {
        let Load { weight, bytes, stretches } = self;
        let Stretches { start, count, apart, len } = stretches;
        let qtype = weight.spec.qtype;
        let mut codes = vec![0; count * len];
        let mut errors = vec![0; count * len];
        // A group has one scale.
        let Params { scale, zero_point } = weight.params[weight.layout.group_of(start)];
        let (inverse, zero) = (scale.recip(), zero_point as f32);
        let rows = codes.chunks_exact_mut(len.max(1)).zip(errors.chunks_exact_mut(len.max(1)));
        for (at, (codes, errors)) in rows.enumerate() {
            let from = start + at * apart;
            match (qtype.bits(), qtype.signed()) {
                (8, true) => {
                    let bytes = &bytes[from..][..len];
                    codes.iter_mut().zip(bytes).for_each(|(q, b)| *q = i32::from(b.cast_signed()));
                }
                (8, false) => {
                    let bytes = &bytes[from..][..len];
                    codes.iter_mut().zip(bytes).for_each(|(q, b)| *q = i32::from(*b));
                }
                _ => {
                    let all = codes.iter_mut().zip(from..);
                    all.for_each(|(q, index)| *q = reference::load(bytes, index, qtype));
                }
            }
            let x = &weight.data[from..][..len];
            for ((error, q), x) in errors.iter_mut().zip(&*codes).zip(x) {
                *error = reference::error((*q as f32 - zero) * scale, x.value(), inverse);
            }
        }
        (codes, errors)
    }
}

/// The elements of a group, some of which are adjusted.
struct Parts {
    codes: Vec<i32>,
    errors: Vec<i32>,
    /// The smallest and the largest integer.
    ends: (i32, i32),
    /// Elements per part, and whether the sums of parts count.
    part: usize,
    counts: bool,
    /// The error of each part.
    sums: Vec<i64>,
    /// The minimum gain of an adjustment.
    least: i64,
}

/// The gain of an adjustment without that of the group, and the element; the first of equal ones.
type Gain = (i64, Reverse<usize>);

impl Parts {
    fn new(summed: &SumGroups, ends: (i32, i32), codes: Vec<i32>, errors: Vec<i32>) -> Parts {
        /// Elements searched together when there are no parts.
        const MAX_SCANNED: usize = 64;
        let part = summed.part.unwrap_or(MAX_SCANNED);
        let sum = |part: &[i32]| part.iter().map(|error| i64::from(*error)).sum();
        let sums: Vec<i64> = errors.chunks(part).map(sum).collect();
        let (counts, least) = (summed.part.is_some(), summed.least_gain());
        Parts { codes, errors, ends, part, counts, sums, least }
    }

    /// The best adjustments of a part, down and up.
    fn best(&self, part: usize) -> [Option<Gain>; 2] {
        let from = part * self.part;
        let to = self.errors.len().min(from + self.part);
        let (lo, hi) = self.ends;
        // The gain in the upper bits and the reversed index below it, so that the maximum needs no
        // unpredictable branch.
        let mut best = [i64::MIN; 2];
        for ((at, error), q) in self.errors[from..to].iter().enumerate().zip(&self.codes[from..to])
        {
            let key = |error: i32, free: bool| {
                let error = if free && error > MIN_MOVE_ERROR { error } else { 0 };
                i64::from(error) << 32 | i64::from(!(at as u32))
            };
            best[0] = best[0].max(key(*error, *q > lo));
            best[1] = best[1].max(key(-*error, *q < hi));
        }
        let sum = if self.counts { self.sums[part] } else { 0 };
        let gain = |key: i64, sum: i64| {
            let (error, at) = (key >> 32, !(key as u32) as usize);
            (error > 0).then_some((error + sum, Reverse(from + at)))
        };
        [gain(best[0], sum), gain(best[1], -sum)]
    }

    /// Adjusts elements one after the other, as long as there is a gain; returns the steps of each.
    fn settle(&mut self) -> Vec<i32> {
        let mut moved = vec![0; self.errors.len()];
        let mut sum: i64 = self.sums.iter().sum();
        let mut best: Vec<[Option<Gain>; 2]> =
            (0..self.sums.len()).map(|part| self.best(part)).collect();
        let heap = |way: usize| best.iter().filter_map(|best| best[way]).collect::<BinaryHeap<_>>();
        let mut heaps = [heap(0), heap(1)];
        loop {
            // The best adjustment of a part may be outdated by the time it is at the top of the
            // heap.
            let mut first = |way: usize| {
                let heap: &mut BinaryHeap<Gain> = &mut heaps[way];
                while let Some(gain) = heap.peek() {
                    if best[gain.1.0 / self.part][way] == Some(*gain) {
                        break;
                    }
                    heap.pop();
                }
                heap.peek().copied()
            };
            let down = first(0).map(|(gain, at)| (gain + sum, at, -1));
            let up = first(1).map(|(gain, at)| (gain - sum, at, 1));
            let Some((gain, Reverse(at), step)) = down.max(up) else { break };
            if gain <= self.least {
                break;
            }
            moved[at] += step;
            self.codes[at] += step;
            self.errors[at] += step * STEP;
            self.sums[at / self.part] += i64::from(step * STEP);
            sum += i64::from(step * STEP);
            let found = self.best(at / self.part);
            for (heap, found) in heaps.iter_mut().zip(found) {
                heap.extend(found);
            }
            best[at / self.part] = found;
        }
        moved
    }
}
