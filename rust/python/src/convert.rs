//! Rust values as Python objects: the one serde serializer from results to dicts and lists.
//!
//! The objects equal what `json.loads` reads from the JSON form: structs and maps are dicts, enum
//! variants are strings or dicts of one key, non-finite floats are `None`.

use std::fmt::{self, Display};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use pyo3::{IntoPyObject, IntoPyObjectExt};
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use crate::errors;

/// The dicts, lists, strings and numbers of `value`.
pub(crate) fn to_python<'py>(
    py: Python<'py>,
    value: &(impl Serialize + ?Sized),
) -> PyResult<Bound<'py, PyAny>> {
    value.serialize(Converter { py, exact: false }).map_err(|Failure(error)| error)
}

/// The same, with the doubles that equal numbers of float32, not those that have their digits.
pub(crate) fn to_exact_python<'py>(
    py: Python<'py>,
    value: &(impl Serialize + ?Sized),
) -> PyResult<Bound<'py, PyAny>> {
    value.serialize(Converter { py, exact: true }).map_err(|Failure(error)| error)
}

/// The JSON form of `value`.
pub(crate) fn json(py: Python<'_>, value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| errors::internal(py, &error.to_string()))
}

type Object<'py> = Bound<'py, PyAny>;

/// A Python exception as an error of serde.
#[derive(Debug)]
struct Failure(PyErr);

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Failure {}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure(error)
    }
}

impl serde::ser::Error for Failure {
    fn custom<T: Display>(message: T) -> Failure {
        Failure(PyValueError::new_err(message.to_string()))
    }
}

#[derive(Clone, Copy)]
struct Converter<'py> {
    py: Python<'py>,
    /// Whether a number of float32 becomes the double that equals it.
    exact: bool,
}

impl<'py> Converter<'py> {
    fn object(self, value: impl IntoPyObject<'py>) -> Result<Object<'py>, Failure> {
        Ok(value.into_bound_py_any(self.py)?)
    }

    fn items(self, variant: Option<&'static str>) -> Items<'py> {
        Items { each: self, list: PyList::empty(self.py), variant }
    }

    fn fields(self, variant: Option<&'static str>) -> Fields<'py> {
        Fields { each: self, dict: PyDict::new(self.py), key: None, variant }
    }
}

/// `value`, or for data of an enum variant the dict of one key that JSON has for it.
fn tagged<'py>(
    py: Python<'py>,
    variant: Option<&'static str>,
    value: Object<'py>,
) -> Result<Object<'py>, Failure> {
    let Some(variant) = variant else { return Ok(value) };
    let tagged = PyDict::new(py);
    tagged.set_item(PyString::intern(py, variant), value)?;
    Ok(tagged.into_any())
}

macro_rules! plain {
    ($($method:ident: $kind:ty),* $(,)?) => {$(
        fn $method(self, value: $kind) -> Result<Object<'py>, Failure> {
            self.object(value)
        }
    )*};
}

impl<'py> Serializer for Converter<'py> {
    type Ok = Object<'py>;
    type Error = Failure;
    type SerializeSeq = Items<'py>;
    type SerializeTuple = Items<'py>;
    type SerializeTupleStruct = Items<'py>;
    type SerializeTupleVariant = Items<'py>;
    type SerializeMap = Fields<'py>;
    type SerializeStruct = Fields<'py>;
    type SerializeStructVariant = Fields<'py>;

    plain! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_char: char,
        serialize_str: &str,
    }

    fn serialize_f32(self, value: f32) -> Result<Object<'py>, Failure> {
        if self.exact {
            return self.serialize_f64(f64::from(value));
        }
        // The double with the digits of the JSON form: 0.1, not 0.10000000149011612.
        self.serialize_f64(value.to_string().parse().unwrap_or_else(|_| f64::from(value)))
    }

    fn serialize_f64(self, value: f64) -> Result<Object<'py>, Failure> {
        self.object(value.is_finite().then_some(value))
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Object<'py>, Failure> {
        Ok(PyList::new(self.py, value)?.into_any())
    }

    fn serialize_none(self) -> Result<Object<'py>, Failure> {
        Ok(self.py.None().into_bound(self.py))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Object<'py>, Failure> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Object<'py>, Failure> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Object<'py>, Failure> {
        self.serialize_none()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Object<'py>, Failure> {
        Ok(PyString::intern(self.py, variant).into_any())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Object<'py>, Failure> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Object<'py>, Failure> {
        tagged(self.py, Some(variant), value.serialize(self)?)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'py>, Failure> {
        Ok(self.items(None))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'py>, Failure> {
        Ok(self.items(None))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'py>, Failure> {
        Ok(self.items(None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'py>, Failure> {
        Ok(self.items(Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Fields<'py>, Failure> {
        Ok(self.fields(None))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Fields<'py>, Failure> {
        Ok(self.fields(None))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields<'py>, Failure> {
        Ok(self.fields(Some(variant)))
    }
}

/// A list that is being filled.
struct Items<'py> {
    each: Converter<'py>,
    list: Bound<'py, PyList>,
    variant: Option<&'static str>,
}

impl<'py> Items<'py> {
    fn push<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), Failure> {
        Ok(self.list.append(value.serialize(self.each)?)?)
    }

    fn finish(self) -> Result<Object<'py>, Failure> {
        tagged(self.each.py, self.variant, self.list.into_any())
    }
}

macro_rules! list {
    ($($name:ident: $method:ident),* $(,)?) => {$(
        impl<'py> $name for Items<'py> {
            type Ok = Object<'py>;
            type Error = Failure;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
                self.push(value)
            }

            fn end(self) -> Result<Object<'py>, Failure> {
                self.finish()
            }
        }
    )*};
}

list! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field,
}

/// A dict that is being filled.
struct Fields<'py> {
    each: Converter<'py>,
    dict: Bound<'py, PyDict>,
    /// The key of the next value of a map.
    key: Option<Object<'py>>,
    variant: Option<&'static str>,
}

impl<'py> Fields<'py> {
    fn insert<T: Serialize + ?Sized>(&self, key: Object<'py>, value: &T) -> Result<(), Failure> {
        Ok(self.dict.set_item(key, value.serialize(self.each)?)?)
    }

    fn finish(self) -> Result<Object<'py>, Failure> {
        tagged(self.each.py, self.variant, self.dict.into_any())
    }
}

impl<'py> SerializeMap for Fields<'py> {
    type Ok = Object<'py>;
    type Error = Failure;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Failure> {
        // The keys of JSON are text.
        let key = key.serialize(self.each)?;
        self.key = Some(key.str()?.into_any());
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        let missing = || <Failure as serde::ser::Error>::custom("a value without a key");
        let key = self.key.take().ok_or_else(missing)?;
        self.insert(key, value)
    }

    fn end(self) -> Result<Object<'py>, Failure> {
        self.finish()
    }
}

macro_rules! dict {
    ($($name:ident),* $(,)?) => {$(
        impl<'py> $name for Fields<'py> {
            type Ok = Object<'py>;
            type Error = Failure;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), Failure> {
                self.insert(PyString::intern(self.each.py, key).into_any(), value)
            }

            fn end(self) -> Result<Object<'py>, Failure> {
                self.finish()
            }
        }
    )*};
}

dict! { SerializeStruct, SerializeStructVariant }
