//! `ModelProto` and its parts outside the graph.

use super::attribute::read_attribute;
use super::node::{canonical_domain, read_node};
use super::{
    AttributeProto, Bytes, Encode, Error, Field, GraphProto, Message, NodeProto, Raw, Rope,
    TensorProto, put_messages, put_name, put_rest, put_string,
};

/// `ModelProto`.
#[derive(Clone, Debug, Default)]
pub struct ModelProto {
    /// Version of the file format.
    pub ir_version: i64,
    /// Imported opsets, by domain.
    pub opset_import: Vec<Raw<OperatorSetIdProto>>,
    /// The tool that wrote the file.
    pub producer_name: Option<String>,
    /// Version of that tool.
    pub producer_version: Option<String>,
    /// Version of the model itself.
    pub model_version: Option<i64>,
    /// The main graph.
    pub graph: Option<Raw<GraphProto>>,
    /// Functions local to the model.
    pub functions: Vec<Raw<FunctionProto>>,
    pub(crate) rest: Vec<Bytes>,
}

message!(ModelProto, "ModelProto", self, field, {
    1 => self.ir_version = field.int()?,
    2 => self.producer_name = Some(field.string()?),
    3 => self.producer_version = Some(field.string()?),
    5 => self.model_version = Some(field.int()?),
    7 => Raw::read_into(&mut self.graph, field.span()?.clone())?,
    8 => self.opset_import.push(Raw::read(field.span()?.clone())?),
    20 => {
        // Training information is copied as it is, but its data must not be external.
        Raw::<TrainingInfoProto>::read(field.span()?.clone())?;
        return Ok(false);
    },
    25 => self.functions.push(Raw::read(field.span()?.clone())?),
});

impl Encode for ModelProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        out.int(1, self.ir_version);
        put_string(&mut out, 2, self.producer_name.as_ref());
        put_string(&mut out, 3, self.producer_version.as_ref());
        if let Some(version) = self.model_version {
            out.int(5, version);
        }
        put_messages(&mut out, 7, self.graph.as_slice());
        put_messages(&mut out, 8, &self.opset_import);
        put_messages(&mut out, 25, &self.functions);
        put_rest(&mut out, &self.rest);
        out
    }
}

/// `OperatorSetIdProto`.
#[derive(Clone, Debug, Default)]
pub struct OperatorSetIdProto {
    /// The domain; empty for ONNX's own operators.
    pub domain: String,
    /// Version of the opset.
    pub version: i64,
    rest: Vec<Bytes>,
}

message!(OperatorSetIdProto, "OperatorSetIdProto", self, field, {
    1 => self.domain = field.string()?,
    2 => self.version = field.int()?,
});

impl Encode for OperatorSetIdProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        put_name(&mut out, 1, &self.domain);
        out.int(2, self.version);
        put_rest(&mut out, &self.rest);
        out
    }
}

impl OperatorSetIdProto {
    /// An opset version of a domain; empty for ONNX's own.
    pub fn new(domain: impl Into<String>, version: i64) -> OperatorSetIdProto {
        OperatorSetIdProto { domain: domain.into(), version, ..OperatorSetIdProto::default() }
    }

    /// Whether this is the opset of a domain; ONNX's own has two names.
    pub fn is_of(&self, domain: &str) -> bool {
        canonical_domain(&self.domain) == canonical_domain(domain)
    }

    /// Version 1 of ONNX's own operators, the default of models without opset imports.
    pub(crate) fn first() -> OperatorSetIdProto {
        OperatorSetIdProto { version: 1, ..OperatorSetIdProto::default() }
    }
}

/// `TrainingInfoProto`, which is checked but not interpreted.
#[derive(Clone, Debug, Default)]
struct TrainingInfoProto {
    rest: Vec<Bytes>,
}

message!(TrainingInfoProto, "TrainingInfoProto", self, field, {
    1 | 2 => {
        let graph = Raw::<GraphProto>::read(field.span()?.clone())?;
        graph.tensors().try_for_each(TensorProto::refuse_external)?;
    },
});

/// `FunctionProto`: a named subgraph that nodes call like an operator.
#[derive(Clone, Debug, Default)]
pub struct FunctionProto {
    /// Name of the function, which is the `op_type` of its calls.
    pub name: String,
    /// Domain of the function.
    pub domain: String,
    /// Names of its inputs.
    pub input: Vec<String>,
    /// Names of its outputs.
    pub output: Vec<String>,
    /// Its body.
    pub node: Vec<Raw<NodeProto>>,
    /// Opsets of the body, by domain.
    pub opset_import: Vec<Raw<OperatorSetIdProto>>,
    /// Names of attributes that calls must set.
    pub attribute: Vec<String>,
    /// Attributes that calls may omit, with their defaults.
    pub attribute_proto: Vec<Raw<AttributeProto>>,
    /// Distinguishes functions with the same name.
    pub overload: String,
    rest: Vec<Bytes>,
}

message!(FunctionProto, "FunctionProto", self, field, {
    1 => self.name = field.string()?,
    4 => self.input.push(field.string()?),
    5 => self.output.push(field.string()?),
    6 => self.attribute.push(field.string()?),
    7 => self.node.push(read_node(field)?),
    9 => self.opset_import.push(Raw::read(field.span()?.clone())?),
    10 => self.domain = field.string()?,
    11 => self.attribute_proto.push(read_attribute(field)?),
    13 => self.overload = field.string()?,
});

impl Encode for FunctionProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        out.string(1, &self.name);
        self.input.iter().for_each(|name| out.string(4, name));
        self.output.iter().for_each(|name| out.string(5, name));
        self.attribute.iter().for_each(|name| out.string(6, name));
        put_messages(&mut out, 7, &self.node);
        put_messages(&mut out, 9, &self.opset_import);
        put_name(&mut out, 10, &self.domain);
        put_messages(&mut out, 11, &self.attribute_proto);
        put_name(&mut out, 13, &self.overload);
        put_rest(&mut out, &self.rest);
        out
    }
}

impl FunctionProto {
    /// All tensors of the function and of its subgraphs.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorProto> {
        let mut all = Vec::new();
        let inner = self.node.iter().flat_map(|node| &node.attribute);
        inner.chain(&self.attribute_proto).for_each(|attribute| attribute.collect(&mut all));
        all.into_iter()
    }
}
