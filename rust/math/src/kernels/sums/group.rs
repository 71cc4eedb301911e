//! One group after the other, of which parts keep their sum too.

use rayon::prelude::*;

use super::super::quantize::encode;
use super::{LEAST, Move, STEP, Summed, Weight, reference};
use crate::floats::Element;
use crate::metrics::Sums;
use crate::{Granularity, Layout};

/// Quantizes, and the moves of all groups.
pub(super) fn all<X: Element>(weight: &Weight<'_, X>, bytes: &mut [u8]) -> (Sums, Vec<Move>) {
    let sums = nearest(weight, bytes);
    let groups = (0..weight.summed.groups.groups()).into_par_iter();
    (sums, groups.flat_map_iter(|group| of(weight, bytes, group)).collect())
}

fn nearest<X: Element>(weight: &Weight<'_, X>, bytes: &mut [u8]) -> Sums {
    let Weight { data, layout, params, spec, .. } = weight;
    Sums::total(encode::<_, Sums>(data, layout, params, spec, bytes))
}

/// The moves of one group.
pub(super) fn of<X: Element>(weight: &Weight<'_, X>, bytes: &[u8], group: usize) -> Vec<Move> {
    let stretches = Stretches::of(&weight.summed.groups, group);
    let errors = stretches.indices().map(|index| {
        let params = weight.params[weight.layout.group_of(index)];
        let q = reference::load(bytes, index, weight.spec.qtype);
        let y = reference::dequantize_one(q, params, weight.spec.qtype);
        reference::error(y, weight.data[index].value(), params.scale.recip())
    });
    let room = stretches.indices().map(|index| weight.room(bytes, index));
    let mut parts = Parts::new(weight.summed, errors.collect(), room.collect());
    parts.settle();
    let moved = parts.moved.iter().zip(stretches.indices()).filter(|(steps, _)| **steps != 0);
    moved.map(|(steps, index)| Move { index, steps: *steps }).collect()
}

/// Where the elements of a group are: as often as it says, so many in a row.
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

    /// The flat indices of the elements.
    fn indices(self) -> impl Iterator<Item = usize> {
        (0..self.count)
            .flat_map(move |at| (0..self.len).map(move |i| self.start + at * self.apart + i))
    }
}

/// The elements of a group, some of which move.
struct Parts {
    errors: Vec<i32>,
    /// By how many steps each has moved.
    moved: Vec<i32>,
    /// How far down and up each can go.
    room: Vec<(i32, i32)>,
    /// Elements in a part, and whether its sum counts.
    part: usize,
    counts: bool,
    /// The error of each part.
    sums: Vec<i64>,
    /// For each part the most that is gained by a move down and by one up, without what the group gains, and by which element.
    best: [Vec<(i64, usize)>; 2],
    /// What a move must gain.
    least: i64,
}

/// What no move gains.
const NEVER: (i64, usize) = (i64::MIN / 2, 0);

impl Parts {
    fn new(summed: &Summed, errors: Vec<i32>, room: Vec<(i32, i32)>) -> Parts {
        /// Elements that are looked at together where there are no parts.
        const FEW: usize = 64;
        let part = summed.part.unwrap_or(FEW);
        let sum = |part: &[i32]| part.iter().map(|error| i64::from(*error)).sum();
        let sums: Vec<i64> = errors.chunks(part).map(sum).collect();
        Parts {
            moved: vec![0; errors.len()],
            room,
            part,
            counts: summed.part.is_some(),
            best: [vec![NEVER; sums.len()], vec![NEVER; sums.len()]],
            sums,
            errors,
            least: summed.least_gain(),
        }
    }

    /// Finds the best moves of a part.
    fn look(&mut self, part: usize) {
        let from = part * self.part;
        let sum = if self.counts { self.sums[part] } else { 0 };
        let [mut down, mut up] = [NEVER; 2];
        for at in from..self.errors.len().min(from + self.part) {
            let (error, moved, (lo, hi)) = (self.errors[at], self.moved[at], self.room[at]);
            let gain = i64::from(error) + sum;
            if error > LEAST && moved > lo && gain > down.0 {
                down = (gain, at);
            }
            if error < -LEAST && moved < hi && -gain > up.0 {
                up = (-gain, at);
            }
        }
        (self.best[0][part], self.best[1][part]) = (down, up);
    }

    /// Moves one element after the other, as long as something is gained.
    fn settle(&mut self) {
        let mut sum: i64 = self.sums.iter().sum();
        (0..self.sums.len()).for_each(|part| self.look(part));
        loop {
            let first = |best: &[(i64, usize)]| {
                let most = best.iter().fold(NEVER.0, |most, (gain, _)| most.max(*gain));
                best.iter().copied().find(|(gain, _)| *gain == most).unwrap_or(NEVER)
            };
            let (down, up) = (first(&self.best[0]), first(&self.best[1]));
            let (down, up) = ((down.0 + sum, down.1), (up.0 - sum, up.1));
            let goes_down = down.0 > up.0 || down.0 == up.0 && down.1 < up.1;
            let (gain, at) = if goes_down { down } else { up };
            if gain <= self.least {
                return;
            }
            let step = if goes_down { -1 } else { 1 };
            self.moved[at] += step;
            self.errors[at] += step * STEP;
            self.sums[at / self.part] += i64::from(step * STEP);
            sum += i64::from(step * STEP);
            self.look(at / self.part);
        }
    }
}
