//! The smallest and the largest element of each group of a tensor.

use rayon::prelude::*;

use crate::float_source::Element;
use crate::layout::Piece;
use crate::simd::{SimdLoop, vectorized};
use crate::{FloatSource, Layout, MathError, Range};

/// The range of each group, in the order of the groups; [`Range::EMPTY`] for a group without
/// elements.
///
/// NaN is ignored, and infinities are included: check with [`first_non_finite`], or call
/// [`ranges_checked`].
pub fn ranges<'a>(data: impl Into<FloatSource<'a>>, layout: &Layout) -> Vec<Range> {
    extremes(data.into(), layout).ranges()
}

/// The range of each group of a tensor, whose elements must all be finite. Reads the data once.
///
/// # Errors
///
/// An element is NaN or infinite; the error gives the index of the first one.
pub fn ranges_checked<'a>(
    data: impl Into<FloatSource<'a>>,
    layout: &Layout,
) -> Result<Vec<Range>, MathError> {
    let data = data.into();
    let seen = extremes(data, layout);
    let infinite = |x: &f32| x.is_infinite();
    if seen.nan || seen.max.iter().chain(&seen.min).any(infinite) {
        // An empty group has infinite ends too, so check the data.
        if let Some(index) = first_non_finite(data) {
            return Err(MathError::NonFinite { index, value: data.get(index).to_string() });
        }
    }
    Ok(seen.ranges())
}

/// Index of the first element that is NaN or infinite.
pub fn first_non_finite<'a>(data: impl Into<FloatSource<'a>>) -> Option<usize> {
    match data.into() {
        FloatSource::Slice(values) => first_non_finite_of(values),
        FloatSource::LittleEndian(values) => first_non_finite_of(values),
    }
}

fn first_non_finite_of(data: &[impl Element]) -> Option<usize> {
    const SPAN: usize = 4096;
    let stretch = |values: &[_]| {
        // No early exit, so that the loop compiles to vector code.
        values.iter().fold(0, |found: u32, &x| found | u32::from(!Element::value(x).is_finite()))
            != 0
    };
    let start = if data.len() < TASK {
        data.chunks(SPAN).position(stretch)
    } else {
        data.par_chunks(SPAN).with_min_len(TASK / SPAN).position_first(stretch)
    }? * SPAN;
    data[start..].iter().position(|x| !x.value().is_finite()).map(|index| start + index)
}

/// The minimum number of elements per parallel task.
const TASK: usize = 1 << 16;

/// The extremes of the groups from `first` on.
struct GroupExtremes {
    first: usize,
    min: Vec<f32>,
    max: Vec<f32>,
    nan: bool,
}

fn extremes(data: FloatSource<'_>, layout: &Layout) -> GroupExtremes {
    match data {
        FloatSource::Slice(values) => extremes_of(values, layout),
        FloatSource::LittleEndian(values) => extremes_of(values, layout),
    }
}

fn extremes_of(data: &[impl Element], layout: &Layout) -> GroupExtremes {
    assert_eq!(data.len(), layout.elements(), "elements of the tensor and of its layout");
    if data.len() < 2 * TASK {
        return extremes_in(data, 0, layout);
    }
    // Each task has accumulators for every group, so it must have enough elements to be worth it.
    let least = if layout.recurs() { 4 * layout.groups() } else { TASK };
    let task = data.len().div_ceil(4 * rayon::current_num_threads()).max(least).max(TASK);
    let parts: Vec<GroupExtremes> = data
        .par_chunks(task)
        .enumerate()
        .map(|(index, part)| extremes_in(part, index * task, layout))
        .collect();
    parts.into_iter().fold(GroupExtremes::nothing(0, layout.groups()), GroupExtremes::with)
}

/// The extremes of the elements from flat index `start` on.
fn extremes_in(part: &[impl Element], start: usize, layout: &Layout) -> GroupExtremes {
    let tiled = layout.groups() * layout.tiles();
    let (first, end) = if layout.recurs() || part.is_empty() {
        (0, tiled)
    } else {
        groups_of(start, part.len(), layout)
    };
    let mut seen = GroupExtremes::nothing(first, end - first);
    vectorized(ObservePieces {
        seen: &mut seen,
        part,
        pieces: layout.cut().pieces(start, part.len()),
    });
    if layout.recurs() { seen.folded(layout.groups()) } else { seen }
}

/// Updates the extremes with every piece of a part.
struct ObservePieces<'a, X, P> {
    seen: &'a mut GroupExtremes,
    part: &'a [X],
    pieces: P,
}

impl<X: Element, P: Iterator<Item = Piece>> SimdLoop for ObservePieces<'_, X, P> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for piece in self.pieces {
            self.seen.observe(&self.part[piece.start..][..piece.len], piece);
        }
    }
}

/// The first group of a part, and the one after its last: groups that do not recur are in order,
/// except those side by side in a row.
fn groups_of(start: usize, len: usize, layout: &Layout) -> (usize, usize) {
    let ends = |piece: Piece| (piece.group, piece.group + if piece.each { piece.len } else { 1 });
    layout
        .cut()
        .pieces(start, len)
        .map(ends)
        .fold((usize::MAX, 0), |all, piece| (all.0.min(piece.0), all.1.max(piece.1)))
}

impl GroupExtremes {
    fn nothing(first: usize, groups: usize) -> GroupExtremes {
        GroupExtremes {
            first,
            min: vec![f32::INFINITY; groups],
            max: vec![f32::NEG_INFINITY; groups],
            nan: false,
        }
    }

    #[inline(always)]
    fn observe(&mut self, values: &[impl Element], piece: Piece) {
        let group = piece.group - self.first;
        if piece.each {
            let (min, max) =
                (&mut self.min[group..][..values.len()], &mut self.max[group..][..values.len()]);
            self.nan |= widen_each(values, min, max);
        } else {
            self.nan |= widen(values, &mut self.min[group], &mut self.max[group]);
        }
    }

    /// Merges the extremes of the same groups, or of a subset of them.
    fn with(mut self, other: GroupExtremes) -> GroupExtremes {
        let at = other.first - self.first;
        for (min, other) in self.min[at..].iter_mut().zip(other.min) {
            *min = min.min(other);
        }
        for (max, other) in self.max[at..].iter_mut().zip(other.max) {
            *max = max.max(other);
        }
        self.nan |= other.nan;
        self
    }

    /// Merges groups that were tiled.
    fn folded(mut self, groups: usize) -> GroupExtremes {
        for tiled in groups..self.min.len() {
            let group = tiled % groups;
            self.min[group] = self.min[group].min(self.min[tiled]);
            self.max[group] = self.max[group].max(self.max[tiled]);
        }
        self.min.truncate(groups);
        self.max.truncate(groups);
        self
    }

    /// Adding +0 turns -0 into +0, so that the result does not depend on which of the two came
    /// first.
    fn ranges(&self) -> Vec<Range> {
        self.min
            .iter()
            .zip(&self.max)
            .map(|(&min, &max)| Range { min: min + 0.0, max: max + 0.0 })
            .collect()
    }
}

/// The number of values processed at once.
const LANES: usize = 16;

/// The extremes of each lane.
#[derive(Clone, Copy)]
struct LaneExtremes {
    low: [f32; LANES],
    high: [f32; LANES],
    nan: [u32; LANES],
}

impl LaneExtremes {
    /// Adds one value to each lane.
    #[inline(always)]
    fn widened(mut self, row: [f32; LANES]) -> LaneExtremes {
        for (lane, x) in row.into_iter().enumerate() {
            self.low[lane] = smaller(x, self.low[lane]);
            self.high[lane] = larger(x, self.high[lane]);
            self.nan[lane] |= u32::from(x.is_nan());
        }
        self
    }
}

/// Widens a range by values, and returns whether one was NaN. It has no branches, so that it
/// compiles to vector code.
#[inline(always)]
fn widen(values: &[impl Element], min: &mut f32, max: &mut f32) -> bool {
    if values.len() < LANES {
        return widen_by_few(values, min, max);
    }
    let (rows, rest) = values.as_chunks::<LANES>();
    let ends = LaneExtremes { low: [*min; LANES], high: [*max; LANES], nan: [0; LANES] };
    let mut ends = rows.iter().fold(ends, |ends, row| ends.widened(row.map(Element::value)));
    if let Some(first) = rest.first() {
        // A value that is counted twice changes nothing.
        let mut row = [first.value(); LANES];
        row.iter_mut().zip(rest).for_each(|(to, x)| *to = x.value());
        ends = ends.widened(row);
    }
    let LaneExtremes { mut low, mut high, mut nan } = ends;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            low[lane] = smaller(low[lane + width], low[lane]);
            high[lane] = larger(high[lane + width], high[lane]);
            nan[lane] |= nan[lane + width];
        }
        width /= 2;
    }
    (*min, *max) = (low[0], high[0]);
    nan[0] != 0
}

/// As [`widen`], without lanes, for slices shorter than a vector.
#[inline(always)]
fn widen_by_few(values: &[impl Element], min: &mut f32, max: &mut f32) -> bool {
    let (mut low, mut high, mut nan) = (*min, *max, false);
    for x in values {
        let x = x.value();
        low = smaller(x, low);
        high = larger(x, high);
        nan |= x.is_nan();
    }
    (*min, *max) = (low, high);
    nan
}

/// `f32::min` in one instruction: a NaN `x` is ignored.
#[inline(always)]
fn smaller(x: f32, min: f32) -> f32 {
    if x < min { x } else { min }
}

/// `f32::max` in one instruction: a NaN `x` is ignored.
#[inline(always)]
fn larger(x: f32, max: f32) -> f32 {
    if x > max { x } else { max }
}

/// Widens each range by one value, and returns whether one was NaN.
#[inline(always)]
fn widen_each(values: &[impl Element], min: &mut [f32], max: &mut [f32]) -> bool {
    let mut nan = 0_u32;
    for ((x, min), max) in values.iter().zip(min).zip(max) {
        let x = x.value();
        // From a comparison the compiler would generate a masked store, which is far slower on AMD.
        *min = min.min(x);
        *max = max.max(x);
        nan |= u32::from(x.is_nan());
    }
    nan != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Granularity;

    fn layout(shape: &[usize], granularity: Granularity) -> Layout {
        Layout::of(shape, granularity).unwrap()
    }

    #[test]
    fn one_range_for_each_group() {
        let data = [1.0, -2.0, 3.0, 4.0, 5.0, -6.0];
        let range = |min, max| Range { min, max };
        let of = |granularity| ranges(&data, &layout(&[2, 3], granularity));
        assert_eq!(of(Granularity::PerTensor), [range(-6.0, 5.0)]);
        assert_eq!(of(Granularity::PerAxis { axis: 0 }), [range(-2.0, 3.0), range(-6.0, 5.0)]);
        assert_eq!(
            of(Granularity::PerAxis { axis: 1 }),
            [range(1.0, 4.0), range(-2.0, 5.0), range(-6.0, 3.0)]
        );
        let blocks = [range(-2.0, 1.0), range(3.0, 3.0), range(4.0, 5.0), range(-6.0, -6.0)];
        assert_eq!(of(Granularity::Blocked { axis: 1, block_size: 2 }), blocks);
    }

    #[test]
    fn the_first_non_finite_element_is_reported() {
        for len in [1, 17, 5000, 300_000] {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut data = vec![1.0; len];
                let layout = layout(&[len], Granularity::PerTensor);
                assert_eq!(first_non_finite(&data), None);
                assert_eq!(ranges_checked(&data, &layout), Ok(vec![Range { min: 1.0, max: 1.0 }]));
                data[len - 1] = value;
                data[len / 2] = value;
                let refused = MathError::NonFinite { index: len / 2, value: value.to_string() };
                assert_eq!(ranges_checked(&data, &layout), Err(refused));
            }
        }
    }

    #[test]
    fn tensors_without_elements_have_an_empty_range() {
        assert_eq!(
            ranges_checked(&[], &layout(&[0], Granularity::PerTensor)),
            Ok(vec![Range::EMPTY])
        );
        assert_eq!(
            ranges_checked(&[], &layout(&[0, 2], Granularity::PerAxis { axis: 0 })),
            Ok(vec![])
        );
    }
}
