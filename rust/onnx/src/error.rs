//! Errors of reading, changing and writing model files.

use std::path::{Path, PathBuf};

/// Why a model could not be read, changed or written: the kind, the location, and the cause.
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
        /// Number of the field in that message; 0 if the tag itself could not be read.
        field: u32,
        /// Bytes from the start of the file.
        offset: usize,
        /// What was found and what was expected.
        what: String,
    },
    /// The bytes are those of another file format.
    #[error("not an ONNX model, but {0}")]
    OtherFormat(&'static str),
    /// The message is well formed but not a valid model: a cycle, a value produced twice, ….
    #[error("{place}: {what}")]
    Structure {
        /// The node, tensor, value or graph, named so that users can find it.
        place: String,
        /// What was found and what was expected.
        what: String,
    },
    /// External data is missing, too short, or outside the model's folder.
    #[error("initializer `{tensor}`: external data `{location}` {what}")]
    External {
        /// The tensor whose data it is.
        tensor: String,
        /// The `location` in the model.
        location: String,
        /// What is wrong with the data.
        what: String,
    },
    /// An edit does not apply to the model.
    #[error("edit refused: {0}")]
    Edit(String),
    /// The model does not fit in one protobuf message (2 GiB).
    #[error(
        "the model has {bytes} bytes, more than the {limit} that one protobuf message can have; \
         save it to a path, so that its weights become external data"
    )]
    TooLarge {
        /// The size of the model in bytes.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The path is not that of a file, but of a directory or a device.
    #[error("is {0}, expected a file")]
    NotAFile(&'static str),
    /// The file was changed while it was in use.
    #[error("was changed, or could not be read any more, since it was opened: open it again")]
    Changed,
    /// The path is that of a file that the model reads its weights from.
    #[error("would overwrite external data of the model: name another file")]
    OwnData,
    /// The path is that of a file that another model reads its weights from.
    #[error(
        "would overwrite external data of another model: move that model, or name another file"
    )]
    DataInUse,
    /// The caller ended the work: see [`stop_when`](crate::stop_when).
    #[error("was not written: the work was ended")]
    Stopped,
    /// The operating system reported an error.
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

    /// The error for a file that the system refuses to read or write.
    pub fn io(cause: std::io::Error, path: &Path) -> Error {
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

    /// The kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The file, when there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The error of the operating system, when there was one.
    pub fn io_error(&self) -> Option<&std::io::Error> {
        self.cause.as_ref()
    }
}
