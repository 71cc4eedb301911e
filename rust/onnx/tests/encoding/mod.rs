//! Small models encoded byte by byte, for cases that no exporter writes.
#![allow(dead_code)] // each test file uses its own part

use std::path::Path;

/// The data of [`external`], as in `weights.bin`.
pub(crate) const WEIGHTS: [u8; 8] = [0, 0, 0xc0, 0x3f, 0, 0, 0x20, 0xc1];

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 0x7f {
        out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
    out
}

/// The tag and length of a field of `len` bytes.
pub(crate) fn head(number: u64, len: usize) -> Vec<u8> {
    [varint(number << 3 | 2), varint(len as u64)].concat()
}

/// A field of bytes: a string, or a message given as its fields.
pub(crate) fn bytes(number: u64, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    [head(number, body.len()), body].concat()
}

/// A string.
pub(crate) fn text(number: u64, value: &str) -> Vec<u8> {
    bytes(number, &[value.as_bytes()])
}

/// An integer.
pub(crate) fn int(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

/// The fields of a tensor of two floats.
pub(crate) fn tensor(name: &str) -> Vec<u8> {
    [int(1, 2), int(2, 1), text(8, name), bytes(9, &[&WEIGHTS])].concat()
}

/// The fields of a tensor of two floats in `weights.bin`.
pub(crate) fn external(name: &str) -> Vec<u8> {
    external_in(name, "weights.bin")
}

/// The fields of a tensor of two floats in this file.
pub(crate) fn external_in(name: &str, location: &str) -> Vec<u8> {
    let location = bytes(13, &[&text(1, "location"), &text(2, location)]);
    [int(1, 2), int(2, 1), text(8, name), location, int(14, 1)].concat()
}

/// The fields of a node.
pub(crate) fn node(op_type: &str, input: &[&str], output: &[&str], attributes: &[u8]) -> Vec<u8> {
    let input: Vec<u8> = input.iter().flat_map(|name| text(1, name)).collect();
    let output: Vec<u8> = output.iter().flat_map(|name| text(2, name)).collect();
    [input, output, text(4, op_type), attributes.to_vec()].concat()
}

/// A field with a named attribute of any `value`.
pub(crate) fn attribute(value: &[u8]) -> Vec<u8> {
    bytes(5, &[&text(1, "value"), value])
}

/// The fields of a graph that computes `y` from `x`, and `more`.
pub(crate) fn graph(more: &[&[u8]]) -> Vec<u8> {
    let identity = bytes(1, &[&node("Identity", &["x"], &["y"], &[])]);
    let (x, y) = (bytes(11, &[&text(1, "x")]), bytes(12, &[&text(1, "y")]));
    [identity, text(2, "g"), x, y, more.concat()].concat()
}

/// A model of this IR version around a [`graph`], and `more`.
pub(crate) fn model(ir: u64, graph: &[u8], more: &[u8]) -> Vec<u8> {
    let opset = bytes(8, &[&int(2, 17)]);
    [int(1, ir), bytes(7, &[graph]), opset, more.to_vec()].concat()
}

/// Writes a model as `model.onnx`, with `weights.bin` in the same folder.
pub(crate) fn write_beside_weights(folder: &Path, model: &[u8]) -> std::path::PathBuf {
    std::fs::write(folder.join("weights.bin"), WEIGHTS).unwrap();
    let path = folder.join("model.onnx");
    std::fs::write(&path, model).unwrap();
    path
}
