//! Errors of the Rust crates as exceptions of `quantize_rs.errors` or built-in exceptions.

use std::io;
use std::path::Path;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use quantize_rs::{CalibrationError, QuantizeError, QuantizeErrorKind, with_causes};
use quantize_rs_math::MathError;
use quantize_rs_onnx::ErrorKind;

/// The exception for `error`; `path` is the model, for errors without a path.
pub(crate) fn raised(py: Python<'_>, error: &QuantizeError, path: Option<&Path>) -> PyErr {
    let text = error.to_string();
    let model = |class| Exception::new(py, class, &text).with("path", path);
    match error.kind() {
        QuantizeErrorKind::Model(error) => of_model(py, error, path),
        QuantizeErrorKind::Calibration(error) => of_calibration(py, error),
        QuantizeErrorKind::Node { .. } => model("ModelFormatError").raise(),
        QuantizeErrorKind::Unsupported { feature, .. } => {
            model("UnsupportedModelError").with("feature", feature).raise()
        }
        QuantizeErrorKind::Convert { place, op_type, to, .. } => model("UnsupportedModelError")
            .with("feature", format!("opset {to}"))
            .with("node", place)
            .with("op_type", op_type)
            .raise(),
        QuantizeErrorKind::InvalidTensor { .. } => {
            model("UnsupportedModelError").with("feature", "NaN or infinity in a weight").raise()
        }
        QuantizeErrorKind::Larger { .. } => model("UnsupportedModelError")
            .with("feature", "a result smaller than the model")
            .raise(),
        QuantizeErrorKind::Option { option, what } => {
            // In Python one option has both.
            let option = if option == "layer_types" { "layer_bits" } else { option };
            let text = format!("{option} {what}");
            Exception::new(py, "OptionError", &text).with("option", option).raise()
        }
        QuantizeErrorKind::BelowCriteria { criterion, measured, expected, .. } => {
            Exception::new(py, "AccuracyCriteriaError", &text)
                .with("criterion", criterion)
                .with("measured", measured)
                .with("expected", expected)
                .raise()
        }
        _ => Exception::new(py, "QuantizeError", &text).raise(),
    }
}

/// The exception for a bug in this package.
pub(crate) fn internal(py: Python<'_>, what: &str) -> PyErr {
    let text = format!("internal error, please report this: {what}");
    Exception::new(py, "QuantizeError", &text).raise()
}

/// The exception for kernel arguments that contradict each other.
pub(crate) fn of_math(py: Python<'_>, error: &MathError) -> PyErr {
    if let MathError::Setting { name, found, expected } = error {
        return of_option(py, name, &format!("is {found}, expected {expected}"));
    }
    let option = match error {
        MathError::Axis { .. } => "axis",
        MathError::BlockSize => "block_size",
        MathError::UnknownType { .. } => "dtype",
        MathError::Length { what: "scales", .. } => "scale",
        MathError::UnknownObserver { .. } => "observer",
        MathError::Percentile { .. } => "percentile",
        MathError::ClippingWeight { .. } => "weight",
        _ => "x",
    };
    let what = error.to_string();
    match what.split_once('`') {
        // The option is the subject of these.
        Some((_, found)) if matches!(option, "percentile" | "weight") => {
            of_option(py, option, &format!("is `{found}"))
        }
        _ => of_option(py, option, &what),
    }
}

/// The exception for an option with an invalid value.
pub(crate) fn of_option(py: Python<'_>, option: &str, what: &str) -> PyErr {
    raised(py, &QuantizeError::option(option, what), None)
}

fn of_model(py: Python<'_>, error: &quantize_rs_onnx::Error, path: Option<&Path>) -> PyErr {
    let text = error.to_string();
    let path = error.path().or(path);
    let model = |class| Exception::new(py, class, &text).with("path", path);
    match error.kind() {
        ErrorKind::Format { message, field, offset, .. } => model("ModelFormatError")
            .with("message", message)
            .with("field", field)
            .with("offset", offset)
            .raise(),
        ErrorKind::OtherFormat(_) | ErrorKind::Structure { .. } => {
            model("ModelFormatError").raise()
        }
        ErrorKind::External { location, .. } => {
            model("ExternalDataError").with("location", location).raise()
        }
        ErrorKind::OwnData | ErrorKind::DataInUse => {
            Exception::new(py, "OptionError", &text).with("option", "output_path").raise()
        }
        ErrorKind::Changed | ErrorKind::Stopped => model("ModelError").raise(),
        ErrorKind::TooLarge { .. } => {
            model("UnsupportedModelError").with("feature", "models of 2 GiB in one piece").raise()
        }
        ErrorKind::NotAFile("a directory") => os_error(py, "EISDIR", path),
        ErrorKind::NotAFile(what) => {
            let reason = format!("is {what}, expected a file");
            PyOSError::new_err((
                errno(py, "EINVAL"),
                reason,
                path.map(|path| path.as_os_str().to_owned()),
            ))
        }
        ErrorKind::Io(kind) => match error.io_error().and_then(io::Error::raw_os_error) {
            Some(code) => os_error_of_code(py, code, path),
            None => os_error(py, errno_name(*kind), path),
        },
        _ => Exception::new(py, "QuantizeError", &text).raise(),
    }
}

fn of_calibration(py: Python<'_>, error: &CalibrationError) -> PyErr {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
    if let Some(code) = cause.and_then(io::Error::raw_os_error) {
        return os_error_of_code(py, code, error.value().map(Path::new));
    }
    Exception::new(py, "CalibrationError", &with_causes(error))
        .with("value", error.value())
        .with("sample", error.sample())
        .with("category", error.kind().category())
        .raise()
}

/// A builder of exceptions of `quantize_rs.errors`.
struct Exception<'py, 'a> {
    py: Python<'py>,
    class: &'static str,
    text: &'a str,
    fields: PyResult<Bound<'py, PyDict>>,
}

impl<'py, 'a> Exception<'py, 'a> {
    fn new(py: Python<'py>, class: &'static str, text: &'a str) -> Exception<'py, 'a> {
        Exception { py, class, text, fields: Ok(PyDict::new(py)) }
    }

    fn with(self, field: &str, value: impl IntoPyObject<'py>) -> Exception<'py, 'a> {
        let fields = self.fields.and_then(|fields| {
            fields.set_item(field, value)?;
            Ok(fields)
        });
        Exception { fields, ..self }
    }

    fn raise(self) -> PyErr {
        let raised = self.fields.and_then(|fields| {
            let class = self.py.import("quantize_rs.errors")?.getattr(self.class)?;
            Ok(PyErr::from_value(class.call((self.text,), Some(&fields))?))
        });
        raised.unwrap_or_else(|error| error)
    }
}

/// `OSError`, or its subclass for this code, which Python selects.
fn os_error_of_code(py: Python<'_>, code: i32, path: Option<&Path>) -> PyErr {
    let text: PyResult<String> =
        py.import("os").and_then(|os| os.call_method1("strerror", (code,))?.extract());
    match text {
        Ok(text) => PyOSError::new_err((code, text, path.map(|path| path.as_os_str().to_owned()))),
        Err(error) => error,
    }
}

fn os_error(py: Python<'_>, name: &str, path: Option<&Path>) -> PyErr {
    os_error_of_code(py, errno(py, name), path)
}

/// The number of a system error; only Python's `errno` has it on all platforms.
fn errno(py: Python<'_>, name: &str) -> i32 {
    py.import("errno").and_then(|errno| errno.getattr(name)?.extract()).unwrap_or(0)
}

fn errno_name(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => "ENOENT",
        io::ErrorKind::PermissionDenied => "EACCES",
        io::ErrorKind::AlreadyExists => "EEXIST",
        io::ErrorKind::IsADirectory => "EISDIR",
        io::ErrorKind::NotADirectory => "ENOTDIR",
        io::ErrorKind::ReadOnlyFilesystem => "EROFS",
        io::ErrorKind::StorageFull => "ENOSPC",
        io::ErrorKind::InvalidInput => "EINVAL",
        io::ErrorKind::OutOfMemory => "ENOMEM",
        _ => "EIO",
    }
}
