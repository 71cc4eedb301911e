//! Sum-preserving rounding: integers next to the nearest ones, chosen so that the errors of
//! elements that are summed cancel out.

mod group;
mod whole;

use super::reference::{self, MIN_MOVE_ERROR, STEP};
use crate::float_source::Element;
use crate::metrics::Sums;
use crate::{FloatSource, Layout, Params, QSpec};

/// The elements that an operator adds up, whose sums are preserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumGroups {
    /// The elements that contribute to one output; they share a scale.
    pub groups: Layout,
    /// The number of consecutive elements of a group whose sum is preserved too: a convolution
    /// kernel, which is applied to a single input channel.
    pub part: Option<usize>,
}

impl SumGroups {
    /// The minimum of the errors of an element, its part and its group, added up in [`STEP`]s, for
    /// an adjustment to decrease the sum of their squares: `(e - 1)² < e²`, summed over them.
    pub(super) fn least_gain(&self) -> i64 {
        let squares = if self.part.is_some() { 3 } else { 2 };
        squares * i64::from(STEP) / 2
    }
}

/// Groups with fewer elements are processed one at a time.
const MIN_TENSOR_PASS_DEPTH: usize = 64;

/// Quantizes to the nearest integers, except those adjusted, and returns the error sums.
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
    // In small groups most elements would be candidates.
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

/// An element and its adjustment.
struct Move {
    index: usize,
    steps: i32,
}

/// A tensor, its quantization parameters, and the sums to preserve.
struct Weight<'a, X> {
    data: &'a [X],
    layout: &'a Layout,
    params: &'a [Params],
    inverses: Inverses,
    spec: &'a QSpec,
    summed: &'a SumGroups,
}

/// The inverse of the scale of each group, repeated as the rows are tiled.
struct Inverses(Vec<f32>);

impl Inverses {
    fn of(layout: &Layout, params: &[Params]) -> Inverses {
        let tiled = std::iter::repeat_n(params, layout.tiles()).flatten();
        Inverses(tiled.map(|params| params.scale.recip()).collect())
    }
}

impl<X: Element> Weight<'_, X> {
    /// The errors of the elements from flat index `start` on, which are dequantized to `floats`.
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

    /// Whether the grid has an integer in the opposite direction of the error.
    fn may_move(&self, bytes: &[u8], index: usize, error: i32) -> bool {
        let q = reference::load(bytes, index, self.spec.qtype);
        reference::may_move(q, error > 0, self.spec)
    }
}
