//! What an output format has for a weight, and what it lacks.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::Kept;
use crate::graph::{Graph, ValueId};
use crate::uses::{self, Along, Constant, Use};
use crate::{Config, Format};

/// The domain of ONNX Runtime's own operators.
pub(crate) const MICROSOFT: &str = "com.microsoft";

/// Elements in a block, where nobody says.
const BLOCK_SIZE: usize = 32;

/// How a weight is cut and of what type it is where the format decides that; `None` where the
/// wishes do.
pub(super) fn spec(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<Option<QSpec>, Kept> {
    let format = config.output_format;
    let found = match format {
        Format::Qdq => return Ok(None),
        Format::MatMulNBits => matmul_nbits(graph, constant, config, qtype),
    };
    found.map(Some).map_err(|why| Kept::NoForm { format, why })
}

/// Unsigned integers in blocks along the axis that is summed over.
fn matmul_nbits(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<QSpec, String> {
    let [_, last] = constant.shape[..] else {
        return Err(format!("it has {} axes, not 2", constant.shape.len()));
    };
    if let Some(dtype) = constant.dtype.filter(|dtype| *dtype != DataType::Float) {
        return Err(format!("it is {dtype}"));
    }
    let mut channels = None;
    for usage in &constant.uses {
        let (node, along, batched) = match *usage {
            Use::Weight { node, channels, batched } => (node, channels, batched),
            Use::Inside { .. } => return Err("a graph inside a node reads it".to_owned()),
            _ => return Err("something else needs it in float".to_owned()),
        };
        let proto = graph.nodes[node];
        let label = || proto.label();
        let (op_type, operand) = match proto.op_type.as_str() {
            "MatMul" | "Gemm" => ("MatMulNBits", 1),
            "Gather" => ("GatherBlockQuantized", 0),
            _ => return Err(format!("{} is neither MatMul, Gemm nor Gather", label())),
        };
        if is_function(graph, op_type) {
            return Err(format!("the model calls a function of its own {op_type}"));
        }
        let mut others = (0..proto.input.len()).filter(|input| *input != operand);
        let comes_in = |input| comes_from(graph, graph.input(node, input), constant.anchor);
        if !comes_in(operand) || others.any(comes_in) {
            return Err(format!("{} does not multiply by it from the right", label()));
        }
        let Some(Along::Axis(axis)) = along.filter(|_| !batched) else {
            return Err(format!("it is no matrix when it comes to {}", label()));
        };
        if proto.op_type == "Gemm" && proto.int("transA", 0) != 0 {
            return Err(format!("{} transposes what it multiplies", label()));
        }
        if proto.op_type == "Gather" {
            let direct = graph.input(node, 0) == Some(constant.anchor);
            if axis != 0 || !direct || !matches!(proto.int("axis", 0), 0 | -2) {
                return Err(format!("{} does not take rows of it", label()));
            }
            let bits = usize::try_from(qtype.bits()).unwrap_or(8);
            if last * bits % 8 != 0 {
                return Err(format!("rows of {last} elements do not fill bytes"));
            }
        }
        if *channels.get_or_insert(axis) != axis {
            return Err(format!("{} reads it the other way round than another", label()));
        }
    }
    let axis = 1 - channels.unwrap_or(1);
    let block_size = config.block_size.unwrap_or(BLOCK_SIZE);
    let granularity = Granularity::Blocked { axis, block_size };
    Ok(QSpec::new(unsigned(qtype), config.symmetric, granularity))
}

/// Whether a value is a constant, or rearranged from it.
fn comes_from(graph: &Graph<'_>, value: Option<ValueId>, anchor: ValueId) -> bool {
    let mut value = value;
    while let Some(found) = value {
        if found == anchor {
            return true;
        }
        value = match graph.values[found].maker {
            crate::Maker::Node { node, .. } if uses::rearranges(graph.nodes[node]) => {
                graph.input(node, 0)
            }
            _ => None,
        };
    }
    false
}

/// Whether the model has a function that takes the place of an operator of ONNX Runtime's.
fn is_function(graph: &Graph<'_>, op_type: &str) -> bool {
    let mut functions = graph.model.proto().functions.iter();
    functions.any(|function| function.domain == MICROSOFT && function.name == op_type)
}

/// The unsigned type of as many bits.
fn unsigned(qtype: QType) -> QType {
    match qtype {
        QType::Int2 => QType::UInt2,
        QType::Int4 => QType::UInt4,
        QType::Int8 => QType::UInt8,
        other => other,
    }
}
