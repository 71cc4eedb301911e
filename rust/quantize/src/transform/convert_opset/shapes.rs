//! What were attributes and became inputs: axes, lengths, bounds.

use quantize_rs_onnx::{AttributeProto, NodeProto, Raw};

use super::place::{self, Place};

/// The version from which on a node can make a constant of an attribute of its function's caller.
const CONSTANT_OF_INTS: i64 = 12;

/// Makes an input of an attribute of integers; false when it was not given.
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
        let given = vec![Raw::new(given)];
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

/// Squeeze, Unsqueeze, and what reduces: the axes are an input.
pub(super) fn axes_to_input(
    node: &mut NodeProto,
    place: &mut Place<'_, '_>,
) -> Result<bool, String> {
    let is_empty = |axes: &AttributeProto| axes.ints.is_empty() && axes.ref_attr_name.is_none();
    if node.op_type.starts_with("Reduce") && node.attribute("axes").is_some_and(is_empty) {
        // Both before and after, no axes are all axes.
        return Ok(place::remove(node, "axes"));
    }
    to_input(node, place, "axes", 1)
}

/// Version 13: the lengths of the parts are an input.
pub(super) fn split_to_input(
    node: &mut NodeProto,
    place: &mut Place<'_, '_>,
) -> Result<bool, String> {
    to_input(node, place, "split", 1)
}

/// Version 18: into how many parts is said where their lengths are not.
pub(super) fn split_counted(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    if place::input(node, 1).is_some() {
        return Ok(false);
    }
    let parts = i64::try_from(node.output.len()).unwrap_or(i64::MAX);
    node.input.truncate(1);
    place::set(node, AttributeProto::int("num_outputs", parts));
    Ok(true)
}

/// Version 10: the bounds are inputs.
pub(super) fn slice(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let names = ["starts", "ends", "axes"];
    for (index, name) in names.into_iter().enumerate() {
        to_input(node, place, name, index + 1)?;
    }
    Ok(true)
}

/// Version 11: the widths and the value are inputs.
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

/// Version 10: how many is an input.
pub(super) fn top_k(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let k = place::int(node, "k", 1)?;
    place::remove(node, "k");
    let k = place.ints(&place::base(node), "k", &[k]);
    place::set_input(node, 1, k);
    Ok(true)
}

/// Version 11: it has another name.
pub(super) fn scatter(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    "ScatterElements".clone_into(&mut node.op_type);
    Ok(true)
}

/// Version 20: the axis is an input, and the last one unless said; it was 1.
pub(super) fn dft(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let axis = place::int(node, "axis", 1)?;
    place::remove(node, "axis");
    let axis = place.int(&place::base(node), "axis", axis);
    place::set_input(node, 2, axis);
    Ok(true)
}
