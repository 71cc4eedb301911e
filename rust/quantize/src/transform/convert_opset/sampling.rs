//! What reads between the pixels.

use quantize_rs_onnx::{AttributeProto, NodeProto};

use super::place::{self, Place};

/// Version 16: places are half a pixel off unless said; they were not.
pub(super) fn roi_align(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    let name = "coordinate_transformation_mode";
    place::set(node, AttributeProto::string(name, "output_half_pixel"));
    Ok(true)
}

/// Version 20: the modes are called as for any number of axes.
pub(super) fn grid_sample(node: &mut NodeProto, _: &mut Place<'_, '_>) -> Result<bool, String> {
    if node.attribute("mode").is_none() {
        return Ok(false);
    }
    let mode = match place::string(node, "mode", "bilinear")?.as_str() {
        "bilinear" => "linear",
        "bicubic" => "cubic",
        _ => return Ok(false),
    };
    place::set(node, AttributeProto::string("mode", mode));
    Ok(true)
}
