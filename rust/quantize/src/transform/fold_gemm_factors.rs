//! Folds the attributes `alpha` and `beta` of a `Gemm` into its weight and bias, and repeats a bias
//! of one element: integer kernels require factors of 1 and one element for each column.
//!
//! Products are computed in float64 and rounded once. Powers of two are folded without rounding.

use bytes::Bytes;

use quantize_rs_onnx::{Edit, NodeProto, Tensor};

use super::Changes;
use super::floats::{floats, rounded};
use super::pass_edits::PassEdits;
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::constants::fixed;
use crate::graph::uses;

/// The inputs of a `Gemm` that have a factor, and the name of the attribute.
const FACTORS: [(usize, &str); 2] = [(WEIGHT, "alpha"), (BIAS, "beta")];
const WEIGHT: usize = 1;
const BIAS: usize = 2;

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut pass = PassEdits::of(graph);
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.op_type == "Gemm" && node.is_onnx() {
            // A bias with a factor is repeated in the next round.
            fold(&mut pass, graph, index, node).or_else(|| repeat(&mut pass, graph, index, node));
        }
    }
    Ok(pass.finish())
}

/// Whether both factors of a `Gemm` are 1.
#[allow(clippy::float_cmp)] // compares attributes, not computed values
fn is_plain(node: &NodeProto) -> bool {
    FACTORS.iter().all(|(_, name)| node.float(name, 1.0) == 1.0)
}

/// Repeats a bias of one element for each column of the product.
fn repeat(
    pass: &mut PassEdits<'_, '_>,
    graph: &Graph<'_>,
    index: usize,
    node: &NodeProto,
) -> Option<()> {
    let (weight, bias) = (graph.input(index, WEIGHT)?, graph.input(index, BIAS)?);
    let columns = usize::from(node.int("transB", 0) == 0);
    let columns = (*graph.shape(weight)?.get(columns)?)?;
    // The weight of an integer product is constant, perhaps after a `Transpose`.
    uses::rearranged_from(graph, weight)?;
    let tensor = fixed(graph, bias).filter(|_| is_plain(node))?;
    if tensor.shape.iter().product::<usize>() != 1 || tensor.shape == [columns] {
        return None;
    }
    let data = Bytes::from(tensor.data.repeat(columns));
    let repeated = Tensor { dtype: tensor.dtype, shape: vec![columns], data };
    pass.replace_constant((index, BIAS), bias, "repeated", &repeated);
    pass.did(format!("repeated the bias of {} for its {columns} columns", node.label()));
    Some(())
}

/// Folds the factors of a node, if both can be folded.
#[allow(clippy::float_cmp)] // compares attributes, not computed values
fn fold(
    pass: &mut PassEdits<'_, '_>,
    graph: &Graph<'_>,
    index: usize,
    node: &NodeProto,
) -> Option<()> {
    let factor = |name: &str| node.float(name, 1.0);
    if is_plain(node) {
        return None;
    }
    let may_lack_bias = graph.model.opset("").is_some_and(|opset| opset >= 11);
    let mut change = 0f64;
    let mut scaled = Vec::new();
    for (input, name) in FACTORS {
        let (value, factor) = (graph.input(index, input), factor(name));
        let Some(value) = value.filter(|_| factor != 1.0) else { continue };
        if input == BIAS && factor == 0.0 && may_lack_bias {
            scaled.push((input, value, None));
            continue;
        }
        if input == WEIGHT {
            // With other consumers, the weight would have to be copied.
            graph.only_consumer(value)?;
        }
        let tensor = fixed(graph, value)?;
        let values: Vec<f64> =
            floats(&tensor)?.iter().map(|number| number * f64::from(factor)).collect();
        let (tensor, by) = rounded(tensor.dtype, tensor.shape, &values)?;
        change = change.max(by);
        scaled.push((input, value, Some(tensor)));
    }
    let mut with = node.clone();
    with.attribute.retain(|found| !FACTORS.iter().any(|(_, name)| found.name == *name));
    pass.edit(Edit::ReplaceNode { node: index, with });
    for (input, value, tensor) in scaled {
        match tensor {
            Some(tensor) => pass.replace_constant((index, input), value, "folded", &tensor),
            None => pass.set_input(index, input, String::new()),
        }
    }
    pass.did(format!(
        "folded the factors of {} into its weights, with a relative rounding error of at most \
         {change:.0e}",
        node.label(),
    ));
    Some(())
}
