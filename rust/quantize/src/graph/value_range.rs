//! Ranges of values that follow from the graph, independent of the samples.

use quantize_rs_math::Range;

use super::clip::{self, Bound, single};
use super::ops;
use super::ops::IntegerSupport;
use crate::graph::constants::fixed;
use crate::graph::{Graph, Producer, ValueId};

/// The constant bounds of the `Clip` that produces a value, directly or through operators that only
/// move data; `None` if there is none.
///
/// A wider range would be of no use. Runtimes fuse a `Clip` into the preceding operator only if the
/// quantized range clips in the same place.
pub(crate) fn limits(graph: &Graph<'_>, mut value: ValueId) -> Option<Range> {
    while let Producer::Node { node, .. } = graph.values[value].producer {
        let proto = graph.nodes[node];
        if proto.op_type == "Clip" {
            // A bound that is known at run time only may be anywhere.
            let end = |bound: Bound, open: f32| match bound {
                Bound::At(end) if end.is_finite() => end,
                _ => open,
            };
            let [low, high] = clip::bounds(graph, node)?;
            let range = Range { min: end(low, f32::MIN), max: end(high, f32::MAX) };
            return Some(range).filter(|range| range.min <= range.max);
        }
        let rule = ops::rule(proto)?;
        if !matches!((rule.integer)(graph, node), IntegerSupport::SameAsInput { .. }) {
            return None;
        }
        value = graph.input(node, 0)?;
    }
    None
}

/// The range of the operator that produces a value; `None` if it is unbounded.
pub(crate) fn bounds(graph: &Graph<'_>, value: ValueId) -> Option<Range> {
    ops::rule(graph.nodes[source_of_bounds(graph, value)?])?.range
}

/// The operator with a bounded range that produces a value, directly or through a `Where` that
/// replaces some of its elements by a constant within the range: 0 for the NaN of a masked row.
pub(crate) fn source_of_bounds(graph: &Graph<'_>, value: ValueId) -> Option<usize> {
    let Producer::Node { node, .. } = graph.values[value].producer else { return None };
    let proto = graph.nodes[node];
    if !proto.is_onnx() || proto.op_type != "Where" {
        return ops::rule(proto)?.range.map(|_| node);
    }
    let (one, other) = (graph.input(node, 1)?, graph.input(node, 2)?);
    let (number, rest) = match (constant(graph, one), constant(graph, other)) {
        (Some(number), None) => (number, other),
        (None, Some(number)) => (number, one),
        _ => return None,
    };
    let Producer::Node { node, .. } = graph.values[rest].producer else { return None };
    let range = ops::rule(graph.nodes[node])?.range?;
    (range.min <= number && number <= range.max).then_some(node)
}

/// The element of a scalar constant, if it is finite and cannot be overridden.
fn constant(graph: &Graph<'_>, value: ValueId) -> Option<f32> {
    single(&fixed(graph, value)?).filter(|number| number.is_finite())
}
