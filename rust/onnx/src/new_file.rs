//! Files that appear complete or not at all, and what a killed process left behind.
//!
//! On Linux a new file has no name until it is complete, so a killed process leaves nothing.
//! Elsewhere, and for the moments of a rename, it has a hidden name. Its owner holds a lock on it,
//! which the system releases when the process ends: a hidden file that can be locked is a leftover.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::{Builder, TempPath};

use crate::stop::Stoppable;

const PREFIX: &str = ".quantize-rs-";
const SUFFIX: &str = ".tmp";

/// How long one save waits while others rename their files in the same folder, which takes them
/// milliseconds.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A file that is being written. It is removed unless it gets its final name.
pub(crate) struct NewFile {
    file: File,
    folder: PathBuf,
    /// Its hidden name, if it has one.
    hidden: Option<TempPath>,
}

impl NewFile {
    /// An empty file in `folder`, by default with the mode of new files.
    pub(crate) fn create(folder: &Path, permissions: Option<&Permissions>) -> io::Result<NewFile> {
        let new = NewFile::unnamed(folder, permissions)
            .map_or_else(|| NewFile::named(folder, permissions), Ok)?;
        if let Some(permissions) = permissions {
            // At its creation the umask is applied to them.
            new.file.set_permissions(permissions.clone())?;
        }
        Ok(new)
    }

    /// A file without a name; `None` if the system or the file system has no such files.
    #[cfg(target_os = "linux")]
    fn unnamed(folder: &Path, permissions: Option<&Permissions>) -> Option<NewFile> {
        use rustix::fs::{Mode, OFlags, open};
        use std::os::unix::fs::PermissionsExt;
        let mode = permissions.map_or(0o666, |permissions| permissions.mode() & 0o777);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(open(folder, flags, Mode::from_raw_mode(mode)).ok()?);
        // It gets its name through this path.
        fs::metadata(unnamed_path(&file)).ok()?;
        let _ = file.try_lock();
        Some(NewFile { file, folder: folder.to_path_buf(), hidden: None })
    }

    #[cfg(not(target_os = "linux"))]
    fn unnamed(_: &Path, _: Option<&Permissions>) -> Option<NewFile> {
        None
    }

    fn named(folder: &Path, permissions: Option<&Permissions>) -> io::Result<NewFile> {
        let made = hidden_names().make_in(folder, |path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            #[cfg(unix)]
            {
                use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
                options.mode(permissions.map_or(0o666, |permissions| permissions.mode() & 0o777));
            }
            #[cfg(not(unix))]
            let _ = permissions;
            let file = options.open(path)?;
            let _ = file.try_lock();
            // Another process may have removed it as a leftover before it was locked: the next name
            // is tried.
            if path.exists() { Ok(file) } else { Err(io::ErrorKind::AlreadyExists.into()) }
        })?;
        let (file, hidden) = made.into_parts();
        Ok(NewFile { file, folder: folder.to_path_buf(), hidden: Some(hidden) })
    }

    /// The file, to be written.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name; a file that has this name is replaced.
    pub(crate) fn replace(mut self, path: &Path) -> io::Result<()> {
        if self.hidden.is_none() && self.link(path).is_ok() {
            return Ok(());
        }
        self.hide()?;
        match self.hidden {
            Some(hidden) => hidden.persist(path).map_err(|error| error.error),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Gives the file its name, unless a file has it, and a hidden name too, by which a later save
    /// finds the file if this process is killed before the file is in use.
    pub(crate) fn link_new(&mut self, path: &Path) -> io::Result<()> {
        self.hide()?;
        let Some(hidden) = &self.hidden else { return Err(io::ErrorKind::NotFound.into()) };
        match fs::hard_link(hidden, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {}
            done => return done,
        }
        // This file system has no hard links.
        let Some(hidden) = self.hidden.take() else { return Err(io::ErrorKind::NotFound.into()) };
        hidden.persist_noclobber(path).map_err(|error| {
            self.hidden = Some(error.path);
            error.error
        })
    }

    /// Gives the file a hidden name, unless it has one.
    fn hide(&mut self) -> io::Result<()> {
        if self.hidden.is_none() {
            match hidden_names().make_in(&self.folder, |path| self.link(path)) {
                Ok(made) => self.hidden = Some(made.into_temp_path()),
                // A file system may have unnamed files, and not let them have a name.
                Err(_) => *self = self.copied()?,
            }
        }
        Ok(())
    }

    /// A file with a hidden name and the same contents.
    fn copied(&self) -> io::Result<NewFile> {
        let permissions = self.file.metadata()?.permissions();
        let mut copy = NewFile::named(&self.folder, Some(&permissions))?;
        copy.file.set_permissions(permissions)?;
        let mut from = &self.file;
        from.rewind()?;
        io::copy(&mut from, &mut Stoppable(&mut copy.file))?;
        copy.file.sync_all()?;
        Ok(copy)
    }

    #[cfg(target_os = "linux")]
    fn link(&self, path: &Path) -> io::Result<()> {
        use rustix::fs::{AtFlags, CWD, linkat};
        Ok(linkat(CWD, unnamed_path(&self.file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }

    #[cfg(not(target_os = "linux"))]
    fn link(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(target_os = "linux")]
fn unnamed_path(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn hidden_names() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    builder
}

/// A hidden second name for a file that is about to be removed. If this process is killed before it
/// removes the file, a later save finds it by this name. `None` where that is not possible.
#[cfg(unix)]
pub(crate) fn mark_for_removal(path: &Path) -> Option<(File, TempPath)> {
    let file = File::open(path).ok()?;
    file.try_lock().ok()?;
    let made = hidden_names().make_in(path.parent()?, |hidden| fs::hard_link(path, hidden)).ok()?;
    Some((file, made.into_temp_path()))
}

/// See the other. Without identities of files there, a later save would not know what it found.
#[cfg(not(unix))]
pub(crate) fn mark_for_removal(_: &Path) -> Option<(File, TempPath)> {
    None
}

/// A hidden file of a process that has ended, locked by this one.
pub(crate) struct Leftover {
    file: File,
    path: PathBuf,
}

impl Leftover {
    /// The other names of the file in its folder.
    #[cfg(unix)]
    pub(crate) fn other_names(&self) -> Vec<PathBuf> {
        use std::os::unix::fs::MetadataExt;
        let Ok(own) = self.file.metadata() else { return Vec::new() };
        if own.nlink() < 2 {
            return Vec::new();
        }
        let same = |path: &PathBuf| {
            fs::symlink_metadata(path)
                .is_ok_and(|other| (other.dev(), other.ino()) == (own.dev(), own.ino()))
        };
        let entries = self.path.parent().and_then(|folder| fs::read_dir(folder).ok());
        let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        paths.filter(|path| *path != self.path && same(path)).collect()
    }

    /// See the other: no file has two names there.
    #[cfg(not(unix))]
    pub(crate) fn other_names(&self) -> Vec<PathBuf> {
        let _ = &self.file;
        Vec::new()
    }

    /// Removes the file.
    pub(crate) fn remove(self) {
        // Another process may have been faster, or the folder may not be writable.
        let _ = fs::remove_file(&self.path);
    }
}

/// The hidden files in `folder` that no living process is writing.
pub(crate) fn leftovers(folder: &Path) -> Vec<Leftover> {
    let is_hidden = |name: &OsStr| {
        name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
    };
    let locked = |path: PathBuf| {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        // What has this name may be a link or a pipe.
        #[cfg(unix)]
        {
            use rustix::fs::OFlags;
            use std::os::unix::fs::OpenOptionsExt;
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            options.custom_flags(flags.bits().cast_signed());
        }
        let file = options.open(&path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        file.try_lock().ok()?;
        Some(Leftover { file, path })
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| is_hidden(&entry.file_name())).filter_map(|e| locked(e.path())).collect()
}

/// Excludes other saves into `folder` while files there are renamed and removed. `None` on systems
/// that do not lock folders, and when another process holds the lock for too long: two saves to one
/// path then still leave one of the two whole.
pub(crate) fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    let until = Instant::now() + MAX_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_gets_no_name_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let mut file = NewFile::create(folder.path(), None).unwrap();
        file.file().write_all(b"contents").unwrap();
        let mode = file.file.metadata().unwrap().permissions();
        file.copied().unwrap().replace(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        assert_eq!(fs::metadata(&path).unwrap().permissions(), mode);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
