//! External data, which is read only from files in the folder of the model's path, and in that of
//! the file that this path links to.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::data::{TensorInfo, place};
use crate::error::{Error, ErrorKind};
use crate::map::{Opened, Watch};
use crate::schema::TensorProto;

/// The bytes of all files of a model that are read into memory; further files are mapped. More on
/// Windows, where a file cannot be replaced while it is mapped.
const MAX_READ_BYTES: u64 = if cfg!(windows) { 64 << 20 } else { 16 << 20 };

/// The open files of a model, and the folders that its external data must be in.
#[derive(Clone, Debug, Default)]
pub(crate) struct External {
    folders: Option<Folders>,
    /// The model file.
    model: Option<Watch>,
    data: Arc<Mutex<Files>>,
}

/// The folders of a model, without links.
#[derive(Clone, Debug)]
struct Folders {
    /// That of the path that was given.
    given: PathBuf,
    /// That of the file which the path links to; the same folder unless the path is a link.
    linked: PathBuf,
}

/// The files of external data, by location.
#[derive(Debug, Default)]
struct Files {
    opened: HashMap<String, Opened>,
    /// The bytes that may still be read into memory.
    max_read: u64,
}

impl External {
    /// The model file at `path`, and what is in its folder.
    pub(crate) fn of_model(path: &Path) -> Result<(Bytes, External), Error> {
        let Opened { bytes, watch } = Opened::at(path, MAX_READ_BYTES)?;
        let max_read = match watch {
            Some(_) => 0,
            None => MAX_READ_BYTES - bytes.len() as u64,
        };
        let data = Arc::new(Mutex::new(Files { opened: HashMap::new(), max_read }));
        Ok((bytes, External { folders: Some(Folders::of(path)), model: watch, data }))
    }

    /// An error if one of the files was changed since it was opened.
    pub(crate) fn unchanged(&self) -> Result<(), Error> {
        let files = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        let data = files.opened.values().filter_map(|file| file.watch.as_ref());
        self.model.iter().chain(data).try_for_each(Watch::unchanged)
    }

    /// Whether the file at `path`, without links, is data of the model.
    pub(crate) fn reads(&self, path: &Path) -> bool {
        let Some(folders) = &self.folders else { return false };
        let files = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        files.opened.keys().any(|location| folders.file(location).is_ok_and(|data| data == path))
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
        let folders = self
            .folders
            .as_ref()
            .ok_or("has no folder to be in: the model was given as bytes; give its path instead")?;
        let mut files = self.data.lock().map_err(|_| "could not be opened")?;
        // Open files stay available, even after a save over this model removed its data.
        if let Some(file) = files.opened.get(location) {
            return Ok(file.bytes.clone());
        }
        let path = folders.file(location)?;
        let file = Opened::at(&path, files.max_read).map_err(|error| match error.io_error() {
            Some(cause) => format!("could not be read: {cause}"),
            None => format!("could not be read: {error}"),
        })?;
        let bytes = file.bytes.clone();
        if file.watch.is_none() {
            files.max_read -= bytes.len() as u64;
        }
        files.opened.insert(location.to_owned(), file);
        Ok(bytes)
    }
}

impl Folders {
    fn of(path: &Path) -> Folders {
        let folder = |path: &Path| path.parent().map(Path::to_path_buf);
        let linked = path.canonicalize().ok().as_deref().and_then(folder);
        let linked = linked.unwrap_or_else(|| PathBuf::from("."));
        let given = std::path::absolute(path).ok().as_deref().and_then(folder);
        let given = given.and_then(|given| given.canonicalize().ok());
        Folders { given: given.unwrap_or_else(|| linked.clone()), linked }
    }

    /// The path of the file at `location`, which must be in one of these folders after all links
    /// are resolved. It is looked for beside the path that was given, then beside what that links
    /// to.
    fn file(&self, location: &str) -> Result<PathBuf, String> {
        let relative = Path::new(location);
        let plain = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if location.is_empty() || !plain || location.contains(['\\', '\0']) {
            return Err("is not a plain path inside the model's folder".to_owned());
        }
        let beside = self.given.join(relative);
        let beside = match beside.symlink_metadata() {
            Ok(_) => beside,
            Err(_) => self.linked.join(relative),
        };
        let path = beside.canonicalize().map_err(|cause| format!("could not be read: {cause}"))?;
        if path.starts_with(&self.given) || path.starts_with(&self.linked) {
            return Ok(path);
        }
        Err(format!(
            "is a link to `{}`, outside the model's folder: replace the link by a copy of that \
             file",
            path.display()
        ))
    }
}
