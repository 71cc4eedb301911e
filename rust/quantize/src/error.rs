//! The errors of this crate, with their location.
//!
//! This module imports no other module of this crate.

/// The error of a failed calibration: its kind and where it happened.
#[derive(Debug, thiserror::Error)]
#[error("{kind}{}", place(.value.as_deref(), .file.as_deref(), *.sample))]
pub struct CalibrationError {
    /// Boxed, so that results stay small.
    kind: Box<CalibrationErrorKind>,
    /// Name of the value, input or file concerned.
    value: Option<String>,
    /// The file that the value was read from.
    file: Option<String>,
    /// The index of the sample, counted from 0.
    sample: Option<usize>,
    #[source]
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of [`CalibrationError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationErrorKind {
    /// There was nothing to calibrate with.
    #[error("no calibration samples: {reason}")]
    NoSamples {
        /// Why there are none.
        reason: String,
    },
    /// A sample file or array is not readable or not of a usable form.
    #[error("{problem}")]
    Data {
        /// What is wrong with it.
        problem: String,
    },
    /// A sample lacks an input of the model.
    #[error("input `{input}` is missing: the sample has {given}")]
    MissingInput {
        /// The input.
        input: String,
        /// The inputs that the sample has, or `nothing`.
        given: String,
    },
    /// A sample has an input that the model does not have.
    #[error("the model has no input `{input}`, its inputs are {expected}")]
    UnknownInput {
        /// The name in the sample.
        input: String,
        /// The inputs of the model.
        expected: String,
    },
    /// A sample has an input twice.
    #[error("input `{input}` is given twice")]
    RepeatedInput {
        /// The input.
        input: String,
    },
    /// An input of a sample has another element type or shape than the model's.
    #[error("input `{input}`: expected {expected}, got {found}")]
    WrongInput {
        /// The input.
        input: String,
        /// The element type and shape that the model declares.
        expected: String,
        /// The element type and shape of the sample.
        found: String,
    },
    /// Samples do not fit the inputs of the model in another way.
    #[error("{problem}")]
    InputMismatch {
        /// What does not fit, and how to fix it.
        problem: String,
    },
    /// Samples have another shape than the option `sample_shape` says.
    #[error("sample_shape {}", of_shapes(expected, found))]
    SampleShape {
        /// The option, without the first axis of a sample.
        expected: Vec<usize>,
        /// The shape of a sample, without its first axis.
        found: Vec<usize>,
    },
    /// An element of a sample is NaN or infinite.
    #[error("{found} at {position:?}, samples must be finite")]
    NonFinite {
        /// The element: `NaN`, `infinity` or `-infinity`.
        found: String,
        /// Its index along each axis.
        position: Vec<usize>,
    },
    /// A value that the model computes has elements that are NaN or infinite.
    #[error(
        "{count} of {elements} elements are NaN or infinite and cannot be quantized: check the \
         sample, or name the value in exclude"
    )]
    NonFiniteActivation {
        /// The number of elements that are NaN or infinite.
        count: u64,
        /// The number of all elements.
        elements: u64,
    },
    /// The engine does not support an operator, opset or IR version of the model.
    #[error("{engine} cannot run this model: {problem}; {remedy}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// What it does not support.
        problem: String,
        /// What you can do.
        remedy: &'static str,
    },
    /// The engine does not support the element type of an input.
    #[error("input `{input}` is {dtype}: {engine} does not accept it")]
    UnsupportedInput {
        /// The engine.
        engine: &'static str,
        /// The input.
        input: String,
        /// Its element type.
        dtype: &'static str,
    },
    /// The model reads strings, and samples hold numbers.
    #[error(
        "the model has a string input, `{input}`, and samples hold numbers alone: cut off the part \
         that reads strings, as with onnx.utils.extract_model, and use the rest with samples, or \
         quantize weights alone, without samples"
    )]
    StringInput {
        /// The input.
        input: String,
    },
    /// The model reads a value that is no tensor.
    #[error(
        "input `{input}` is declared as no tensor but as a sequence, map or optional value, which \
         samples cannot hold: remove it from the model, or quantize the weights alone, which runs \
         nothing"
    )]
    NoTensorInput {
        /// The input.
        input: String,
    },
    /// The engine does not support tensors of an element type.
    #[error("{engine} does not accept tensors of {dtype}")]
    UnsupportedType {
        /// The engine.
        engine: &'static str,
        /// The element type.
        dtype: &'static str,
    },
    /// No engine can run the model.
    #[error("{failures}")]
    NoEngine {
        /// The error of each engine, or why it is not available.
        failures: String,
    },
    /// The engine failed while building or running the model.
    #[error("{problem}")]
    Engine {
        /// The engine; `None` if the error is not about one of the engines.
        engine: Option<&'static str>,
        /// What happened.
        problem: String,
    },
    /// The caller cancelled the calibration.
    #[error("calibration was cancelled")]
    Cancelled,
}

impl CalibrationErrorKind {
    /// The name of the category: `no_samples`, `data`, `input_mismatch`, `non_finite`,
    /// `unsupported`, `engine` or `cancelled`.
    pub fn category(&self) -> &'static str {
        match self {
            Self::NoSamples { .. } => "no_samples",
            Self::Data { .. } => "data",
            Self::MissingInput { .. }
            | Self::UnknownInput { .. }
            | Self::RepeatedInput { .. }
            | Self::WrongInput { .. }
            | Self::StringInput { .. }
            | Self::NoTensorInput { .. }
            | Self::SampleShape { .. }
            | Self::InputMismatch { .. } => "input_mismatch",
            Self::NonFinite { .. } | Self::NonFiniteActivation { .. } => "non_finite",
            Self::Unsupported { .. }
            | Self::UnsupportedInput { .. }
            | Self::UnsupportedType { .. }
            | Self::NoEngine { .. } => "unsupported",
            Self::Engine { .. } => "engine",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the engine cannot run the model, whatever the sample.
    pub fn is_unsupported(&self) -> bool {
        self.category() == "unsupported"
    }
}

/// What is wrong with the option `sample_shape`.
fn of_shapes(expected: &[usize], found: &[usize]) -> String {
    format!("is {expected:?}, and the samples have the shape {found:?} without their first axis")
}

fn place(value: Option<&str>, file: Option<&str>, sample: Option<usize>) -> String {
    let value = value.map(|value| format!("`{value}`"));
    let file = file.map(|file| format!("in `{file}`"));
    let sample = sample.map(|sample| format!("sample {sample}"));
    let place: Vec<String> = [value, file, sample].into_iter().flatten().collect();
    if place.is_empty() { String::new() } else { format!(" ({})", place.join(", ")) }
}

impl CalibrationError {
    /// Creates the error for a source without samples.
    pub(crate) fn no_samples() -> CalibrationError {
        let reason = "the source is empty".to_owned();
        CalibrationError::new(CalibrationErrorKind::NoSamples { reason })
    }

    /// Creates the error for a thread that the system does not start.
    pub fn no_thread(cause: &std::io::Error) -> CalibrationError {
        let problem = format!(
            "the system starts no more threads ({cause}): raise its limit of processes or of \
             memory, which `ulimit -u` and `ulimit -v` show"
        );
        CalibrationError::engine(None, problem)
    }

    /// Creates the error for a sample file or array that cannot be read or used.
    pub fn data(problem: impl Into<String>) -> CalibrationError {
        CalibrationError::new(CalibrationErrorKind::Data { problem: problem.into() })
    }

    /// Creates the error for samples that do not fit the inputs of the model.
    pub fn input_mismatch(problem: impl Into<String>) -> CalibrationError {
        CalibrationError::new(CalibrationErrorKind::InputMismatch { problem: problem.into() })
    }

    /// Creates the error of an engine that failed while it built or ran the model.
    pub fn engine(engine: Option<&'static str>, problem: impl Into<String>) -> CalibrationError {
        CalibrationError::new(CalibrationErrorKind::Engine { engine, problem: problem.into() })
    }

    /// Creates an error of this kind without a location.
    pub fn new(kind: CalibrationErrorKind) -> CalibrationError {
        let kind = Box::new(kind);
        CalibrationError { kind, value: None, file: None, sample: None, cause: None }
    }

    /// Adds the value, input or file that the error is about, unless one is set already.
    #[must_use]
    pub fn at_value(mut self, value: impl Into<String>) -> CalibrationError {
        self.value.get_or_insert_with(|| value.into());
        self
    }

    /// Adds the file that the value was read from, unless one is set already.
    #[must_use]
    pub fn in_file(mut self, file: impl Into<String>) -> CalibrationError {
        self.file.get_or_insert_with(|| file.into());
        self
    }

    /// Adds the index of the sample, counted from 0, unless one is set already.
    #[must_use]
    pub fn at_sample(mut self, sample: usize) -> CalibrationError {
        self.sample.get_or_insert(sample);
        self
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn caused_by(
        mut self,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> CalibrationError {
        self.cause = Some(cause.into());
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> &CalibrationErrorKind {
        &self.kind
    }

    /// The name of the value, input or file that the error is about.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// The index of the sample, counted from 0.
    pub fn sample(&self) -> Option<usize> {
        self.sample
    }
}

/// An error and its causes as one text, without the causes that the text contains already.
///
/// ```
/// use quantize_rs::{CalibrationError, with_causes};
///
/// let cause = std::io::Error::other("disk on fire");
/// let error = CalibrationError::data("cannot be read").caused_by(cause);
/// assert_eq!(with_causes(&error), "cannot be read: disk on fire");
/// ```
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    message
}

/// The error of a model that could not be quantized: its kind, where it happened, and the cause.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct QuantizeError {
    kind: QuantizeErrorKind,
}

/// The kinds of [`QuantizeError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeErrorKind {
    /// The model could not be read, edited or written.
    #[error(transparent)]
    Model(#[from] quantize_rs_onnx::Error),
    /// A node violates the specification of its operator.
    #[error("{place}: {what}")]
    Node {
        /// The node, described so that you can find it in the model.
        place: String,
        /// The operator type.
        op_type: String,
        /// What was found and what was expected.
        what: String,
    },
    /// The model is valid, but it lacks something that the result needs.
    #[error("{what}")]
    Unsupported {
        /// What is missing, for example `opset 13`.
        feature: String,
        /// What was found, and how to fix it.
        what: String,
    },
    /// A node has no equivalent in a newer opset.
    #[error("{place}: cannot be converted from opset {from} to {to}: {what}")]
    Convert {
        /// The node, described so that you can find it in the model.
        place: String,
        /// The operator type.
        op_type: String,
        /// The opset version of the node.
        from: i64,
        /// The requested opset version.
        to: i64,
        /// The reason, and how to fix it where that is possible.
        what: String,
    },
    /// A weight cannot be quantized because it holds NaN or infinity.
    #[error("weight `{tensor}`: {what}")]
    InvalidTensor {
        /// The name of the weight.
        tensor: String,
        /// What was found, and how to fix it.
        what: String,
    },
    /// An option is unknown, out of range, or contradicts another option.
    #[error("{option} {what}")]
    Option {
        /// The name of the option.
        option: String,
        /// The value that was given, and the values that are allowed.
        what: String,
    },
    /// The result misses an accuracy criterion. No file was written.
    #[error("{what}")]
    BelowCriteria {
        /// The option that set the criterion, for example `min_sqnr`.
        criterion: String,
        /// The measured value, in the unit of the option (milliseconds for `require_faster`).
        measured: Option<f64>,
        /// The required value. For `require_faster`, the measured value must be below it.
        expected: Option<f64>,
        /// The full message, with suggestions.
        what: String,
    },
    /// The result would be larger than the model. No model was written.
    #[error("{what}")]
    Larger {
        /// The size of the model in bytes.
        before: u64,
        /// The size of the result in bytes.
        after: u64,
        /// Both sizes, and what to do.
        what: String,
    },
    /// Calibration failed.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// An internal error: the result fails a check of this crate. No file was written.
    #[error("internal check failed, please report this: {0}")]
    Verify(String),
}

impl QuantizeError {
    /// The kind of the error.
    pub fn kind(&self) -> &QuantizeErrorKind {
        &self.kind
    }

    pub(crate) fn new(kind: QuantizeErrorKind) -> QuantizeError {
        QuantizeError { kind }
    }

    /// Whether the user stopped a run.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self.kind(), QuantizeErrorKind::Calibration(calibration)
            if matches!(calibration.kind(), CalibrationErrorKind::Cancelled))
    }

    /// Whether an engine cannot run a model, whatever the samples.
    pub(crate) fn is_of_engine(&self) -> bool {
        match &self.kind {
            QuantizeErrorKind::Calibration(error) => {
                let kind = error.kind();
                kind.is_unsupported() || matches!(kind, CalibrationErrorKind::Engine { .. })
            }
            _ => false,
        }
    }

    pub(crate) fn node(node: &quantize_rs_onnx::NodeProto, what: String) -> QuantizeError {
        let (place, op_type) = (node.label(), node.op_type.clone());
        QuantizeError::new(QuantizeErrorKind::Node { place, op_type, what })
    }

    /// Adds the component that requires the failed conversion.
    pub(crate) fn needed_by(mut self, who: &str) -> QuantizeError {
        if let QuantizeErrorKind::Convert { what, .. } = &mut self.kind {
            *what = format!("{what} ({who})");
        }
        self
    }

    /// Creates an error about an invalid option.
    pub fn option(option: impl Into<String>, what: impl Into<String>) -> QuantizeError {
        QuantizeError::new(QuantizeErrorKind::Option { option: option.into(), what: what.into() })
    }
}

impl From<quantize_rs_onnx::Error> for QuantizeError {
    fn from(error: quantize_rs_onnx::Error) -> QuantizeError {
        QuantizeError::new(error.into())
    }
}

impl From<CalibrationError> for QuantizeError {
    fn from(error: CalibrationError) -> QuantizeError {
        match error.kind() {
            CalibrationErrorKind::SampleShape { expected, found } => {
                QuantizeError::option("sample_shape", of_shapes(expected, found))
            }
            _ => QuantizeError::new(error.into()),
        }
    }
}

/// The outcome of `work` on these models, unless a file of one was changed meanwhile: then what was
/// read may be anything, and so may the outcome.
pub(crate) fn while_unchanged<T>(
    models: &[&quantize_rs_onnx::Model],
    work: impl FnOnce() -> Result<T, QuantizeError>,
) -> Result<T, QuantizeError> {
    let outcome = work();
    models.iter().try_for_each(|model| model.unchanged())?;
    outcome
}
