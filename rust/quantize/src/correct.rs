//! Bias correction: quantized weights shift the mean of what a layer puts out, and its bias takes
//! the shift back.
//!
//! With `E[x]` the mean of each input channel, the output channel `o` is off by
//! `Σ_i (ŵ_oi - w_oi) · E[x_i]` in the mean, which is subtracted from the bias. Source: Nagel et al.,
//! "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, section 4.2;
//! the means are those that calibration saw.

// Counts of positions, and sums whose digits float32 has not.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, HashSet};

use quantize_rs_math::{Layout, Params, dequantize};
use quantize_rs_onnx::{DataType, NodeProto, Tensor};
use rayon::prelude::*;

use crate::Ranges;
use crate::encode::{Encoded, EncodedTensor, to_f32};
use crate::graph::{Graph, ValueId};
use crate::plan::{Decision, IntegerNode, Kept, Plan, ValuePlan};
use crate::ranges::Seen;

/// How the bias of one node changes.
#[derive(Clone, Debug)]
pub(crate) struct Correction {
    /// The node with the weight.
    pub(crate) node: usize,
    /// What is added to each output channel.
    pub(crate) added: Vec<f32>,
    /// Where it is added.
    pub(crate) place: Place,
}

/// Where a correction is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To the bias of the node, or as its bias where it has none.
    Bias,
    /// To the constant that the next node adds.
    Addend {
        /// That node.
        node: usize,
        /// Its input.
        input: usize,
        /// The constant.
        constant: ValueId,
    },
}

/// A correction for each node that runs on integers and has a place to put it.
pub(crate) fn corrections(
    graph: &Graph<'_>,
    plan: &Plan,
    encoded: &Encoded,
    ranges: &Ranges,
) -> Vec<Correction> {
    let how: BTreeMap<&str, &ValuePlan> =
        plan.quantized().map(|(value, how)| (value.name.as_str(), how)).collect();
    let found: Vec<Option<Correction>> = plan
        .integer_nodes()
        .into_par_iter()
        .map(|node| {
            let place = place(graph, plan, &node)?;
            let name = graph.values[node.weight].name;
            let (weight, how) = (encoded.weights.get(name)?, how.get(name)?);
            let input = ranges.statistics.get(graph.values[node.input].name)?;
            let added = shift(graph, &node, how, weight, input)?;
            let added: Vec<f32> = added.into_iter().map(|shift| -shift as f32).collect();
            let moves = added.iter().any(|shift| *shift != 0.0);
            let sound = added.iter().all(|shift| shift.is_finite());
            (moves && sound).then_some(Correction { node: node.node, added, place })
        })
        .collect();
    // Two nodes may put their results into the same addition; what is added then is added once.
    let mut taken = HashSet::new();
    found
        .into_iter()
        .flatten()
        .filter(|correction| match correction.place {
            Place::Bias => true,
            Place::Addend { node, .. } => taken.insert(node),
        })
        .collect()
}

/// Where the correction of a node can go: into a constant vector that nobody asked to leave alone.
fn place(graph: &Graph<'_>, plan: &Plan, node: &IntegerNode) -> Option<Place> {
    let may_change = |value: ValueId| {
        let planned = plan.values.get(value).map(|planned| &planned.decision);
        is_vector(graph, value) && !matches!(planned, Some(Decision::Keep(Kept::Excluded { .. })))
    };
    let proto = graph.nodes[node.node];
    match proto.op_type.as_str() {
        "Conv" | "Gemm" => {
            let bias = proto.input.get(2).filter(|name| !name.is_empty());
            let free = bias.is_none_or(|name| graph.value(name).is_some_and(may_change));
            free.then_some(Place::Bias)
        }
        "MatMul" => {
            let output = &graph.values[graph.output(node.node, 0)?];
            let [reader] = output.readers[..] else { return None };
            let next = graph.nodes[reader.node];
            if !next.is_onnx() || next.op_type != "Add" || output.is_output || output.captured {
                return None;
            }
            let input = 1 - reader.input.min(1);
            let constant = graph.input(reader.node, input)?;
            let value = &graph.values[constant];
            let alone = value.readers.len() == 1 && !value.captured && !value.is_output;
            (alone && may_change(constant)).then_some(Place::Addend {
                node: reader.node,
                input,
                constant,
            })
        }
        _ => None,
    }
}

/// Whether a value is a constant float32 vector that nobody can replace.
fn is_vector(graph: &Graph<'_>, value: ValueId) -> bool {
    let overridable = matches!(
        graph.values[value].maker,
        crate::graph::Maker::Initializer { overridable: true, .. }
    );
    !overridable
        && graph
            .constant(value)
            .is_some_and(|tensor| tensor.dtype() == Some(DataType::Float) && tensor.dims.len() == 1)
}

/// The axis of the channels that a node sums over in its input, counted from the end when negative.
pub(crate) fn channel_axis(node: &NodeProto) -> Option<isize> {
    match node.op_type.as_str() {
        "Conv" => Some(1),
        "Gemm" if node.int("transA", 0) != 0 => Some(0),
        "Gemm" | "MatMul" => Some(-1),
        _ => None,
    }
}

/// By how much each output channel of a node is off in the mean.
fn shift(
    graph: &Graph<'_>,
    node: &IntegerNode,
    how: &ValuePlan,
    weight: &EncodedTensor,
    input: &Seen,
) -> Option<Vec<f64>> {
    // The first of those who read a value said along which axis its channels were looked for.
    let own = input.axis == channel_axis(graph.nodes[node.node]);
    let channels = input.channels.as_ref().filter(|_| own)?;
    let means: Vec<f64> =
        (0..channels.channels()).map(|channel| channels.mean(channel)).collect::<Option<_>>()?;
    let proto = graph.nodes[node.node];
    if graph.input(node.node, 1) != Some(node.weight) {
        // What is rearranged before it is multiplied by has its channels elsewhere.
        return None;
    }
    let exact = to_f32(&graph.model.tensor(graph.constant_behind(node.weight)?).ok()?)?;
    let shape = &weight.quantized.shape;
    let decoded = decoded(how, weight)?;
    let error = |at: usize| f64::from(decoded[at]) - f64::from(exact[at]);
    if exact.len() != decoded.len() {
        return None;
    }
    match (proto.op_type.as_str(), &shape[..]) {
        ("Conv", [outputs, inputs, kernel @ ..]) => {
            let reached = reached(proto, kernel, &input.shape);
            let kernel = reached.len();
            let groups = means.len().checked_div(*inputs)?;
            let per_group = outputs.checked_div(groups)?;
            if groups * inputs != means.len() || per_group * groups != *outputs {
                return None;
            }
            let shift = |output: usize| {
                let means = &means[output / per_group * inputs..][..*inputs];
                let channel = |(input, mean): (usize, &f64)| {
                    let first = (output * inputs + input) * kernel;
                    let errors =
                        reached.iter().enumerate().map(|(at, part)| error(first + at) * part);
                    errors.sum::<f64>() * mean
                };
                means.iter().enumerate().map(channel).sum()
            };
            Some((0..*outputs).map(shift).collect())
        }
        ("Gemm" | "MatMul", [rows, columns]) => {
            let transposed = proto.op_type == "Gemm" && proto.int("transB", 0) != 0;
            let (inputs, outputs) = if transposed { (columns, rows) } else { (rows, columns) };
            if *inputs != means.len() {
                return None;
            }
            let mut shift = vec![0.0; *outputs];
            for (at, error) in (0..exact.len()).map(|at| (at, error(at))) {
                let (row, column) = (at / columns, at % columns);
                let (input, output) = if transposed { (column, row) } else { (row, column) };
                shift[output] += error * means[input];
            }
            Some(shift)
        }
        _ => None,
    }
}

/// For each element of a kernel, on how large a part of the outputs it meets the input and not its
/// padding; 1 where the shape of the input is not known.
fn reached(node: &NodeProto, kernel: &[usize], input: &[Option<usize>]) -> Vec<f64> {
    let explicit = node
        .attribute("auto_pad")
        .is_none_or(|pad| pad.s.as_ref().is_none_or(|pad| **pad == *b"NOTSET"));
    // Wide enough for whatever a file says.
    let wide = |name: &str, index: usize, default: i64| {
        let ints = node.attribute(name).map_or(&[][..], |attribute| &attribute.ints);
        i128::from(ints.get(index).copied().unwrap_or(default))
    };
    let axes: Vec<Vec<f64>> = kernel
        .iter()
        .enumerate()
        .map(|(axis, taps)| {
            let (stride, dilation) = (wide("strides", axis, 1), wide("dilations", axis, 1));
            let (before, after) = (wide("pads", axis, 0), wide("pads", axis + kernel.len(), 0));
            let length = input.get(axis + 2).copied().flatten().map(|length| length as i128);
            let part = |tap: usize| {
                let length = length.filter(|_| explicit && stride > 0)?;
                let reach = (*taps as i128 - 1) * dilation;
                let last = (length + before + after - reach - 1).div_euclid(stride);
                // The output `at` meets the input at `at · stride + first`.
                let first = tap as i128 * dilation - before;
                let up_to = |position: i128| (position - first).div_euclid(stride);
                let met = up_to(length - 1).min(last) - up_to(-1).max(-1);
                (last >= 0).then(|| met.max(0) as f64 / (last + 1) as f64)
            };
            (0..*taps).map(|tap| part(tap).unwrap_or(1.0)).collect()
        })
        .collect();
    axes.iter().fold(vec![1.0], |parts, axis| {
        parts.iter().flat_map(|part| axis.iter().map(move |tap| part * tap)).collect()
    })
}

/// What the integers of a weight stand for.
fn decoded(how: &ValuePlan, weight: &EncodedTensor) -> Option<Vec<f32>> {
    let Tensor { shape, data, .. } = &weight.quantized;
    let layout = Layout::of(shape, how.spec.granularity).ok()?;
    let scales = weight.scale.to_f32()?;
    let points = weight.zero_points(how.stored)?;
    let params: Vec<Params> = scales
        .into_iter()
        .zip(points)
        .map(|(scale, zero_point)| Params { scale, zero_point })
        .collect();
    layout.check_packed(data.len(), how.stored, params.len()).ok()?;
    Some(dequantize(data, &layout, &params, how.stored))
}
