//! Parses ONNX Runtime's messages into errors with a location.

use quantize_rs::{CalibrationError, CalibrationErrorKind};

use super::failed;
use crate::OF_THE_CALLER;

/// The maximum length of a message of ONNX Runtime in an error.
const MAX_MESSAGE_LENGTH: usize = 600;

/// Fragments of messages about models that are newer than the library.
const TOO_NEW: &[&str] = &[
    "is not a registered function/op",
    "Could not find an implementation",
    "Unsupported model IR version",
    "is under development and support for this is limited",
];

/// The error of loading a model.
pub(super) fn of_loading(error: &ort::Error) -> CalibrationError {
    if TOO_NEW.iter().any(|unknown| error.message().contains(unknown)) {
        // `custom:MyOp(-1)`: no version has operators of such a domain.
        let custom = error.message().contains("(-1) is not a registered");
        let newer = "a newer version may: `pip install --upgrade onnxruntime`";
        return CalibrationError::new(CalibrationErrorKind::Unsupported {
            engine: "onnxruntime",
            problem: shortened(error.message()),
            remedy: if custom { OF_THE_CALLER } else { newer },
        });
    }
    without_node(error)
}

/// The error of a run, with the node that failed if the message names it.
pub(super) fn of_running(error: &ort::Error) -> CalibrationError {
    match node(error.message()) {
        Some((op_type, name, what)) => {
            let what = shortened(what);
            failed(format!("node `{name}` ({op_type}): onnxruntime: {what}")).at_value(name)
        }
        None => without_node(error),
    }
}

/// Any other error.
pub(super) fn without_node(error: &ort::Error) -> CalibrationError {
    failed(format!("onnxruntime: {}", shortened(error.message())))
}

/// Operator, name and status in `… while running Gather node. Name:'g' Status Message: …`.
fn node(message: &str) -> Option<(&str, &str, &str)> {
    let (_, rest) = message.split_once("while running ")?;
    let (op_type, rest) = rest.split_once(" node. Name:'")?;
    let (name, what) = rest.split_once("' Status Message: ")?;
    (!name.is_empty()).then_some((op_type, name, what))
}

/// The message, shortened, without the location in ONNX Runtime's source.
fn shortened(message: &str) -> String {
    let message = after_source_location(message.trim()).unwrap_or(message).trim();
    match message.char_indices().nth(MAX_MESSAGE_LENGTH) {
        Some((cut, _)) => format!("{}…", &message[..cut]),
        None => message.to_owned(),
    }
}

/// The text after `/path/to/file.cc:256 type name(parameters) `.
fn after_source_location(message: &str) -> Option<&str> {
    let (before, rest) = message.split_once(".cc:")?;
    if !before.split_whitespace().next_back()?.starts_with('/') {
        return None;
    }
    let mut depth = 0_usize;
    for (position, bracket) in rest.match_indices(['(', ')']) {
        depth = if bracket == "(" { depth + 1 } else { depth.checked_sub(1)? };
        if depth == 0 {
            return rest.get(position + 1..);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_node_that_its_message_names() {
        let cases = [
            (
                "Non-zero status code returned while running Gather node. Name:'g' Status Message: \
                 indices element out of data bounds",
                Some(("Gather", "g", "indices element out of data bounds")),
            ),
            (
                "Non-zero status code returned while running Gather node. Name:'' \
                 Status Message: a",
                None,
            ),
            ("Invalid input name: x", None),
        ];
        for (message, expected) in cases {
            assert_eq!(node(message), expected, "{message}");
        }
    }

    #[test]
    fn the_location_in_the_source_is_removed() {
        let cases = [
            (
                "/src/model.cc:256 a::M::M(f(int)&&, const b&) Unsupported version",
                "Unsupported version",
            ),
            ("/src/model.cc:256 a::M::M(f(int", "/src/model.cc:256 a::M::M(f(int"),
            ("with error: /model.cc:1 a(b) Unsupported", "Unsupported"),
            ("see file.cc:2 f() for more", "see file.cc:2 f() for more"),
            (" plain ", "plain"),
        ];
        for (message, expected) in cases {
            assert_eq!(shortened(message), expected);
        }
    }
}
