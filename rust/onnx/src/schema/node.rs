//! `NodeProto`: one operation.

use super::attribute::read_attribute;
use super::{
    AttributeProto, Bytes, Encode, Error, Field, GraphProto, Message, Raw, Rope, put_messages,
    put_name, put_rest,
};

/// The one name of a domain of operators: that of ONNX's own has two, the empty one and `ai.onnx`,
/// of which this is the empty one.
pub fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// `NodeProto`: one operation.
#[derive(Clone, Debug, Default)]
pub struct NodeProto {
    /// Names of the inputs; empty for an omitted input.
    pub input: Vec<String>,
    /// Names of the outputs; empty for an omitted output.
    pub output: Vec<String>,
    /// Name of the node; may be empty, and in practice need not be unique.
    pub name: String,
    /// The operator.
    pub op_type: String,
    /// The operator's domain; empty or `ai.onnx` for ONNX's own.
    pub domain: String,
    /// Attributes.
    pub attribute: Vec<Raw<AttributeProto>>,
    /// Which of several functions of the same name the node calls.
    pub overload: String,
    rest: Vec<Bytes>,
}

message!(NodeProto, "NodeProto", self, field, {
    1 => self.input.push(field.string()?),
    2 => self.output.push(field.string()?),
    3 => self.name = field.string()?,
    4 => self.op_type = field.string()?,
    5 => self.attribute.push(read_attribute(field)?),
    7 => self.domain = field.string()?,
    8 => self.overload = field.string()?,
});

/// Reads a node. One without an operator is refused here, so that two bytes cannot allocate
/// hundreds.
pub(super) fn read_node(field: &Field) -> Result<Raw<NodeProto>, Error> {
    let node = Raw::<NodeProto>::read(field.span()?.clone())?;
    if node.op_type.is_empty() {
        return Err(Field { message: NodeProto::NAME, ..field.clone() }
            .wrong(format!("{}: it has no op_type", node.label())));
    }
    Ok(node)
}

impl Encode for NodeProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        self.input.iter().for_each(|name| out.string(1, name));
        self.output.iter().for_each(|name| out.string(2, name));
        put_name(&mut out, 3, &self.name);
        out.string(4, &self.op_type);
        put_messages(&mut out, 5, &self.attribute);
        put_name(&mut out, 7, &self.domain);
        put_name(&mut out, 8, &self.overload);
        put_rest(&mut out, &self.rest);
        out
    }
}

impl NodeProto {
    /// A node with one of ONNX's own operators.
    pub fn new(
        name: impl Into<String>,
        op_type: &str,
        input: Vec<String>,
        output: Vec<String>,
        attribute: Vec<Raw<AttributeProto>>,
    ) -> NodeProto {
        let (name, op_type) = (name.into(), op_type.to_owned());
        NodeProto { input, output, name, op_type, attribute, ..NodeProto::default() }
    }

    /// The attribute with this name.
    pub fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.attribute.iter().find(|attribute| attribute.name == name).map(|kept| &**kept)
    }

    /// An integer attribute, or its default.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).and_then(|attribute| attribute.i).unwrap_or(default)
    }

    /// A float attribute, or its default.
    pub fn float(&self, name: &str, default: f32) -> f32 {
        self.attribute(name).and_then(|attribute| attribute.f).unwrap_or(default)
    }

    /// Whether the operator is ONNX's own.
    pub fn is_onnx(&self) -> bool {
        canonical_domain(&self.domain).is_empty()
    }

    /// The subgraphs of the node: bodies of `If`, `Loop`, `Scan`.
    pub fn subgraphs(&self) -> impl Iterator<Item = &GraphProto> {
        self.attribute.iter().flat_map(|attribute| attribute.subgraphs())
    }

    /// The name of the node, or of its first output if it has none.
    pub fn named(&self) -> &str {
        let output = || self.output.iter().find(|name| !name.is_empty());
        match self.name.as_str() {
            "" => output().map_or("", String::as_str),
            name => name,
        }
    }

    /// A label for messages: `` node `/layer1/conv` (Conv) ``.
    pub fn label(&self) -> String {
        let op_type = &self.op_type;
        match (self.name.is_empty(), self.named()) {
            (true, "") => format!("unnamed node ({op_type})"),
            (true, output) => format!("node making `{output}` ({op_type})"),
            (false, name) => format!("node `{name}` ({op_type})"),
        }
    }
}
