//! Whether two nodes, or two attributes, are equal.

use quantize_rs_onnx::{AttributeProto, NodeProto, TensorProto};

pub(super) fn same_operator(one: &NodeProto, other: &NodeProto) -> bool {
    one.op_type == other.op_type && (one.domain == other.domain || one.is_onnx() && other.is_onnx())
}

pub(in crate::check::validate) fn same_attributes(one: &NodeProto, other: &NodeProto) -> bool {
    let same = |attribute: &AttributeProto| {
        other.attribute(&attribute.name).is_some_and(|there| equal(attribute, there))
    };
    one.attribute.len() == other.attribute.len() && one.attribute.iter().all(|kept| same(kept))
}

/// Subgraphs are compared by the values that they read from the outer graph.
pub(in crate::check::validate) fn equal(one: &AttributeProto, other: &AttributeProto) -> bool {
    let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let tensor =
        |tensor: &TensorProto| (tensor.data_type, tensor.dims.clone(), tensor.raw_data.clone());
    let tensors = |attribute: &AttributeProto| attribute.tensors().map(tensor).collect::<Vec<_>>();
    one.f.map(f32::to_bits) == other.f.map(f32::to_bits)
        && one.i == other.i
        && one.s == other.s
        && *one.ints == *other.ints
        && bits(&one.floats) == bits(&other.floats)
        && tensors(one) == tensors(other)
}
