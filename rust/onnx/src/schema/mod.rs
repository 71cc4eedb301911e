//! The messages of the ONNX schema (IR version 14, ONNX 1.23), as far as this project interprets
//! them.
//!
//! Each message has the interpreted fields and, in `rest`, every other field as encoded in the
//! file: documentation, metadata, annotations, and the fields of later schemas. Unedited messages
//! are written as the bytes they were read from.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::wire::{Field, Reader, Rope, Span};
use crate::{DataType, Tensor};

/// A message that can be read.
pub(crate) trait Message: Clone + Default {
    const NAME: &'static str;

    /// Reads one field; `false` when the field is not interpreted.
    fn take(&mut self, field: &Field) -> Result<bool, Error>;

    /// The uninterpreted fields.
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

/// A message that can be encoded.
pub(crate) trait Encode: Message {
    fn encode(&self) -> Rope;
}

/// A message with the bytes it was read from, until it is edited.
#[derive(Clone, Debug, Default)]
pub struct Raw<T> {
    // Boxed, so that an unset field takes no more than a pointer: a small file can have millions of
    // messages. Shared, so that copying a model for a few edits is fast.
    value: Arc<T>,
    original: Option<Bytes>,
}

impl<T> Raw<T> {
    /// A new message.
    pub fn new(value: T) -> Raw<T> {
        Raw { value: Arc::new(value), original: None }
    }
}

impl<T: Clone> Raw<T> {
    /// The message for editing; it will be encoded again. Copies of it do not change.
    pub fn edit(&mut self) -> &mut T {
        self.original = None;
        Arc::make_mut(&mut self.value)
    }
}

impl<T> std::ops::Deref for Raw<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

#[allow(private_bounds)] // its methods are for this crate alone
impl<T: Message> Raw<T> {
    pub(crate) fn read(span: Span) -> Result<Raw<T>, Error> {
        let original = Some(span.bytes.clone());
        let mut value = T::default();
        value.merge(span)?;
        Ok(Raw { value: Arc::new(value), original })
    }

    /// Reads a singular field, which protobuf allows to be written in several parts.
    fn read_into(slot: &mut Option<Raw<T>>, span: Span) -> Result<(), Error> {
        match slot {
            None => *slot = Some(Raw::read(span)?),
            Some(kept) => kept.edit().merge(span)?,
        }
        Ok(())
    }
}

#[allow(private_bounds)] // its methods are for this crate alone
impl<T: Encode> Raw<T> {
    /// The encoded message.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.rope().parts().collect::<Vec<_>>().concat()
    }

    /// Bytes of the encoded message.
    pub fn byte_len(&self) -> usize {
        self.rope().len()
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

mod attribute;
mod graph;
mod model;
mod node;
mod numbers;
mod tensor;
mod types;

pub use attribute::AttributeProto;
pub use graph::GraphProto;
pub use model::{FunctionProto, ModelProto, OperatorSetIdProto};
pub use node::{NodeProto, canonical_domain};
pub use numbers::Numbers;
pub use tensor::{SparseTensorProto, TensorProto};
pub use types::{Dimension, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto};

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

fn put_messages<T: Encode>(out: &mut Rope, number: u32, messages: &[Raw<T>]) {
    for message in messages {
        out.message(number, message.rope());
    }
}

fn put_rest(out: &mut Rope, rest: &[Bytes]) {
    for field in rest {
        out.push(field);
    }
}
