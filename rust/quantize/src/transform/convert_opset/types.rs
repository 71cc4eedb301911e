//! Versions that took types away.

use quantize_rs_onnx::NodeProto;

use super::place::{self, Place};

/// Erf from version 13 on, `ReduceLogSum` and its kin from 28 on: floats only.
pub(super) fn no_integers(node: &mut NodeProto, place: &mut Place<'_, '_>) -> Result<bool, String> {
    let input = place::input(node, 0).unwrap_or_default();
    match place.dtype(input).filter(|dtype| !dtype.is_float()) {
        Some(dtype) => Err(format!("it no longer takes {dtype}, as `{input}` is")),
        None => Ok(false),
    }
}
