//! Between which numbers a value lies, whatever the sample.

use quantize_rs_math::Range;

use super::ops;
use super::ops::Integer;
use crate::graph::{Graph, Maker, ValueId};

/// The constant ends of the `Clip` that makes a value, or makes what is only moved to it; `None` where there is none.
///
/// A range that is wider is no use, and a Clip is folded into the operator before it only where the grid cuts off the same.
pub(crate) fn limits(graph: &Graph<'_>, mut value: ValueId) -> Option<Range> {
    while let Maker::Node { node, .. } = graph.values[value].maker {
        let proto = graph.nodes[node];
        if proto.is_onnx() && proto.op_type == "Clip" {
            let end = |input: usize, attribute: &str, open: f32| match graph.input(node, input) {
                Some(end) => constant(graph, end).unwrap_or(open),
                None => proto.float(attribute, open),
            };
            let range = Range { min: end(1, "min", f32::MIN), max: end(2, "max", f32::MAX) };
            return Some(range).filter(|range| range.min <= range.max);
        }
        let rule = ops::rule(proto)?;
        if !matches!((rule.integer)(graph, node), Integer::SameAsInput { .. }) {
            return None;
        }
        value = graph.input(node, 0)?;
    }
    None
}

/// What the operator that makes a value can make at all; `None` where that is anything.
pub(crate) fn bounds(graph: &Graph<'_>, value: ValueId) -> Option<Range> {
    let Maker::Node { node, .. } = graph.values[value].maker else { return None };
    ops::rule(graph.nodes[node])?.range
}

/// The number that a constant of one element is, if it is finite, and nobody may give another.
fn constant(graph: &Graph<'_>, value: ValueId) -> Option<f32> {
    if matches!(graph.values[value].maker, Maker::Initializer { overridable: true, .. }) {
        return None;
    }
    let tensor = graph.model.tensor(graph.constant(value)?).ok()?;
    match tensor.to_f32()?[..] {
        [number] if number.is_finite() => Some(number),
        _ => None,
    }
}
