//! Opset versions that turned attributes into inputs: axes, sizes, bounds.

use quantize_rs_onnx::{AttributeProto, NodeProto, Raw};

use super::context::{self, NodeContext};

/// Since this version, a `Constant` node can take integers from an attribute of the calling
/// function.
const CONSTANT_OF_INTS: i64 = 12;

/// Turns an integer list attribute into an input. Returns `false` if it is absent.
fn to_input(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
    name: &str,
    index: usize,
) -> Result<bool, String> {
    let Some(found) = node.attribute.iter().position(|own| own.name == name) else {
        return Ok(false);
    };
    let base = context::base(node);
    let refers = node.attribute[found].ref_attr_name.is_some();
    let value = if refers && context.version >= CONSTANT_OF_INTS {
        let mut given = (*node.attribute[found]).clone();
        "value_ints".clone_into(&mut given.name);
        let value = context.fresh(&base, name);
        let outputs = vec![value.clone()];
        let given = vec![Raw::new(given)];
        context.before.push(NodeProto::new("", "Constant", Vec::new(), outputs, given));
        value
    } else {
        let ints = context::ints(node, name)?.unwrap_or_default().to_vec();
        context.ints(&base, name, &ints)
    };
    node.attribute.remove(found);
    context::set_input(node, index, value);
    Ok(true)
}

/// The axes of Squeeze, Unsqueeze and reductions become an input.
pub(super) fn axes_to_input(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let is_empty = |axes: &AttributeProto| axes.ints.is_empty() && axes.ref_attr_name.is_none();
    if node.op_type.starts_with("Reduce") && node.attribute("axes").is_some_and(is_empty) {
        // An empty list means all axes in both versions.
        return Ok(context::remove(node, "axes"));
    }
    to_input(node, context, "axes", 1)
}

/// Opset 13: the sizes of the parts are an input.
pub(super) fn split_to_input(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    to_input(node, context, "split", 1)
}

/// Opset 18: the number of parts is required if there are no sizes.
pub(super) fn split_counted(
    node: &mut NodeProto,
    _: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    if context::input(node, 1).is_some() {
        return Ok(false);
    }
    let parts = i64::try_from(node.output.len()).unwrap_or(i64::MAX);
    node.input.truncate(1);
    context::set(node, AttributeProto::int("num_outputs", parts));
    Ok(true)
}

/// Opset 10: the bounds are inputs.
pub(super) fn slice(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let names = ["starts", "ends", "axes"];
    for (index, name) in names.into_iter().enumerate() {
        to_input(node, context, name, index + 1)?;
    }
    Ok(true)
}

/// Opset 11: the paddings and the value are inputs.
pub(super) fn pad(node: &mut NodeProto, context: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    to_input(node, context, "pads", 1)?;
    let value = context::float(node, "value")?.unwrap_or(0.0);
    context::remove(node, "value");
    if value != 0.0 && context::string(node, "mode", "constant")? == "constant" {
        let dtype = context.float_dtype(context::input(node, 0).unwrap_or_default())?;
        let value = context.float(&context::base(node), "value", value, dtype)?;
        context::set_input(node, 2, value);
    }
    Ok(true)
}

/// Opset 10: `k` is an input.
pub(super) fn top_k(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let k = context::int(node, "k", 1)?;
    context::remove(node, "k");
    let k = context.ints(&context::base(node), "k", &[k]);
    context::set_input(node, 1, k);
    Ok(true)
}

/// Opset 11: the operator is renamed.
pub(super) fn scatter(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    "ScatterElements".clone_into(&mut node.op_type);
    Ok(true)
}

/// Opset 20: the axis is an input. Its default changes from 1 to the last axis.
pub(super) fn dft(node: &mut NodeProto, context: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    let axis = context::int(node, "axis", 1)?;
    context::remove(node, "axis");
    let axis = context.int(&context::base(node), "axis", axis);
    context::set_input(node, 2, axis);
    Ok(true)
}
