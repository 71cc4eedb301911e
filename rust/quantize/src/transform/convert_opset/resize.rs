//! Opset conversion of Upsample and its successor Resize.

use quantize_rs_onnx::{AttributeProto, NodeProto, Tensor};

use super::place::{self, Place};

/// Opset 7: one scale per axis instead of a scale for the height and one for the width.
pub(super) fn upsample_by_factors(
    node: &mut NodeProto,
    _: &mut Place<'_, '_>,
) -> Result<bool, String> {
    let mut scales = vec![1.0, 1.0];
    for name in ["height_scale", "width_scale"] {
        scales.push(place::float(node, name)?.ok_or_else(|| format!("it has no `{name}`"))?);
        place::remove(node, name);
    }
    if place::string(node, "mode", "nearest")? == "bilinear" {
        place::set(node, AttributeProto::string("mode", "linear"));
    }
    place::set(node, AttributeProto::floats("scales", &scales));
    Ok(true)
}

/// Opset 9: the scales are an input.
pub(super) fn scales_to_input(
    node: &mut NodeProto,
    place: &mut Place<'_, '_>,
) -> Result<bool, String> {
    let scales = place::floats(node, "scales")?.unwrap_or_default().to_vec();
    place::remove(node, "scales");
    let scales = place.floats(&place::base(node), "scales", &scales);
    place::set_input(node, 1, scales);
    Ok(true)
}

/// Opset 10: Upsample is replaced by Resize.
pub(super) fn upsample(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    "Resize".clone_into(&mut node.op_type);
    Ok(true)
}

/// Whether the scales enlarge or shrink, which determines the rounding in opset 10.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// All axes are enlarged: rounds down (`floor`).
    Up,
    /// All axes are shrunk: rounds up (`ceil`).
    Down,
    /// The axes differ, or the scales are unknown.
    Mixed,
}

/// Opset 11: the coordinate transformation is an attribute. Before, it was `asymmetric`, and the
/// nearest element was rounded down on enlarged axes and up on shrunk axes.
pub(super) fn resize_11(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let scales = place::input(node, 1).unwrap_or_default().to_owned();
    let nearest = place::string(node, "mode", "nearest")? == "nearest";
    let way = if nearest { way(place, &scales) } else { Way::Up };
    let base = place::base(node);
    // Before opset 13, an unused `roi` is an empty tensor instead of an omitted input.
    let of_all = if place.to < LEFT_OUT { place.floats(&base, "roi", &[]) } else { String::new() };
    let places = AttributeProto::string("coordinate_transformation_mode", "asymmetric");
    place::set(node, places);
    node.input.truncate(1);
    place::set_input(node, 1, of_all);
    if way == Way::Mixed {
        grown_first(node, place, &base, &scales);
        return Ok(true);
    }
    place::set_input(node, 2, scales);
    if nearest {
        let mode = if way == Way::Up { "floor" } else { "ceil" };
        place::set(node, AttributeProto::string("nearest_mode", mode));
    }
    Ok(true)
}

fn way(place: &Place<'_, '_>, scales: &str) -> Way {
    if place.was == "Upsample" {
        return Way::Up;
    }
    match place.constant(scales).and_then(|tensor: Tensor| tensor.to_f32()) {
        Some(scales) if scales.iter().all(|scale| *scale >= 1.0) => Way::Up,
        Some(scales) if scales.iter().all(|scale| *scale <= 1.0) => Way::Down,
        _ => Way::Mixed,
    }
}

/// If some axes are enlarged and others are shrunk, or the scales are unknown, a preceding node
/// enlarges.
fn grown_first(node: &mut NodeProto, place: &mut Place<'_, '_>, base: &str, scales: &str) {
    let one = place.floats(base, "one", &[1.0]);
    let [up, down, grown] =
        ["scales_up", "scales_down", "grown"].map(|what| place.fresh(base, what));
    for (op_type, made) in [("Max", &up), ("Min", &down)] {
        let inputs = vec![scales.to_owned(), one.clone()];
        place.before.push(NodeProto::new("", op_type, inputs, vec![made.clone()], Vec::new()));
    }
    let mut first = node.clone();
    first.name.clear();
    place::set_input(&mut first, 2, up);
    place::set(&mut first, AttributeProto::string("nearest_mode", "floor"));
    first.output = vec![grown.clone()];
    place.before.push(first);
    place::set_input(node, 0, grown);
    place::set_input(node, 2, down);
    place::set(node, AttributeProto::string("nearest_mode", "ceil"));
}

/// Since this version, unused inputs of Resize are omitted. Before, they were empty tensors.
const LEFT_OUT: i64 = 13;

/// Opset 13: empty tensors become omitted inputs, and one coordinate transformation is removed.
pub(super) fn resize_13(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let mut changed = false;
    for index in [1, 2] {
        let is_empty = |name: &str| place.shape(name).is_some_and(|shape| shape == [Some(0)]);
        if place::input(node, index).is_some_and(is_empty) {
            place::set_input(node, index, String::new());
            changed = true;
        }
    }
    let places = place::string(node, "coordinate_transformation_mode", "half_pixel")?;
    if places == "tf_half_pixel_for_nn" {
        // Rounding down with `tf_half_pixel_for_nn` selects the same element as rounding half up
        // with `half_pixel`, whose coordinates are smaller by one half.
        let nearest = place::string(node, "nearest_mode", "round_prefer_floor")?;
        if place::string(node, "mode", "nearest")? != "nearest" || nearest != "floor" {
            return Err(format!("opset 13 removed {places} with {nearest}"));
        }
        let half_pixel = AttributeProto::string("coordinate_transformation_mode", "half_pixel");
        place::set(node, half_pixel);
        place::set(node, AttributeProto::string("nearest_mode", "round_prefer_ceil"));
        changed = true;
    }
    Ok(changed)
}
