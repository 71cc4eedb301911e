//! Shape inference derives the types and shapes of all values from those of the inputs.

mod common;

use common::{fixture, fixtures};
use quantize_rs::{DataType, Model, Tensor, infer_shapes};
use quantize_rs_onnx::{
    AttributeProto, Dimension, Edit, NodeProto, Raw, TensorProto, ValueInfoProto,
};

fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    let inputs = inputs.iter().map(|name| (*name).to_owned()).collect();
    NodeProto::new("", op_type, inputs, vec![output.to_owned()], Vec::new())
}

fn ints(name: &str, values: &[i64]) -> Edit {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensor = Tensor { dtype: DataType::Int64, shape: vec![values.len()], data: data.into() };
    Edit::AddInitializer(TensorProto::new(name, &tensor))
}

/// A copy of a fixture with additional nodes.
fn with(name: &str, edits: Vec<Edit>) -> Model {
    let mut model = fixture(name);
    model.apply(edits).unwrap();
    model
}

/// The declared shape of a value, with `?` for unknown dimensions; empty if it is undeclared.
fn said(model: &Model, name: &str) -> String {
    let graph = model.graph();
    let info = graph.value_info.iter().chain(&graph.output).find(|info| info.name == name);
    let shape = info.and_then(|info| info.tensor_type()?.shape.as_ref());
    let length = |dim: &Raw<Dimension>| match (dim.value, &dim.param) {
        (Some(length), _) => length.to_string(),
        (None, Some(name)) => name.clone(),
        (None, None) => "?".to_owned(),
    };
    let lengths = |dims: &Vec<Raw<Dimension>>| dims.iter().map(length).collect::<Vec<_>>();
    shape.map_or_else(String::new, |shape| lengths(&shape.dim).join(" "))
}

#[test]
fn inference_is_idempotent() {
    for (name, model) in fixtures() {
        let (with, first) = infer_shapes(&model).unwrap();
        assert_eq!(first.warnings, Vec::<String>::new(), "{name}");
        let (again, second) = infer_shapes(&with).unwrap();
        assert_eq!(second.written, 0, "{name}");
        assert_eq!(again.to_bytes().unwrap(), with.to_bytes().unwrap(), "{name}");
        assert_eq!((first.shaped, first.ranked), (second.shaped, second.ranked), "{name}");
        Model::from_bytes(with.to_bytes().unwrap()).unwrap();
    }
}

#[test]
fn computed_dimensions_are_propagated() {
    // Reshapes to [batch, 3, -1] through Shape, Gather and Concat, as exporters write it.
    let with_int = |mut node: NodeProto, name: &str, value: i64| {
        node.attribute.push(Raw::new(AttributeProto::int(name, value)));
        Edit::AddNode(node)
    };
    let model = with(
        "conv2d_relu",
        vec![
            ints("first", &[0]),
            ints("rest", &[3, -1]),
            Edit::AddNode(node("Shape", &["x"], "shape")),
            with_int(node("Gather", &["shape", "first"], "batch"), "axis", 0),
            with_int(node("Concat", &["batch", "rest"], "wanted"), "axis", 0),
            Edit::AddNode(node("Reshape", &["x", "wanted"], "rows")),
            Edit::AddNode(node("Warp", &["rows"], "warped")),
            Edit::AddNode(node("Reshape", &["warped", "wanted"], "again")),
            with_int(node("Cast", &["again"], "after"), "to", 1),
        ],
    );
    let (model, inference) = infer_shapes(&model).unwrap();
    assert_eq!(said(&model, "rows"), "batch 3 144");
    assert_eq!(said(&model, "warped"), "", "an unknown operator");
    assert_eq!(said(&model, "after"), "batch 3 ?");
    assert_eq!(inference.warnings, Vec::<String>::new());
}

#[test]
fn declarations_that_contradict_their_operators_are_kept() {
    let shape = |dims: Vec<Dimension>| {
        Edit::SetValueInfo(ValueInfoProto::new("y2", DataType::Float, Some(dims)))
    };
    let fixed =
        |lengths: &[i64]| lengths.iter().map(|it| Dimension::fixed(*it)).collect::<Vec<_>>();
    for (says, warning, next) in [
        (fixed(&[1, 3, 12, 12]), "axis 0 is declared 1, but depends on batch", "batch 3 12 12"),
        (
            fixed(&[2, 5, 12, 12]),
            "axis 1 is declared 5, but its operator returns 3",
            "batch ? 12 12",
        ),
        (fixed(&[2, 3]), "is declared with 2 axes, but its operator returns 4", ""),
    ] {
        let nodes = vec![
            Edit::AddNode(node("Relu", &["x"], "y2")),
            Edit::AddNode(node("Relu", &["y2"], "y3")),
            shape(says),
        ];
        let model = with("conv2d_relu", nodes);
        let before = said(&model, "y2");
        let (model, inference) = infer_shapes(&model).unwrap();
        assert!(
            inference.warnings.iter().any(|it| it.contains(warning)),
            "{:?}",
            inference.warnings
        );
        assert_eq!(said(&model, "y2"), before);
        assert_eq!(said(&model, "y3"), next);
    }
}
