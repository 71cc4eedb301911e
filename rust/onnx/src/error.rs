//! What can be wrong with a model file, and where.

use std::path::{Path, PathBuf};

/// Why a model could not be read, changed or written: a kind, the place, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{}{kind}", path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default())]
pub struct Error {
    kind: ErrorKind,
    path: Option<PathBuf>,
    #[source]
    cause: Option<std::io::Error>,
}

/// The kinds of [`Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes are not a well-formed protobuf message of the ONNX schema.
    #[error("not a well-formed ONNX model: {what} ({message}, field {field}, byte {offset})")]
    Format {
        /// The schema message being read: `TensorProto`.
        message: &'static str,
        /// Number of the field in that message; 0 when it was the tag that could not be read.
        field: u32,
        /// Bytes from the start of the file.
        offset: usize,
        /// What was found and what would have been right.
        what: String,
    },
    /// The message is well formed but is not a legal model: a cycle, a value made twice, ….
    #[error("{place}: {what}")]
    Structure {
        /// The node, tensor, value or graph concerned, as a person would look for it.
        place: String,
        /// What was found and what would have been right.
        what: String,
    },
    /// Data beside the model is missing, short, or outside its directory.
    #[error("initializer `{tensor}`: external data `{location}` {what}")]
    External {
        /// The tensor whose data it is.
        tensor: String,
        /// The `location` written in the model.
        location: String,
        /// What is wrong with it.
        what: String,
    },
    /// An edit does not fit the model it is applied to.
    #[error("edit refused: {0}")]
    Edit(String),
    /// The model does not fit in one protobuf message (2 GiB).
    #[error(
        "the model takes {bytes} bytes, more than the {limit} that one protobuf message may hold; \
         save it to a path, so that its weights can stand beside it"
    )]
    TooLarge {
        /// Bytes it would take.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The path names something that is not a file: a directory, a device.
    #[error("is {0}, expected a file")]
    NotAFile(&'static str),
    /// The operating system refused.
    #[error("{0}")]
    Io(std::io::ErrorKind),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Error {
        Error { kind, path: None, cause: None }
    }

    pub(crate) fn structure(place: impl Into<String>, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Structure { place: place.into(), what: what.into() })
    }

    pub(crate) fn io(cause: std::io::Error, path: &Path) -> Error {
        Error {
            kind: ErrorKind::Io(cause.kind()),
            path: Some(path.to_path_buf()),
            cause: Some(cause),
        }
    }

    pub(crate) fn at(mut self, path: Option<&Path>) -> Error {
        if self.path.is_none() {
            self.path = path.map(Path::to_path_buf);
        }
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The file concerned, when there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The operating system's own error, when that is what failed.
    pub fn io_error(&self) -> Option<&std::io::Error> {
        self.cause.as_ref()
    }
}
