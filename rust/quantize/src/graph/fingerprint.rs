//! Computes a fingerprint of a model, so that results for one model are not applied to another.

use std::hash::Hasher;

use quantize_rs_onnx::{AttributeProto, GraphProto, Model, NodeProto, Raw, TensorProto};

use crate::util::fnv::Fnv;

/// The number of 8-byte words that are hashed of each constant.
const HASHED_WORDS: usize = 16;

/// A 64-bit FNV-1a hash of the model: its structure, its attributes, and a sample of each constant.
pub(crate) fn fingerprint(model: &Model) -> String {
    let mut print = Print { model, hash: Fnv::default() };
    print.graph(model.graph());
    for function in &model.proto().functions {
        print.nodes(&function.node);
    }
    format!("{:016x}", print.hash.finish())
}

struct Print<'m> {
    model: &'m Model,
    hash: Fnv,
}

impl Print<'_> {
    fn graph(&mut self, graph: &GraphProto) {
        self.nodes(&graph.node);
        graph.initializer.iter().for_each(|tensor| self.tensor(tensor));
    }

    fn nodes(&mut self, nodes: &[Raw<NodeProto>]) {
        for node in nodes {
            self.text(&node.op_type);
            node.input.iter().chain(&node.output).for_each(|name| self.text(name));
            node.attribute.iter().for_each(|attribute| self.attribute(attribute));
        }
    }

    fn attribute(&mut self, attribute: &AttributeProto) {
        self.text(&attribute.name);
        let floats = attribute.f.iter().chain(&attribute.floats);
        floats.for_each(|value| self.hash.write_u32(value.to_bits()));
        attribute.i.iter().chain(&attribute.ints).for_each(|value| self.hash.write_i64(*value));
        attribute.s.iter().for_each(|text| self.hash.write(text));
        attribute.t.iter().chain(&attribute.tensors).for_each(|tensor| self.tensor(tensor));
        attribute.g.iter().chain(&attribute.graphs).for_each(|graph| self.graph(graph));
    }

    /// Hashes words spread over a constant, so that the weights of a retrained model differ.
    fn tensor(&mut self, tensor: &TensorProto) {
        self.text(&tensor.name);
        tensor.dims.iter().for_each(|dim| self.hash.write_i64(*dim));
        let Ok(tensor) = self.model.tensor(tensor) else { return };
        let (words, rest) = tensor.data.as_chunks::<8>();
        for word in words.iter().step_by(words.len() / HASHED_WORDS + 1) {
            self.hash.word(u64::from_le_bytes(*word));
        }
        self.hash.write(rest);
    }

    fn text(&mut self, text: &str) {
        self.hash.write(text.as_bytes());
        self.hash.write_u8(0);
    }
}
