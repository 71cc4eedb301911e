//! Sum-preserving rounding of all groups of a tensor in one pass, when parts do not count.
//!
//! In each group the elements with the largest errors are adjusted, and they are few. They are
//! collected during quantization, before it is known how many are needed. A group that needs more
//! than were collected is processed on its own.

use rayon::prelude::*;

use super::super::quantize::{Chunks, Scratch};
use super::{MIN_MOVE_ERROR, Move, STEP, Weight, group};
use crate::float_source::Element;
use crate::layout::Piece;
use crate::metrics::{CHUNK, Measure, Sums};
use crate::simd::{SimdLoop, vectorized};

/// The minimum number of elements per parallel task.
const TASK: usize = 1 << 18;

/// The error of an adjusted element is at most half a step, plus the rounding of float32. So while
/// the sum exceeds this, another element may be adjusted.
const HALF_STEP: i32 = STEP / 2 - 2;

/// The maximum number of errors added in 32 bits, with a margin of three: an error is at most four
/// steps, and groups that begin or end in a task share its rows unevenly.
const MAX_I32_TERMS: usize = 1 << 11;

/// Quantizes all groups, and returns their adjustments.
pub(super) fn all<X: Element>(weight: &Weight<'_, X>, bytes: &mut [u8]) -> (Sums, Vec<Move>) {
    let Weight { data, layout, params, spec, summed, .. } = weight;
    let groups = summed.groups.groups();
    let limit = pick_limit(data.len() / groups.max(1));
    let chunks = Chunks::of(layout, params, spec);
    // Each task has accumulators for every group, so it must have enough elements to be worth it.
    let task = if summed.groups.recurs() { TASK.max(16 * groups) } else { TASK };
    let task = task.next_multiple_of(CHUNK);
    let parts = data.par_chunks(task).zip(bytes.par_chunks_mut(spec.qtype.packed_len(task)));
    let seen: Vec<TaskResult> = parts
        .enumerate()
        .map(|(at, (x, bytes))| {
            vectorized(Task { weight, chunks: &chunks, x, start: at * task, bytes, limit })
        })
        .collect();
    let mut sums = vec![0_i64; groups];
    for TaskResult { first, sums: part, .. } in &seen {
        // Short rows are tiled, so each group occurs several times.
        part.iter().enumerate().for_each(|(at, part)| sums[(first + at) % groups] += part);
    }
    let measured = Sums::total(seen.iter().map(|seen| seen.measured));
    let (mut picked, lens) = by_group(&seen, &sums);
    let mut rest = &mut picked[..];
    let by_group: Vec<&mut [Picked]> = lens
        .into_iter()
        .map(|len| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(len);
            rest = others;
            own
        })
        .collect();
    let bytes = &*bytes;
    let moves = by_group.into_par_iter().enumerate().flat_map_iter(|(group, picked)| {
        choose(weight, bytes, picked, sums[group], limit > MIN_MOVE_ERROR)
            .unwrap_or_else(|| group::of(weight, bytes, group))
    });
    (measured, moves.collect())
}

/// An error that few elements of a group exceed, but usually more than are adjusted.
fn pick_limit(depth: usize) -> i32 {
    let depth = depth.max(1) as f32;
    (((0.5 - expected_moves(depth) / depth) * STEP as f32) as i32).max(MIN_MOVE_ERROR)
}

/// An upper estimate of the number of adjusted elements in a group: errors are uniformly
/// distributed over a step, so the standard deviation of their sum is `√(depth / 12)` steps.
fn expected_moves(depth: f32) -> f32 {
    2.5 * (depth / 12.0).sqrt() + 4.0
}

/// An element whose error exceeds the limit.
#[derive(Clone, Copy, Default)]
struct Picked {
    group: u32,
    error: i32,
    index: usize,
}

/// The result of a task.
struct TaskResult {
    measured: Sums,
    /// The first group of its elements.
    first: usize,
    /// The error sums of that group and of those after it.
    sums: Vec<i64>,
    picked: Vec<Picked>,
}

/// The elements whose error has the sign of the sum of their group, if that sum exceeds half a
/// step, sorted by group, and their number in each group.
fn by_group(seen: &[TaskResult], sums: &[i64]) -> (Vec<Picked>, Vec<usize>) {
    let half = i64::from(HALF_STEP);
    let signs: Vec<i32> =
        sums.iter().map(|sum| if sum.abs() > half { sum.signum() as i32 } else { 0 }).collect();
    let wanted = || {
        let all = seen.iter().flat_map(|seen| &seen.picked);
        all.map(|picked| (picked.group as usize % sums.len(), *picked))
            .filter(|(group, picked)| picked.error.signum() == signs[*group])
    };
    let mut lens = vec![0; sums.len()];
    wanted().for_each(|(group, _)| lens[group] += 1);
    let mut ends: Vec<usize> =
        lens.iter().scan(0, |end, len| Some(std::mem::replace(end, *end + len))).collect();
    let mut sorted = vec![Picked::default(); lens.iter().sum()];
    for (group, picked) in wanted() {
        sorted[ends[group]] = picked;
        ends[group] += 1;
    }
    (sorted, lens)
}

/// Adjusts the elements with the largest errors, the first of equal ones. `None` if more elements
/// are needed than were collected and there may be `more`.
fn choose<X: Element>(
    weight: &Weight<'_, X>,
    bytes: &[u8],
    picked: &mut [Picked],
    sum: i64,
    more: bool,
) -> Option<Vec<Move>> {
    let mut off = sum.abs();
    let step = i64::from(STEP);
    let most = (off - i64::from(HALF_STEP)).max(0).cast_unsigned().div_ceil(STEP as u64) as usize;
    let order = |picked: &Picked| (std::cmp::Reverse(picked.error.unsigned_abs()), picked.index);
    // Usually all of the first ones can be adjusted.
    let first = picked.len().min(most);
    if first > 0 && first < picked.len() {
        picked.select_nth_unstable_by_key(first - 1, order);
    }
    picked[..first].sort_unstable_by_key(order);
    let mut moves = Vec::with_capacity(most);
    for at in 0..picked.len() {
        if at == first && moves.len() < most {
            picked[first..].sort_unstable_by_key(order);
        }
        let Picked { index, error, .. } = picked[at];
        if moves.len() == most || off + i64::from(error.abs()) <= step {
            return Some(moves);
        }
        if weight.may_move(bytes, index, error) {
            moves.push(Move { index, steps: -error.signum() });
            off -= step;
        }
    }
    (!more || moves.len() == most).then_some(moves)
}

struct Task<'a, X> {
    weight: &'a Weight<'a, X>,
    chunks: &'a Chunks<'a>,
    x: &'a [X],
    /// Index of the first element.
    start: usize,
    bytes: &'a mut [u8],
    limit: i32,
}

impl<X: Element> SimdLoop for Task<'_, X> {
    type Output = TaskResult;

    #[inline(always)]
    fn run(self) -> TaskResult {
        let Task { weight, chunks, x, start, bytes, limit } = self;
        let cut = weight.summed.groups.cut();
        let end = |piece: Piece| piece.group + if piece.each { piece.len } else { 1 };
        let (first, last) = cut
            .pieces(start, x.len())
            .fold((usize::MAX, 0), |(low, high), p| (low.min(p.group), high.max(end(p))));
        let groups = last.saturating_sub(first);
        // Where consecutive elements belong to different groups, whole rows are added.
        let (mut rows, mut sums) = (vec![0_i32; groups], vec![0_i64; groups]);
        let mut added = 0;
        let mut measured = Vec::with_capacity(x.len().div_ceil(CHUNK));
        let mut picked = Vec::with_capacity(x.len() / 32);
        let mut errors = vec![0; CHUNK.min(x.len())];
        let mut scratch = Scratch::default();
        let bytes = bytes.chunks_mut(weight.spec.qtype.packed_len(CHUNK));
        for (at, (x, bytes)) in x.chunks(CHUNK).zip(bytes).enumerate() {
            let from = start + at * CHUNK;
            let floats = chunks.encode(x, from, &mut scratch, bytes);
            measured.push(<Sums as Measure<X>>::measured(x, floats));
            let errors = &mut errors[..x.len()];
            weight.errors(from, floats, errors);
            added += x.len();
            if added > MAX_I32_TERMS * groups {
                flush(&mut rows, &mut sums);
                added = x.len();
            }
            for piece in cut.pieces(from, errors.len()) {
                let errors = &errors[piece.start..][..piece.len];
                let group = piece.group - first;
                if piece.each {
                    rows[group..].iter_mut().zip(errors).for_each(|(sum, error)| *sum += error);
                } else {
                    let few =
                        errors.chunks(MAX_I32_TERMS).map(|few| i64::from(few.iter().sum::<i32>()));
                    sums[group] += few.sum::<i64>();
                }
                pick(piece, from + piece.start, errors, limit, &mut picked);
            }
        }
        flush(&mut rows, &mut sums);
        TaskResult { measured: Sums::total(measured), first, sums, picked }
    }
}

/// Adds the 32-bit row sums to the 64-bit sums.
fn flush(rows: &mut [i32], sums: &mut [i64]) {
    for (sum, row) in sums.iter_mut().zip(rows) {
        *sum += i64::from(std::mem::take(row));
    }
}

/// Collects the elements whose errors exceed the limit.
#[inline(always)]
fn pick(piece: Piece, start: usize, errors: &[i32], limit: i32, picked: &mut Vec<Picked>) {
    /// The number of elements that are skipped at once.
    const LANES: usize = 16;
    for (chunk, errors) in errors.chunks(LANES).enumerate() {
        if errors.iter().fold(0, |most: i32, error| most.max(error.abs())) <= limit {
            continue;
        }
        // Without a branch per element, which would be unpredictable.
        let (mut lanes, mut count) = ([0_u8; LANES], 0);
        for (lane, error) in errors.iter().enumerate() {
            lanes[count] = lane as u8;
            count += usize::from(error.abs() > limit);
        }
        for lane in &lanes[..count] {
            let (lane, at) = (usize::from(*lane), chunk * LANES + usize::from(*lane));
            let group = (piece.group + if piece.each { at } else { 0 }) as u32;
            picked.push(Picked { group, error: errors[lane], index: start + at });
        }
    }
}
