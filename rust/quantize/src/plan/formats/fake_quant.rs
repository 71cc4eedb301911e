//! Weights that stay float32 before a `QuantizeLinear`: other float types cannot be trained on.

use quantize_rs_math::QType;
use quantize_rs_onnx::DataType;

use super::Form;
use crate::graph::Graph;
use crate::graph::uses::Constant;
use crate::plan::KeepReason;
use crate::{Config, Format};

/// The options decide how a weight of float32 is written; others stay as they are.
///
/// # Errors
/// The reason why a weight of another type is not quantized.
pub(super) fn form(
    _: &Graph<'_>,
    constant: &Constant<'_>,
    _: &Config,
    _: QType,
) -> Result<Option<Form>, KeepReason> {
    match constant.dtype.filter(|dtype| *dtype != DataType::Float) {
        Some(dtype) => {
            let format = Format::FakeQuant;
            Err(KeepReason::NoForm { format, why: format!("it is {dtype}") })
        }
        None => Ok(None),
    }
}
