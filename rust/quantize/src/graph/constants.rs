//! Queries that passes make about a graph: which values are constant, and what they hold.

use bytes::Bytes;

use quantize_rs_onnx::{DataType, Model, NodeProto, Tensor};

use crate::graph::{Graph, Producer, ValueId};

/// The elements of a value that is constant at inference time.
pub(crate) fn fixed(graph: &Graph<'_>, value: ValueId) -> Option<Tensor> {
    match graph.values[value].producer {
        Producer::Initializer { tensor, overridable: false } => graph.model.tensor(tensor).ok(),
        Producer::Node { node, .. } => constant(graph.model, graph.nodes[node]),
        _ => None,
    }
}

/// The tensor that a `Constant` node holds.
pub(crate) fn constant(model: &Model, node: &NodeProto) -> Option<Tensor> {
    if node.op_type != "Constant" || !node.is_onnx() {
        return None;
    }
    let [attribute] = &node.attribute[..] else { return None };
    let length = |count: usize| vec![count];
    match attribute.name.as_str() {
        "value" => model.tensor(attribute.t.as_deref()?).ok(),
        "value_float" => Some(Tensor::from_f32(vec![], &[attribute.f?])),
        "value_floats" => Some(Tensor::from_f32(length(attribute.floats.len()), &attribute.floats)),
        "value_int" => Some(of_ints(vec![], &[attribute.i?])),
        "value_ints" => Some(of_ints(length(attribute.ints.len()), &attribute.ints)),
        _ => None,
    }
}

/// Creates an int64 tensor.
pub(crate) fn of_ints(shape: Vec<usize>, values: &[i64]) -> Tensor {
    let data: Bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor { dtype: DataType::Int64, shape, data }
}

/// The elements of an int64 or int32 tensor.
pub(crate) fn ints(tensor: &Tensor) -> Option<Vec<i64>> {
    match tensor.dtype {
        DataType::Int64 => {
            Some(tensor.data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect())
        }
        DataType::Int32 => Some(
            tensor
                .data
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| i64::from(i32::from_le_bytes(*b)))
                .collect(),
        ),
        _ => None,
    }
}

/// Whether a node specifies integers, as an attribute or, in newer opsets, as an input.
pub(crate) fn is_given(graph: &Graph<'_>, node: usize, attribute: &str, input: usize) -> bool {
    graph.nodes[node].attribute(attribute).is_some() || graph.input(node, input).is_some()
}

/// The integers that a node specifies as an attribute or, in newer opsets, as an input; `None` if
/// they are missing or not constant.
pub(crate) fn given(
    graph: &Graph<'_>,
    node: usize,
    attribute: &str,
    input: usize,
) -> Option<Vec<i64>> {
    match graph.nodes[node].attribute(attribute) {
        Some(found) => Some(found.ints.to_vec()),
        None => ints(&fixed(graph, graph.input(node, input)?)?),
    }
}

/// Whether a value has a consumer or is an output.
pub(crate) fn is_read(graph: &Graph<'_>, value: ValueId) -> bool {
    let value = &graph.values[value];
    !value.consumers.is_empty() || value.is_read_outside()
}
