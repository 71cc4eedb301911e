//! Merges equal constants.

use std::collections::HashMap;
use std::hash::Hasher;

use quantize_rs_onnx::{DataType, Tensor};

use super::Changes;
use super::fold_batch_norm::trains;
use super::pass_edits::PassEdits;
use crate::QuantizeError;
use crate::graph::{Graph, Producer, ValueId};
use crate::util::fnv::{Fnv, hash_of_some};

/// The element type, the shape, and a hash of some words.
type Glance<'m> = (DataType, &'m [i64], u64);

pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut alike: HashMap<Glance<'_>, Vec<ValueId>> = HashMap::new();
    for (id, value) in graph.values.iter().enumerate() {
        let Producer::Initializer { tensor: proto, overridable: false } = value.producer else {
            continue;
        };
        let (Some(dtype), false) = (proto.dtype(), value.is_output) else { continue };
        // ONNX Runtime writes the statistics that a normalization computes over the old ones.
        if value.consumers.iter().any(|consumer| trains(graph, consumer.node)) {
            continue;
        }
        // Strings are not compared.
        let Ok(tensor) = graph.model.tensor(proto) else { continue };
        alike.entry((dtype, &proto.dims, hash_of_some(&tensor.data))).or_default().push(id);
    }
    let mut groups: Vec<Vec<ValueId>> =
        alike.into_values().filter(|values| values.len() > 1).collect();
    groups.sort_unstable();
    let mut pass = PassEdits::of(graph);
    for values in groups {
        let mut known: HashMap<u64, Vec<(ValueId, Tensor)>> = HashMap::new();
        for id in values {
            let Producer::Initializer { tensor: proto, .. } = graph.values[id].producer else {
                continue;
            };
            let tensor = graph.model.tensor(proto)?;
            let same = known.entry(whole(&tensor)).or_default();
            match same.iter().find(|(_, other)| other.data == tensor.data) {
                Some((first, _)) => merge(&mut pass, graph, id, *first),
                None => same.push((id, tensor)),
            }
        }
    }
    Ok(pass.finish())
}

fn merge(pass: &mut PassEdits<'_, '_>, graph: &Graph<'_>, value: ValueId, first: ValueId) {
    let (name, other) = (graph.values[value].name, graph.values[first].name);
    if pass.replace_uses(value, other) {
        pass.did(format!("merged constant `{name}` into the equal `{other}`"));
    }
}

fn whole(tensor: &Tensor) -> u64 {
    let mut hash = Fnv::default();
    hash.bytes(&tensor.data);
    hash.finish()
}
