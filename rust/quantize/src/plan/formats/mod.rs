//! How an output format stores a weight, or why it cannot.

mod dynamic;
mod lstm;
mod matmul_nbits;
mod output_layers;

use std::collections::BTreeSet;

use quantize_rs_math::{QSpec, QType};
use quantize_rs_onnx::DataType;

use super::{Consumers, KeepReason};
use crate::graph::uses;
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};
use crate::{Config, Format};

pub(super) use lstm::decide as decide_lstms;

/// The domain of ONNX Runtime's own operators.
pub(crate) const MICROSOFT: &str = "com.microsoft";

/// How a format stores a weight.
pub(super) struct Form {
    pub(super) spec: QSpec,
    pub(super) consumers: Consumers,
    pub(super) format: Format,
    /// Values that are quantized at run time for it, and the nodes that need that.
    pub(super) at_run_time: Vec<(ValueId, usize)>,
}

/// Weights that a format leaves to operators in float.
pub(super) fn float_weights(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
) -> BTreeSet<ValueId> {
    match config.output_format {
        Format::Dynamic => output_layers::last(graph, constants),
        Format::Qdq | Format::FakeQuant | Format::MatMulNBits => BTreeSet::new(),
    }
}

/// How a format stores a weight; `None` where the options decide, and it is written with
/// `DequantizeLinear`.
///
/// # Errors
/// The reason why the format cannot store it.
pub(super) fn form(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<Option<Form>, KeepReason> {
    let format = config.output_format;
    match format {
        Format::Qdq => Ok(None),
        Format::MatMulNBits => match matmul_nbits::spec(graph, constant, config, qtype) {
            Ok(spec) => {
                let (consumers, at_run_time) = (Consumers::All, Vec::new());
                Ok(Some(Form { spec, consumers, format, at_run_time }))
            }
            Err(why) => Err(KeepReason::NoForm { format, why }),
        },
        Format::Dynamic => Ok(dynamic::form(graph, constant, config, qtype)),
        Format::FakeQuant => match constant.dtype.filter(|dtype| *dtype != DataType::Float) {
            Some(dtype) => Err(KeepReason::NoForm { format, why: format!("it is {dtype}") }),
            None => Ok(None),
        },
    }
}

/// The format of a weight about which the options decide everything else.
pub(super) fn usual(config: &Config) -> Format {
    match config.output_format {
        Format::FakeQuant => Format::FakeQuant,
        _ => Format::Qdq,
    }
}

/// Whether a value is a constant, or the output of reshapes and transposes of it.
pub(super) fn comes_from(graph: &Graph<'_>, value: Option<ValueId>, anchor: ValueId) -> bool {
    let mut value = value;
    while let Some(found) = value {
        if found == anchor {
            return true;
        }
        value = match graph.values[found].producer {
            crate::Producer::Node { node, .. } if uses::rearranges(graph.nodes[node]) => {
                graph.input(node, 0)
            }
            _ => None,
        };
    }
    false
}

/// Whether the model has a function of the name of one of ONNX Runtime's own operators.
pub(super) fn is_function(graph: &Graph<'_>, op_type: &str) -> bool {
    let mut functions = graph.model.proto().functions.iter();
    functions.any(|function| function.domain == MICROSOFT && function.name == op_type)
}
