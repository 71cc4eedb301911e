//! Weights that subgraphs (`If`, `Loop`, `Scan`) read as integers.

use std::collections::{HashMap, HashSet};

use quantize_rs_math::QType;
use quantize_rs_onnx::NodeProto;

use super::stored::{Form, Found, Key, Stored, base_of, form_of, lengths, qtype_of};
use super::{Validation, products};
use crate::graph::uses::Subgraphs;
use crate::graph::{Graph, ValueId};

/// The weights that subgraphs read as integers.
pub(super) fn weights(
    before: &Graph<'_>,
    after: &Graph<'_>,
    all: &mut Vec<Stored>,
    seen: &mut HashMap<Key, usize>,
    found: &mut Validation,
) {
    let bodies = Subgraphs::of(after);
    if bodies.all.is_empty() {
        return;
    }
    let there: HashSet<&str> = Subgraphs::of(before).names().collect();
    for (body, node) in bodies.nodes() {
        let inputs: Vec<Option<ValueId>> =
            node.input.iter().map(|name| bodies.outer(after, body, name)).collect();
        let scale = scale_inside(after, &bodies, body, node);
        let mut at = products::stored(after, scale, node, &inputs);
        if node.op_type == "DequantizeLinear" {
            at.extend(dequantized_inside(after, node, &inputs));
        }
        let none = at.is_empty();
        for stored in at {
            match stored {
                Ok(stored) => {
                    let same = before.value(after.values[stored.integers].name);
                    let same = same.is_some_and(|id| before.constant(id).is_some());
                    if !same {
                        stored.add_to(all, seen);
                    }
                }
                Err((name, why)) => found.skip_weight(name, why),
            }
        }
        // A constant of the subgraph itself is not a value of the main graph.
        let own = |name: &&String| {
            let tensor = bodies.constant(after, body, name);
            bodies.outer(after, body, name).is_none()
                && !there.contains(name.as_str())
                && tensor.is_some_and(|tensor| tensor.dims.len() > 1)
                && tensor.and_then(qtype_of).is_some_and(QType::is_scaled)
        };
        let multiplies = node.op_type == "DequantizeLinear" || products::reads_integers(node);
        // Its zero points follow.
        if let Some(name) = node.input.iter().find(own).filter(|_| none && multiplies) {
            found.skip_weight(name.clone(), "it belongs to a subgraph of a node");
        }
    }
    for (id, value) in after.values.iter().enumerate() {
        let unseen = value.used_in_subgraph
            && value.consumers.is_empty()
            && !all.iter().any(|stored| stored.integers == id);
        let integers = after.constant(id).and_then(qtype_of).is_some();
        if unseen && integers && base_of(value.name, "quantized").is_some() {
            found.skip_weight(value.name, "only subgraphs read it");
        }
    }
}

/// A constant of the main graph that a subgraph dequantizes.
fn dequantized_inside(
    after: &Graph<'_>,
    node: &NodeProto,
    inputs: &[Option<ValueId>],
) -> Option<Found> {
    let at = |input: usize| inputs.get(input).copied().flatten();
    let integers = at(0)?;
    let proto = after.constant(integers)?;
    if qtype_of(proto)? == QType::Int32 {
        return None;
    }
    let name = after.values[integers].name.to_owned();
    let scale = at(1).filter(|id| after.constant(*id).is_some());
    let Some(scales) = scale.and_then(|id| after.constant(id)) else {
        return Some(Err((name, "its scale is not a constant of the main graph".to_owned())));
    };
    let form = form_of(node, &lengths(proto), scales);
    let originals =
        node.output.first().cloned().into_iter().chain(base_of(&name, "quantized")).collect();
    let zero_point = at(2).filter(|id| after.constant(*id).is_some());
    let (form, whole, multiplied) = (Form::Plain(form), None, false);
    let reads = vec![integers];
    Some(Ok(Stored { originals, integers, scale, whole, zero_point, reads, multiplied, form }))
}

/// The constant of the main graph that is the scale of the weight of an integer multiplication in a
/// subgraph, see [`products::scales_of`].
fn scale_inside<'m>(
    after: &Graph<'m>,
    bodies: &Subgraphs<'m>,
    body: usize,
    product: &'m NodeProto,
) -> Option<ValueId> {
    let next = |node: &'m NodeProto, op_type: &str| {
        let next = bodies.only_reader(body, node.output.first()?)?;
        (next.op_type == op_type).then_some(next)
    };
    let mul = next(next(product, "Cast")?, "Mul")?;
    let made = mul.input.iter().filter_map(|name| bodies.producer_node(body, name));
    let scales = made.filter(|node| node.op_type == "Mul").flat_map(|node| &node.input);
    let mut outer = scales.filter_map(|name| bodies.outer(after, body, name));
    outer.find(|id| after.constant(*id).is_some())
}
