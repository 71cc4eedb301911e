//! Folds scales and shifts of channels into the weight and bias of the preceding or following
//! operator: `BatchNormalization` in inference mode, and addition, subtraction, multiplication or
//! division with constants.
//!
//! Weights are computed in float64 and rounded once.

mod affine;
mod forward;
pub(super) mod product;

use super::Changes;
use super::pass_edits::PassEdits;
use crate::QuantizeError;
use crate::graph::{Graph, Producer};

use affine::Affine;
pub(super) use affine::trains;
pub(super) use forward::{even, forward};
use product::Product;

/// With one scale per tensor, folding factors that differ makes the scale too coarse for channels
/// with small factors. The noise of the weight may become this many times as large.
const MAX_NOISE_RATIO: f64 = 1.5;

/// Folds all nodes that can be folded.
#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    Ok(fold(graph, |_, _| true))
}

/// Folds nodes unless one scale for the folded weight is much coarser than one for the weight as it
/// is.
#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn unless_coarser(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    Ok(fold(graph, |product, affine| product.noise_ratio(affine) <= MAX_NOISE_RATIO))
}

fn fold(graph: &Graph<'_>, wanted: fn(&Product<'_>, &Affine) -> bool) -> Changes {
    let mut pass = PassEdits::of(graph);
    let mut taken = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let Some((input, kind)) = affine::kind(graph, index) else { continue };
        let Some(value) = graph.input(index, input) else { continue };
        let Producer::Node { node: producer, output: 0 } = graph.values[value].producer else {
            continue;
        };
        if !graph.is_only_consumer(index, value) || graph.output(index, 0).is_none() {
            continue;
        }
        let Some(product) = Product::of(graph, producer) else { continue };
        // Folds one node at a time, so that the next round sees the result.
        if product.nodes().any(|node| taken[node]) {
            continue;
        }
        let Some(affine) = Affine::of(graph, index, input, kind, product.channels) else {
            continue;
        };
        // As a bias, it would keep ONNX Runtime from multiplying by integers: see `subtract_bias`.
        let is_bias = kind == affine::Kind::Sub && product.is_bare_gemm();
        if is_bias || !wanted(&product, &affine) {
            continue;
        }
        let Some(folded) = product.fold(graph, &affine) else { continue };
        product.nodes().for_each(|node| taken[node] = true);
        let change = folded.change;
        folded.write(&mut pass, graph, &product, index);
        pass.did(format!(
            "folded {} into the weights of {}, with a relative rounding error of at most {:.0e}",
            node.label(),
            graph.nodes[product.node].label(),
            change,
        ));
    }
    pass.finish()
}
