//! Failures of commands: the message to print and the exit code.

use std::io;
use std::path::Path;

use quantize_rs::options;
use quantize_rs::{CalibrationError, QuantizeError, QuantizeErrorKind, with_causes};

use crate::text;

/// The exit code if the model or the data was rejected.
pub(crate) const REFUSED: u8 = 1;
/// The exit code for an invalid command line.
pub(crate) const MISUSE: u8 = 2;

/// The exit code after Ctrl-C, as in shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The model or the data.
    Refused(String),
    /// The command line.
    Misuse(String),
    /// The results could not be printed.
    Output(io::Error),
    /// Ctrl-C was pressed.
    Interrupted,
}

impl Failure {
    /// The same failure, with a prefix that says what was being done.
    pub(crate) fn while_doing(self, what: &str) -> Failure {
        match self {
            Failure::Refused(message) => Failure::Refused(format!("{what}: {message}")),
            other => other,
        }
    }

    /// The same failure, with the place of what was asked for.
    pub(crate) fn at(self, place: &str) -> Failure {
        match self {
            Failure::Misuse(message) => Failure::Misuse(format!("{place}: {message}")),
            other => other.while_doing(place),
        }
    }

    /// The same failure, after the ranges were written to a file.
    pub(crate) fn after_ranges(self, path: &Path) -> Failure {
        match self {
            Failure::Refused(message) => {
                let path = path.display();
                Failure::Refused(format!("{message}; the ranges were written to {path}"))
            }
            other => other,
        }
    }

    /// The line to print.
    pub(crate) fn message(&self) -> String {
        match self {
            Failure::Refused(message) | Failure::Misuse(message) => message.clone(),
            Failure::Interrupted => "interrupted".to_owned(),
            Failure::Output(error) => format!("cannot print the result: {}", said(error)),
        }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Misuse(_) => MISUSE,
            Failure::Interrupted => INTERRUPTED,
            Failure::Refused(_) | Failure::Output(_) => REFUSED,
        }
    }
}

impl From<quantize_rs_onnx::Error> for Failure {
    fn from(error: quantize_rs_onnx::Error) -> Failure {
        Failure::Refused(of_model(&error))
    }
}

impl From<QuantizeError> for Failure {
    fn from(error: QuantizeError) -> Failure {
        match error.kind() {
            QuantizeErrorKind::Option { option, what } => {
                Failure::Misuse(format!("{} {}", argument(option), options::as_flags(what)))
            }
            QuantizeErrorKind::Model(error) => Failure::Refused(of_model(error)),
            kind => Failure::Refused(options::as_flags(&with_causes(kind))),
        }
    }
}

impl From<CalibrationError> for Failure {
    fn from(error: CalibrationError) -> Failure {
        Failure::Refused(options::as_flags(&with_causes(&error)))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

/// The message of the operating system is clearer than the name of the error kind.
fn of_model(error: &quantize_rs_onnx::Error) -> String {
    match (error.path(), error.io_error()) {
        (Some(path), Some(cause)) => format!("{}: {}", path.display(), said(cause)),
        _ => with_causes(error),
    }
}

/// The message of the operating system, starting in lower case like all messages here.
pub(crate) fn said(error: &io::Error) -> String {
    text::lower_first(&error.to_string())
}

/// What sets an option of the library, or a parameter of one of its functions.
fn argument(option: &str) -> String {
    match option {
        "quantized" => "the quantized model".to_owned(),
        "platform" => "--for".to_owned(),
        option => {
            let name = options::find(option).map_or(option, |row| row.name);
            format!("--{}", name.replace('_', "-"))
        }
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs::CalibrationErrorKind;

    use super::*;

    #[test]
    fn options_are_misuse_and_named_as_flags() {
        let cases = [
            ("exclude", "--exclude is"),
            ("min_elements", "--min-elements is"),
            ("platform", "--for is"),
            ("quantized", "the quantized model is"),
        ];
        for (option, expected) in cases {
            let failure = Failure::from(QuantizeError::option(option, "is"));
            assert_eq!((failure.message().as_str(), failure.code()), (expected, MISUSE));
        }
    }

    #[test]
    fn causes_are_reported_once() {
        let kind = CalibrationErrorKind::Data { problem: "cannot be read".to_owned() };
        let cause = |text: &str| io::Error::other(text.to_owned());
        let error = CalibrationError::new(kind.clone()).caused_by(cause("disk on fire"));
        assert_eq!(with_causes(&error), "cannot be read: disk on fire");
        let error = CalibrationError::new(kind).caused_by(cause("be read"));
        assert_eq!(with_causes(&error), "cannot be read");
    }
}
