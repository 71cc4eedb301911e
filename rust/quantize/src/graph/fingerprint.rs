//! Computes a fingerprint of a model, so that results for one model are not applied to another.

use std::hash::Hasher;

use bytes::Bytes;
use quantize_rs_onnx::{AttributeProto, GraphProto, Model, NodeProto, Raw, TensorProto};

use crate::util::fnv::Fnv;

/// The number of 8-byte words that are hashed of each constant.
const HASHED_WORDS: usize = 16;

/// The size from which on the numbers of an attribute are sampled, too.
const LONG_BYTES: usize = 64 << 10;

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
        attribute.f.iter().for_each(|value| self.hash.write_u32(value.to_bits()));
        if !self.long(attribute.floats.encoded()) {
            attribute.floats.iter().for_each(|value| self.hash.write_u32(value.to_bits()));
        }
        attribute.i.iter().for_each(|value| self.hash.write_i64(*value));
        if !self.long(attribute.ints.encoded()) {
            attribute.ints.iter().for_each(|value| self.hash.write_i64(*value));
        }
        attribute.s.iter().for_each(|text| self.hash.write(text));
        attribute.t.iter().chain(&attribute.tensors).for_each(|tensor| self.tensor(tensor));
        attribute.g.iter().chain(&attribute.graphs).for_each(|graph| self.graph(graph));
    }

    /// Hashes words spread over numbers that are too many to decode. Returns whether they are.
    fn long(&mut self, encoded: Option<&[Bytes]>) -> bool {
        let runs = encoded.unwrap_or_default();
        let long = runs.iter().any(|run| run.len() > LONG_BYTES);
        for run in runs.iter().filter(|_| long) {
            self.hash.write_u64(run.len() as u64);
            self.spread(run);
        }
        long
    }

    /// Hashes words spread over a constant, so that the weights of a retrained model differ.
    fn tensor(&mut self, tensor: &TensorProto) {
        self.text(&tensor.name);
        tensor.dims.iter().for_each(|dim| self.hash.write_i64(*dim));
        let Ok(tensor) = self.model.tensor(tensor) else { return };
        self.spread(&tensor.data);
    }

    fn spread(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
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
