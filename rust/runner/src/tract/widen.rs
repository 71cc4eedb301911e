//! Converts a float16 model to float32.
//!
//! tract's float16 arithmetic rounds after every step of a sum, and some of it is incorrect.
//! float32 can represent every float16 value, so the observed values are at least as accurate.

use half::f16;
use quantize_rs_onnx::DataType;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, type_proto};

/// Attributes with the type of an output.
const TYPES: &[&str] = &["dtype", "output_datatype"];

/// Converts everything of type float16 in `graph`, subgraphs included.
///
/// Every node must have a name that is not the prefix of the name of a value.
pub(super) fn graph(graph: &mut GraphProto) {
    graph.initializer.iter_mut().for_each(tensor);
    for value in graph.input.iter_mut().chain(&mut graph.output) {
        value.r#type.iter_mut().for_each(value_type);
    }
    let nodes = std::mem::take(&mut graph.node);
    graph.node = nodes.into_iter().flat_map(node).collect();
}

/// The node in float32; a Cast to float16 still rounds, and another Cast follows it.
fn node(mut node: NodeProto) -> impl Iterator<Item = NodeProto> {
    for attribute in &mut node.attribute {
        attribute.t.iter_mut().chain(&mut attribute.tensors).for_each(tensor);
        attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(graph);
        if TYPES.contains(&attribute.name.as_str()) && attribute.i == HALF {
            attribute.i = SINGLE;
        }
    }
    let rounds = node.op_type == "Cast"
        && node.attribute.iter().any(|attribute| attribute.name == "to" && attribute.i == HALF);
    let wide = rounds.then(|| {
        let rounded = format!("{}_rounded", node.name);
        NodeProto {
            op_type: "Cast".into(),
            name: format!("{}_wide", node.name),
            output: std::mem::replace(&mut node.output, vec![rounded.clone()]),
            input: vec![rounded],
            attribute: vec![AttributeProto {
                name: "to".into(),
                r#type: AttributeType::Int as i32,
                i: SINGLE,
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        }
    });
    std::iter::once(node).chain(wide)
}

const HALF: i64 = DataType::Float16 as i64;
const SINGLE: i64 = DataType::Float as i64;

fn tensor(tensor: &mut TensorProto) {
    if tensor.data_type != DataType::Float16.number() {
        return;
    }
    tensor.data_type = DataType::Float.number();
    let halves: Vec<f16> = if tensor.raw_data.is_empty() {
        // float16 elements outside `raw_data` are stored in the low bits of integers
        let bits = std::mem::take(&mut tensor.int32_data).into_iter();
        bits.map(|bits| f16::from_bits(u16::try_from(bits & 0xffff).unwrap_or(0))).collect()
    } else {
        let bytes = tensor.raw_data.as_chunks::<2>().0.iter();
        bytes.map(|bytes| f16::from_le_bytes(*bytes)).collect()
    };
    tensor.raw_data = halves.iter().flat_map(|half| half.to_f32().to_le_bytes()).collect();
}

fn value_type(of: &mut TypeProto) {
    if let Some(type_proto::Value::TensorType(tensor)) = &mut of.value
        && tensor.elem_type == DataType::Float16.number()
    {
        tensor.elem_type = DataType::Float.number();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_keep_their_values_in_every_field() {
        let bits = [0x3e00_u16, 0xc000, 0x7bff, 0x0001];
        let values: Vec<u8> =
            [1.5_f32, -2.0, 65504.0, 2f32.powi(-24)].iter().flat_map(|x| x.to_le_bytes()).collect();
        let number = DataType::Float16.number();
        let raw = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let raw = TensorProto { data_type: number, raw_data: raw, ..TensorProto::default() };
        let typed = bits.iter().map(|bits| i32::from(*bits)).collect();
        let typed = TensorProto { data_type: number, int32_data: typed, ..TensorProto::default() };
        for mut half in [raw, typed] {
            tensor(&mut half);
            assert_eq!(half.data_type, DataType::Float.number());
            assert_eq!(half.raw_data, values);
        }
    }
}
