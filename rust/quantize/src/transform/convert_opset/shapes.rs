//! Opset versions that turned attributes into inputs: axes, sizes, bounds.

use quantize_rs_onnx::{AttributeProto, Kept, NodeProto};

use super::place::{self, Place};

/// Since this version, a `Constant` node can take integers from an attribute of the calling
/// function.
const CONSTANT_OF_INTS: i64 = 12;

/// Turns an integer list attribute into an input. Returns `false` if it is absent.
fn to_input(
    node: &mut NodeProto,
    place: &mut Place<'_, '_>,
    name: &str,
    index: usize,
) -> Result<bool, String> {
    let Some(found) = node.attribute.iter().position(|own| own.name == name) else {
        return Ok(false);
    };
    let base = place::base(node);
    let refers = node.attribute[found].ref_attr_name.is_some();
    let value = if refers && place.version >= CONSTANT_OF_INTS {
        let mut given = (*node.attribute[found]).clone();
        "value_ints".clone_into(&mut given.name);
        let value = place.fresh(&base, name);
        let outputs = vec![value.clone()];
        let given = vec![Kept::new(given)];
        place.before.push(NodeProto::new("", "Constant", Vec::new(), outputs, given));
        value
    } else {
        let ints = place::ints(node, name)?.unwrap_or_default().to_vec();
        place.ints(&base, name, &ints)
    };
    node.attribute.remove(found);
    place::set_input(node, index, value);
    Ok(true)
}

/// The axes of Squeeze, Unsqueeze and reductions become an input.
pub(super) fn axes_to_input(
    node: &mut NodeProto,
    place: &mut Place<'_, '_>,
) -> Result<bool, String> {
    let is_empty = |axes: &AttributeProto| axes.ints.is_empty() && axes.ref_attr_name.is_none();
    if node.op_type.starts_with("Reduce") && node.attribute("axes").is_some_and(is_empty) {
        // An empty list means all axes in both versions.
        return Ok(place::remove(node, "axes"));
    }
    to_input(node, place, "axes", 1)
}

/// Opset 13: the sizes of the parts are an input.
pub(super) fn split_to_input(
    node: &mut NodeProto,
    place: &mut Place<'_, '_>,
) -> Result<bool, String> {
    to_input(node, place, "split", 1)
}

/// Opset 18: the number of parts is required if there are no sizes.
pub(super) fn split_counted(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    if place::input(node, 1).is_some() {
        return Ok(false);
    }
    let parts = i64::try_from(node.output.len()).unwrap_or(i64::MAX);
    node.input.truncate(1);
    place::set(node, AttributeProto::int("num_outputs", parts));
    Ok(true)
}

/// Opset 10: the bounds are inputs.
pub(super) fn slice(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let names = ["starts", "ends", "axes"];
    for (index, name) in names.into_iter().enumerate() {
        to_input(node, place, name, index + 1)?;
    }
    Ok(true)
}

/// Opset 11: the paddings and the value are inputs.
pub(super) fn pad(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    to_input(node, place, "pads", 1)?;
    let value = place::float(node, "value")?.unwrap_or(0.0);
    place::remove(node, "value");
    if value != 0.0 && place::string(node, "mode", "constant")? == "constant" {
        let dtype = place.float_dtype(place::input(node, 0).unwrap_or_default())?;
        let value = place.float(&place::base(node), "value", value, dtype)?;
        place::set_input(node, 2, value);
    }
    Ok(true)
}

/// Opset 10: `k` is an input.
pub(super) fn top_k(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let k = place::int(node, "k", 1)?;
    place::remove(node, "k");
    let k = place.ints(&place::base(node), "k", &[k]);
    place::set_input(node, 1, k);
    Ok(true)
}

/// Opset 11: the operator is renamed.
pub(super) fn scatter(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    "ScatterElements".clone_into(&mut node.op_type);
    Ok(true)
}

/// Opset 20: the axis is an input. Its default changes from 1 to the last axis.
pub(super) fn dft(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let axis = place::int(node, "axis", 1)?;
    place::remove(node, "axis");
    let axis = place.int(&place::base(node), "axis", axis);
    place::set_input(node, 2, axis);
    Ok(true)
}
