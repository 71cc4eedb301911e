//! Folds scales and shifts of channels into the following operator, by changing its weight and
//! bias.

use super::affine::{self, Affine, Channels, Kind};
use super::product::Product;
use crate::QuantizeError;
use crate::graph::constants::fixed;
use crate::graph::{Graph, Producer, ValueId};
use crate::transform::Changes;
use crate::transform::pass_edits::PassEdits;

/// Folds all nodes that can be folded.
#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(in crate::transform) fn forward(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    Ok(run(graph, |_| true))
}

/// Folds nodes that treat all channels alike, which does not affect quantization. Others may have
/// been inserted to equalize the channels or weights that share a scale.
#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(in crate::transform) fn even(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    Ok(run(graph, Affine::is_even))
}

fn run(graph: &Graph<'_>, wanted: fn(&Affine) -> bool) -> Changes {
    let mut pass = PassEdits::of(graph);
    let mut taken = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let Some((input, kind)) = affine::kind(graph, index) else { continue };
        let Some((source, product)) = after(graph, index, input) else { continue };
        // Folds one node at a time, so that the next round sees the result.
        if taken[index] || product.nodes().any(|node| taken[node]) {
            continue;
        }
        if kind != Kind::BatchNormalization && ends_a_function(graph, source) {
            continue;
        }
        let Some(channels) = product.input_channels() else { continue };
        let channels = seen(graph, source, channels);
        if !keeps_shape(graph, (index, input), kind, source, channels) {
            continue;
        }
        let Some(affine) = Affine::of(graph, index, input, kind, channels) else { continue };
        let Some(folded) = product.fold_input(graph, &affine).filter(|_| wanted(&affine)) else {
            continue;
        };
        if !pass.bypass(index, source) {
            continue;
        }
        folded.put(&mut pass, graph, &product);
        product.nodes().for_each(|node| taken[node] = true);
        taken[index] = true;
        pass.did(format!(
            "folded {} into the weights of {}, with a relative rounding error of at most {:.0e}",
            node.label(),
            graph.nodes[product.node].label(),
            folded.change,
        ));
    }
    pass.finish()
}

/// Whether a value is a product or quotient of two non-constant values, optionally scaled and
/// shifted. Exporters decompose `Gelu` and normalizations into such nodes, and runtimes recognize
/// them by the constants: without the factor 0.5, ONNX Runtime 1.32 does not fuse `Gelu`.
fn ends_a_function(graph: &Graph<'_>, mut source: ValueId) -> bool {
    // At most two steps: a scale and a shift.
    for _ in 0..2 {
        let Producer::Node { node, output: 0 } = graph.values[source].producer else {
            return false;
        };
        let Some((input, kind)) = affine::kind(graph, node) else { break };
        let Some(before) = graph.input(node, input) else { return false };
        if kind == Kind::BatchNormalization {
            return false;
        }
        source = before;
    }
    let Producer::Node { node, .. } = graph.values[source].producer else { return false };
    let proto = graph.nodes[node];
    let varies = |input| graph.input(node, input).is_some_and(|it| fixed(graph, it).is_none());
    proto.is_onnx() && matches!(&*proto.op_type, "Mul" | "Div") && varies(0) && varies(1)
}

/// The scale and shift of a node, and the matrix multiplication that is the only consumer of its
/// output.
fn after<'m>(graph: &Graph<'m>, index: usize, input: usize) -> Option<(ValueId, Product<'m>)> {
    let made = graph.output(index, 0)?;
    let consumer = graph.only_consumer(made)?.node;
    if graph.input(consumer, 0) != Some(made) || graph.nodes[consumer].op_type == "Add" {
        return None;
    }
    let result = graph.output(consumer, 0)?;
    let sum = graph.only_consumer(result).map(|sum| sum.node);
    let sum = sum.filter(|sum| graph.nodes[*sum].op_type == "Add");
    let added = sum.and_then(|sum| Product::of(graph, sum)).filter(|it| it.node == consumer);
    let product = added.or_else(|| Product::of(graph, consumer))?;
    Some((graph.input(index, input)?, product))
}

/// Like the input channels, but with more known about the axes of the value.
fn seen(graph: &Graph<'_>, source: ValueId, channels: Channels) -> Channels {
    match graph.shape(source).map(|shape| shape.len()) {
        Some(2) if channels.from_last == 1 => Channels { least_rank: 2, second: true, ..channels },
        Some(rank) => Channels { least_rank: rank, ..channels },
        None => channels,
    }
}

/// Whether the output of a node has the shape of its input, which has these channels.
fn keeps_shape(
    graph: &Graph<'_>,
    (index, input): (usize, usize),
    kind: Kind,
    source: ValueId,
    channels: Channels,
) -> bool {
    if kind == Kind::BatchNormalization {
        return true;
    }
    let constant = || fixed(graph, graph.input(index, 1 - input)?);
    let (Some(shape), Some(constant)) = (graph.shape(source), constant()) else { return false };
    let axis = shape.len().checked_sub(channels.from_last);
    let there = || axis.and_then(|axis| shape[axis]) == Some(channels.count);
    constant.shape.len() <= shape.len() && (constant.elements() == 1 || there())
}
