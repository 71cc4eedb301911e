//! The nodes that the caller leaves out of a conversion.

use quantize_rs_onnx::{GraphProto, Model, NodeProto};

use super::pattern::{Known, Pattern, Subject};
use crate::QuantizeError;

/// Selectors of nodes, those of subgraphs included: names, outputs, patterns, operator types.
pub(crate) struct ExcludedNodes(Vec<Pattern>);

impl ExcludedNodes {
    /// Reads the selectors of an option.
    ///
    /// # Errors
    /// One of them matches no node of the model.
    pub(crate) fn of(
        model: &Model,
        option: &str,
        selectors: &[String],
    ) -> Result<ExcludedNodes, QuantizeError> {
        let mut known = Known::of("node");
        add(model.graph(), &mut known);
        known.names.remove("");
        known.outputs.remove("");
        let patterns = selectors.iter().map(|text| known.pattern(option, text));
        Ok(ExcludedNodes(patterns.collect::<Result<_, _>>()?))
    }

    /// Whether a node is excluded.
    pub(crate) fn contain(&self, node: &NodeProto) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let subject = Subject {
            names: vec![node.name.as_str()],
            outputs: node.output.iter().map(String::as_str).collect(),
            op_types: vec![node.op_type.as_str()],
        };
        self.0.iter().any(|pattern| pattern.fits(&subject))
    }
}

fn add<'m>(graph: &'m GraphProto, known: &mut Known<'m>) {
    for node in &graph.node {
        known.names.insert(&node.name);
        known.outputs.extend(node.output.iter().map(String::as_str));
        known.op_types.insert(&node.op_type);
        node.subgraphs().for_each(|body| add(body, known));
    }
}
