//! The path of an output file: what may be replaced there, and the external data beside it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::Raw;
use crate::error::{Error, ErrorKind};
use crate::map::Opened;
use crate::new_file::{self, NewFile};
use crate::schema::ModelProto;
use crate::stop::{self, Stoppable};
use crate::wire::Span;

/// Writes a file atomically, as [`Model::save`](crate::Model::save) does.
///
/// # Errors
/// The path is a directory or device, or the system reports an error.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), Error> {
    write_file_with(path, |out| out.write_all(bytes))
}

/// As [`write_file`], with contents that need not be in memory at once.
///
/// # Errors
/// The path is a directory or device, or the system or `contents` reports an error.
pub fn write_file_with(
    path: impl AsRef<Path>,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let target = Target::at(path.as_ref())?;
    target.clear_leftovers();
    target.write(contents)?.finish().map(drop)
}

/// Whether a path can only be that of a directory, as `folder/` and `folder/.` are.
fn names_a_directory(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let last = text.rsplit(std::path::is_separator).next();
    matches!(last, Some("" | "."))
}

/// A larger file that is to be replaced is mapped to read the names of its external data.
const MAX_READ_BYTES: u64 = 1 << 20;

/// A file to write.
pub(crate) struct Target {
    path: PathBuf,
    existing: Option<Permissions>,
}

impl Target {
    /// Resolves links, and refuses what is not a file.
    pub(crate) fn at(path: &Path) -> Result<Target, Error> {
        let refused = |what| Err(Error::new(ErrorKind::NotAFile(what)).at(Some(path)));
        match fs::metadata(path) {
            Err(_) if names_a_directory(path) => refused("a directory"),
            Ok(metadata) if metadata.is_dir() => refused("a directory"),
            Ok(metadata) if !metadata.is_file() => refused("a device, socket or pipe"),
            Ok(metadata) => {
                let path = path.canonicalize().map_err(|cause| Error::io(cause, path))?;
                Ok(Target { path, existing: Some(metadata.permissions()) })
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => match resolve_links(path) {
                Some(path) if path.file_name().is_some() => Ok(Target { path, existing: None }),
                _ => Err(Error::io(cause, path)),
            },
            Err(cause) => Err(Error::io(cause, path)),
        }
    }

    /// The path, with links resolved.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }

    /// A new data file next to this one, and its name. It gets the mode of this file.
    pub(crate) fn data_target(&self) -> (Target, String) {
        let mut name = format!("{}.data", self.name());
        // The existing model may have lost its data: no other file gets that name.
        let named = self.own_data().unwrap_or_default();
        for number in 1u64.. {
            let path = self.path.with_file_name(&name);
            if !named.contains(&path) && fs::symlink_metadata(path).is_err() {
                break;
            }
            name = format!("{}.{number}.data", self.name());
        }
        let path = self.path.with_file_name(&name);
        (Target { path, existing: self.existing.clone() }, name)
    }

    /// The data file next to this one that is named after it and then `suffix`, and its name.
    pub(crate) fn named_data(&self, suffix: &str) -> (Target, String) {
        let name = format!("{}{suffix}", self.name());
        let path = self.path.with_file_name(&name);
        (Target { path, existing: self.existing.clone() }, name)
    }

    /// Whether another model of the folder than this one reads a file as its external data.
    pub(crate) fn is_data_of_another(&self, data: &Target) -> bool {
        let exists = fs::symlink_metadata(&data.path).is_ok();
        exists && self.is_read(&data.path, &[&data.name(), &self.name()])
    }

    /// The external data of the existing file that is named after it as by [`data_target`]. An
    /// error only if the file cannot be read: what is not a model has no data.
    ///
    /// [`data_target`]: Target::data_target
    fn own_data(&self) -> Result<BTreeSet<PathBuf>, Error> {
        let named = data_of(&self.path)?.into_iter();
        let own = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            models_of_data(&name).contains(&&*self.name())
        };
        Ok(named.filter(own).collect())
    }

    /// Removes what killed processes left in the folder: incomplete files, and external data that
    /// no model reads.
    pub(crate) fn clear_leftovers(&self) {
        for leftover in new_file::leftovers(self.folder()) {
            for path in leftover.other_names() {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if !models_of_data(&name).is_empty() && !self.is_read(&path, &[&name]) {
                    let _ = fs::remove_file(&path);
                }
            }
            leftover.remove();
        }
    }

    /// Whether a file of the folder, other than those with the names `except`, names this one as
    /// its external data: its model may have been renamed or copied. A file that cannot be read
    /// may.
    fn is_read(&self, data: &Path, except: &[&str]) -> bool {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let others = entries.filter(|entry| !except.iter().any(|name| entry.file_name() == **name));
        let mut files = others.map(|entry| entry.path()).filter(|path| path.is_file());
        files.any(|path| {
            data_of(&path)
                .map_or(true, |named| named.iter().any(|one| one.file_name() == data.file_name()))
        })
    }

    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// Writes the renames in the folder to disk; systems that do not support it may fail.
    pub(crate) fn sync_folder(&self) {
        if let Ok(folder) = File::open(self.folder()) {
            let _ = folder.sync_all();
        }
    }

    fn stopped(&self) -> Error {
        Error::new(ErrorKind::Stopped).at(Some(&self.path))
    }

    /// Writes and syncs a new file in the same folder; it is removed unless it is finished.
    pub(crate) fn write(
        &self,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Complete<'_>, Error> {
        let written =
            NewFile::create(self.folder(), self.existing.as_ref()).and_then(|mut file| {
                contents(&mut Stoppable(file.file()))?;
                stop::check()?;
                file.file().sync_all()?;
                Ok(file)
            });
        let file = written.map_err(|cause| {
            if stop::is_stopped() { self.stopped() } else { Error::io(cause, &self.path) }
        })?;
        Ok(Complete { file, target: self })
    }
}

/// The external data beside a model; none if the file is missing or not a model.
fn data_of(path: &Path) -> Result<BTreeSet<PathBuf>, Error> {
    let model = match Opened::at(path, MAX_READ_BYTES) {
        Ok(file) => Raw::<ModelProto>::read(Span::whole(file.bytes)),
        Err(error) if *error.kind() == ErrorKind::Io(io::ErrorKind::NotFound) => {
            return Ok(BTreeSet::new());
        }
        Err(error) => return Err(error),
    };
    let Ok(Some(graph)) = model.as_ref().map(|model| &model.graph) else {
        return Ok(BTreeSet::new());
    };
    let external = graph.tensors().filter(|tensor| tensor.is_external());
    let named = external.filter_map(|tensor| tensor.external_entry("location"));
    // `./data` is the same file as `data`.
    Ok(named.map(|name| path.with_file_name(name.trim_start_matches("./"))).collect())
}

/// The names of the models whose external data may have this name; see [`Target::data_target`].
fn models_of_data(name: &str) -> Vec<&str> {
    let Some(model) = name.strip_suffix(".data") else { return Vec::new() };
    let counted =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let numbered = model.rsplit_once('.').filter(|(_, digits)| counted(digits));
    std::iter::once(model).chain(numbered.map(|(model, _)| model)).collect()
}

/// The maximum number of consecutive links, as on Linux.
const MAX_LINKS: usize = 40;

/// The file at the end of a chain of links, which does not exist yet.
fn resolve_links(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..=MAX_LINKS {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("")).join(link),
            Err(_) => return Some(path),
        }
    }
    None
}

/// A complete new file before it is in place.
pub(crate) struct Complete<'a> {
    file: NewFile,
    target: &'a Target,
}

impl Complete<'_> {
    /// Gives the file its name, as [`NewFile::link_new`] does.
    pub(crate) fn name_new(&mut self, path: &Path) -> io::Result<()> {
        self.file.link_new(path)
    }

    /// Replaces the file at the path, which is external data.
    pub(crate) fn replace(self) -> Result<(), Error> {
        let target = self.target;
        if stop::is_stopped() {
            return Err(target.stopped());
        }
        self.file.replace(&target.path).map_err(|cause| Error::io(cause, &target.path))
    }

    /// Replaces the file at the path, and removes its external data, unless another model of the
    /// folder reads it. A failure to remove the data does no harm.
    pub(crate) fn finish(self) -> Result<PathBuf, Error> {
        let target = self.target;
        let _others_wait = new_file::lock(target.folder());
        if stop::is_stopped() {
            return Err(target.stopped());
        }
        let mut replaced = target.own_data().unwrap_or_default();
        replaced.retain(|data| {
            let name = data.file_name().unwrap_or_default().to_string_lossy();
            fs::symlink_metadata(data).is_ok_and(|data| data.is_file())
                && !target.is_read(data, &[&name, &target.name()])
        });
        let marks: Vec<_> =
            replaced.iter().map(|data| (data, new_file::mark_for_removal(data))).collect();
        self.file.replace(&target.path).map_err(|cause| Error::io(cause, &target.path))?;
        target.sync_folder();
        for (data, mark) in marks {
            let _ = fs::remove_file(data);
            drop(mark);
        }
        Ok(target.path.clone())
    }
}
