//! Edits keep a model valid, whatever IR version it has.

mod encoding;

use encoding::{attribute, bytes, graph, int, node, tensor, text};
use quantize_rs_onnx::{
    DataType, Dimension, Edit, GraphProto, Model, Tensor, TensorProto, ValueInfoProto, reads,
};

/// A model with the initializer `w`, which is also an input, and the same in its subgraph.
fn model(ir: u64) -> Model {
    let constant = [bytes(5, &[&tensor("w")]), bytes(11, &[&text(1, "w")])].concat();
    let constant_inside = [bytes(5, &[&tensor("v")]), bytes(11, &[&text(1, "v")])].concat();
    let body = graph(&[&constant_inside]);
    let owner = bytes(1, &[&node("Loop", &["w"], &["z"], &attribute(&bytes(6, &[&body])))]);
    Model::from_bytes(encoding::model(ir, &graph(&[&constant, &owner]), &[])).unwrap()
}

fn added() -> Edit {
    Edit::AddInitializer(TensorProto::new("added", &Tensor::from_f32(vec![1], &[1.0])))
}

/// An initializer with a type that only newer IR versions include.
fn added_as(dtype: DataType) -> Edit {
    let tensor = Tensor { dtype, shape: vec![1], data: vec![0].into() };
    Edit::AddInitializer(TensorProto::new("added", &tensor))
}

fn inputs(graph: &GraphProto) -> Vec<&str> {
    graph.input.iter().map(|input| input.name.as_str()).collect()
}

fn body(model: &Model) -> &GraphProto {
    model.graph().node.iter().find_map(|node| node.subgraphs().next()).unwrap()
}

#[test]
fn adding_an_initializer_raises_the_ir_version_to_4_and_to_that_of_its_type() {
    let float8 = || added_as(DataType::Float8E4M3FN);
    for (edit, ir) in [(added(), 4), (float8(), 9), (added_as(DataType::Int4), 10)] {
        let mut model = model(3);
        model.apply(vec![edit]).unwrap();
        assert_eq!(model.proto().ir_version, ir);
        assert_eq!(inputs(model.graph()), ["x"]);
        assert_eq!(inputs(body(&model)), ["x"]);
        assert!(model.graph().initializer.iter().any(|tensor| tensor.name == "w"));
        Model::from_bytes(model.to_bytes().unwrap()).unwrap();
    }
}

#[test]
fn inputs_and_outputs_are_added_and_removed_with_their_types() {
    let mut model = model(8);
    let info = ValueInfoProto::new("new", DataType::Float, None);
    let edits = vec![
        Edit::AddInput(info),
        Edit::RemoveInput("w".to_owned()),
        Edit::AddOutput("z".to_owned()),
        Edit::RemoveOutput("y".to_owned()),
    ];
    model.apply(edits).unwrap();
    let read = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
    assert_eq!(inputs(read.graph()), ["x", "new"]);
    let new = read.graph().input.iter().find(|input| input.name == "new").unwrap();
    let of = new.tensor_type().unwrap();
    assert_eq!((of.elem_type, of.shape.is_none()), (DataType::Float.number(), true));
    let outputs: Vec<&str> = read.graph().output.iter().map(|out| out.name.as_str()).collect();
    assert_eq!(outputs, ["z"]);
}

#[test]
fn edits_that_need_no_newer_ir_version_keep_it() {
    let mut early = model(3);
    early.apply(vec![]).unwrap();
    assert_eq!(early.proto().ir_version, 3);
    assert_eq!(inputs(early.graph()), ["x", "w"]);
    assert_eq!(inputs(body(&early)), ["x", "v"]);
    let mut model = model(8);
    model.apply(vec![added_as(DataType::Int4)]).unwrap();
    assert_eq!(model.proto().ir_version, 10);
    assert_eq!(inputs(model.graph()), ["x", "w"], "an input with a default stays one");
}

#[test]
fn removing_an_initializer_removes_its_input_before_ir_4_only() {
    for (ir, left) in [(3, vec!["x"]), (4, vec!["x", "w"])] {
        let mut model = model(ir);
        let owner = model.graph().node.iter().position(|node| node.op_type == "Loop").unwrap();
        let read = Edit::SetInput { node: owner, input: 0, value: "x".to_owned() };
        model.apply(vec![read, Edit::RemoveInitializer("w".to_owned())]).unwrap();
        assert_eq!(model.proto().ir_version, i64::try_from(ir).unwrap());
        assert!(model.graph().initializer.is_empty());
        assert_eq!(inputs(model.graph()), left);
    }
    let mut model = model(3);
    model.apply(vec![Edit::RemoveInitializer("x".to_owned())]).unwrap();
    assert_eq!(inputs(model.graph()), ["x", "w"], "an input that is no constant stays");
}

#[test]
fn opset_imports_are_added_from_ir_3_on() {
    let bytes = [int(1, 2), bytes(7, &[&graph(&[])])].concat();
    let mut model = Model::from_bytes(bytes).unwrap();
    assert_eq!(model.opset(""), Some(1));
    model.apply(vec![added()]).unwrap();
    assert_eq!(model.proto().ir_version, 4);
    let again = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
    assert_eq!(again.proto().opset_import.len(), 1);
    assert_eq!(again.opset(""), Some(1));
}

#[test]
fn the_opset_of_onnx_is_found_by_both_of_its_names() {
    for domain in ["", "ai.onnx"] {
        let mut model = model(8);
        model.apply(vec![Edit::SetOpset { domain: domain.to_owned(), version: 17 }]).unwrap();
        let names = ["", "ai.onnx", "com.microsoft"];
        assert_eq!(names.map(|name| model.opset(name)), [Some(17), Some(17), None], "{domain}");
    }
    let bytes = [int(1, 2), bytes(7, &[&graph(&[])])].concat();
    assert_eq!(Model::from_bytes(bytes).unwrap().opset("ai.onnx"), Some(1));
}

#[test]
fn a_subgraph_does_not_capture_its_own_sparse_initializers() {
    let sparse = bytes(15, &[&bytes(1, &[&tensor("s")])]);
    let inner = bytes(1, &[&node("Identity", &["s"], &["inner"], &[])]);
    let body = graph(&[&sparse, &inner]);
    // The outer `s` depends on an output of the node: reading it inside would be a cycle.
    let owner = bytes(1, &[&node("Loop", &[], &["z"], &attribute(&bytes(6, &[&body])))]);
    let reader = bytes(1, &[&node("Identity", &["z"], &["s"], &[])]);
    let model = Model::from_bytes(encoding::model(8, &graph(&[&owner, &reader]), &[])).unwrap();
    assert!(reads(&model.graph().node[1]).is_empty());
}

#[test]
fn a_value_becomes_an_output_and_the_others_stay_as_they_are() {
    let typed = bytes(12, &[&text(1, "x"), &bytes(2, &[&bytes(1, &[&int(1, 1)])])]);
    let made = bytes(1, &[&node("Relu", &["x"], &["z"], &[])]);
    let bytes = encoding::model(8, &graph(&[&typed, &made]), &[]);
    let mut model = Model::from_bytes(bytes).unwrap();
    model.apply(vec![Edit::AddOutput("z".to_owned())]).unwrap();
    let again = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
    let outputs = &again.graph().output;
    let names: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
    assert_eq!(names, ["y", "x", "z"]);
    assert_eq!(outputs[1].tensor_type().map(|tensor| tensor.elem_type), Some(1));
    assert!(model.apply(vec![Edit::AddOutput("nothing".to_owned())]).is_err());
}

#[test]
fn opsets_functions_and_nodes_are_replaced_in_place() {
    let function = [text(1, "Own"), text(10, "here"), text(4, "a"), text(5, "b")].concat();
    let body = bytes(7, &[&node("Relu", &["a"], &["b"], &[])]);
    let function = bytes(25, &[&function, &body, &bytes(9, &[&int(2, 15)])]);
    let made = bytes(1, &[&node("Relu", &["x"], &["z"], &[])]);
    let start = Model::from_bytes(encoding::model(8, &graph(&[&made]), &function)).unwrap();
    let version = start.opset("").unwrap();
    let mut model = start.clone();
    let mut changed = (*start.proto().functions[0]).clone();
    assert_eq!(changed.opset_import[0].version, 15);
    changed.opset_import[0].edit().version = 21;
    let mut with = (*start.graph().node[0]).clone();
    with.op_type = "Sigmoid".to_owned();
    let own = |version| Edit::SetOpset { domain: "ai.onnx".to_owned(), version };
    let other = Edit::SetOpset { domain: "com.microsoft".to_owned(), version: 1 };
    let replaced = Edit::ReplaceFunction { function: 0, with: changed };
    model
        .apply(vec![own(version + 1), other, replaced, Edit::ReplaceNode { node: 0, with }])
        .unwrap();
    let again = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
    assert_eq!(again.opset(""), Some(version + 1));
    assert_eq!(again.opset("com.microsoft"), Some(1));
    assert_eq!(again.graph().node[0].op_type, "Sigmoid");
    assert_eq!(again.proto().functions[0].opset_import[0].version, 21);
    assert_eq!(again.proto().functions[0].node[0].op_type, "Relu");
    model.apply(vec![Edit::RemoveFunction(0)]).unwrap();
    assert!(model.proto().functions.is_empty());
}

#[test]
fn newer_opsets_raise_the_ir_version_and_remove_initializers_from_inputs() {
    let set = |domain: &str, version| Edit::SetOpset { domain: domain.to_owned(), version };
    for (opset, expected) in [(8, 3), (9, 4), (13, 7), (21, 10), (25, 13), (28, 14)] {
        let mut model = model(3);
        model.apply(vec![set("", opset)]).unwrap();
        assert_eq!((model.opset(""), model.proto().ir_version), (Some(opset), expected));
        let apart = model.graph().input.iter().all(|input| input.name != "w");
        assert_eq!(apart, expected >= 4);
    }
    let mut other = model(3);
    other.apply(vec![set("com.microsoft", 25)]).unwrap();
    assert_eq!(other.proto().ir_version, 3);
}

#[test]
fn value_info_is_replaced_in_place() {
    let mut model = model(8);
    let said = |length: i64| {
        let shape = vec![Dimension::fixed(length), Dimension::named("n"), Dimension::default()];
        Edit::SetValueInfo(ValueInfoProto::new("v", DataType::Int4, Some(shape)))
    };
    model.apply(vec![said(1), said(2)]).unwrap();
    model.apply(vec![said(3), Edit::AddOutput("z".to_owned())]).unwrap();
    let of_output = ValueInfoProto::new("z", DataType::Float, None);
    model.apply(vec![Edit::SetValueInfo(of_output)]).unwrap();
    let model = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
    let [info] = &model.graph().value_info[..] else { panic!("one value is spoken of") };
    let tensor = info.tensor_type().unwrap();
    assert_eq!(tensor.elem_type, DataType::Int4.number());
    let shape = &tensor.shape.as_ref().unwrap().dim;
    let read: Vec<_> = shape.iter().map(|dim| (dim.value, dim.param.as_deref())).collect();
    assert_eq!(read, [(Some(3), None), (None, Some("n")), (None, None)]);
    let output = model.graph().output.last().unwrap();
    assert!(output.tensor_type().is_some_and(|tensor| tensor.shape.is_none()));
}

/// `ai.onnx` and the empty name are one domain.
#[test]
fn a_domain_that_is_imported_twice_has_one_version() {
    let import = |domain: &str, version| bytes(8, &[&text(1, domain), &int(2, version)]);
    let twice = |version| encoding::model(8, &graph(&[]), &import("ai.onnx", version));
    let mut model = Model::from_bytes(twice(17)).unwrap();
    assert_eq!(model.to_bytes().unwrap(), twice(17));
    model.apply(vec![Edit::SetOpset { domain: String::new(), version: 21 }]).unwrap();
    let again = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
    assert!(again.proto().opset_import.iter().all(|import| import.version == 21));
    let error = Model::from_bytes(twice(16)).unwrap_err().to_string();
    assert!(error.contains("`ai.onnx` is imported twice, in versions 17 and 16"), "{error}");
}
