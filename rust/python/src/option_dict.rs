//! Options from Python: a dict with a key for each option.

use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::errors;

/// The options of a dict. A value of the wrong type raises an error with the name that the option
/// has in the Python functions.
pub(crate) struct OptionDict<T>(pub(crate) T);

/// Keys whose option has another name in the Python functions.
const NAMES: &[(&str, &str)] = &[
    ("exclude", "excluded_layers"),
    ("include", "included_layers"),
    ("layer_types", "layer_dtype"),
];

/// The number of characters that a message shows of a value.
const MAX_CHARS: usize = 60;

impl<'a, 'py, T> FromPyObject<'a, 'py> for OptionDict<T>
where
    T: FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<OptionDict<T>> {
        object.extract::<T>().map(OptionDict).map_err(|error| of_key(&object, error))
    }
}

/// The error with the name of the option that has the wrong type.
fn of_key(object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = object.py();
    let text = error.value(py).to_string();
    let Some((_, key)) = text.rsplit_once('.') else { return error };
    let Ok(value) = object.get_item(key) else { return error };
    let shown = value.repr().map(|repr| repr.to_string()).unwrap_or_default();
    let shown: String = shown.chars().take(MAX_CHARS).collect();
    let why = error.cause(py).map_or(text.clone(), |cause| cause.value(py).to_string());
    let name = NAMES.iter().find(|(from, _)| *from == key).map_or(key, |(_, name)| name);
    errors::of_option(py, name, &format!("is {shown}: {why}"))
}
