//! Invalid messages are refused before they allocate memory.

mod encoding;

use encoding::{bytes, graph, model, node, text};
use quantize_rs_onnx::{ErrorKind, Model};

#[test]
fn attributes_without_a_name_and_nodes_without_an_operator_are_refused_as_they_are_read() {
    let nameless = bytes(1, &[&node("Identity", &["x"], &["z"], &bytes(5, &[]))]);
    let no_operator = bytes(1, &[&text(1, "x"), &text(2, "z")]);
    let function = |fields: &[u8]| bytes(25, &[&text(1, "f"), fields]);
    for (message, bytes) in [
        ("AttributeProto", model(8, &graph(&[&nameless]), &[])),
        ("NodeProto", model(8, &graph(&[&no_operator]), &[])),
        ("NodeProto", model(8, &graph(&[]), &function(&bytes(7, &[])))),
        ("AttributeProto", model(8, &graph(&[]), &function(&bytes(11, &[])))),
    ] {
        let error = Model::from_bytes(bytes).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Format { message: found, .. } if *found == message),
            "{error}"
        );
    }
}

/// The memory that a small file can allocate is bounded by the size of the messages.
#[test]
fn the_size_of_an_attribute_is_bounded() {
    assert!(size_of::<quantize_rs_onnx::AttributeProto>() <= 320);
    assert!(size_of::<quantize_rs_onnx::ValueInfoProto>() <= 96);
}
