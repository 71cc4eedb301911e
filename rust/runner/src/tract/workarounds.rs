//! Rewrites nodes that tract misinterprets as equivalent nodes that it runs correctly.

use std::collections::HashSet;

use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto, tensor_proto};
use tract_onnx::prelude::TractResult;
use tract_onnx::tract_hir::internal::{InferenceOp, TractErrorContext};

use super::dequantize::dequantize_linear;
use super::logarithms;

/// The opset whose Resize replaced Upsample and still computes the same.
const RESIZE_LIKE_UPSAMPLE: i64 = 10;

/// tract, with the missing operators that can be added, and others in place of inexact ones.
pub(super) fn framework() -> Onnx {
    // Shapes in `value_info` may have symbols ("batch") that conflict with the concrete inputs;
    // tract infers all shapes without them.
    let mut framework = tract_onnx::onnx().with_ignore_value_info(true);
    framework.op_register.insert("LogSoftmax", |context, node| {
        Ok((logarithms::log_softmax(context, node)?, Vec::new()))
    });
    framework.op_register.insert("Softplus", |_, _| Ok((logarithms::softplus(), Vec::new())));
    framework.op_register.insert("Upsample", upsample);
    framework.op_register.insert("DequantizeLinear", dequantize_linear);
    framework
}

/// Applies the workarounds to `graph`, subgraphs included.
pub(super) fn graph(graph: &mut GraphProto, opset: i64) {
    let enlarging =
        if opset == RESIZE_LIKE_UPSAMPLE { enlarging_scales(graph) } else { HashSet::new() };
    for node in &mut graph.node {
        // tract counts a trailing empty name as an input.
        while node.input.last().is_some_and(String::is_empty) {
            node.input.pop();
        }
        // In opset 10, the nearest element is the previous one, as in Upsample; tract rounds as in
        // later opsets. Other scales are not changed, so that the check refuses them.
        if node.op_type == "Resize" && node.input.get(1).is_some_and(|s| enlarging.contains(s)) {
            node.attribute.push(nearest_before());
        }
        for body in bodies(node) {
            self::graph(body, opset);
        }
    }
}

/// Converts the scales of Upsample of opset 7 to an input, as in later opsets.
///
/// Every node must have a name that is not the prefix of the name of a value.
pub(super) fn scales(graph: &mut GraphProto) {
    for node in &mut graph.node {
        let scales = node.attribute.iter().find(|attribute| attribute.name == "scales");
        if let ("Upsample", Some(scales), 1) = (node.op_type.as_str(), scales, node.input.len()) {
            let name = format!("{}_scales", node.name);
            graph.initializer.push(TensorProto {
                name: name.clone(),
                dims: i64::try_from(scales.floats.len()).into_iter().collect(),
                data_type: tensor_proto::DataType::Float as i32,
                float_data: scales.floats.clone(),
                ..TensorProto::default()
            });
            node.input.push(name);
        }
        bodies(node).for_each(self::scales);
    }
}

fn bodies(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    node.attribute
        .iter_mut()
        .flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs))
}

/// Names of the constants without a number below 1.
fn enlarging_scales(graph: &GraphProto) -> HashSet<String> {
    let initializers = graph.initializer.iter().map(|tensor| (&tensor.name, tensor));
    let constants =
        graph.node.iter().filter(|node| node.op_type == "Constant").filter_map(|node| {
            let value = node.attribute.iter().find(|attribute| attribute.name == "value")?;
            Some((node.output.first()?, value.t.as_ref()?))
        });
    let enlarges = |tensor: &TensorProto| {
        floats(tensor).is_some_and(|scales| scales.iter().all(|scale| *scale >= 1.0))
    };
    initializers
        .chain(constants)
        .filter(|(_, tensor)| enlarges(tensor))
        .map(|(name, _)| name.clone())
        .collect()
}

fn floats(tensor: &TensorProto) -> Option<Vec<f32>> {
    if tensor.data_type != tensor_proto::DataType::Float as i32 {
        return None;
    }
    match tensor.raw_data.as_chunks::<4>() {
        ([], []) => Some(tensor.float_data.clone()),
        (elements, []) => Some(elements.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
        _ => None,
    }
}

fn nearest_before() -> AttributeProto {
    AttributeProto {
        name: "nearest_mode".into(),
        r#type: AttributeType::String as i32,
        s: b"floor".to_vec(),
        ..AttributeProto::default()
    }
}

/// Builds Upsample as the equivalent Resize.
fn upsample(
    context: &ParsingContext,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let resize = context.framework.op_register.0.get("Resize").context("tract has Resize")?;
    let context =
        ParsingContext { onnx_operator_set_version: RESIZE_LIKE_UPSAMPLE, ..context.clone() };
    let mut node = node.clone();
    node.attribute.push(nearest_before());
    resize(&context, &node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(op_type: &str, inputs: &[&str]) -> NodeProto {
        let input = inputs.iter().map(|name| (*name).to_owned()).collect();
        NodeProto { op_type: op_type.into(), input, output: vec!["y".into()], ..Default::default() }
    }

    #[test]
    fn trailing_empty_names_are_removed_and_others_stay() {
        let body = GraphProto { node: vec![node("Conv", &["x", "w", ""])], ..Default::default() };
        let body = AttributeProto { g: Some(body), ..AttributeProto::default() };
        let mut outer = node("Clip", &["x", "", "max", "", ""]);
        outer.attribute.push(body);
        let mut outer = GraphProto { node: vec![outer], ..GraphProto::default() };
        graph(&mut outer, 17);
        assert_eq!(outer.node[0].input, ["x", "", "max"]);
        let body = outer.node[0].attribute[0].g.as_ref().expect("the body");
        assert_eq!(body.node[0].input, ["x", "w"]);
    }

    #[test]
    fn only_a_resize_that_is_known_to_enlarge_rounds_down() {
        let scales = |scale: f32| TensorProto {
            name: "s".into(),
            data_type: tensor_proto::DataType::Float as i32,
            raw_data: [1.0, scale].iter().flat_map(|scale: &f32| scale.to_le_bytes()).collect(),
            ..TensorProto::default()
        };
        let cases = [
            (10, vec![scales(3.0)], 1),
            (10, vec![scales(0.5)], 0),
            (10, vec![], 0),
            (11, vec![scales(3.0)], 0),
        ];
        for (opset, initializer, expected) in cases {
            let node = vec![node("Resize", &["x", "s"])];
            let mut fixed = GraphProto { node, initializer, ..GraphProto::default() };
            graph(&mut fixed, opset);
            assert_eq!(fixed.node[0].attribute.len(), expected);
        }
    }
}
