//! `GraphProto`.

use super::node::read_node;
use super::{
    Bytes, Encode, Error, Field, Message, NodeProto, Raw, Rope, SparseTensorProto, TensorProto,
    ValueInfoProto, put_messages, put_rest, put_string,
};

/// `GraphProto`.
#[derive(Clone, Debug, Default)]
pub struct GraphProto {
    /// Nodes.
    pub node: Vec<Raw<NodeProto>>,
    /// Name of the graph.
    pub name: Option<String>,
    /// Initializers: constant tensors.
    pub initializer: Vec<Raw<TensorProto>>,
    /// Sparse initializers.
    pub sparse_initializer: Vec<Raw<SparseTensorProto>>,
    /// Inputs; before IR 4, initializers are inputs too.
    pub input: Vec<Raw<ValueInfoProto>>,
    /// Outputs.
    pub output: Vec<Raw<ValueInfoProto>>,
    /// Types of intermediate values, as far as the exporter wrote them.
    pub value_info: Vec<Raw<ValueInfoProto>>,
    pub(crate) rest: Vec<Bytes>,
}

message!(GraphProto, "GraphProto", self, field, {
    1 => self.node.push(read_node(field)?),
    2 => self.name = Some(field.string()?),
    5 => self.initializer.push(Raw::read(field.span()?.clone())?),
    11 => self.input.push(Raw::read(field.span()?.clone())?),
    12 => self.output.push(Raw::read(field.span()?.clone())?),
    13 => self.value_info.push(Raw::read(field.span()?.clone())?),
    15 => self.sparse_initializer.push(Raw::read(field.span()?.clone())?),
});

impl Encode for GraphProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        put_messages(&mut out, 1, &self.node);
        put_string(&mut out, 2, self.name.as_ref());
        put_messages(&mut out, 5, &self.initializer);
        put_messages(&mut out, 11, &self.input);
        put_messages(&mut out, 12, &self.output);
        put_messages(&mut out, 13, &self.value_info);
        put_messages(&mut out, 15, &self.sparse_initializer);
        put_rest(&mut out, &self.rest);
        out
    }
}

impl GraphProto {
    /// All dense tensors of the graph and of its subgraphs.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorProto> {
        let mut all = Vec::new();
        self.collect(&mut all);
        all.into_iter()
    }

    pub(super) fn collect<'a>(&'a self, all: &mut Vec<&'a TensorProto>) {
        all.extend(self.initializer.iter().map(|tensor| &**tensor));
        let attributes = self.node.iter().flat_map(|node| &node.attribute);
        attributes.for_each(|attribute| attribute.collect(all));
    }
}
