//! Files in memory: mapped when large, read when small. The one place with `unsafe`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use memmap2::Mmap;

use crate::error::{Error, ErrorKind};

/// Smaller files are read: a copy costs less than a mapping, and nothing can change under us.
const MAP_FROM: u64 = 1 << 20;

/// The bytes of a file. Cloning or slicing them copies nothing.
pub(crate) fn bytes_of(path: &Path) -> Result<Bytes, Error> {
    let mut file = File::open(path).map_err(|cause| Error::io(cause, path))?;
    let metadata = file.metadata().map_err(|cause| Error::io(cause, path))?;
    if metadata.is_dir() {
        return Err(Error::new(ErrorKind::NotAFile("a directory")).at(Some(path)));
    }
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::NotAFile("a device, socket or pipe")).at(Some(path)));
    }
    if metadata.len() < MAP_FROM {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|cause| Error::io(cause, path))?;
        return Ok(bytes.into());
    }
    // SAFETY: the mapping is read-only and private, and lives as long as the `Bytes` that own it.
    // What remains is another process shortening the file while we read, which every program that
    // maps files shares; our own writer never does: it writes a new file and renames it into
    // place, so that an old mapping keeps the old file.
    let map = unsafe { Mmap::map(&file) }.map_err(|cause| Error::io(cause, path))?;
    Ok(Bytes::from_owner(map))
}
