//! Folds the attributes `alpha` and `beta` of a `Gemm` into its weight and bias: integer kernels
//! require both to be 1.
//!
//! Products are computed in float64 and rounded once. Powers of two are folded without rounding.

use quantize_rs_onnx::{Edit, NodeProto};

use super::Changes;
use super::floats::{floats, rounded};
use super::pass_edits::PassEdits;
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::constants::{fixed, only_reader};

/// The inputs of a `Gemm` that have a factor, and the name of the attribute.
const FACTORS: [(usize, &str); 2] = [(WEIGHT, "alpha"), (BIAS, "beta")];
const WEIGHT: usize = 1;
const BIAS: usize = 2;

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut pass = PassEdits::of(graph);
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.op_type == "Gemm" && node.is_onnx() {
            fold(&mut pass, graph, index, node);
        }
    }
    Ok(pass.finish())
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
    if FACTORS.iter().all(|(_, name)| factor(name) == 1.0) {
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
            only_reader(graph, value)?;
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
