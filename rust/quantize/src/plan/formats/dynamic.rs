//! Weights of operators that quantize their input at run time.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::{DataType, NodeProto};

use super::Form;
use crate::graph::uses::{Along, Constant, Multiplier, Use};
use crate::graph::{Consumer, Graph, qattention};
use crate::plan::accumulator_overflow::overflows;
use crate::plan::decisions::{Decisions, Outcome};
use crate::plan::rules::Context;
use crate::plan::{Consumers, KeepReason};
use crate::{Config, Format};

/// How a weight is quantized for `MatMulInteger` or `ConvInteger`, or for `Gather` of integers;
/// `None` where neither fits, and the weight alone is quantized.
pub(super) fn form(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Option<Form> {
    product(graph, constant, config, qtype).or_else(|| table(graph, constant, config, qtype))
}

fn product(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Option<Form> {
    let (mut channels, mut convolves, mut at_run_time) = (None, None, Vec::new());
    let is_table = constant.dtype == Some(DataType::Float) && constant.shape.len() == 2;
    let mut looked_up = false;
    for usage in constant.uses.iter().filter(|usage| !matches!(usage, Use::Float { .. })) {
        let Multiplier { node, index, input, channels: along, batched, .. } =
            usage.multiplier(graph)?;
        let direct = node.input[input] == graph.values[constant.anchor].name;
        if is_table && input == 0 && direct && index.is_some() && takes_rows(node) {
            looked_up = true;
            continue;
        }
        // What rearranges a weight that stays is not removed.
        if input != 1 || !direct && constant.stays_float() {
            return None;
        }
        let conv = match node.op_type.as_str() {
            "Conv" if direct => true,
            // Integers of more than two axes are not transposed.
            "MatMul" if constant.shape.len() == 2 && !batched || direct => false,
            "Gemm" if node.int("transA", 0) == 0 && constant.shape.len() == 2 => false,
            "Attention" if direct && becomes_qattention(graph, constant, config, node) => false,
            _ => return None,
        };
        let Some(Along::Axis(axis)) = along else { return None };
        // One scale for a batch: runtimes fuse such a MatMul and then fail at scales per column.
        let found = (axis, batched);
        if *channels.get_or_insert(found) != found || *convolves.get_or_insert(conv) != conv {
            return None;
        }
        // A value that a subgraph computes is not part of the plan.
        at_run_time.extend(graph.value(&node.input[0]).map(|value| (value, node.label())));
    }
    let ((axis, batched), conv) = (channels?, convolves?);
    // Rows have the scales of the channels that they become.
    if looked_up && (axis != 0 || constant.stays_float()) {
        return None;
    }
    let granularity = if config.scales_per_channel() && !batched {
        Granularity::PerAxis { axis }
    } else {
        Granularity::PerTensor
    };
    // `ConvInteger` takes one zero point.
    let one = (conv || looked_up) && granularity != Granularity::PerTensor;
    let qtype = if one && looked_up { QType::Int8 } else { qtype };
    // ONNX Runtime may move the rows of a table: see `ort_int8_workarounds`.
    let symmetric =
        config.symmetric_weights(qtype, granularity) || one || looked_up && qtype.signed();
    let reduced = qtype == QType::Int8 && config.profile().reduced;
    let spec = QSpec { reduce_range: reduced, ..QSpec::new(qtype, symmetric, granularity) };
    let summed = match constant.shape[..] {
        [.., depth, _] if batched => depth,
        _ => constant.shape.iter().product::<usize>() / constant.shape.get(axis)?.max(&1),
    };
    if overflows(summed, &spec) {
        return None;
    }
    let (consumers, format, matrix) = (Consumers::All, Format::Dynamic, None);
    Some(Form { spec, consumers, format, matrix, at_run_time })
}

/// Whether a node is an `Attention` that `QAttention` can replace.
fn becomes_qattention(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    node: &NodeProto,
) -> bool {
    let float32 = constant.dtype == Some(DataType::Float) && constant.shape.len() == 2;
    float32 && config.writes_qattention() && qattention::fits(graph, node).is_ok()
}

/// Leaves the input of an `Attention` that `QAttention` cannot replace in float, with the reason.
pub(in crate::plan) fn keep_attentions(
    context: &Context<'_, '_>,
    decisions: &Decisions,
) -> Outcome {
    let Context { graph, config, .. } = *context;
    if config.output_format != Format::Dynamic {
        return Outcome::default();
    }
    let of_node = |(index, node): (usize, &&NodeProto)| {
        let why = qattention::fits(graph, node).err().filter(|_| qattention::is_attention(node))?;
        let (input, weight) = (graph.input(index, 0)?, graph.input(index, 1)?);
        decisions.quantized(weight)?;
        Some(Outcome::keep(input, KeepReason::FloatNode { node: node.label(), why }))
    };
    graph.nodes.iter().enumerate().filter_map(of_node).collect()
}

/// Whether a node takes rows of its first input.
fn takes_rows(node: &NodeProto) -> bool {
    node.is_onnx() && node.op_type == "Gather" && node.int("axis", 0) == 0
}

/// A table of which only rows are read: these are dequantized after the `Gather`.
fn table(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Option<Form> {
    let looks_up =
        |consumer: &Consumer| consumer.input == 0 && takes_rows(graph.nodes[consumer.node]);
    let consumers = &graph.values[constant.anchor].consumers;
    let only = constant.uses.iter().all(|usage| matches!(usage, Use::Weight { .. }));
    let fits = only
        && constant.dtype == Some(DataType::Float)
        && !consumers.is_empty()
        && consumers.iter().all(looks_up);
    let by_row = fits && config.scales_per_channel() && constant.shape.len() > 1;
    let granularity =
        if by_row { Granularity::PerAxis { axis: 0 } } else { Granularity::PerTensor };
    // The scale of a row is gathered with the row, a zero point is not.
    let qtype = if by_row { QType::Int8 } else { qtype };
    let symmetric = config.symmetric_weights(qtype, granularity) || by_row;
    let spec = QSpec::new(qtype, symmetric, granularity);
    let (consumers, format, at_run_time) = (Consumers::GatheredRows, Format::Qdq, Vec::new());
    fits.then_some(Form { spec, consumers, format, matrix: None, at_run_time })
}
