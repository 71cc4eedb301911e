//! The scales and zero points of activations: they are valid numbers along an axis of the value,
//! and a value is read with those that it was written with.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{DataType, NodeProto, Tensor, TensorProto};

use super::{Check, Validation};
use crate::graph::elements::HALVES;
use crate::graph::elements::to_f32;
use crate::graph::granularity::granularity;
use crate::graph::ops::{self, IntegerSupport};
use crate::graph::qlinear::{Slot, qlinear_of};
use crate::graph::{Graph, Producer, ValueId};
use crate::options::HalfType;

/// The inputs of a node with the scale and the zero point of a value.
#[derive(Clone, Copy)]
struct ParameterInputs {
    scale: usize,
    zero_point: usize,
}

/// Checks the scales and zero points of a node that quantizes, dequantizes or computes on integers.
pub(super) fn check(
    after: &Graph<'_>,
    node: usize,
    half: Option<HalfType>,
    found: &mut Validation,
) {
    let proto = after.nodes[node];
    let kind = proto.op_type.as_str();
    if proto.is_onnx() && matches!(kind, "QuantizeLinear" | "DequantizeLinear") {
        numbers(after, node, half, found);
        places(after, node, found);
    }
    if let Some(what) = wrong_type(after, node) {
        return found.problem(Check::Structure, proto.named(), what);
    }
    for (value, here) in reads(after, node) {
        if let Some((writer, there)) = writer(after, value) {
            compare(after, (writer, there), (node, value, here), found);
        }
    }
}

/// What is wrong with the type that a node quantizes or dequantizes.
fn wrong_type(after: &Graph<'_>, node: usize) -> Option<String> {
    let proto = after.nodes[node];
    let source = after.input(node, 0).filter(|_| proto.is_onnx())?;
    let dtype = after.dtype(source)?;
    let what = match proto.op_type.as_str() {
        "DequantizeLinear" if dtype.is_float() => "dequantizes",
        "QuantizeLinear" if !dtype.is_float() && dtype != DataType::Int32 => "quantizes",
        _ => return None,
    };
    Some(format!("it {what} `{}`, which is {dtype}", after.values[source].name))
}

/// Checks that scales are finite numbers above 0, and that there are as many zero points. Those of
/// a weight may be 0 in 16 bits: the comparison of weights tells whether its elements are as small.
fn numbers(after: &Graph<'_>, node: usize, half: Option<HalfType>, found: &mut Validation) {
    let Some((name, scale)) = constant(after, node, 1) else { return };
    let scales = elements(after, scale).as_ref().and_then(to_f32).unwrap_or_default();
    let activation = after.input(node, 0).is_some_and(|id| after.constant(id).is_none());
    let narrow = half.is_some() || scale.dtype().is_some_and(|dtype| HALVES.contains(&dtype));
    let bad = |scale: &f32| {
        let zero = *scale == 0.0 && (activation || !narrow);
        !scale.is_finite() || zero || activation && *scale < 0.0
    };
    if let Some(at) = scales.iter().position(bad) {
        let positive = if activation { "above" } else { "that is not" };
        let what = format!("scale {at} is {}, expected a finite number {positive} 0", scales[at]);
        found.problem(Check::Scale, name, what);
    }
    if let Some((point, tensor)) = constant(after, node, 2)
        && tensor.dims != scale.dims
        && [tensor, scale].iter().any(|of| of.dims.iter().any(|length| *length != 1))
    {
        let what =
            format!("zero points of shape {:?} beside scales of {:?}", tensor.dims, scale.dims);
        found.problem(Check::Scale, point, what);
    }
}

/// Checks that the scales of an activation or a bias lie along an axis of it, and that there are as
/// many of them as it needs. Those of a weight are checked when it is compared.
fn places(after: &Graph<'_>, node: usize, found: &mut Validation) {
    let proto = after.nodes[node];
    if constant(after, node, 0).is_some_and(|(_, it)| it.dtype() != Some(DataType::Int32)) {
        return;
    }
    let shape = |input: usize| after.shape(after.input(node, input)?);
    let (Some(shape), Some(scales)) = (shape(0), shape(1)) else { return };
    let Some(scale_shape) = scales.iter().copied().collect::<Option<Vec<usize>>>() else { return };
    let expected = match granularity(proto, shape.len(), &scale_shape) {
        None => {
            let (axis, rank) = (proto.int("axis", 1), shape.len());
            let what = format!("axis is {axis}, but its input has {rank} axes");
            return found.problem(Check::Scale, proto.named(), what);
        }
        Some(Granularity::PerTensor) => return,
        Some(Granularity::PerAxis { axis }) => vec![shape[axis]],
        Some(Granularity::Blocked { axis, block_size }) => {
            let blocks = |(at, length): (usize, &Option<usize>)| {
                let length = (*length)?;
                Some(if at == axis { length.div_ceil(block_size) } else { length })
            };
            shape.iter().enumerate().map(blocks).collect()
        }
    };
    let fits = |(length, expected): (&usize, &Option<usize>)| {
        expected.is_none_or(|expected| *length == expected)
    };
    if scale_shape.len() != expected.len() || !scale_shape.iter().zip(&expected).all(fits) {
        let length = |length: &Option<usize>| length.map_or("?".into(), |it| it.to_string());
        let expected: Vec<String> = expected.iter().map(length).collect();
        let what = format!("scales of shape {scale_shape:?}, expected [{}]", expected.join(", "));
        found.problem(Check::Scale, proto.named(), what);
    }
}

/// The integers that a node reads, with their parameters.
fn reads(after: &Graph<'_>, node: usize) -> Vec<(ValueId, ParameterInputs)> {
    let proto = after.nodes[node];
    let of = |at: usize, scale: usize, zero_point: usize| {
        Some((after.input(node, at)?, ParameterInputs { scale, zero_point }))
    };
    if proto.is_onnx() && proto.op_type == "DequantizeLinear" {
        return of(0, 1, 2).into_iter().collect();
    }
    let Some(row) = qlinear_of(proto) else { return Vec::new() };
    let slots = (0..).map_while(|input| row.slot(input));
    let slots = slots.take_while(|slot| slot.at() < proto.input.len());
    slots
        .filter_map(|slot| match slot {
            Slot::Scaled { at, scale, zero_point } => of(at, scale, zero_point),
            Slot::Bias(_) | Slot::Plain(_) => None,
        })
        .collect()
}

/// The node that writes integers, past those that only move them, and their parameters.
fn writer(after: &Graph<'_>, mut value: ValueId) -> Option<(usize, ParameterInputs)> {
    // No chain is longer than the graph.
    for _ in 0..=after.nodes.len() {
        let Producer::Node { node, .. } = after.values[value].producer else { return None };
        let proto = after.nodes[node];
        if let Some(written) = written(proto) {
            return Some((node, written));
        }
        let moves = (ops::rule(proto)?.integer)(after, node);
        if !matches!(moves, IntegerSupport::SameAsInput { .. }) {
            return None;
        }
        value = after.input(node, 0)?;
    }
    None
}

/// The parameters of the integers that a node writes.
fn written(proto: &NodeProto) -> Option<ParameterInputs> {
    if proto.is_onnx() && proto.op_type == "QuantizeLinear" {
        return Some(ParameterInputs { scale: 1, zero_point: 2 });
    }
    let scale = qlinear_of(proto)?.output?;
    // Without the scale, the output is float.
    let is_given = proto.input.get(scale).is_some_and(|name| !name.is_empty());
    is_given.then_some(ParameterInputs { scale, zero_point: scale + 1 })
}

/// Checks that a value is read with the parameters that it was written with.
fn compare(
    after: &Graph<'_>,
    (writer, there): (usize, ParameterInputs),
    (reader, value, here): (usize, ValueId, ParameterInputs),
    found: &mut Validation,
) {
    let proto = after.nodes[reader];
    let is_omitted =
        |node: usize, input: usize| after.nodes[node].input.get(input).is_none_or(String::is_empty);
    // An omitted zero point is 0.
    let zero = |tensor: &TensorProto| {
        elements(after, tensor).is_some_and(|tensor| tensor.data.iter().all(|byte| *byte == 0))
    };
    let pairs =
        [(there.scale, here.scale, "scale"), (there.zero_point, here.zero_point, "zero point")];
    for (at, input, what) in pairs {
        let (there, here) = (constant(after, writer, at), constant(after, reader, input));
        let same = match (there, here) {
            (Some((there, one)), Some((here, other))) => {
                there == here || are_equal(elements(after, one), elements(after, other))
            }
            (Some((_, one)), None) if is_omitted(reader, input) => zero(one),
            (None, Some((_, one))) => !is_omitted(writer, at) || zero(one),
            _ => true,
        };
        if same {
            continue;
        }
        let there = there.map_or("0", |(name, _)| name);
        let what = if proto.op_type == "DequantizeLinear" {
            let output = proto.output.first().map_or("", String::as_str);
            format!(
                "the {what} that `{output}` is dequantized with is not `{there}`, which it is \
                 quantized with"
            )
        } else {
            let (reads, value) = (proto.label(), after.values[value].name);
            format!(
                "the {what} that {reads} reads `{value}` with is not `{there}`, which it is \
                 quantized with"
            )
        };
        found.problem(Check::Scale, here.map_or(proto.named(), |(name, _)| name), what);
    }
}

/// Whether two tensors have equal elements; a single one may be a scalar or a vector.
fn are_equal(one: Option<Tensor>, other: Option<Tensor>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.dtype == other.dtype && one.data == other.data,
        (one, other) => one == other,
    }
}

/// The name and the tensor of a constant input.
fn constant<'m>(
    after: &Graph<'m>,
    node: usize,
    input: usize,
) -> Option<(&'m str, &'m TensorProto)> {
    let id = after.input(node, input)?;
    Some((after.values[id].name, after.constant(id)?))
}

fn elements(after: &Graph<'_>, tensor: &TensorProto) -> Option<Tensor> {
    after.model.tensor(tensor).ok()
}
