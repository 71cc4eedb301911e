//! Options as Python gives them, a dict with a key for each.

use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::errors;

/// What is asked for, out of a dict; a value of another type than expected is refused under the name
/// that the option has for its user.
pub(crate) struct Asked<T>(pub(crate) T);

/// Options that Python functions call otherwise than their keys.
const NAMES: &[(&str, &str)] = &[
    ("exclude", "excluded_layers"),
    ("include", "included_layers"),
    ("layer_types", "layer_dtype"),
];

/// A value is shown up to so many characters.
const SHOWN: usize = 60;

impl<'a, 'py, T> FromPyObject<'a, 'py> for Asked<T>
where
    T: FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Asked<T>> {
        object.extract::<T>().map(Asked).map_err(|error| refused(&object, error))
    }
}

/// The same error, of the option that it is about.
fn refused(object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = object.py();
    let told = error.value(py).to_string();
    let Some((_, key)) = told.rsplit_once('.') else { return error };
    let Ok(value) = object.get_item(key) else { return error };
    let shown = value.repr().map(|text| text.to_string()).unwrap_or_default();
    let shown: String = shown.chars().take(SHOWN).collect();
    let why = error.cause(py).map_or(told.clone(), |cause| cause.value(py).to_string());
    let name = NAMES.iter().find(|(from, _)| *from == key).map_or(key, |(_, name)| name);
    errors::of_option(py, name, &format!("is {shown}: {why}"))
}
