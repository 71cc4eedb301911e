//! `ValueInfoProto` and the types of values.

use super::{
    Bytes, DataType, Encode, Error, Field, Message, Raw, Rope, put_messages, put_name, put_rest,
    put_string,
};

/// `ValueInfoProto`: the name and type of a value.
#[derive(Clone, Debug, Default)]
pub struct ValueInfoProto {
    /// Name of the value.
    pub name: String,
    /// Its type, if the exporter wrote one.
    pub value_type: Option<Raw<TypeProto>>,
    pub(crate) rest: Vec<Bytes>,
}

message!(ValueInfoProto, "ValueInfoProto", self, field, {
    1 => self.name = field.string()?,
    2 => Raw::read_into(&mut self.value_type, field.span()?.clone())?,
});

impl Encode for ValueInfoProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        put_name(&mut out, 1, &self.name);
        put_messages(&mut out, 2, self.value_type.as_slice());
        put_rest(&mut out, &self.rest);
        out
    }
}

impl ValueInfoProto {
    /// A value of a tensor type; `shape` is `None` when even the rank is unknown.
    pub fn new(
        name: impl Into<String>,
        dtype: DataType,
        shape: Option<Vec<Dimension>>,
    ) -> ValueInfoProto {
        let dim = |shape: Vec<Dimension>| shape.into_iter().map(Raw::new).collect();
        let shape = shape.map(|shape| {
            Raw::new(TensorShapeProto { dim: dim(shape), ..TensorShapeProto::default() })
        });
        let elem_type = dtype.number();
        let tensor = TensorTypeProto { elem_type, shape, ..TensorTypeProto::default() };
        let value_type = TypeProto { tensor: Some(Raw::new(tensor)), ..TypeProto::default() };
        let value_type = Some(Raw::new(value_type));
        ValueInfoProto { name: name.into(), value_type, ..ValueInfoProto::default() }
    }

    /// The tensor type; `None` for sequences, maps, optionals and untyped values.
    pub fn tensor_type(&self) -> Option<&TensorTypeProto> {
        self.value_type.as_ref()?.tensor.as_deref()
    }
}

/// `TypeProto`, of which only tensor types are interpreted.
#[derive(Clone, Debug, Default)]
pub struct TypeProto {
    /// The type of a tensor.
    pub tensor: Option<Raw<TensorTypeProto>>,
    rest: Vec<Bytes>,
}

message!(TypeProto, "TypeProto", self, field, {
    1 => Raw::read_into(&mut self.tensor, field.span()?.clone())?,
});

impl Encode for TypeProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        put_messages(&mut out, 1, self.tensor.as_slice());
        put_rest(&mut out, &self.rest);
        out
    }
}

/// `TypeProto.Tensor`.
#[derive(Clone, Debug, Default)]
pub struct TensorTypeProto {
    /// Number of the element type.
    pub elem_type: i32,
    /// The shape; `None` when even the rank is unknown.
    pub shape: Option<Raw<TensorShapeProto>>,
    rest: Vec<Bytes>,
}

message!(TensorTypeProto, "TypeProto.Tensor", self, field, {
    1 => self.elem_type = field.int32()?,
    2 => Raw::read_into(&mut self.shape, field.span()?.clone())?,
});

impl Encode for TensorTypeProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        out.int(1, i64::from(self.elem_type));
        put_messages(&mut out, 2, self.shape.as_slice());
        put_rest(&mut out, &self.rest);
        out
    }
}

/// `TensorShapeProto`.
#[derive(Clone, Debug, Default)]
pub struct TensorShapeProto {
    /// One entry per axis.
    pub dim: Vec<Raw<Dimension>>,
    rest: Vec<Bytes>,
}

message!(TensorShapeProto, "TensorShapeProto", self, field, {
    1 => self.dim.push(Raw::read(field.span()?.clone())?),
});

impl Encode for TensorShapeProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        put_messages(&mut out, 1, &self.dim);
        put_rest(&mut out, &self.rest);
        out
    }
}

/// `TensorShapeProto.Dimension`.
#[derive(Clone, Debug, Default)]
pub struct Dimension {
    /// A fixed dimension.
    pub value: Option<i64>,
    /// The name of a dynamic dimension.
    pub param: Option<String>,
    rest: Vec<Bytes>,
}

message!(Dimension, "TensorShapeProto.Dimension", self, field, {
    1 => self.value = Some(field.int()?),
    2 => self.param = Some(field.string()?),
});

impl Encode for Dimension {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        if let Some(value) = self.value {
            out.int(1, value);
        }
        put_string(&mut out, 2, self.param.as_ref());
        put_rest(&mut out, &self.rest);
        out
    }
}

impl Dimension {
    /// A fixed dimension.
    pub fn fixed(length: i64) -> Dimension {
        Dimension { value: Some(length), ..Dimension::default() }
    }

    /// A dynamic dimension with a name.
    pub fn named(name: impl Into<String>) -> Dimension {
        Dimension { param: Some(name.into()), ..Dimension::default() }
    }
}
