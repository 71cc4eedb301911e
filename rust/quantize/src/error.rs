//! What can go wrong, and where.

/// Why a calibration failed, with the place.
#[derive(Debug, thiserror::Error)]
#[error("{kind}{}", place(.value.as_deref(), .file.as_deref(), *.sample))]
pub struct CalibrationError {
    /// Boxed, so that results stay small.
    kind: Box<CalibrationErrorKind>,
    /// Name of the value, input or file concerned.
    value: Option<String>,
    /// The file that the value was read from.
    file: Option<String>,
    /// Number of the sample, from 0.
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
    #[error("{0}")]
    Data(String),
    /// An input has the wrong name, rank, shape or type.
    #[error("{0}")]
    InputMismatch(String),
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
        "{count} of {elements} elements are NaN or infinite; no scale can hold them: look at the \
         sample, or exclude the node"
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
    #[error("input `{input}` is {dtype}: {engine} cannot be fed with it")]
    UnsupportedInput {
        /// The engine.
        engine: &'static str,
        /// The input.
        input: String,
        /// Its element type.
        dtype: &'static str,
    },
    /// The engine does not support tensors of an element type.
    #[error("{engine} cannot be given a tensor of {dtype}")]
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
    #[error("{0}")]
    Engine(String),
    /// The caller asked to stop.
    #[error("calibration was cancelled")]
    Cancelled,
}

impl CalibrationErrorKind {
    /// The name of the category: `no_samples`, `data`, `input_mismatch`, `non_finite`,
    /// `unsupported`, `engine` or `cancelled`.
    pub fn category(&self) -> &'static str {
        match self {
            Self::NoSamples { .. } => "no_samples",
            Self::Data(_) => "data",
            Self::InputMismatch(_) => "input_mismatch",
            Self::NonFinite { .. } | Self::NonFiniteActivation { .. } => "non_finite",
            Self::Unsupported { .. }
            | Self::UnsupportedInput { .. }
            | Self::UnsupportedType { .. }
            | Self::NoEngine { .. } => "unsupported",
            Self::Engine(_) => "engine",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the engine cannot run the model, whatever the sample.
    pub fn is_unsupported(&self) -> bool {
        self.category() == "unsupported"
    }
}

fn place(value: Option<&str>, file: Option<&str>, sample: Option<usize>) -> String {
    let value = value.map(|value| format!("`{value}`"));
    let file = file.map(|file| format!("in `{file}`"));
    let sample = sample.map(|sample| format!("sample {sample}"));
    let place: Vec<String> = [value, file, sample].into_iter().flatten().collect();
    if place.is_empty() { String::new() } else { format!(" ({})", place.join(", ")) }
}

impl CalibrationError {
    /// An error of this kind, with no place yet.
    pub fn new(kind: CalibrationErrorKind) -> CalibrationError {
        let kind = Box::new(kind);
        CalibrationError { kind, value: None, file: None, sample: None, cause: None }
    }

    /// The same error, at this value, input or file.
    #[must_use]
    pub fn at_value(mut self, value: impl Into<String>) -> CalibrationError {
        self.value.get_or_insert_with(|| value.into());
        self
    }

    /// The same error, about a value that was read from this file.
    #[must_use]
    pub fn in_file(mut self, file: impl Into<String>) -> CalibrationError {
        self.file.get_or_insert_with(|| file.into());
        self
    }

    /// The same error, at this sample (numbered from 0).
    #[must_use]
    pub fn at_sample(mut self, sample: usize) -> CalibrationError {
        self.sample.get_or_insert(sample);
        self
    }

    /// The same error, with what caused it.
    #[must_use]
    pub fn caused_by(
        mut self,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> CalibrationError {
        self.cause = Some(cause.into());
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> &CalibrationErrorKind {
        &self.kind
    }

    /// Name of the value, input or file concerned.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// Number of the sample, from 0.
    pub fn sample(&self) -> Option<usize> {
        self.sample
    }
}

/// Why a model could not be quantized: a kind, the place, the cause.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct QuantizeError {
    kind: QuantizeErrorKind,
}

/// The kinds of [`QuantizeError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeErrorKind {
    /// The model could not be read, changed or written.
    #[error(transparent)]
    Model(#[from] quantize_rs_onnx::Error),
    /// A node is not what its operator asks for.
    #[error("{place}: {what}")]
    Node {
        /// The node, as a person would look for it.
        place: String,
        /// Its operator.
        op_type: String,
        /// What was found and what would have been right.
        what: String,
    },
    /// The model is well formed, but the result would need what it does not have.
    #[error("{what}")]
    Unsupported {
        /// What is missing: `opset 13`.
        feature: String,
        /// What was found, and the mend.
        what: String,
    },
    /// A node cannot be said in a newer version of ONNX's operators.
    #[error("{place}: cannot be converted from opset {from} to {to}: {what}")]
    Convert {
        /// The node, as a person would look for it.
        place: String,
        /// Its operator.
        op_type: String,
        /// The version that it is of.
        from: i64,
        /// The version asked for.
        to: i64,
        /// Why, and the mend where there is one.
        what: String,
    },
    /// A weight cannot be quantized by any means: it holds NaN or infinity.
    #[error("weight `{tensor}`: {what}")]
    InvalidTensor {
        /// The weight.
        tensor: String,
        /// What was found, and the mend.
        what: String,
    },
    /// An option is unknown, out of range, or contradicts another.
    #[error("{option} {what}")]
    Option {
        /// The option.
        option: String,
        /// What it was, and what it may be.
        what: String,
    },
    /// The result does not reach what was asked of it. Nothing was written.
    #[error("{what}")]
    BelowBar {
        /// The option that set the bar: `min_sqnr`.
        bar: String,
        /// What was measured, in the unit of the option; milliseconds for `require_faster`.
        measured: Option<f64>,
        /// What was expected: of `require_faster`, less than this.
        expected: Option<f64>,
        /// All of it in words, and what can be done.
        what: String,
    },
    /// Calibration failed.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// A fault of ours: a result that does not pass our own check. Nothing was written.
    #[error("internal check failed, please report this: {0}")]
    Verify(String),
}

impl QuantizeError {
    /// The kind of failure.
    pub fn kind(&self) -> &QuantizeErrorKind {
        &self.kind
    }

    pub(crate) fn new(kind: QuantizeErrorKind) -> QuantizeError {
        QuantizeError { kind }
    }

    pub(crate) fn node(node: &quantize_rs_onnx::NodeProto, what: String) -> QuantizeError {
        let (place, op_type) = (node.label(), node.op_type.clone());
        QuantizeError::new(QuantizeErrorKind::Node { place, op_type, what })
    }

    /// The same, with who needs the conversion that failed.
    pub(crate) fn needed_by(mut self, who: &str) -> QuantizeError {
        if let QuantizeErrorKind::Convert { what, .. } = &mut self.kind {
            *what = format!("{what} ({who})");
        }
        self
    }

    /// An option that cannot be what it is.
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
        QuantizeError::new(error.into())
    }
}
