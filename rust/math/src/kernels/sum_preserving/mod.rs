//! Integers beside the nearest ones, where those who are summed over keep their sum by it.

mod group;
mod whole;

use super::reference::{self, MIN_MOVE_ERROR, STEP};
use crate::float_source::Element;
use crate::metrics::Sums;
use crate::{FloatSource, Layout, Params, QSpec};

/// Elements that a product sums over, whose sums are to stay what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumGroups {
    /// All that are added up to one number; they share a scale.
    pub groups: Layout,
    /// So many elements of a group in a row are a part of it whose sum is to stay too: a kernel, which meets but one channel
    /// of what flows in.
    pub part: Option<usize>,
}

impl SumGroups {
    /// What the errors of an element, its part and its group must exceed together, in [`STEP`]s, for a move to make the sum
    /// of their squares smaller: `(e - 1)² < e²` for each of them, taken together.
    pub(super) fn least_gain(&self) -> i64 {
        let squares = if self.part.is_some() { 3 } else { 2 };
        squares * i64::from(STEP) / 2
    }
}

/// Groups of fewer elements are looked at one by one.
const MIN_TENSOR_PASS_DEPTH: usize = 64;

/// Quantizes with the nearest integers but for those that move; the sums of what they stand for.
pub(super) fn quantize(
    data: FloatSource<'_>,
    scales: (&Layout, &[Params]),
    spec: &QSpec,
    summed: &SumGroups,
    bytes: &mut [u8],
) -> Sums {
    match data {
        FloatSource::Slice(values) => quantize_elements(values, scales, spec, summed, bytes),
        FloatSource::LittleEndian(values) => quantize_elements(values, scales, spec, summed, bytes),
    }
}

fn quantize_elements<X: Element>(
    data: &[X],
    (layout, params): (&Layout, &[Params]),
    spec: &QSpec,
    summed: &SumGroups,
    bytes: &mut [u8],
) -> Sums {
    let weight =
        Weight { data, layout, params, inverses: Inverses::of(layout, params), spec, summed };
    // Of few elements most would be picked out.
    let few = data.len() / summed.groups.groups().max(1) < MIN_TENSOR_PASS_DEPTH;
    let one_by_one = few || summed.part.is_some();
    let (mut sums, moves) =
        if one_by_one { group::all(&weight, bytes) } else { whole::all(&weight, bytes) };
    for Move { index, steps } in moves {
        let params = params[layout.group_of(index)];
        let float = |q: i32| reference::dequantize_one(q, params, spec.qtype);
        let q = reference::load(bytes, index, spec.qtype);
        reference::replace(bytes, index, q + steps, spec.qtype);
        sums.replace(data[index].value(), float(q), float(q + steps));
    }
    sums
}

/// An element whose integer becomes another.
struct Move {
    index: usize,
    steps: i32,
}

/// A tensor, how it is quantized, and what is to be kept.
struct Weight<'a, X> {
    data: &'a [X],
    layout: &'a Layout,
    params: &'a [Params],
    inverses: Inverses,
    spec: &'a QSpec,
    summed: &'a SumGroups,
}

/// One by the scale of each group, as often as rows are tiled.
struct Inverses(Vec<f32>);

impl Inverses {
    fn of(layout: &Layout, params: &[Params]) -> Inverses {
        let tiled = std::iter::repeat_n(params, layout.tiles()).flatten();
        Inverses(tiled.map(|params| params.scale.recip()).collect())
    }
}

impl<X: Element> Weight<'_, X> {
    /// The errors of the elements from flat index `start` on, which come back as `floats`.
    #[inline(always)]
    fn errors(&self, start: usize, floats: &[f32], errors: &mut [i32]) {
        let x = &self.data[start..][..errors.len()];
        for piece in self.layout.cut().pieces(start, errors.len()) {
            let at = piece.start..piece.start + piece.len;
            let inverses = &self.inverses.0[piece.group..];
            let (x, y, errors) = (&x[at.clone()], &floats[at.clone()], &mut errors[at]);
            if piece.each {
                for (((error, y), x), inverse) in errors.iter_mut().zip(y).zip(x).zip(inverses) {
                    *error = reference::error(*y, x.value(), *inverse);
                }
            } else {
                let inverse = inverses[0];
                for ((error, y), x) in errors.iter_mut().zip(y).zip(x) {
                    *error = reference::error(*y, x.value(), inverse);
                }
            }
        }
    }

    /// Whether there is another integer on the other side of an element.
    fn may_move(&self, bytes: &[u8], index: usize, error: i32) -> bool {
        let q = reference::load(bytes, index, self.spec.qtype);
        reference::may_move(q, error > 0, self.spec)
    }
}
