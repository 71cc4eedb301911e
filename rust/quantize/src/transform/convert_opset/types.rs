//! Opset versions that removed types.

use quantize_rs_onnx::NodeProto;

use super::context::{self, NodeContext};

/// Erf since opset 13, `ReduceLogSum` and related operators since opset 28: only floats.
pub(super) fn no_integers(
    node: &mut NodeProto,
    context: &mut NodeContext<'_, '_>,
) -> Result<bool, String> {
    let input = context::input(node, 0).unwrap_or_default();
    match context.dtype(input).filter(|dtype| !dtype.is_float()) {
        Some(dtype) => Err(format!("it no longer takes {dtype}, as `{input}` is")),
        None => Ok(false),
    }
}
