//! Data beside the model: read from files in the model's own folder, and from nowhere else.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::data::{Facts, place};
use crate::error::{Error, ErrorKind};
use crate::map;
use crate::schema::TensorProto;

/// The folder a model's external data must be in, and the files of it that are open.
#[derive(Clone, Debug, Default)]
pub(crate) struct External {
    folder: Option<PathBuf>,
    files: Arc<Mutex<HashMap<PathBuf, Bytes>>>,
}

impl External {
    /// External data of a model in this folder.
    pub(crate) fn beside(folder: &Path) -> External {
        External { folder: Some(folder.to_path_buf()), files: Arc::default() }
    }

    /// The elements of `proto`, by handle into the mapped file.
    pub(crate) fn bytes(&self, proto: &TensorProto, facts: &Facts) -> Result<Bytes, Error> {
        let entry = |key: &str| {
            proto.external_data.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
        };
        let location = entry("location").unwrap_or_default();
        let wrong = |what: String| {
            Error::new(ErrorKind::External {
                tensor: proto.name.clone(),
                location: location.to_owned(),
                what,
            })
        };
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .map_err(|_| wrong(format!("has {key} `{text}`, expected a number of bytes"))),
        };
        let expected = facts
            .byte_len
            .ok_or_else(|| Error::structure(place(proto), "strings cannot be external data"))?;
        let offset = number("offset")?.unwrap_or(0);
        if let Some(length) = number("length")?
            && length != expected
        {
            return Err(wrong(format!(
                "is {length} bytes for shape {:?} of {}, expected {expected}",
                facts.shape, facts.dtype
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
        let path = contained(folder, location)?;
        let mut files = self.files.lock().map_err(|_| "could not be opened")?;
        if let Some(bytes) = files.get(&path) {
            return Ok(bytes.clone());
        }
        let bytes = map::bytes_of(&path).map_err(|error| match error.io_error() {
            Some(cause) => format!("could not be read: {cause}"),
            None => format!("could not be read: {error}"),
        })?;
        files.insert(path, bytes.clone());
        Ok(bytes)
    }
}

/// The file at `location`, which must be in `folder` after every link is followed.
fn contained(folder: &Path, location: &str) -> Result<PathBuf, String> {
    let relative = Path::new(location);
    let plain =
        relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if location.is_empty() || !plain || location.contains(['\\', '\0']) {
        return Err("is not a plain path inside the model's folder".to_owned());
    }
    let root =
        folder.canonicalize().map_err(|cause| format!("is in no readable folder: {cause}"))?;
    let path = root.join(relative);
    let path = path.canonicalize().map_err(|cause| format!("could not be read: {cause}"))?;
    if path.starts_with(&root) {
        Ok(path)
    } else {
        Err("leads out of the model's folder through a link".to_owned())
    }
}
