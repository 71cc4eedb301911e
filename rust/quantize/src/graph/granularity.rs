//! How the scales of a `QuantizeLinear` or `DequantizeLinear` lie along its input.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::NodeProto;

use crate::util::axes::axis_of;

/// The granularity of the scales of a `QuantizeLinear` or `DequantizeLinear`, from the number of
/// axes of its input and the shape of the scales; `None` if the input does not have its axis.
///
/// A single scale, of shape `[]` or `[1]`, has no axis. Whether the scales fit the lengths of the
/// input is not checked.
pub(crate) fn granularity(
    node: &NodeProto,
    rank: usize,
    scale_shape: &[usize],
) -> Option<Granularity> {
    let axis = || axis_of(node.int("axis", 1), rank);
    Some(match (usize::try_from(node.int("block_size", 0)).ok()?, scale_shape) {
        (_, []) | (0, [1]) => Granularity::PerTensor,
        (0, _) => Granularity::PerAxis { axis: axis()? },
        (block_size, _) => Granularity::Blocked { axis: axis()?, block_size },
    })
}
