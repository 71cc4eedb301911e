//! The numbers of an attribute, decoded when they are first read.

use std::ops::Deref;
use std::sync::OnceLock;

use super::{Bytes, Error, Field, Rope};
use crate::wire::{Reader, Span, Wire};

/// The numbers of a repeated field. They are decoded when they are first read: a tree ensemble has
/// millions of them that are only copied.
// Boxed, so that an attribute without numbers stays small.
#[derive(Clone, Debug, Default)]
pub struct Numbers<T>(Option<Box<List<T>>>);

#[derive(Clone, Debug, Default)]
struct List<T> {
    /// Tags and values as encoded in the file, in order; empty for numbers from elsewhere.
    encoded: Vec<Bytes>,
    values: OnceLock<Vec<T>>,
}

/// A number that a repeated field can hold.
pub(crate) trait Number: Copy {
    /// Appends the values of a field, packed or not.
    fn append(field: &Field, values: &mut Vec<Self>) -> Result<(), Error>;

    /// Refuses a field with other values.
    fn check(field: &Field) -> Result<(), Error>;

    fn put(self, out: &mut Rope, number: u32);
}

impl Number for f32 {
    fn append(field: &Field, values: &mut Vec<f32>) -> Result<(), Error> {
        field.floats_into(values)
    }

    fn check(field: &Field) -> Result<(), Error> {
        match &field.wire {
            Wire::Fixed32(_) => Ok(()),
            // Of packed floats, only the length can be wrong.
            Wire::Len(span) if span.bytes.len().is_multiple_of(4) => Ok(()),
            _ => field.floats_into(&mut Vec::new()),
        }
    }

    fn put(self, out: &mut Rope, number: u32) {
        out.float(number, self);
    }
}

impl Number for i64 {
    fn append(field: &Field, values: &mut Vec<i64>) -> Result<(), Error> {
        field.ints_into(values)
    }

    fn check(field: &Field) -> Result<(), Error> {
        match field.wire {
            Wire::Varint(_) => Ok(()),
            _ => field.ints_into(&mut Vec::new()),
        }
    }

    fn put(self, out: &mut Rope, number: u32) {
        out.int(number, self);
    }
}

#[allow(private_bounds)] // its methods are for this crate alone
impl<T: Number> Numbers<T> {
    /// Appends a run of fields that is already checked, except for the first.
    pub(super) fn push(&mut self, run: &Field) -> Result<(), Error> {
        T::check(run)?;
        let list = self
            .0
            .get_or_insert_with(|| Box::new(List { encoded: Vec::new(), values: OnceLock::new() }));
        list.encoded.push(run.encoded.clone());
        list.values = OnceLock::new();
        Ok(())
    }

    pub(super) fn encode(&self, out: &mut Rope, number: u32) {
        match self.encoded() {
            Some(runs) => runs.iter().for_each(|run| out.push(run)),
            None => self.iter().for_each(|value| value.put(out, number)),
        }
    }

    /// The encoded numbers; `None` if they do not come from a file.
    pub fn encoded(&self) -> Option<&[Bytes]> {
        self.0.as_ref().map(|list| &list.encoded[..]).filter(|runs| !runs.is_empty())
    }

    /// Whether there are any, without decoding them.
    pub(super) fn holds_any(&self) -> bool {
        self.encoded().is_some() || !self.is_empty()
    }
}

fn decoded<T: Number>(encoded: &[Bytes]) -> Vec<T> {
    let mut values = Vec::new();
    for run in encoded {
        let mut reader = Reader::new(Span::whole(run.clone()), "AttributeProto");
        // The fields were checked when they were read.
        while let Ok(Some(field)) = reader.next_field() {
            let _ = T::append(&field, &mut values);
        }
    }
    values
}

#[allow(private_bounds)] // the trait is for this crate alone
impl<T: Number> Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Some(list) => list.values.get_or_init(|| decoded(&list.encoded)),
            None => &[],
        }
    }
}

impl<T> From<Vec<T>> for Numbers<T> {
    fn from(values: Vec<T>) -> Numbers<T> {
        Numbers(Some(Box::new(List { encoded: Vec::new(), values: values.into() })))
    }
}
