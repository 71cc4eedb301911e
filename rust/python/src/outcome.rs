//! The results of the Rust crates in Python: one class for all of them.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;
use quantize_rs::{
    Comparison, HalfReport, LayerErrors, MixedPrecision, ModelInfo, OpsetConversion, Optimization,
    Origin, Outliers, Pruning, QuantizeError, RangesDiff, Recommendation, Report, Sensitivity,
    ShapeInference, Validation, Variants,
};

use crate::convert;

/// A result: dicts and lists for programs, a text for people, JSON for files.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Outcome(Content);

enum Content {
    Found(Arc<dyn Document>),
    /// Read from a pickle.
    Saved {
        json: String,
        text: String,
    },
}

/// A result of the Rust crates.
pub(crate) trait Document: Any + Send + Sync {
    /// Dicts, lists, strings and numbers.
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;

    /// The same as JSON.
    fn json(&self, py: Python<'_>) -> PyResult<String>;

    /// A table for people, or an empty text.
    fn text(&self) -> String;
}

/// Each result, what serde writes of it, and its text.
macro_rules! documents {
    ($($name:ident $(. $form:ident())? => $text:expr),* $(,)?) => {$(
        impl Document for $name {
            fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                convert::to_python(py, &self$(.$form())?)
            }

            fn json(&self, py: Python<'_>) -> PyResult<String> {
                convert::json(py, &self$(.$form())?)
            }

            fn text(&self) -> String {
                let text: fn(&$name) -> String = $text;
                text(self)
            }
        }
    )*};
}

documents! {
    Comparison.document() => ToString::to_string,
    HalfReport => ToString::to_string,
    OpsetConversion => ToString::to_string,
    ShapeInference => ToString::to_string,
    LayerErrors => ToString::to_string,
    MixedPrecision.document() => ToString::to_string,
    ModelInfo => |_| String::new(),
    Optimization.document() => ToString::to_string,
    Outliers => ToString::to_string,
    Pruning => ToString::to_string,
    RangesDiff => ToString::to_string,
    Recommendation => ToString::to_string,
    Sensitivity => ToString::to_string,
    Validation.document() => ToString::to_string,
    Variants => ToString::to_string,
}

/// A report has a row for each value of the model, so that it is converted without a detour.
impl Document for Report {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_exact_python(py, &self.document())
    }

    fn json(&self, _: Python<'_>) -> PyResult<String> {
        Ok(self.to_json())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Outcome {
    pub(crate) fn new(found: impl Document) -> Outcome {
        Outcome(Content::Found(Arc::new(found)))
    }

    /// The result itself, for an argument of this name; `parse` reads one from a pickle.
    pub(crate) fn read<T: Document + Clone>(
        &self,
        name: &str,
        parse: fn(&str) -> Result<T, QuantizeError>,
    ) -> Result<Cow<'_, T>, QuantizeError> {
        match &self.0 {
            Content::Found(found) => {
                let found: &dyn Any = found.as_ref();
                let other = || QuantizeError::option(name, "is the result of another function");
                found.downcast_ref().map(Cow::Borrowed).ok_or_else(other)
            }
            Content::Saved { json, .. } => parse(json).map(Cow::Owned),
        }
    }
}

/// A changed copy of a result of this type.
fn stamped<T: Document + Clone>(
    found: &Arc<dyn Document>,
    change: impl Fn(&mut T),
) -> Option<Arc<dyn Document>> {
    let any: &dyn Any = found.as_ref();
    let mut copy = any.downcast_ref::<T>()?.clone();
    change(&mut copy);
    Some(Arc::new(copy))
}

#[pymethods]
impl Outcome {
    /// A result from its JSON and its text, for pickles.
    #[staticmethod]
    fn saved(json: String, text: String) -> Outcome {
        Outcome(Content::Saved { json, text })
    }

    /// The result as plain dicts, lists, strings and numbers; non-finite numbers are None.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.0 {
            Content::Found(found) => found.to_python(py),
            Content::Saved { json, .. } => py.import("json")?.call_method1("loads", (json,)),
        }
    }

    /// The result as JSON; non-finite numbers are null.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        match &self.0 {
            Content::Found(found) => found.json(py),
            Content::Saved { json, .. } => Ok(json.clone()),
        }
    }

    /// The same result with what is known of the call and the samples, where it states them.
    #[pyo3(signature = (*, command, samples))]
    fn with_origin(&self, command: String, samples: Option<String>) -> Outcome {
        let stamp = |origin: &mut Origin| {
            origin.command = Some(command.clone());
            origin.samples.clone_from(&samples);
        };
        let found = match &self.0 {
            Content::Found(found) => found,
            Content::Saved { json, text } => {
                return Outcome(Content::Saved { json: json.clone(), text: text.clone() });
            }
        };
        let found = stamped::<Report>(found, |report| stamp(&mut report.origin))
            .or_else(|| stamped::<Comparison>(found, |found| stamp(&mut found.origin)))
            .or_else(|| stamped::<Sensitivity>(found, |found| stamp(&mut found.origin)))
            .or_else(|| stamped::<LayerErrors>(found, |found| stamp(&mut found.origin)))
            .unwrap_or_else(|| Arc::clone(found));
        Outcome(Content::Found(found))
    }

    /// The result as a table for people.
    fn __str__(&self) -> String {
        match &self.0 {
            Content::Found(found) => found.text(),
            Content::Saved { text, .. } => text.clone(),
        }
    }

    fn __eq__(&self, py: Python<'_>, other: &Outcome) -> PyResult<bool> {
        Ok(self.to_json(py)? == other.to_json(py)?)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyString::new(py, &self.to_json(py)?).hash()
    }

    /// Pickles hold the JSON and the text.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String, String))> {
        let saved = py.get_type::<Outcome>().getattr("saved")?;
        Ok((saved, (self.to_json(py)?, self.__str__())))
    }
}
