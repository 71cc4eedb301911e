//! Operators that select or replace elements.

use quantize_rs_onnx::DataType;

use super::{BOOL, Call, INT64, SAME, Shape, ShapeRule, Type, all, as_first, one};
use crate::graph::infer::call::Given;
use crate::graph::infer::dim::Dim;
use crate::util::axes::{axis_of, span};

const WITH_POSITIONS: &[Type] = &[Type::Input(0), Type::Is(DataType::Int64)];

pub(super) const ALL: &[ShapeRule] = &[
    one("Gather", SAME, |call| gather(call, 0)),
    one("GatherElements", SAME, |call| call.shape(1).cloned()),
    one("GatherND", SAME, gather_nd),
    one("Scatter", SAME, as_first),
    one("ScatterElements", SAME, as_first),
    one("ScatterND", SAME, as_first),
    one("TensorScatter", SAME, as_first),
    one("Slice", SAME, slice),
    one("Compress", SAME, compress),
    all("TopK", WITH_POSITIONS, top_k),
    all("Unique", WITH_POSITIONS, unique),
    one("NonZero", INT64, |call| {
        let rank = call.rank(0).filter(|rank| *rank > 0).and_then(|rank| i64::try_from(rank).ok());
        Some(vec![rank.map_or_else(|| call.unknown(), Dim::Fixed), call.unknown()])
    }),
    one("NonMaxSuppression", INT64, |call| Some(vec![call.unknown(), Dim::Fixed(3)])),
    one("OneHot", &[Type::Input(2)], one_hot),
    one("RegexFullMatch", BOOL, as_first),
];

/// The shape of the indices replaces the axis.
pub(super) fn gather(call: &Call<'_, '_>, axis: i64) -> Option<Shape> {
    let axis = call.axis(call.int("axis", axis), 0)?;
    let (data, indices) = (call.shape(0)?, call.shape(1)?);
    Some([&data[..axis], indices, &data[axis + 1..]].concat())
}

fn gather_nd(call: &Call<'_, '_>) -> Option<Shape> {
    let (data, indices) = (call.shape(0)?, call.shape(1)?);
    let (last, before) = indices.split_last()?;
    let first = usize::try_from(call.int("batch_dims", 0)).ok()?;
    let picked = first.checked_add(usize::try_from(last.fixed()?).ok()?)?;
    Some([before, data.get(picked..)?].concat())
}

/// The slice of one axis.
#[derive(Clone, Copy)]
struct Cut {
    start: Option<Dim>,
    end: Option<Dim>,
    step: Option<i64>,
}

fn slice(call: &Call<'_, '_>) -> Option<Shape> {
    let mut shape = as_first(call)?;
    let ends = |name: &str, input: usize| match call.ints(name) {
        Some(ints) => Some(ints.iter().map(|it| Some(Dim::Fixed(*it))).collect()),
        None => call.elements(input).map(<[Option<Dim>]>::to_vec),
    };
    let (starts, ends) = (ends("starts", 1), ends("ends", 2));
    let count = [&starts, &ends].into_iter().flatten().map(Vec::len).next();
    let axes = match call.given("axes", 3) {
        Given::Ints(axes) => Some(axes),
        Given::Nothing => count.and_then(|count| Some((0..i64::try_from(count).ok()?).collect())),
        Given::Unknown => None,
    };
    let axes = axes.and_then(|axes| axes.iter().map(|axis| call.axis(*axis, 0)).collect());
    let Some(axes): Option<Vec<usize>> = axes else { return Some(call.unknowns(shape.len())) };
    let steps = match call.given("steps", 4) {
        Given::Ints(steps) => steps.into_iter().map(Some).collect(),
        Given::Nothing => vec![Some(1); axes.len()],
        Given::Unknown => vec![None; axes.len()],
    };
    for (at, axis) in axes.into_iter().enumerate() {
        let of = |all: &Option<Vec<Option<Dim>>>| all.as_ref().and_then(|all| *all.get(at)?);
        let step = steps.get(at).copied().flatten();
        let cut = Cut { start: of(&starts), end: of(&ends), step };
        shape[axis] = cut.of(call, shape[axis]).unwrap_or_else(|| call.unknown());
    }
    Some(shape)
}

impl Cut {
    /// The dimension after slicing.
    fn of(self, call: &Call<'_, '_>, length: Dim) -> Option<Dim> {
        let (start, end, step) = (self.start?, self.end?, self.step?);
        let (Dim::Fixed(length), Dim::Fixed(start), Dim::Fixed(end)) = (length, start, end) else {
            // The slice covers the whole axis, whatever its dimension.
            let far = end.fixed().is_some_and(|end| end >= i64::from(i32::MAX));
            let whole = start == Dim::Fixed(0) && step == 1 && (far || end == length);
            return whole.then_some(length);
        };
        let picked = span(length, start, end, step)?;
        Some(if picked < 0 { call.unknown() } else { Dim::Fixed(picked) })
    }
}

fn compress(call: &Call<'_, '_>) -> Option<Shape> {
    if call.attribute("axis").is_none() {
        return Some(vec![call.unknown()]);
    }
    let mut shape = as_first(call)?;
    shape[call.axis(call.int("axis", 0), 0)?] = call.unknown();
    Some(shape)
}

fn top_k(call: &Call<'_, '_>) -> Vec<Option<Shape>> {
    let count = match call.attribute("k") {
        Some(k) => k.i.map(Dim::Fixed),
        None => call.elements(1).and_then(|count| *count.first()?),
    };
    let count = count.filter(|count| call.state.dims.borrow().is_length(*count));
    let shape = as_first(call).and_then(|mut shape| {
        let axis = call.axis(call.int("axis", -1), 0)?;
        shape[axis] = count.unwrap_or_else(|| call.unknown());
        Some(shape)
    });
    vec![shape; 2]
}

fn unique(call: &Call<'_, '_>) -> Vec<Option<Shape>> {
    let some = || Some(vec![call.unknown()]);
    let values = match call.attribute("axis") {
        None => some(),
        Some(_) => compress(call),
    };
    vec![values, some(), some(), some()]
}

fn one_hot(call: &Call<'_, '_>) -> Option<Shape> {
    let mut shape = as_first(call)?;
    let axis = axis_of(call.int("axis", -1), shape.len() + 1)?;
    let depth = call.elements(1).and_then(|depth| *depth.first()?);
    let depth = depth.filter(|depth| call.state.dims.borrow().is_length(*depth));
    shape.insert(axis, depth.unwrap_or_else(|| call.unknown()));
    Some(shape)
}
