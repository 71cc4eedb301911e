//! Operators that generate a tensor of a given size, or return the size of a tensor.

use quantize_rs_onnx::DataType;

use super::shape_ops::wanted;
use super::{ANY, Call, INT64, Shape, ShapeRule, Type, as_first, one};
use crate::graph::infer::dim::Dim;

/// The type that an attribute names, by default float32.
const NAMED: &[Type] = &[Type::By(|call| named_or(call, "dtype", Some(DataType::Float)))];
/// The type that an attribute names, by default that of the input.
const NAMED_OR_SAME: &[Type] = &[Type::By(|call| named_or(call, "dtype", call.dtype(0)))];
const WINDOW: &[Type] =
    &[Type::By(|call| named_or(call, "output_datatype", Some(DataType::Float)))];

fn named_or(call: &Call<'_, '_>, name: &str, or: Option<DataType>) -> Option<DataType> {
    if call.attribute(name).is_some() { call.dtype_named(name) } else { or }
}

pub(super) const ALL: &[ShapeRule] = &[
    one("Shape", INT64, |call| {
        let count = axes(call).and_then(|axes| i64::try_from(axes.len()).ok());
        Some(vec![count.map_or_else(|| call.unknown(), Dim::Fixed)])
    }),
    one("Size", INT64, |_| Some(Shape::new())),
    one("ConstantOfShape", &[Type::By(of_value)], |call| {
        let lengths = wanted(call, 0)?.into_iter();
        let length = |one: Option<Dim>| one.filter(|one| call.state.dims.borrow().is_length(*one));
        Some(lengths.map(|one| length(one).unwrap_or_else(|| call.unknown())).collect())
    }),
    one("Range", ANY, range),
    one("EyeLike", NAMED_OR_SAME, as_first),
    one("Bernoulli", NAMED_OR_SAME, as_first),
    one("RandomNormalLike", NAMED_OR_SAME, as_first),
    one("RandomUniformLike", NAMED_OR_SAME, as_first),
    one("RandomNormal", NAMED, as_specified),
    one("RandomUniform", NAMED, as_specified),
    one(
        "Multinomial",
        &[Type::By(|call| named_or(call, "dtype", Some(DataType::Int32)))],
        |call| {
            let [batch, _] = call.shape(0)?[..] else { return None };
            Some(vec![batch, Dim::Fixed(call.int("sample_size", 1))])
        },
    ),
    one("BlackmanWindow", WINDOW, window),
    one("HammingWindow", WINDOW, window),
    one("HannWindow", WINDOW, window),
];

/// The range of axes that `Shape` returns.
pub(in crate::graph::infer) fn axes(call: &Call<'_, '_>) -> Option<std::ops::Range<usize>> {
    let rank = i64::try_from(call.rank(0)?).ok()?;
    let clamp = |at: i64| {
        let at = if at < 0 { at.saturating_add(rank) } else { at };
        usize::try_from(at.clamp(0, rank)).unwrap_or(0)
    };
    let (start, end) = (clamp(call.int("start", 0)), clamp(call.int("end", rank)));
    Some(start..end.max(start))
}

fn of_value(call: &Call<'_, '_>) -> Option<DataType> {
    match call.attribute("value") {
        Some(value) => value.t.as_ref()?.dtype(),
        None => Some(DataType::Float),
    }
}

fn range(call: &Call<'_, '_>) -> Option<Shape> {
    let scalar = |input: usize| call.elements(input).and_then(|elements| *elements.first()?);
    let length = match (scalar(0), scalar(1), scalar(2)) {
        (Some(Dim::Fixed(start)), Some(Dim::Fixed(limit)), Some(Dim::Fixed(delta))) => {
            count(start, limit, delta).map(Dim::Fixed)
        }
        (Some(Dim::Fixed(0)), Some(limit), Some(Dim::Fixed(1))) => {
            Some(limit).filter(|limit| call.state.dims.borrow().is_length(*limit))
        }
        _ => None,
    };
    Some(vec![length.unwrap_or_else(|| call.unknown())])
}

fn count(start: i64, limit: i64, delta: i64) -> Option<i64> {
    let distance = limit.checked_sub(start)?;
    let (distance, delta) =
        if delta < 0 { (distance.checked_neg()?, delta.checked_neg()?) } else { (distance, delta) };
    (delta > 0).then(|| distance.max(0) / delta + i64::from(distance.max(0) % delta > 0))
}

fn as_specified(call: &Call<'_, '_>) -> Option<Shape> {
    call.ints("shape")?.iter().map(|length| (*length >= 0).then_some(Dim::Fixed(*length))).collect()
}

fn window(call: &Call<'_, '_>) -> Option<Shape> {
    let size = call.elements(0).and_then(|size| *size.first()?);
    let size = size.filter(|size| call.state.dims.borrow().is_length(*size));
    Some(vec![size.unwrap_or_else(|| call.unknown())])
}
