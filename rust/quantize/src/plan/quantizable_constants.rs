//! Finds constants that can be quantized like the activations that an operator combines them with.

use std::collections::HashMap;

use quantize_rs_onnx::DataType;

use super::select::Selection;
use crate::graph::ops;
use crate::graph::ops::Slot;
use crate::graph::uses::Constant;
use crate::graph::{Consumer, Graph, Producer, ValueId};

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
    if matches!(value.producer, Producer::Initializer { overridable: true, .. }) {
        return Err("an input of the model may replace what it reads");
    }
    if selection.excluded(&[value.name], std::iter::empty()).is_some() {
        return Err("a constant that it reads is excluded");
    }
    let elements = graph.model.tensor(tensor).ok().and_then(|tensor| tensor.to_f32());
    match elements {
        Some(elements) if elements.iter().all(|element| element.is_finite()) => Ok(()),
        _ => Err("a constant that it reads is not finite"),
    }
}
