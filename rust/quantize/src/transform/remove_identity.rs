//! Removes nodes whose output is bit-identical to their input.

use quantize_rs_onnx::{DataType, Tensor};

use super::Changes;
use super::pass_edits::PassEdits;
use crate::QuantizeError;
use crate::graph::constants::{fixed, given, ints, is_given, is_read};
use crate::graph::infer::Dim;
use crate::graph::{Graph, Producer, ValueId};
use crate::util::axes::axis_of;

/// A rule that determines whether a node has no effect, and which input it passes on.
struct IdentityRule {
    op_type: &'static str,
    /// The value that is passed on unchanged.
    through: fn(&Graph<'_>, usize) -> Option<ValueId>,
}

const fn identity(
    op_type: &'static str,
    through: fn(&Graph<'_>, usize) -> Option<ValueId>,
) -> IdentityRule {
    IdentityRule { op_type, through }
}

const RULES: &[IdentityRule] = &[
    identity("Identity", |graph, node| graph.input(node, 0)),
    identity("Dropout", dropout),
    identity("Cast", cast),
    identity("Transpose", transpose),
    identity("Reshape", reshape),
    identity("Flatten", flatten),
    identity("Squeeze", squeeze),
    identity("Unsqueeze", unsqueeze),
    identity("Pad", pad),
    identity("Slice", slice),
    identity("Expand", expand),
    identity("Tile", |graph, node| all_ones(graph, node, 1)),
    identity("Concat", single),
    identity("Sum", single),
    identity("Max", single),
    identity("Min", single),
    // Adding 0.0 turns -0.0 into 0.0, but adding -0.0 has no effect.
    identity("Add", |graph, node| either(graph, node, is_minus_zero)),
    identity("Sub", |graph, node| second(graph, node, is_plus_zero)),
    identity("Mul", |graph, node| either(graph, node, is_one)),
    identity("Div", |graph, node| second(graph, node, is_one)),
];

pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    removed(graph, RULES)
}

/// Removes casts alone.
pub(super) fn casts(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    removed(graph, &[identity("Cast", cast)])
}

fn removed(graph: &Graph<'_>, rules: &[IdentityRule]) -> Result<Changes, QuantizeError> {
    let mut pass = PassEdits::of(graph);
    for index in graph.order()? {
        let node = graph.nodes[index];
        let row = rules.iter().find(|row| node.is_onnx() && row.op_type == node.op_type);
        let Some(row) = row else { continue };
        let others = (1..node.output.len()).filter_map(|output| graph.output(index, output));
        if others.into_iter().any(|value| is_read(graph, value)) {
            continue;
        }
        if let Some(source) = (row.through)(graph, index)
            && pass.bypass(index, source)
        {
            pass.did(format!("removed {}: it has no effect", node.label()));
        }
    }
    Ok(pass.finish())
}

/// Since opset 7, Dropout is inactive unless it is in training mode.
fn dropout(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let opset = graph.model.opset("").unwrap_or(1);
    let idle = match graph.input(node, 2) {
        Some(training) => fixed(graph, training)?.data.iter().all(|byte| *byte == 0),
        None => opset >= 7 || graph.nodes[node].int("is_test", 0) != 0,
    };
    idle.then(|| graph.input(node, 0)).flatten()
}

fn cast(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let value = graph.input(node, 0)?;
    let to = graph.nodes[node].attribute("to")?.i?;
    (i64::from(graph.dtype(value)?.number()) == to).then_some(value)
}

/// A Transpose that moves no axis, or that reverts the preceding Transpose.
fn transpose(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let value = graph.input(node, 0)?;
    let Some(perm) = perm(graph, node) else {
        return (graph.shape(value)?.len() < 2).then_some(value);
    };
    if in_order(perm.iter().copied()) {
        return Some(value);
    }
    let Producer::Node { node: before, .. } = graph.values[value].producer else { return None };
    let node = graph.nodes[before];
    if node.op_type != "Transpose" || !node.is_onnx() {
        return None;
    }
    let first = self::perm(graph, before)?;
    let both = perm.iter().map(|axis| usize::try_from(*axis).ok().and_then(|at| first.get(at)));
    let both: Vec<i64> = both.map(Option::<&i64>::copied).collect::<Option<_>>()?;
    (both.len() == first.len() && in_order(both.into_iter()))
        .then(|| graph.input(before, 0))
        .flatten()
}

fn perm<'m>(graph: &Graph<'m>, node: usize) -> Option<&'m [i64]> {
    graph.nodes[node].attribute("perm").map(|found| &found.ints[..])
}

fn in_order(axes: impl Iterator<Item = i64>) -> bool {
    (0..).zip(axes).all(|(at, axis)| at == axis)
}

/// A Reshape to the current shape, where at most one dimension is dynamic.
fn reshape(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let value = graph.input(node, 0)?;
    let shape = graph.fact(value)?.shape.as_ref()?;
    let wanted = elements(graph, node, "shape", 1)?;
    let zero_copies = graph.nodes[node].int("allowzero", 0) == 0;
    if wanted.len() != shape.len() {
        return None;
    }
    let mut open = 0;
    for (length, wanted) in shape.iter().zip(&wanted) {
        match (length, (*wanted)?) {
            (_, Dim::Fixed(0)) if zero_copies => {}
            (Dim::Fixed(0), _) => return None,
            (length, wanted) if *length == wanted => {}
            (_, Dim::Fixed(-1)) => open += 1,
            _ => return None,
        }
    }
    (open <= 1).then_some(value)
}

/// The elements of a small vector, as far as they are known. It is an attribute or, in newer
/// opsets, an input.
fn elements(
    graph: &Graph<'_>,
    node: usize,
    attribute: &str,
    input: usize,
) -> Option<Vec<Option<Dim>>> {
    if let Some(numbers) = given(graph, node, attribute, input) {
        return Some(numbers.into_iter().map(|number| Some(Dim::Fixed(number))).collect());
    }
    graph.fact(graph.input(node, input)?)?.elements.clone()
}

fn flatten(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let value = graph.input(node, 0)?;
    let axis = graph.nodes[node].int("axis", 1);
    (graph.shape(value)?.len() == 2 && matches!(axis, 1 | -1)).then_some(value)
}

fn squeeze(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let value = graph.input(node, 0)?;
    // Runtimes read an empty list of axes as all axes of length 1, or as none.
    let all = !is_given(graph, node, "axes", 1) || given(graph, node, "axes", 1)?.is_empty();
    let has_none = graph.shape(value)?.iter().all(|length| length.is_some_and(|it| it != 1));
    (all && has_none).then_some(value)
}

fn unsqueeze(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    given(graph, node, "axes", 1)?.is_empty().then(|| graph.input(node, 0)).flatten()
}

fn pad(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let named = ["pads", "paddings"].iter().find_map(|name| graph.nodes[node].attribute(name));
    let pads = match named {
        Some(pads) => pads.ints.to_vec(),
        None => given(graph, node, "pads", 1)?,
    };
    pads.iter().all(|pad| *pad == 0).then(|| graph.input(node, 0)).flatten()
}

/// A Slice that starts at 0, has step 1, and ends at or after the end.
fn slice(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let value = graph.input(node, 0)?;
    let starts = given(graph, node, "starts", 1)?;
    let ends = given(graph, node, "ends", 2)?;
    let along = if is_given(graph, node, "axes", 3) {
        given(graph, node, "axes", 3)?
    } else {
        (0..i64::try_from(starts.len()).ok()?).collect()
    };
    let steps = if is_given(graph, node, "steps", 4) {
        given(graph, node, "steps", 4)?
    } else {
        vec![1; starts.len()]
    };
    let shape = graph.shape(value);
    let reaches = |end: i64, axis: i64| {
        // Exporters write this value for an open end.
        end >= i64::from(i32::MAX)
            || shape.as_ref().is_some_and(|shape| {
                let length = axis_of(axis, shape.len()).and_then(|axis| shape[axis]);
                length.is_some_and(|length| usize::try_from(end).is_ok_and(|end| end >= length))
            })
    };
    let fits = ends.len() == starts.len()
        && along.len() == starts.len()
        && steps.len() == starts.len()
        && starts.iter().all(|start| *start == 0)
        && steps.iter().all(|step| *step == 1)
        && ends.iter().zip(&along).all(|(end, axis)| reaches(*end, *axis));
    fits.then_some(value)
}

fn expand(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let value = graph.input(node, 0)?;
    let wanted = elements(graph, node, "shape", 1)?;
    stays(graph, value, &wanted).then_some(value)
}

/// Whether a value keeps its shape when it is broadcast with another.
fn stays(graph: &Graph<'_>, value: ValueId, wanted: &[Option<Dim>]) -> bool {
    if wanted.is_empty() {
        return true;
    }
    let lengths = graph.fact(value).and_then(|fact| fact.shape.as_ref());
    let Some(lengths) = lengths else { return false };
    let fits = |(wanted, length): (&Option<Dim>, &Dim)| {
        *wanted == Some(Dim::Fixed(1)) || *wanted == Some(*length)
    };
    wanted.len() <= lengths.len() && wanted.iter().rev().zip(lengths.iter().rev()).all(fits)
}

fn all_ones(graph: &Graph<'_>, node: usize, input: usize) -> Option<ValueId> {
    // Before opset 6, `Tile` repeated a single axis.
    let two = graph.nodes[node].input.len() == 2;
    let repeats = ints(&fixed(graph, graph.input(node, input)?)?)?;
    (two && repeats.iter().all(|count| *count == 1)).then(|| graph.input(node, 0)).flatten()
}

fn single(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    (graph.nodes[node].input.len() == 1).then(|| graph.input(node, 0)).flatten()
}

/// The input that is passed on if all elements of the other input are constant and `neutral`.
fn either(graph: &Graph<'_>, node: usize, neutral: fn(&Tensor) -> bool) -> Option<ValueId> {
    neutral_at(graph, node, 1, neutral).or_else(|| neutral_at(graph, node, 0, neutral))
}

fn second(graph: &Graph<'_>, node: usize, neutral: fn(&Tensor) -> bool) -> Option<ValueId> {
    neutral_at(graph, node, 1, neutral)
}

fn neutral_at(
    graph: &Graph<'_>,
    node: usize,
    input: usize,
    neutral: fn(&Tensor) -> bool,
) -> Option<ValueId> {
    // Before opset 7, attributes controlled broadcasting.
    if graph.model.opset("").unwrap_or(1) < 7 || graph.nodes[node].input.len() != 2 {
        return None;
    }
    let value = graph.input(node, 1 - input)?;
    let tensor = fixed(graph, graph.input(node, input)?)?;
    let shape: Vec<Option<Dim>> = tensor.shape.iter().map(|length| Dim::of(*length)).collect();
    (stays(graph, value, &shape) && tensor.elements() > 0 && neutral(&tensor)).then_some(value)
}

/// Whether all elements have these bytes.
fn all(tensor: &Tensor, bytes: &[u8]) -> bool {
    tensor.data.chunks(bytes.len()).all(|element| element == bytes)
}

fn is_one(tensor: &Tensor) -> bool {
    match tensor.dtype {
        DataType::Float => all(tensor, &1f32.to_le_bytes()),
        DataType::Double => all(tensor, &1f64.to_le_bytes()),
        DataType::Float16 => all(tensor, &half::f16::ONE.to_le_bytes()),
        DataType::BFloat16 => all(tensor, &half::bf16::ONE.to_le_bytes()),
        DataType::Int64 | DataType::UInt64 => all(tensor, &1i64.to_le_bytes()),
        DataType::Int32 | DataType::UInt32 => all(tensor, &1i32.to_le_bytes()),
        _ => false,
    }
}

fn is_plus_zero(tensor: &Tensor) -> bool {
    let number = tensor.dtype.is_float() || is_whole(tensor.dtype);
    number && tensor.data.iter().all(|byte| *byte == 0)
}

fn is_minus_zero(tensor: &Tensor) -> bool {
    match tensor.dtype {
        DataType::Float => all(tensor, &(-0f32).to_le_bytes()),
        DataType::Double => all(tensor, &(-0f64).to_le_bytes()),
        DataType::Float16 | DataType::BFloat16 => all(tensor, &0x8000u16.to_le_bytes()),
        dtype => is_whole(dtype) && is_plus_zero(tensor),
    }
}

fn is_whole(dtype: DataType) -> bool {
    matches!(dtype, DataType::Int64 | DataType::Int32 | DataType::UInt64 | DataType::UInt32)
}
