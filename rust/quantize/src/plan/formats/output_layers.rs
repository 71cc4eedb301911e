//! Output layers: matrix multiplications and convolutions after which no other comes. Their error
//! is the error of the model.

use std::collections::BTreeSet;

use quantize_rs_onnx::NodeProto;

use crate::graph::qattention::is_attention;
use crate::graph::uses::{Constant, Use};
use crate::graph::{Graph, ValueId};

/// One in this many elements of all weights may be multiplied in float.
const FLOAT_SHARE: f64 = 20.0;

/// Operators that multiply.
const PRODUCTS: [&str; 8] =
    ["Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"];

/// The weights of output layers, where they are a small share of all weights.
///
/// Later sums average an earlier error; nothing averages this one. The heads of classifiers and
/// language models are such layers, and take little time.
///
/// A table that is looked up as well is not among them.
pub(in crate::plan) fn last(graph: &Graph<'_>, constants: &[Constant<'_>]) -> BTreeSet<ValueId> {
    let (found, share) = found(graph, constants, false);
    if share * FLOAT_SHARE > 1.0 { BTreeSet::new() } else { found }
}

/// The weights of output layers, and their share of the elements of all weights. A head may share
/// its weight with a table.
pub(in crate::plan) fn all(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
) -> (BTreeSet<ValueId>, f64) {
    found(graph, constants, true)
}

fn found(graph: &Graph<'_>, constants: &[Constant<'_>], tied: bool) -> (BTreeSet<ValueId>, f64) {
    let last = last_nodes(graph);
    let multiplies = |usage: &Use<'_>| match usage {
        Use::Weight { node, .. } => is_product(graph.nodes[*node]),
        Use::Inside { .. } => true,
        _ => false,
    };
    let is_last = |usage: &Use<'_>| match usage {
        Use::Weight { node, .. } => last[*node] || tied && !is_product(graph.nodes[*node]),
        _ => false,
    };
    let elements = |constant: &&Constant<'_>| constant.shape.iter().product::<usize>();
    let weights = || constants.iter().filter(|constant| constant.uses.iter().any(multiplies));
    let found = || weights().filter(|constant| constant.uses.iter().all(is_last));
    let (few, all): (usize, usize) =
        (found().map(|found| elements(&found)).sum(), weights().map(|all| elements(&all)).sum());
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = few as f64 / all.max(1) as f64;
    (found().map(|constant| constant.anchor).collect(), share)
}

/// Whether each node is a multiplication after which no other comes.
fn last_nodes(graph: &Graph<'_>) -> Vec<bool> {
    let mut to_product = vec![false; graph.values.len()];
    let mut last = vec![false; graph.nodes.len()];
    // Nodes come after those whose outputs they read.
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let outputs = (0..node.output.len()).filter_map(|output| graph.output(index, output));
        let mut onwards = false;
        for output in outputs {
            onwards |= to_product[output] || graph.values[output].used_in_subgraph;
        }
        let product = is_product(node);
        last[index] = product && !onwards;
        for input in (0..node.input.len()).filter_map(|input| graph.input(index, input)) {
            to_product[input] |= product || onwards;
        }
    }
    last
}

fn is_product(node: &NodeProto) -> bool {
    node.is_onnx() && PRODUCTS.contains(&node.op_type.as_str()) || is_attention(node)
}
