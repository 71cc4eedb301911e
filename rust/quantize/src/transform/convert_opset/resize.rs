//! Opset conversion of Upsample and its successor Resize.

use quantize_rs_onnx::{AttributeProto, NodeProto, Tensor};

use super::context::{self, NodeContext};

/// Opset 7: one scale per axis instead of a scale for the height and one for the width.
pub(super) fn upsample_by_factors(
    node: &mut NodeProto,
    _: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let mut scales = vec![1.0, 1.0];
    for name in ["height_scale", "width_scale"] {
        scales.push(context::float(node, name)?.ok_or_else(|| format!("it has no `{name}`"))?);
        context::remove(node, name);
    }
    if context::string(node, "mode", "nearest")? == "bilinear" {
        context::set(node, AttributeProto::string("mode", "linear"));
    }
    context::set(node, AttributeProto::floats("scales", &scales));
    Ok(true)
}

/// Opset 9: the scales are an input.
pub(super) fn scales_to_input(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let scales = context::floats(node, "scales")?.unwrap_or_default().to_vec();
    context::remove(node, "scales");
    let scales = context.floats(&context::base(node), "scales", &scales);
    context::set_input(node, 1, scales);
    Ok(true)
}

/// Opset 10: Upsample is replaced by Resize.
pub(super) fn upsample(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    "Resize".clone_into(&mut node.op_type);
    Ok(true)
}

/// Whether the scales enlarge or shrink, which determines the rounding in opset 10.
#[derive(Clone, Copy, PartialEq)]
enum ResizeDirection {
    /// All axes are enlarged: rounds down (`floor`).
    Enlarge,
    /// All axes are shrunk: rounds up (`ceil`).
    Shrink,
    /// The axes differ, or the scales are unknown.
    Mixed,
}

/// Opset 11: the coordinate transformation is an attribute. Before, it was `asymmetric`, and the
/// nearest element was rounded down on enlarged axes and up on shrunk axes.
pub(super) fn resize_11(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let scales = context::input(node, 1).unwrap_or_default().to_owned();
    let nearest = context::string(node, "mode", "nearest")? == "nearest";
    let direction = if nearest { direction(context, &scales) } else { ResizeDirection::Enlarge };
    let base = context::base(node);
    // Before opset 13, an unused `roi` is an empty tensor instead of an omitted input.
    let of_all =
        if context.to < LEFT_OUT { context.floats(&base, "roi", &[]) } else { String::new() };
    let places = AttributeProto::string("coordinate_transformation_mode", "asymmetric");
    context::set(node, places);
    node.input.truncate(1);
    context::set_input(node, 1, of_all);
    if direction == ResizeDirection::Mixed {
        grown_first(node, context, &base, &scales);
        return Ok(true);
    }
    context::set_input(node, 2, scales);
    if nearest {
        let mode = if direction == ResizeDirection::Enlarge { "floor" } else { "ceil" };
        context::set(node, AttributeProto::string("nearest_mode", mode));
    }
    Ok(true)
}

fn direction(context: &NodeContext<'_, '_>, scales: &str) -> ResizeDirection {
    if context.was == "Upsample" {
        return ResizeDirection::Enlarge;
    }
    match context.constant(scales).and_then(|tensor: Tensor| tensor.to_f32()) {
        Some(scales) if scales.iter().all(|scale| *scale >= 1.0) => ResizeDirection::Enlarge,
        Some(scales) if scales.iter().all(|scale| *scale <= 1.0) => ResizeDirection::Shrink,
        _ => ResizeDirection::Mixed,
    }
}

/// If some axes are enlarged and others are shrunk, or the scales are unknown, a preceding node
/// enlarges.
fn grown_first(node: &mut NodeProto, context: &mut NodeContext<'_, '_>, base: &str, scales: &str) {
    let one = context.floats(base, "one", &[1.0]);
    let [up, down, grown] =
        ["scales_up", "scales_down", "grown"].map(|what| context.fresh(base, what));
    for (op_type, made) in [("Max", &up), ("Min", &down)] {
        let inputs = vec![scales.to_owned(), one.clone()];
        context.before.push(NodeProto::new("", op_type, inputs, vec![made.clone()], Vec::new()));
    }
    let mut first = node.clone();
    first.name.clear();
    context::set_input(&mut first, 2, up);
    context::set(&mut first, AttributeProto::string("nearest_mode", "floor"));
    first.output = vec![grown.clone()];
    context.before.push(first);
    context::set_input(node, 0, grown);
    context::set_input(node, 2, down);
    context::set(node, AttributeProto::string("nearest_mode", "ceil"));
}

/// Since this version, unused inputs of Resize are omitted. Before, they were empty tensors.
const LEFT_OUT: i64 = 13;

/// Opset 13: empty tensors become omitted inputs, and one coordinate transformation is removed.
pub(super) fn resize_13(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let mut changed = false;
    for index in [1, 2] {
        let is_empty = |name: &str| context.shape(name).is_some_and(|shape| shape == [Some(0)]);
        if context::input(node, index).is_some_and(is_empty) {
            context::set_input(node, index, String::new());
            changed = true;
        }
    }
    let places = context::string(node, "coordinate_transformation_mode", "half_pixel")?;
    if places == "tf_half_pixel_for_nn" {
        // Rounding down with `tf_half_pixel_for_nn` selects the same element as rounding half up
        // with `half_pixel`, whose coordinates are smaller by one half.
        let nearest = context::string(node, "nearest_mode", "round_prefer_floor")?;
        if context::string(node, "mode", "nearest")? != "nearest" || nearest != "floor" {
            return Err(format!("opset 13 removed {places} with {nearest}"));
        }
        let half_pixel = AttributeProto::string("coordinate_transformation_mode", "half_pixel");
        context::set(node, half_pixel);
        context::set(node, AttributeProto::string("nearest_mode", "round_prefer_ceil"));
        changed = true;
    }
    Ok(changed)
}
