//! Weights as codes in blocks, for `MatMulBnb4`.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::Form;
use super::matmul_nbits::{Replaced, channels};
use crate::graph::Graph;
use crate::graph::uses::Constant;
use crate::plan::{Consumers, KeepReason};
use crate::{Config, Format};

const REPLACED: &[Replaced] = &[("MatMul", "MatMulBnb4", 1), ("Gemm", "MatMulBnb4", 1)];

/// Elements in a block, where no block size is set.
const BLOCK_SIZE: usize = 64;

/// How a weight is stored: products by a constant matrix take codes of 4 bits.
///
/// # Errors
/// The reason why the format cannot store the weight.
pub(super) fn form(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<Option<Form>, KeepReason> {
    let format = Format::MatMulBnb4;
    match spec(graph, constant, config, qtype) {
        Ok(spec) => {
            let (consumers, at_run_time) = (Consumers::All, Vec::new());
            Ok(Some(Form { spec, consumers, format, matrix: None, at_run_time }))
        }
        Err(why) => Err(KeepReason::NoForm { format, why }),
    }
}

fn spec(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<QSpec, String> {
    let axis = 1 - channels(graph, constant, REPLACED, qtype)?;
    if let Some(dtype) = constant.dtype.filter(|dtype| *dtype != DataType::Float) {
        return Err(format!("it is {dtype}, and ONNX Runtime's operator takes float32"));
    }
    let block_size = config.block_size.unwrap_or(BLOCK_SIZE);
    Ok(QSpec::new(QType::UInt4, true, Granularity::Blocked { axis, block_size }))
}
