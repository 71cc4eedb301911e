//! Invalid messages are refused before they allocate memory.

mod encoding;

use encoding::{attribute, bytes, graph, int, model, node, text};
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

/// A model whose node has an attribute with these fields.
fn with_attribute(fields: &[u8]) -> Result<Model, quantize_rs_onnx::Error> {
    let node = bytes(1, &[&node("Ensemble", &["x"], &["z"], &attribute(fields))]);
    Model::from_bytes(model(8, &graph(&[&node]), &[]))
}

fn float(value: f32) -> Vec<u8> {
    [vec![7 << 3 | 5], value.to_le_bytes().to_vec()].concat()
}

#[test]
fn numbers_of_attributes_may_be_packed_or_not_and_are_written_as_they_were() {
    // -1 takes ten bytes.
    let ints: Vec<u8> =
        [int(8, 3), int(8, 1 << 40), int(8, u64::MAX), bytes(8, &[&[7, 0x80, 1]])].concat();
    let floats = [float(1.5), float(-0.0), bytes(7, &[&2.5_f32.to_le_bytes()])].concat();
    let strings = [text(9, "BRANCH_LEQ"), text(9, ""), text(9, "LEAF")].concat();
    // Integers before and after other fields are one list.
    let fields = [ints.clone(), floats, strings, int(8, 9), int(20, 7)].concat();
    let model = with_attribute(&fields).unwrap();
    let node = model.graph().node.iter().find(|node| node.op_type == "Ensemble").unwrap();
    let attribute = node.attribute("value").unwrap();
    assert_eq!(attribute.ints[..], [3, 1 << 40, -1, 7, 128, 9]);
    let bits: Vec<u32> = attribute.floats.iter().map(|value| value.to_bits()).collect();
    assert_eq!(bits, [1.5_f32, -0.0, 2.5].map(f32::to_bits));
    // Edited, it has the same numbers.
    let mut copy = node.attribute[0].clone();
    copy.edit().name = "other".to_owned();
    let fields = copy.to_bytes();
    let model = with_attribute(&fields).unwrap();
    let node = model.graph().node.iter().find(|node| node.op_type == "Ensemble").unwrap();
    let attribute = &node.attribute[0];
    assert_eq!(attribute.ints[..], [3, 1 << 40, -1, 7, 128, 9]);
    assert_eq!(attribute.floats.len(), 3);
    let text = |what: &[u8]| fields.windows(what.len()).any(|part| part == what);
    assert!(text(b"BRANCH_LEQ") && text(b"LEAF"));
}

#[test]
fn damaged_numbers_are_refused_as_they_are_read() {
    let wrong = [
        // An integer that ends in the middle, in a run and in packed form.
        [int(8, 3), vec![8 << 3, 0x80]].concat(),
        bytes(8, &[&[3, 0x80]]),
        // A float of two bytes, and packed floats of five.
        [float(1.0), vec![7 << 3 | 5, 0, 0]].concat(),
        bytes(7, &[&[0; 5]]),
        // A string that is longer than the rest.
        [text(9, "a"), vec![9 << 3 | 2, 100]].concat(),
        // Other types.
        [int(8, 3), vec![8 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0]].concat(),
        vec![7 << 3, 1],
    ];
    for fields in wrong {
        let error = with_attribute(&fields).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Format { message: "AttributeProto", .. }),
            "{fields:?}: {error}"
        );
    }
}
