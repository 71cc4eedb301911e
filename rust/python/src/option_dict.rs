//! Options from Python: a dict with a key for each option.

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBool, PyDict, PyFloat, PyInt, PyMapping, PyString};
use quantize_rs::options::{self, Given, Verb};
use quantize_rs::{Config, QuantizeError};
use serde_json::{Map, Number, Value};

use crate::errors;

/// The options of a dict. A value of the wrong type raises an error with the name that the option
/// has in the Python functions.
pub(crate) struct OptionDict<T>(pub(crate) T);

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
    let shown = value.repr().map(|text| text.to_string()).unwrap_or_default();
    let shown: String = shown.chars().take(MAX_CHARS).collect();
    let why = error.cause(py).map_or(text.clone(), |cause| cause.value(py).to_string());
    errors::of_option(py, key, &format!("is {shown}: {why}"))
}

/// The options that reach a [`Config`], by any of their names; the table of options says what they
/// may be. The key `with_activations` says whether activations are quantized.
pub(crate) struct ConfigOptions {
    given: Given,
    with_activations: bool,
}

/// The key that is no option.
const WITH_ACTIVATIONS: &str = "with_activations";

impl ConfigOptions {
    /// The configuration that these options mean.
    pub(crate) fn config(&self) -> Result<Config, QuantizeError> {
        let verb = if self.with_activations { Verb::Calibrate } else { Verb::Quantize };
        let mut config = Config::from_options(&self.given, verb)?;
        if !self.with_activations {
            config.activations = None;
        }
        Ok(config)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for ConfigOptions {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<ConfigOptions> {
        let py = object.py();
        let mut with_activations = false;
        let mut given = Vec::new();
        for (key, value) in object.cast::<PyDict>()?.iter() {
            let key: String = key.extract()?;
            if key == WITH_ACTIVATIONS {
                with_activations = value.extract()?;
                continue;
            }
            let Some(json) = json(&value)? else {
                let shown: String = value.repr()?.to_string().chars().take(MAX_CHARS).collect();
                let name = options::find(&key).map_or(&*key, |row| row.name);
                let what = format!("is {shown}, which is no value of an option");
                return Err(errors::of_option(py, name, &what));
            };
            given.push((key, json));
        }
        given.retain(|(_, value)| !value.is_null());
        let given = options::canonical(given).map_err(|error| errors::raised(py, &error, None))?;
        Ok(ConfigOptions { given, with_activations })
    }
}

/// A value of Python as JSON; `None` where it has none.
fn json(value: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    if value.is_none() {
        return Ok(Some(Value::Null));
    }
    if let Ok(on) = value.cast::<PyBool>() {
        return Ok(Some(Value::Bool(on.is_true())));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(Some(Value::String(value.extract()?)));
    }
    if value.is_instance_of::<PyInt>() {
        let signed = value.extract::<i64>().map(Value::from);
        return Ok(signed.or_else(|_| value.extract::<u64>().map(Value::from)).ok());
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Number::from_f64(value.extract()?).map(Value::Number));
    }
    if let Ok(mapping) = value.cast::<PyMapping>() {
        let mut map = Map::new();
        for item in mapping.items()?.iter() {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let (Ok(name), Some(value)) = (name.extract::<String>(), json(&value)?) else {
                return Ok(None);
            };
            map.insert(name, value);
        }
        return Ok(Some(Value::Object(map)));
    }
    if let Ok(path) = value.call_method0("__fspath__") {
        return Ok(path.extract().map(Value::String).ok());
    }
    let Ok(items) = value.try_iter() else { return Ok(number(value)) };
    let mut array = Vec::new();
    for item in items {
        match json(&item?)? {
            Some(item) => array.push(item),
            None => return Ok(None),
        }
    }
    Ok(Some(Value::Array(array)))
}

/// A number or truth value that is none of Python's own types, such as numpy's.
fn number(value: &Bound<'_, PyAny>) -> Option<Value> {
    let whole = || value.call_method0("__index__").ok()?.extract::<i64>().ok().map(Value::from);
    let real = || value.call_method0("__float__").ok()?.extract().ok();
    let item = value.call_method0("item").ok();
    if let Some(on) = item.as_ref().and_then(|item| item.cast::<PyBool>().ok()) {
        return Some(Value::Bool(on.is_true()));
    }
    whole().or_else(|| Number::from_f64(real()?).map(Value::Number))
}

/// The operator types that `op_types` may name, and those of ONNX.
#[pyfunction]
pub(crate) fn op_types() -> (Vec<&'static str>, Vec<&'static str>) {
    (quantize_rs::quantizable_op_types().collect(), quantize_rs::onnx_op_types().collect())
}

/// The table of all options as JSON: an array of objects, one for each option.
#[pyfunction]
pub(crate) fn option_table() -> String {
    options::to_json().to_string()
}
