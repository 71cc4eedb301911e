//! Merges constants that hold the same elements.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{DataType, Edit, Tensor};

use crate::graph::{Graph, Producer, ValueId};
use crate::plan::{Decision, Plan};

/// Constants with fewer bytes are not compared.
const SMALL: usize = 256;

/// Element type and shape.
type Kind = (DataType, Vec<i64>);

/// Edits that redirect the consumers of a constant to an earlier constant with the same bytes.
///
/// Values that the plan quantizes, values that `made` changes, outputs, and initializers that a
/// caller may override are left alone.
pub fn share(graph: &Graph<'_>, plan: &Plan, made: &[Edit]) -> Vec<Edit> {
    let touched: HashSet<&str> = made.iter().flat_map(|edit| names_in(edit, graph)).collect();
    let mut known: HashMap<Kind, Vec<(ValueId, Tensor)>> = HashMap::new();
    let mut edits = Vec::new();
    for (id, value) in graph.values.iter().enumerate() {
        let Producer::Initializer { tensor, overridable: false } = value.producer else { continue };
        let kept = !touched.contains(value.name)
            && plan
                .values
                .get(id)
                .is_some_and(|planned| matches!(planned.decision, Decision::KeepFloat(_)));
        let (Some(dtype), true) = (tensor.dtype(), kept && !value.is_read_outside()) else {
            continue;
        };
        let Ok(elements) = graph.model.tensor(tensor) else { continue };
        if elements.data.len() < SMALL {
            continue;
        }
        let same = known.entry((dtype, tensor.dims.clone())).or_default();
        match same.iter().find(|(_, other)| other.data == elements.data) {
            Some((first, _)) => {
                let first = graph.values[*first].name;
                edits.extend(value.consumers.iter().map(|consumer| Edit::SetInput {
                    node: consumer.node,
                    input: consumer.input,
                    value: first.to_owned(),
                }));
                edits.push(Edit::RemoveInitializer(value.name.to_owned()));
            }
            None => same.push((id, elements)),
        }
    }
    edits
}

/// The constants that an edit removes, reads, or no longer reads.
fn names_in<'e>(edit: &'e Edit, graph: &'e Graph<'_>) -> Vec<&'e str> {
    match edit {
        Edit::RemoveInitializer(name) => vec![name],
        Edit::SetInput { node, input, value } => graph.nodes[*node]
            .input
            .get(*input)
            .into_iter()
            .chain([value])
            .map(|it| &**it)
            .collect(),
        Edit::AddNode(node) | Edit::ReplaceNode { with: node, .. } => {
            node.input.iter().map(String::as_str).collect()
        }
        _ => Vec::new(),
    }
}
