//! Operators that reduce axes to single elements.

use super::{Call, INT64, SAME, Shape, ShapeRule, one};
use crate::graph::infer::call::Given;
use crate::graph::infer::dim::Dim;

pub(super) const ALL: &[ShapeRule] = &[
    one("ReduceL1", SAME, reduced),
    one("ReduceL2", SAME, reduced),
    one("ReduceLogSum", SAME, reduced),
    one("ReduceLogSumExp", SAME, reduced),
    one("ReduceMax", SAME, reduced),
    one("ReduceMean", SAME, reduced),
    one("ReduceMin", SAME, reduced),
    one("ReduceProd", SAME, reduced),
    one("ReduceSum", SAME, reduced),
    one("ReduceSumSquare", SAME, reduced),
    one("ArgMax", INT64, |call| along(call, &[call.int("axis", 0)])),
    one("ArgMin", INT64, |call| along(call, &[call.int("axis", 0)])),
];

fn reduced(call: &Call<'_, '_>) -> Option<Shape> {
    let shape = call.shape(0)?;
    let kept = call.int("keepdims", 1) != 0;
    match call.given("axes", 1) {
        Given::Ints(axes) if !axes.is_empty() => along(call, &axes),
        Given::Ints(_) | Given::Nothing if call.int("noop_with_empty_axes", 0) != 0 => {
            Some(shape.clone())
        }
        Given::Ints(_) | Given::Nothing if kept => Some(vec![Dim::Fixed(1); shape.len()]),
        Given::Ints(_) | Given::Nothing => Some(Shape::new()),
        Given::Unknown if kept => Some(call.unknowns(shape.len())),
        Given::Unknown => {
            let count = usize::try_from(call.shape(1)?.first()?.fixed()?).ok()?;
            // An empty list may mean all axes.
            (count > 0).then(|| Some(call.unknowns(shape.len().checked_sub(count)?)))?
        }
    }
}

fn along(call: &Call<'_, '_>, axes: &[i64]) -> Option<Shape> {
    let shape = call.shape(0)?;
    let axes: Vec<usize> = axes.iter().map(|axis| call.axis(*axis, 0)).collect::<Option<_>>()?;
    let kept = call.int("keepdims", 1) != 0;
    let lengths =
        shape.iter().enumerate().filter_map(|(axis, length)| match (axes.contains(&axis), kept) {
            (false, _) => Some(*length),
            (true, true) => Some(Dim::Fixed(1)),
            (true, false) => None,
        });
    Some(lengths.collect())
}
