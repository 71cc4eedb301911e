//! The messages of the ONNX schema (IR version 14, ONNX 1.23), as far as a tool must look inside.
//!
//! Each message holds the fields that are interpreted and, in `rest`, every other field as it
//! stands in the file: documentation, metadata, annotations, and whatever a later schema brings.
//! A message nobody edited is written back as the very bytes it was read from.

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::wire::{Field, Reader, Rope, Span};
use crate::{DataType, Tensor};

/// A message that can be read.
pub(crate) trait Message: Default {
    const NAME: &'static str;

    /// Takes one field in; `false` when the field is not one that is interpreted.
    fn take(&mut self, field: &Field) -> Result<bool, Error>;

    /// Where uninterpreted fields go.
    fn rest(&mut self) -> &mut Vec<Bytes>;

    fn merge(&mut self, span: Span) -> Result<(), Error> {
        let mut reader = Reader::new(span, Self::NAME);
        while let Some(field) = reader.next_field()? {
            if !self.take(&field)? {
                self.rest().push(field.encoded);
            }
        }
        Ok(())
    }
}

/// A message that can be written anew.
pub(crate) trait Encode: Message {
    fn encode(&self) -> Rope;
}

/// A message with the bytes it was read from, as long as nobody edited it.
#[derive(Clone, Debug, Default)]
pub struct Kept<T> {
    // Boxed, so that a field nobody set takes no more than a pointer: a small file can hold
    // millions of messages.
    value: Box<T>,
    original: Option<Bytes>,
}

impl<T> Kept<T> {
    /// A message of our own making.
    pub fn new(value: T) -> Kept<T> {
        Kept { value: Box::new(value), original: None }
    }

    /// The message for changing; from now on it is encoded anew.
    pub fn edit(&mut self) -> &mut T {
        self.original = None;
        &mut self.value
    }
}

impl<T> std::ops::Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

#[allow(private_bounds)] // its methods are for this crate alone
impl<T: Message> Kept<T> {
    pub(crate) fn read(span: Span) -> Result<Kept<T>, Error> {
        let original = Some(span.bytes.clone());
        let mut value = T::default();
        value.merge(span)?;
        Ok(Kept { value: Box::new(value), original })
    }

    /// Reads a singular field, which protobuf lets a file write in several pieces.
    fn read_into(slot: &mut Option<Kept<T>>, span: Span) -> Result<(), Error> {
        match slot {
            None => *slot = Some(Kept::read(span)?),
            Some(kept) => kept.edit().merge(span)?,
        }
        Ok(())
    }
}

#[allow(private_bounds)] // its methods are for this crate alone
impl<T: Encode> Kept<T> {
    /// The message as it would be written.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.rope().parts().collect::<Vec<_>>().concat()
    }

    pub(crate) fn rope(&self) -> Rope {
        match &self.original {
            Some(bytes) => {
                let mut rope = Rope::default();
                rope.push(bytes);
                rope
            }
            None => self.value.encode(),
        }
    }
}

macro_rules! message {
    ($type:ty, $name:literal, $self:ident, $field:ident, { $($arm:tt)* }) => {
        impl Message for $type {
            const NAME: &'static str = $name;
            fn take(&mut $self, $field: &Field) -> Result<bool, Error> {
                match $field.number {
                    $($arm)*
                    _ => return Ok(false),
                }
                Ok(true)
            }
            fn rest(&mut self) -> &mut Vec<Bytes> {
                &mut self.rest
            }
        }
    };
}

/// `ModelProto`.
#[derive(Clone, Debug, Default)]
pub struct ModelProto {
    /// Version of the file format.
    pub ir_version: i64,
    /// Operator sets in use, by domain.
    pub opset_import: Vec<Kept<OperatorSetIdProto>>,
    /// Tool that made the file.
    pub producer_name: Option<String>,
    /// Version of that tool.
    pub producer_version: Option<String>,
    /// Version of the model itself.
    pub model_version: Option<i64>,
    /// The main graph.
    pub graph: Option<Kept<GraphProto>>,
    /// Functions local to the model.
    pub functions: Vec<Kept<FunctionProto>>,
    pub(crate) rest: Vec<Bytes>,
}

message!(ModelProto, "ModelProto", self, field, {
    1 => self.ir_version = field.int()?,
    2 => self.producer_name = Some(field.string()?),
    3 => self.producer_version = Some(field.string()?),
    5 => self.model_version = Some(field.int()?),
    7 => Kept::read_into(&mut self.graph, field.span()?.clone())?,
    8 => self.opset_import.push(Kept::read(field.span()?.clone())?),
    20 => {
        // Carried through, but not before a look at where its data is.
        Kept::<TrainingInfoProto>::read(field.span()?.clone())?;
        return Ok(false);
    },
    25 => self.functions.push(Kept::read(field.span()?.clone())?),
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
        put_originals(&mut out, 25, &self.functions);
        put_rest(&mut out, &self.rest);
        out
    }
}

/// `OperatorSetIdProto`.
#[derive(Clone, Debug, Default)]
pub struct OperatorSetIdProto {
    /// Empty for ONNX's own operators.
    pub domain: String,
    /// Version of the operator set.
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
    /// The first version of ONNX's own operators, which models that name none mean.
    pub(crate) fn first() -> OperatorSetIdProto {
        OperatorSetIdProto { version: 1, ..OperatorSetIdProto::default() }
    }
}

/// `TrainingInfoProto`, which is only looked at.
#[derive(Clone, Debug, Default)]
struct TrainingInfoProto {
    rest: Vec<Bytes>,
}

message!(TrainingInfoProto, "TrainingInfoProto", self, field, {
    1 | 2 => {
        let graph = Kept::<GraphProto>::read(field.span()?.clone())?;
        graph.tensors().try_for_each(TensorProto::refuse_external)?;
    },
});

/// `FunctionProto`: a subgraph with a name, called like an operator.
#[derive(Clone, Debug, Default)]
pub struct FunctionProto {
    /// Name of the function, the `op_type` of its callers.
    pub name: String,
    /// Domain of the function.
    pub domain: String,
    /// Names of its inputs.
    pub input: Vec<String>,
    /// Names of its outputs.
    pub output: Vec<String>,
    /// Its body.
    pub node: Vec<Kept<NodeProto>>,
    /// Attributes that callers may leave out, with their defaults.
    pub attribute_proto: Vec<Kept<AttributeProto>>,
    rest: Vec<Bytes>,
}

message!(FunctionProto, "FunctionProto", self, field, {
    1 => self.name = field.string()?,
    4 => self.input.push(field.string()?),
    5 => self.output.push(field.string()?),
    7 => self.node.push(node(field)?),
    10 => self.domain = field.string()?,
    11 => self.attribute_proto.push(attribute(field)?),
});

impl FunctionProto {
    /// Every tensor of the function and of the graphs inside it.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorProto> {
        let mut all = Vec::new();
        let inner = self.node.iter().flat_map(|node| &node.attribute);
        inner.chain(&self.attribute_proto).for_each(|attribute| attribute.collect(&mut all));
        all.into_iter()
    }
}

/// `GraphProto`.
#[derive(Clone, Debug, Default)]
pub struct GraphProto {
    /// The operations.
    pub node: Vec<Kept<NodeProto>>,
    /// Name of the graph.
    pub name: Option<String>,
    /// Constant tensors.
    pub initializer: Vec<Kept<TensorProto>>,
    /// Constant sparse tensors.
    pub sparse_initializer: Vec<Kept<SparseTensorProto>>,
    /// Inputs; before IR 4 the initializers stand here too.
    pub input: Vec<Kept<ValueInfoProto>>,
    /// Outputs.
    pub output: Vec<Kept<ValueInfoProto>>,
    /// Types of values in between, as far as the exporter wrote them.
    pub value_info: Vec<Kept<ValueInfoProto>>,
    pub(crate) rest: Vec<Bytes>,
}

message!(GraphProto, "GraphProto", self, field, {
    1 => self.node.push(node(field)?),
    2 => self.name = Some(field.string()?),
    5 => self.initializer.push(Kept::read(field.span()?.clone())?),
    11 => self.input.push(Kept::read(field.span()?.clone())?),
    12 => self.output.push(Kept::read(field.span()?.clone())?),
    13 => self.value_info.push(Kept::read(field.span()?.clone())?),
    15 => self.sparse_initializer.push(Kept::read(field.span()?.clone())?),
});

impl Encode for GraphProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        put_messages(&mut out, 1, &self.node);
        put_string(&mut out, 2, self.name.as_ref());
        put_messages(&mut out, 5, &self.initializer);
        put_originals(&mut out, 11, &self.input);
        put_originals(&mut out, 12, &self.output);
        put_originals(&mut out, 13, &self.value_info);
        put_originals(&mut out, 15, &self.sparse_initializer);
        put_rest(&mut out, &self.rest);
        out
    }
}

impl GraphProto {
    /// Every tensor of the graph and of the graphs inside it; sparse ones aside.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorProto> {
        let mut all = Vec::new();
        self.collect(&mut all);
        all.into_iter()
    }

    fn collect<'a>(&'a self, all: &mut Vec<&'a TensorProto>) {
        all.extend(self.initializer.iter().map(|tensor| &**tensor));
        let attributes = self.node.iter().flat_map(|node| &node.attribute);
        attributes.for_each(|attribute| attribute.collect(all));
    }
}

/// `NodeProto`: one operation.
#[derive(Clone, Debug, Default)]
pub struct NodeProto {
    /// Names of the values it reads; an empty name is an input left out.
    pub input: Vec<String>,
    /// Names of the values it makes; an empty name is an output left out.
    pub output: Vec<String>,
    /// Name of the node; may be empty, and need not be unique in practice.
    pub name: String,
    /// The operator.
    pub op_type: String,
    /// The operator's domain; empty or `ai.onnx` for ONNX's own.
    pub domain: String,
    /// Named constants.
    pub attribute: Vec<Kept<AttributeProto>>,
    rest: Vec<Bytes>,
}

message!(NodeProto, "NodeProto", self, field, {
    1 => self.input.push(field.string()?),
    2 => self.output.push(field.string()?),
    3 => self.name = field.string()?,
    4 => self.op_type = field.string()?,
    5 => self.attribute.push(attribute(field)?),
    7 => self.domain = field.string()?,
});

/// Reads a node. One without an operator is refused here: two bytes must not take hundreds.
fn node(field: &Field) -> Result<Kept<NodeProto>, Error> {
    let node = Kept::<NodeProto>::read(field.span()?.clone())?;
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
        put_rest(&mut out, &self.rest);
        out
    }
}

impl NodeProto {
    /// A node of ONNX's own operators.
    pub fn new(
        name: impl Into<String>,
        op_type: &str,
        input: Vec<String>,
        output: Vec<String>,
        attribute: Vec<Kept<AttributeProto>>,
    ) -> NodeProto {
        let (name, op_type) = (name.into(), op_type.to_owned());
        NodeProto { input, output, name, op_type, attribute, ..NodeProto::default() }
    }

    /// The attribute called `name`.
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
        matches!(self.domain.as_str(), "" | "ai.onnx")
    }

    /// The graphs inside: bodies of `If`, `Loop`, `Scan`.
    pub fn subgraphs(&self) -> impl Iterator<Item = &GraphProto> {
        self.attribute.iter().flat_map(|attribute| attribute.subgraphs())
    }

    /// The name a person would look for: `` node `/layer1/conv` (Conv) ``.
    pub fn label(&self) -> String {
        match (self.name.as_str(), self.output.iter().find(|name| !name.is_empty())) {
            ("", Some(output)) => format!("node making `{output}` ({})", self.op_type),
            ("", None) => format!("unnamed node ({})", self.op_type),
            (name, _) => format!("node `{name}` ({})", self.op_type),
        }
    }
}

/// `AttributeProto`: a named constant of a node.
#[derive(Clone, Debug, Default)]
pub struct AttributeProto {
    /// Name of the attribute.
    pub name: String,
    /// `AttributeProto.AttributeType`: 1 float, 2 int, 3 string, 4 tensor, 5 graph, 7 ints, ….
    pub kind: i32,
    /// A float.
    pub f: Option<f32>,
    /// An integer.
    pub i: Option<i64>,
    /// A string.
    pub s: Option<Bytes>,
    /// A tensor.
    pub t: Option<Kept<TensorProto>>,
    /// A graph.
    pub g: Option<Kept<GraphProto>>,
    /// Floats.
    pub floats: Vec<f32>,
    /// Integers.
    pub ints: Vec<i64>,
    /// Tensors.
    pub tensors: Vec<Kept<TensorProto>>,
    /// Graphs.
    pub graphs: Vec<Kept<GraphProto>>,
    rest: Vec<Bytes>,
}

message!(AttributeProto, "AttributeProto", self, field, {
    1 => self.name = field.string()?,
    2 => self.f = Some(field.float()?),
    3 => self.i = Some(field.int()?),
    4 => self.s = Some(field.span()?.bytes.clone()),
    5 => Kept::read_into(&mut self.t, field.span()?.clone())?,
    6 => Kept::read_into(&mut self.g, field.span()?.deeper(field)?)?,
    7 => field.floats_into(&mut self.floats)?,
    8 => field.ints_into(&mut self.ints)?,
    10 => self.tensors.push(Kept::read(field.span()?.clone())?),
    11 => self.graphs.push(Kept::read(field.span()?.deeper(field)?)?),
    20 => self.kind = field.int32()?,
    22 | 23 => {
        // Carried through, but not before a look at where its data is.
        Kept::<SparseTensorProto>::read(field.span()?.clone())?;
        return Ok(false);
    },
});

/// Reads an attribute. One without a name is refused here: two bytes must not take hundreds.
fn attribute(field: &Field) -> Result<Kept<AttributeProto>, Error> {
    let attribute = Kept::<AttributeProto>::read(field.span()?.clone())?;
    if attribute.name.is_empty() {
        return Err(Field { message: AttributeProto::NAME, ..field.clone() }
            .wrong("an attribute without a name"));
    }
    Ok(attribute)
}

impl Encode for AttributeProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        out.string(1, &self.name);
        if let Some(value) = self.f {
            out.float(2, value);
        }
        if let Some(value) = self.i {
            out.int(3, value);
        }
        if let Some(value) = &self.s {
            out.bytes(4, value);
        }
        put_messages(&mut out, 5, self.t.as_slice());
        put_messages(&mut out, 6, self.g.as_slice());
        self.floats.iter().for_each(|value| out.float(7, *value));
        self.ints.iter().for_each(|value| out.int(8, *value));
        put_messages(&mut out, 10, &self.tensors);
        put_messages(&mut out, 11, &self.graphs);
        out.int(20, i64::from(self.kind));
        put_rest(&mut out, &self.rest);
        out
    }
}

impl AttributeProto {
    /// An integer attribute.
    pub fn int(name: &str, value: i64) -> AttributeProto {
        AttributeProto { name: name.to_owned(), kind: 2, i: Some(value), ..Default::default() }
    }

    /// The tensors that it is.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorProto> {
        self.t.iter().chain(&self.tensors).map(|tensor| &**tensor)
    }

    /// The graphs that it is.
    pub fn subgraphs(&self) -> impl Iterator<Item = &GraphProto> {
        self.g.iter().chain(&self.graphs).map(|graph| &**graph)
    }

    fn collect<'a>(&'a self, all: &mut Vec<&'a TensorProto>) {
        all.extend(self.tensors());
        self.subgraphs().for_each(|body| body.collect(all));
    }
}

/// `ValueInfoProto`: the name and type of a value.
#[derive(Clone, Debug, Default)]
pub struct ValueInfoProto {
    /// Name of the value.
    pub name: String,
    /// Its type, when the exporter wrote one.
    pub value_type: Option<Kept<TypeProto>>,
    rest: Vec<Bytes>,
}

message!(ValueInfoProto, "ValueInfoProto", self, field, {
    1 => self.name = field.string()?,
    2 => Kept::read_into(&mut self.value_type, field.span()?.clone())?,
});

impl ValueInfoProto {
    /// The tensor type; `None` for sequences, maps, optionals and untyped values.
    pub fn tensor_type(&self) -> Option<&TensorTypeProto> {
        self.value_type.as_ref()?.tensor.as_deref()
    }
}

/// `TypeProto`, of which only tensors are looked into.
#[derive(Clone, Debug, Default)]
pub struct TypeProto {
    /// The type of a tensor.
    pub tensor: Option<Kept<TensorTypeProto>>,
    rest: Vec<Bytes>,
}

message!(TypeProto, "TypeProto", self, field, {
    1 => Kept::read_into(&mut self.tensor, field.span()?.clone())?,
});

/// `TypeProto.Tensor`.
#[derive(Clone, Debug, Default)]
pub struct TensorTypeProto {
    /// Number of the element type.
    pub elem_type: i32,
    /// The shape; `None` when even the rank is unknown.
    pub shape: Option<Kept<TensorShapeProto>>,
    rest: Vec<Bytes>,
}

message!(TensorTypeProto, "TypeProto.Tensor", self, field, {
    1 => self.elem_type = field.int32()?,
    2 => Kept::read_into(&mut self.shape, field.span()?.clone())?,
});

/// `TensorShapeProto`.
#[derive(Clone, Debug, Default)]
pub struct TensorShapeProto {
    /// One entry an axis.
    pub dim: Vec<Kept<Dimension>>,
    rest: Vec<Bytes>,
}

message!(TensorShapeProto, "TensorShapeProto", self, field, {
    1 => self.dim.push(Kept::read(field.span()?.clone())?),
});

/// `TensorShapeProto.Dimension`.
#[derive(Clone, Debug, Default)]
pub struct Dimension {
    /// A fixed length.
    pub value: Option<i64>,
    /// The name of a length that varies.
    pub param: Option<String>,
    rest: Vec<Bytes>,
}

message!(Dimension, "TensorShapeProto.Dimension", self, field, {
    1 => self.value = Some(field.int()?),
    2 => self.param = Some(field.string()?),
});

/// `SparseTensorProto`, of which only the name is looked at.
#[derive(Clone, Debug, Default)]
pub struct SparseTensorProto {
    /// The values that are not zero; its name is the name of the sparse tensor.
    pub values: Option<Kept<TensorProto>>,
    rest: Vec<Bytes>,
}

message!(SparseTensorProto, "SparseTensorProto", self, field, {
    1 => {
        Kept::read_into(&mut self.values, field.span()?.clone())?;
        self.values.iter().try_for_each(|values| values.refuse_external())?;
    },
    2 => {
        Kept::<TensorProto>::read(field.span()?.clone())?.refuse_external()?;
        return Ok(false);
    },
});

impl SparseTensorProto {
    /// The name of the sparse tensor.
    pub fn name(&self) -> Option<&str> {
        self.values.as_deref().map(|values| values.name.as_str())
    }
}

/// `TensorProto`: a constant tensor.
#[derive(Clone, Debug, Default)]
pub struct TensorProto {
    /// Name of the value; empty inside attributes.
    pub name: String,
    /// Length of each axis.
    pub dims: Vec<i64>,
    /// Number of the element type.
    pub data_type: i32,
    /// The elements as bytes.
    pub raw_data: Option<Bytes>,
    /// The elements in typed fields, each run with the number of its field.
    pub(crate) typed: Vec<TypedRun>,
    /// Where the elements are, when `data_location` is external.
    pub external_data: Vec<(String, String)>,
    /// `TensorProto.DataLocation`: 1 for external.
    pub data_location: i32,
    pub(crate) rest: Vec<Bytes>,
}

/// Some elements of a tensor in one of the fields `float_data`, `int32_data`, ….
#[derive(Clone, Debug)]
pub(crate) struct TypedRun {
    pub(crate) field: Field,
}

message!(TensorProto, "TensorProto", self, field, {
    1 => field.ints_into(&mut self.dims)?,
    2 => self.data_type = field.int32()?,
    4..=7 | 10 | 11 => self.typed.push(TypedRun { field: field.clone() }),
    8 => self.name = field.string()?,
    9 => self.raw_data = Some(field.span()?.bytes.clone()),
    13 => {
        let entry = *Kept::<StringStringEntryProto>::read(field.span()?.clone())?.value;
        self.external_data.push((entry.key, entry.value));
    },
    14 => self.data_location = field.int32()?,
});

impl Encode for TensorProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        self.dims.iter().for_each(|dim| out.int(1, *dim));
        out.int(2, i64::from(self.data_type));
        self.typed.iter().for_each(|run| out.push(&run.field.encoded));
        put_name(&mut out, 8, &self.name);
        if let Some(data) = &self.raw_data {
            out.bytes(9, data);
        }
        for (key, value) in &self.external_data {
            let mut entry = Rope::default();
            entry.string(1, key);
            entry.string(2, value);
            out.message(13, entry);
        }
        if self.data_location != 0 {
            out.int(14, i64::from(self.data_location));
        }
        put_rest(&mut out, &self.rest);
        out
    }
}

impl TensorProto {
    /// A tensor of our own making, with its elements in `raw_data`.
    pub fn new(name: impl Into<String>, tensor: &Tensor) -> TensorProto {
        TensorProto {
            name: name.into(),
            dims: tensor.shape.iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect(),
            data_type: tensor.dtype.number(),
            raw_data: Some(tensor.data.clone()),
            ..Default::default()
        }
    }

    /// The element type; `None` when ONNX knows no such number.
    pub fn dtype(&self) -> Option<DataType> {
        DataType::from_number(self.data_type)
    }

    /// Whether the elements stand in another file.
    pub fn is_external(&self) -> bool {
        self.data_location == 1
    }

    /// What `external_data` says under `key`.
    pub(crate) fn external_entry(&self, key: &str) -> Option<&str> {
        self.external_data.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Refuses external data where it would be lost: in messages that are carried through as they
    /// stand, and so would go on naming a file that is not beside a copy of the model.
    pub(crate) fn refuse_external(&self) -> Result<(), Error> {
        if !self.is_external() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::External {
            tensor: self.name.clone(),
            location: self.external_entry("location").unwrap_or_default().to_owned(),
            what: "is only supported in initializers and tensor attributes of graphs, not in \
                   functions, sparse tensors or training information"
                .to_owned(),
        }))
    }
}

/// `StringStringEntryProto`.
#[derive(Clone, Debug, Default)]
pub(crate) struct StringStringEntryProto {
    pub(crate) key: String,
    pub(crate) value: String,
    rest: Vec<Bytes>,
}

message!(StringStringEntryProto, "StringStringEntryProto", self, field, {
    1 => self.key = field.string()?,
    2 => self.value = field.string()?,
});

fn put_string(out: &mut Rope, number: u32, value: Option<&String>) {
    if let Some(value) = value {
        out.string(number, value);
    }
}

fn put_name(out: &mut Rope, number: u32, value: &str) {
    if !value.is_empty() {
        out.string(number, value);
    }
}

fn put_messages<T: Encode>(out: &mut Rope, number: u32, messages: &[Kept<T>]) {
    for message in messages {
        out.message(number, message.rope());
    }
}

/// Messages that are never edited: what was read is what is written.
fn put_originals<T>(out: &mut Rope, number: u32, messages: &[Kept<T>]) {
    messages
        .iter()
        .filter_map(|kept| kept.original.as_ref())
        .for_each(|bytes| out.bytes(number, bytes));
}

fn put_rest(out: &mut Rope, rest: &[Bytes]) {
    for field in rest {
        out.push(field);
    }
}
