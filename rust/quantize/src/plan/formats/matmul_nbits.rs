//! Weights in blocks, for `MatMulNBits`, `GatherBlockQuantized` and `QMoE`.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::{DataType, NodeProto};

use super::{Form, experts};
use crate::graph::Graph;
use crate::graph::ops::is_function;
use crate::graph::uses::{Along, Constant, Multiplier, Use};
use crate::plan::{Consumers, KeepReason};
use crate::{Config, Format};

/// Elements in a block, where no block size is set.
pub(super) const BLOCK_SIZE: usize = 32;

/// How a weight is stored: every consumer takes its blocks.
///
/// # Errors
/// The reason why the format cannot store the weight.
pub(super) fn form(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<Option<Form>, KeepReason> {
    let format = Format::MatMulNBits;
    if experts::reads(graph, constant) {
        let found = experts::form(graph, constant, config, qtype);
        return found.map(Some).map_err(|why| KeepReason::NoForm { format, why });
    }
    match spec(graph, constant, config, qtype) {
        Ok(spec) => {
            let (consumers, at_run_time) = (Consumers::All, Vec::new());
            Ok(Some(Form { spec, consumers, format, matrix: None, at_run_time }))
        }
        Err(why) => Err(KeepReason::NoForm { format, why }),
    }
}

/// Operators that the format replaces: by which one, and the input with the weight.
const REPLACED: &[Replaced] = &[
    ("MatMul", "MatMulNBits", 1),
    ("Gemm", "MatMulNBits", 1),
    ("Gather", "GatherBlockQuantized", 0),
];

/// An operator that a format replaces, by which one, and the input with the weight.
pub(super) type Replaced = (&'static str, &'static str, usize);

/// Unsigned integers in blocks along the axis that is summed over.
fn spec(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Result<QSpec, String> {
    let known = [DataType::Float, DataType::Float16];
    if let Some(dtype) = constant.dtype.filter(|dtype| !known.contains(dtype)) {
        return Err(format!("it is {dtype}"));
    }
    let axis = 1 - channels(graph, constant, REPLACED, qtype)?;
    let block_size = config.block_size.unwrap_or(BLOCK_SIZE);
    let granularity = Granularity::Blocked { axis, block_size };
    Ok(QSpec::new(unsigned(qtype), config.symmetric_weights(qtype, granularity), granularity))
}

/// The axis of the output channels of a matrix, all of whose consumers are replaced.
///
/// # Errors
/// The reason why one of them cannot be.
pub(super) fn channels(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    replaced: &[Replaced],
    qtype: QType,
) -> Result<usize, String> {
    let [_, last] = constant.shape[..] else {
        return Err(format!("it has {} axes, not 2", constant.shape.len()));
    };
    let mut channels = None;
    for usage in constant.uses.iter().filter(|usage| !matches!(usage, Use::Float { .. })) {
        let Some(Multiplier { node: proto, input, channels: along, batched, .. }) =
            usage.multiplier(graph)
        else {
            return Err("something else needs it in float".to_owned());
        };
        let label = || proto.label();
        let found = replaced.iter().find(|(op_type, ..)| *op_type == proto.op_type);
        let Some(&(_, op_type, operand)) = found else {
            return Err(format!("{} is {}", label(), none_of(replaced)));
        };
        if is_function(graph, op_type) {
            return Err(format!("the model calls a function of its own {op_type}"));
        }
        let direct = proto.input[input] == graph.values[constant.anchor].name;
        if !direct && constant.stays_float() {
            return Err(format!("{} needs it in float, in another order", label()));
        }
        if input != operand {
            return Err(format!("{} does not multiply by it from the right", label()));
        }
        let Some(Along::Axis(axis)) = along.filter(|_| !batched) else {
            return Err(format!("it is no matrix when it comes to {}", label()));
        };
        if proto.op_type == "Gemm" && proto.int("transA", 0) != 0 {
            return Err(format!("{} transposes what it multiplies", label()));
        }
        if proto.op_type == "Gather" {
            if axis != 0 || !direct || !matches!(proto.int("axis", 0), 0 | -2) {
                return Err(format!("{} does not take rows of it", label()));
            }
            let bits = usize::try_from(qtype.bits()).unwrap_or(8);
            if last * bits % 8 != 0 {
                return Err(format!("rows of {last} elements do not fill bytes"));
            }
        }
        if *channels.get_or_insert(axis) != axis {
            return Err(other_way(proto));
        }
    }
    Ok(channels.unwrap_or(1))
}

/// `neither MatMul, Gemm nor Gather`.
fn none_of(replaced: &[Replaced]) -> String {
    let names: Vec<&str> = replaced.iter().map(|(op_type, ..)| *op_type).collect();
    let Some((last, first)) = names.split_last() else { return String::new() };
    format!("neither {} nor {last}", first.join(", "))
}

fn other_way(node: &NodeProto) -> String {
    format!("{} reads it the other way round than another", node.label())
}

/// The unsigned type of the same width.
pub(super) fn unsigned(qtype: QType) -> QType {
    match qtype {
        QType::Int2 => QType::UInt2,
        QType::Int4 => QType::UInt4,
        QType::Int8 => QType::UInt8,
        other => other,
    }
}
