//! `TensorProto` and `SparseTensorProto`: constants.

use super::{
    Bytes, DataType, Encode, Error, ErrorKind, Field, Message, Raw, Rope, Tensor, put_messages,
    put_name, put_rest,
};

/// `SparseTensorProto`, of which only the name is interpreted.
#[derive(Clone, Debug, Default)]
pub struct SparseTensorProto {
    /// The nonzero values; their name is that of the sparse tensor.
    pub values: Option<Raw<TensorProto>>,
    rest: Vec<Bytes>,
}

message!(SparseTensorProto, "SparseTensorProto", self, field, {
    1 => {
        Raw::read_into(&mut self.values, field.span()?.clone())?;
        self.values.iter().try_for_each(|values| values.refuse_external())?;
    },
    2 => {
        Raw::<TensorProto>::read(field.span()?.clone())?.refuse_external()?;
        return Ok(false);
    },
});

impl Encode for SparseTensorProto {
    fn encode(&self) -> Rope {
        let mut out = Rope::default();
        put_messages(&mut out, 1, self.values.as_slice());
        put_rest(&mut out, &self.rest);
        out
    }
}

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
    /// The dimensions.
    pub dims: Vec<i64>,
    /// Number of the element type.
    pub data_type: i32,
    /// The elements as bytes.
    pub raw_data: Option<Bytes>,
    /// A comment for people.
    pub doc_string: String,
    /// The elements in typed fields; each run has the number of its field.
    pub(crate) typed: Vec<TypedRun>,
    /// The location of the elements when `data_location` is external.
    pub external_data: Vec<(String, String)>,
    /// `TensorProto.DataLocation`: 1 for external.
    pub data_location: i32,
    pub(crate) rest: Vec<Bytes>,
}

/// Elements of a tensor in one of the fields `float_data`, `int32_data`, ….
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
    12 => self.doc_string = field.string()?,
    13 => {
        let mut entry = StringStringEntryProto::default();
        entry.merge(field.span()?.clone())?;
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
        put_name(&mut out, 12, &self.doc_string);
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
    /// A new tensor with its elements in `raw_data`.
    pub fn new(name: impl Into<String>, tensor: &Tensor) -> TensorProto {
        TensorProto {
            name: name.into(),
            dims: tensor.shape.iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect(),
            data_type: tensor.dtype.number(),
            raw_data: Some(tensor.data.clone()),
            ..Default::default()
        }
    }

    /// The element type; `None` when ONNX does not define the number.
    pub fn dtype(&self) -> Option<DataType> {
        DataType::from_number(self.data_type)
    }

    /// Whether the elements are of one of the four floating-point types that models compute in.
    pub fn is_float(&self) -> bool {
        self.dtype().is_some_and(DataType::is_float)
    }

    /// Whether the elements are in another file.
    pub fn is_external(&self) -> bool {
        self.data_location == 1
    }

    /// The value of `key` in `external_data`.
    pub(crate) fn external_entry(&self, key: &str) -> Option<&str> {
        self.external_data.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Refuses external data in messages that are copied as they are: a copy of the model would
    /// refer to a file that it does not have.
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
