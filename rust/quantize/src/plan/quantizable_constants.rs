//! Finds constants that can be quantized like the activations that an operator combines them with.

use std::collections::HashMap;

use quantize_rs_onnx::DataType;

use super::select::Selection;
use crate::graph::ops;
use crate::graph::ops::Slot;
use crate::graph::uses::Constant;
use crate::graph::{Consumer, Graph, ValueId};

/// For each constant that an operator reads like an activation, or as a scale or bias: whether it
/// can be quantized, or the reason why not.
pub(super) fn of(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    selection: &Selection,
) -> HashMap<ValueId, Result<(), &'static str>> {
    let flows = |consumer: &Consumer| {
        ops::rule(graph.nodes[consumer.node]).is_some_and(|rule| {
            rule.takes_activation(consumer.input)
                || matches!(rule.slot(consumer.input), Slot::Scale | Slot::Bias)
        })
    };
    constants
        .iter()
        .filter(|constant| !constant.is_weight())
        .filter(|constant| graph.values[constant.anchor].consumers.iter().any(flows))
        .map(|constant| (constant.anchor, fits(graph, constant.anchor, selection)))
        .collect()
}

fn fits(graph: &Graph<'_>, constant: ValueId, selection: &Selection) -> Result<(), &'static str> {
    let value = &graph.values[constant];
    let float = graph.constant(constant).filter(|found| found.dtype() == Some(DataType::Float));
    let Some(tensor) = float.filter(|tensor| !tensor.dims.contains(&0)) else {
        return Err("a constant that it reads is not float32, or empty");
    };
    if value.is_overridable() {
        return Err("an input of the model may replace what it reads");
    }
    if selection.excluded(&[value.name], std::iter::empty()).is_some() {
        return Err("a constant that it reads is excluded");
    }
    let elements = graph.model.tensor(tensor).ok().and_then(|tensor| tensor.to_f32());
    match elements {
        Some(elements) if elements.iter().any(|element| !element.is_finite()) => {
            Err("a constant that it reads is not finite")
        }
        Some(_) if has_uneven_factors(graph, constant) => {
            Err("the factors that it reads differ too much for one scale")
        }
        Some(_) => Ok(()),
        None => Err("a constant that it reads is not finite"),
    }
}

/// Whether a constant holds factors of which many would be lost with one scale.
pub(super) fn has_uneven_factors(graph: &Graph<'_>, constant: ValueId) -> bool {
    let elements = || graph.model.tensor(graph.constant(constant)?).ok()?.to_f32();
    scales_by(graph, constant) && elements().is_some_and(|elements| is_uneven(&elements))
}

/// Whether a constant is a factor: its relative error is that of the result.
fn scales_by(graph: &Graph<'_>, constant: ValueId) -> bool {
    graph.values[constant].consumers.iter().any(|consumer| {
        let node = graph.nodes[consumer.node];
        node.is_onnx() && matches!(node.op_type.as_str(), "Mul" | "Div")
    })
}

/// An element of fewer steps has a relative error of more than 6 %.
const MIN_STEPS: f32 = 8.0;

/// One element in this many may have fewer steps. Of normally distributed elements 15 % have.
const FEW_STEPS: usize = 4;

/// Whether many elements have too few of the 255 steps of one scale. So it is where channels that
/// are always 0 have factors of 1/√ε, as a batch normalization after a `Relu` gives them, beside
/// the factors of all other channels.
fn is_uneven(elements: &[f32]) -> bool {
    let range = elements
        .iter()
        .fold((0.0_f32, 0.0_f32), |(min, max), element| (min.min(*element), max.max(*element)));
    let least = (range.1 - range.0) / 255.0 * MIN_STEPS;
    let few = elements.iter().filter(|element| **element != 0.0 && element.abs() < least).count();
    few * FEW_STEPS > elements.len()
}
