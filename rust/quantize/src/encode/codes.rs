//! Weights as codes of 4 bits for the numbers of a table.

use quantize_rs_math::{Codebook, CodebookSpec, WeightMethod};
use quantize_rs_onnx::{DataType, NodeProto, Tensor};

use super::blocked_matrix::BlockedMatrix;
use super::{EncodedTensor, invalid};
use crate::QuantizeError;
use crate::graph::elements::Elements;
use crate::plan::ValuePlan;

/// The layout of a weight of this shape; `None` if it is not stored as codes.
pub(crate) fn layout(how: &ValuePlan, shape: &[usize]) -> Option<CodebookSpec> {
    let codebook = how.spec.codebook?;
    let BlockedMatrix { depth, width, transposed, block_size } =
        BlockedMatrix::of(&how.spec, shape)?;
    Some(CodebookSpec { depth, width, transposed, block_size, codebook, least_error: false })
}

/// Quantizes a matrix column by column.
pub(super) fn encoded(
    name: &str,
    layout: CodebookSpec,
    method: WeightMethod,
    tensor: &Tensor,
) -> Result<EncodedTensor, QuantizeError> {
    let elements = Elements::of(tensor).map_err(|what| invalid(name, what))?;
    let spec = CodebookSpec { least_error: method != WeightMethod::MinMax, ..layout };
    let coded = spec.quantize(elements.floats()).map_err(|error| invalid(name, &error))?;
    Ok(EncodedTensor {
        quantized: Tensor {
            dtype: DataType::UInt8,
            shape: vec![coded.codes.len()],
            data: coded.codes.into(),
        },
        scale: Tensor::from_f32(vec![coded.scales.len()], &coded.scales),
        stored_scale: None,
        zero_point: Tensor { dtype: DataType::UInt8, shape: vec![0], data: Vec::new().into() },
        metrics: Some(coded.metrics),
        rounded: None,
    })
}

/// How a `MatMulBnb4` reads its weight; `None` if an attribute makes no sense.
pub(crate) fn codes_of(node: &NodeProto) -> Option<CodebookSpec> {
    let number = |name: &str| usize::try_from(node.int(name, 0)).ok();
    Some(CodebookSpec {
        depth: number("K")?,
        width: number("N")?,
        transposed: true,
        block_size: number("block_size")?,
        codebook: Codebook::of_number(node.int("quant_type", -1))?,
        least_error: false,
    })
}
