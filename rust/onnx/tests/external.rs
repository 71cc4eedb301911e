//! External data is included wherever a model may have it, and refused everywhere else.

mod encoding;

use encoding::{attribute, bytes, external, graph, model, node, text, write_beside_weights};
use quantize_rs_onnx::{ErrorKind, Model};

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A field of a graph: a node with this attribute.
fn with_attribute(value: &[u8]) -> Vec<u8> {
    bytes(1, &[&node("Constant", &[], &["c"], &attribute(value))])
}

#[test]
fn external_data_of_graphs_is_included() {
    let body =
        graph(&[&bytes(5, &[&external("w")]), &with_attribute(&bytes(10, &[&external("")]))]);
    let places = [
        ("initializer", bytes(5, &[&external("w")])),
        ("tensor attribute", with_attribute(&bytes(5, &[&external("")]))),
        ("attribute of tensors", with_attribute(&bytes(10, &[&external("")]))),
        ("body", with_attribute(&bytes(6, &[&body]))),
        ("one of several bodies", with_attribute(&bytes(11, &[&body]))),
    ];
    for (place, field) in places {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = write_beside_weights(here.path(), &model(8, &graph(&[&field]), &[]));
        let opened = Model::open(path).unwrap_or_else(|error| panic!("{place}: {error}"));
        let copy = there.path().join("copy.onnx");
        opened.save(&copy).unwrap();
        for bytes in [opened.to_bytes().unwrap(), std::fs::read(copy).unwrap()] {
            assert!(contains(&bytes, &encoding::WEIGHTS), "{place}: the data is lost");
            assert!(!contains(&bytes, b"weights.bin"), "{place}: the data stays where it was");
            Model::from_bytes(bytes).unwrap_or_else(|error| panic!("{place}: {error}"));
        }
    }
}

#[test]
fn missing_data_of_a_tensor_list_attribute_is_found_on_reading() {
    let field = with_attribute(&bytes(10, &[&external("")]));
    let error = Model::from_bytes(model(8, &graph(&[&field]), &[])).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::External { .. }), "{error}");
}

#[test]
fn external_data_elsewhere_is_refused() {
    let tensor = external("w");
    let (values, indices) = (bytes(1, &[&tensor]), bytes(2, &[&tensor]));
    let function = |fields: &[u8]| bytes(25, &[&text(1, "f"), fields]);
    let in_function =
        |value: &[u8]| function(&bytes(7, &[&node("Constant", &[], &["c"], &attribute(value))]));
    let in_graph = |fields: Vec<u8>| model(8, &graph(&[&fields]), &[]);
    let in_model = |fields: Vec<u8>| model(8, &graph(&[]), &fields);
    let holding = graph(&[&bytes(5, &[&tensor])]);
    let places = [
        ("values of a sparse initializer", in_graph(bytes(15, &[&values]))),
        ("indices of a sparse initializer", in_graph(bytes(15, &[&indices]))),
        ("sparse attribute", in_graph(with_attribute(&bytes(22, &[&values])))),
        ("attribute of sparse tensors", in_graph(with_attribute(&bytes(23, &[&indices])))),
        ("node of a function", in_model(in_function(&bytes(5, &[&tensor])))),
        ("tensors in a function", in_model(in_function(&bytes(10, &[&tensor])))),
        ("body in a function", in_model(in_function(&bytes(6, &[&holding])))),
        (
            "default of a function's attribute",
            in_model(function(&bytes(11, &[&text(1, "a"), &bytes(5, &[&tensor])]))),
        ),
        ("training", in_model(bytes(20, &[&bytes(2, &[&holding])]))),
        ("initialization of a training", in_model(bytes(20, &[&bytes(1, &[&holding])]))),
    ];
    for (place, model) in places {
        let folder = tempfile::tempdir().unwrap();
        let Err(error) = Model::open(write_beside_weights(folder.path(), &model)) else {
            panic!("{place}: taken");
        };
        assert!(
            matches!(error.kind(), ErrorKind::External { tensor, location, .. }
                if tensor == "w" && location == "weights.bin"),
            "{place}: {error}"
        );
        assert!(error.to_string().contains("only supported in initializers"), "{error}");
    }
}

#[test]
fn inline_data_elsewhere_round_trips_byte_for_byte() {
    let tensor = encoding::tensor("w");
    let sparse = bytes(15, &[&bytes(1, &[&tensor]), &bytes(2, &[&tensor])]);
    let constant = node("Constant", &[], &["c"], &attribute(&bytes(10, &[&tensor])));
    let function = bytes(25, &[&text(1, "f"), &bytes(7, &[&constant])]);
    let training = bytes(20, &[&bytes(1, &[&graph(&[&bytes(5, &[&tensor])])])]);
    let whole = model(8, &graph(&[&sparse]), &[function, training].concat());
    assert_eq!(Model::from_bytes(whole.clone()).unwrap().to_bytes().unwrap(), whole);
}
