//! Weights in the blocks of `MatMulNBits`, column by column.

use bytes::Bytes;
use quantize_rs_math::{
    BlockParamTypes, ColumnParams, MatMulNBitsSpec, Metrics, Params, WeightMethod, ZeroPoints,
};
use quantize_rs_onnx::{Buffer, DataType, Tensor};

use super::blocked_matrix::BlockedMatrix;
use super::{EncodedTensor, invalid};
use crate::QuantizeError;
use crate::graph::elements::Elements;
use crate::plan::ValuePlan;
use crate::ranges::RoundedWeight;

/// Quantizes a matrix.
pub(super) fn encoded(
    name: &str,
    how: &ValuePlan,
    method: WeightMethod,
    shape: &[usize],
    tensor: &Tensor,
    params: BlockParamTypes,
) -> Result<EncodedTensor, QuantizeError> {
    let Some(matrix) = BlockedMatrix::of(&how.spec, shape) else {
        return Err(invalid(name, "is not a matrix in blocks"));
    };
    let spec = matrix.nbits(&how.spec, method, params);
    let elements = Elements::of(tensor).map_err(|what| invalid(name, what))?;
    let mut buffer = Buffer::zeroed(spec.width * spec.blocks() * spec.blob_len());
    let params = spec
        .quantize_into(elements.floats(), buffer.as_mut())
        .map_err(|error| invalid(name, &error))?;
    let metrics = params.metrics;
    Ok(assemble(&spec, buffer.into_bytes(), params, metrics))
}

/// Stores a matrix that was rounded with the help of samples; `None` if it is not in blocks.
pub(super) fn rounded(
    how: &ValuePlan,
    shape: &[usize],
    rounded: &RoundedWeight,
    params: &[Params],
    metrics: Metrics,
) -> Option<EncodedTensor> {
    let matrix = BlockedMatrix::of(&how.spec, shape)?;
    let spec = matrix.nbits(&how.spec, WeightMethod::MinMax, BlockParamTypes::Plain);
    let (blobs, params) = spec.pack_columns(&rounded.integers, params);
    Some(assemble(&spec, blobs.into(), params, metrics))
}

/// The inputs of `MatMulNBits`.
fn assemble(
    spec: &MatMulNBitsSpec,
    blobs: Bytes,
    params: ColumnParams,
    metrics: Metrics,
) -> EncodedTensor {
    let (width, blocks) = (spec.width, spec.blocks());
    let bytes = |shape: Vec<usize>, data: Bytes| Tensor { dtype: DataType::UInt8, shape, data };
    EncodedTensor {
        quantized: bytes(vec![width, blocks, spec.blob_len()], blobs),
        scale: Tensor::from_f32(vec![width, blocks], &params.scales),
        stored_scale: None,
        zero_point: match params.zero_points {
            ZeroPoints::Packed(packed) => bytes(vec![width, spec.zero_points_len()], packed.into()),
            ZeroPoints::Floats(floats) => Tensor::from_f32(vec![width, blocks], &floats),
        },
        metrics: Some(metrics),
        rounded: None,
    }
}
