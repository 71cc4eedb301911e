//! Stores 8-bit scales as tensors.

use quantize_rs_math::{BlockScales, Layout, QSpec, Scales};
use quantize_rs_onnx::{DataType, Tensor};

/// The stored form of 8-bit scales.
#[derive(Clone, Debug)]
pub struct StoredScale {
    /// One code per scale.
    pub codes: Tensor,
    /// The float32 scalar that multiplies the codes; `None` for powers of two.
    pub whole: Option<Tensor>,
}

impl StoredScale {
    pub(super) fn of(found: BlockScales, spec: &QSpec, layout: &Layout) -> StoredScale {
        let BlockScales { codes, tensor_scale, .. } = found;
        let two_levels = spec.scales == Scales::Float8E4M3FN;
        StoredScale {
            codes: Tensor {
                dtype: data_type(spec.scales),
                shape: layout.scale_shape(),
                data: codes.into(),
            },
            whole: two_levels.then(|| Tensor::from_f32(vec![], &[tensor_scale])),
        }
    }
}

/// The ONNX element type of stored scales.
pub(crate) fn data_type(scales: Scales) -> DataType {
    match scales {
        Scales::Float => DataType::Float,
        Scales::Float8E8M0 => DataType::Float8E8M0,
        Scales::Float8E4M3FN => DataType::Float8E4M3FN,
    }
}
