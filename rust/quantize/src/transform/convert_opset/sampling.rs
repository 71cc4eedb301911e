//! Opset conversion of operators that interpolate between pixels.

use quantize_rs_onnx::{AttributeProto, NodeProto};

use super::context::{self, NodeContext};

/// Opset 16: the default coordinates are shifted by half a pixel. The previous default becomes
/// explicit.
pub(super) fn roi_align(node: &mut NodeProto, _: &mut NodeContext<'_, '_>) -> Result<bool, String> {
    let name = "coordinate_transformation_mode";
    context::set(node, AttributeProto::string(name, "output_half_pixel"));
    Ok(true)
}

/// Opset 20: the modes have names that fit any number of axes.
pub(super) fn grid_sample(
    node: &mut NodeProto,
    _: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    if node.attribute("mode").is_none() {
        return Ok(false);
    }
    let mode = match context::string(node, "mode", "bilinear")?.as_str() {
        "bilinear" => "linear",
        "bicubic" => "cubic",
        _ => return Ok(false),
    };
    context::set(node, AttributeProto::string("mode", mode));
    Ok(true)
}
