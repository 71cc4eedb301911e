//! External data, which is read only from files in the model's own folder.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::data::{TensorInfo, place};
use crate::error::{Error, ErrorKind};
use crate::map;
use crate::schema::TensorProto;

/// The folder that external data must be in, and the open files, by location.
#[derive(Clone, Debug, Default)]
pub(crate) struct External {
    folder: Option<PathBuf>,
    files: Arc<Mutex<HashMap<String, Bytes>>>,
}

impl External {
    /// External data of a model in this folder.
    pub(crate) fn in_folder(folder: &Path) -> External {
        External { folder: Some(folder.to_path_buf()), files: Arc::default() }
    }

    /// The elements of `proto`, as a slice of the mapped file.
    pub(crate) fn bytes(&self, proto: &TensorProto, info: &TensorInfo) -> Result<Bytes, Error> {
        let location = proto.external_entry("location").unwrap_or_default();
        let wrong = |what: String| {
            Error::new(ErrorKind::External {
                tensor: proto.name.clone(),
                location: location.to_owned(),
                what,
            })
        };
        let number = |key: &str| match proto.external_entry(key) {
            None => Ok(None),
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .map_err(|_| wrong(format!("has {key} `{text}`, expected a number of bytes"))),
        };
        let expected = info
            .byte_len
            .ok_or_else(|| Error::structure(place(proto), "strings cannot be external data"))?;
        let offset = number("offset")?.unwrap_or(0);
        if let Some(length) = number("length")?
            && length != expected
        {
            return Err(wrong(format!(
                "is {length} bytes for shape {:?} of {}, expected {expected}",
                info.shape, info.dtype
            )));
        }
        let file = self.file(location).map_err(wrong)?;
        match offset.checked_add(expected) {
            Some(end) if end <= file.len() => Ok(file.slice(offset..end)),
            _ => Err(wrong(format!(
                "holds {} bytes, expected {expected} from byte {offset} on",
                file.len()
            ))),
        }
    }

    /// The bytes of the file at `location`, or what is wrong with it.
    fn file(&self, location: &str) -> Result<Bytes, String> {
        let folder = self
            .folder
            .as_deref()
            .ok_or("has no folder to be in: the model was given as bytes; give its path instead")?;
        let mut files = self.files.lock().map_err(|_| "could not be opened")?;
        // Open files stay available, even after a save over this model removed its data.
        if let Some(bytes) = files.get(location) {
            return Ok(bytes.clone());
        }
        let path = contained(folder, location)?;
        let bytes = map::bytes_of(&path).map_err(|error| match error.io_error() {
            Some(cause) => format!("could not be read: {cause}"),
            None => format!("could not be read: {error}"),
        })?;
        files.insert(location.to_owned(), bytes.clone());
        Ok(bytes)
    }
}

/// The path of the file at `location`, which must be in `folder` after all links are resolved.
fn contained(folder: &Path, location: &str) -> Result<PathBuf, String> {
    let relative = Path::new(location);
    let plain =
        relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if location.is_empty() || !plain || location.contains(['\\', '\0']) {
        return Err("is not a plain path inside the model's folder".to_owned());
    }
    let root = folder
        .canonicalize()
        .map_err(|cause| format!("is in a folder that could not be read: {cause}"))?;
    let path = root.join(relative);
    let path = path.canonicalize().map_err(|cause| format!("could not be read: {cause}"))?;
    if path.starts_with(&root) {
        Ok(path)
    } else {
        Err("is a link to a file outside the model's folder".to_owned())
    }
}
