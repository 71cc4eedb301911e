//! Outputs of operators that an option leaves in float.

use std::collections::{BTreeSet, HashMap};

use super::pattern::Known;
use super::{KeepReason, Plan, Source};
use crate::QuantizeError;
use crate::graph::{Graph, Producer, ValueId, ops};
use crate::transform::convert_opset::{NEWEST_OPSET, is_unchanged};

/// Functions that are computed with the operator before them.
const FUNCTIONS: [&str; 2] = ["Relu", "Clip"];

impl Plan {
    /// The plan without outputs of operators in `float_outputs` that no operator on integers reads.
    /// There is a warning for an operator that is never quantized, and an error for a type that
    /// neither ONNX nor the model has.
    pub(super) fn without_float_outputs(
        mut self,
        graph: &Graph<'_>,
    ) -> Result<Plan, QuantizeError> {
        if self.config.float_outputs.is_empty() {
            return Ok(self);
        }
        known_op_types(&self.config.float_outputs, graph)?;
        let unknown = |op_type: &&String| !ops::op_types().any(|known| known == op_type.as_str());
        let unknown: Vec<&str> =
            self.config.float_outputs.iter().filter(unknown).map(String::as_str).collect();
        if !unknown.is_empty() {
            self.warnings.push(format!(
                "float_outputs: no operator of the type {} is ever quantized",
                unknown.join(" or ")
            ));
        }
        let on_integers: &BTreeSet<usize> = &self.on_integers;
        let wanted = |value: ValueId| {
            let mut consumers = graph.values[value].consumers.iter();
            consumers.any(|consumer| on_integers.contains(&consumer.node))
        };
        let left = self.quantized().filter(|(_, how)| how.source == Source::Observed);
        let left: HashMap<String, KeepReason> = left
            .filter_map(|(value, _)| {
                let id = graph.value(&value.name)?;
                let op_type = self.named_producer(graph, id)?;
                (!wanted(id)).then(|| (value.name.clone(), KeepReason::FloatOutput { op_type }))
            })
            .collect();
        Ok(self.without(left))
    }

    /// The type of the operator that computes a value, if `float_outputs` names it; with an
    /// activation function, that of the function or of the operator before it.
    fn named_producer(&self, graph: &Graph<'_>, value: ValueId) -> Option<String> {
        let Producer::Node { node, .. } = graph.values[value].producer else { return None };
        let op_type = &graph.nodes[node].op_type;
        if self.config.float_outputs.contains(op_type) {
            return Some(op_type.clone());
        }
        let before = graph.input(node, 0).filter(|_| FUNCTIONS.contains(&op_type.as_str()))?;
        self.named_producer(graph, before)
    }
}

/// Refuses types of operators that neither ONNX nor the model has.
fn known_op_types(op_types: &[String], graph: &Graph<'_>) -> Result<(), QuantizeError> {
    let known = Known {
        op_types: ops::op_types().collect(),
        ..Known::of("operator that can be quantized")
    };
    let is_known = |op_type: &str| {
        known.op_types.contains(op_type)
            || is_unchanged(op_type, NEWEST_OPSET, NEWEST_OPSET)
            || graph.nodes.iter().any(|node| node.op_type == op_type)
    };
    match op_types.iter().find(|op_type| !is_known(op_type)) {
        None => Ok(()),
        Some(op_type) => {
            let hint = known.hint(op_type);
            let what = format!("names `{op_type}`, which is no {}{hint}", known.what);
            Err(QuantizeError::option("float_outputs", what))
        }
    }
}
