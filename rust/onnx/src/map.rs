//! Large memory: files mapped when large, read when small, and buffers for large tensors. The one
//! place with `unsafe`.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use memmap2::{Mmap, MmapMut};

use crate::error::{Error, ErrorKind};

/// Smaller files are read: a copy costs less than a mapping, and nothing can change under us.
const MAP_FROM: u64 = 1 << 20;

/// The bytes of a file. Cloning or slicing them copies nothing.
pub(crate) fn bytes_of(path: &Path) -> Result<Bytes, Error> {
    let failed = |cause| Error::io(cause, path);
    // Looked at before it is opened, for opening a pipe waits until somebody writes to it, and
    // after, for another file may have taken its place.
    require_file(&fs::metadata(path).map_err(failed)?, path)?;
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    require_file(&metadata, path)?;
    if metadata.len() < MAP_FROM {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        return Ok(bytes.into());
    }
    // SAFETY: the mapping is read-only and private, and lives as long as the `Bytes` that own it.
    // What remains is another process shortening the file while we read, which every program that
    // maps files shares; our own writer never does: it writes a new file and renames it into
    // place, so that an old mapping keeps the old file.
    let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
    Ok(Bytes::from_owner(map))
}

fn require_file(metadata: &Metadata, path: &Path) -> Result<(), Error> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = if metadata.is_dir() { "a directory" } else { "a device, socket or pipe" };
    Err(Error::new(ErrorKind::NotAFile(what)).at(Some(path)))
}

/// From this size on a buffer is worth pages of its own.
const LARGE: usize = 4 << 20;

/// Zeroed memory for the elements of a tensor.
///
/// Large buffers ask the system for huge pages: a buffer of 16 MB is then had in 8 page faults, not
/// 4096.
///
/// ```
/// use quantize_rs_onnx::Buffer;
/// let mut buffer = Buffer::zeroed(3);
/// buffer.as_mut()[1] = 7;
/// assert_eq!(&buffer.into_bytes()[..], [0, 7, 0]);
/// ```
#[derive(Debug)]
pub struct Buffer(Memory);

#[derive(Debug)]
enum Memory {
    Heap(Vec<u8>),
    Pages(MmapMut),
}

impl Buffer {
    /// `len` bytes, all 0.
    pub fn zeroed(len: usize) -> Buffer {
        if len >= LARGE
            && let Ok(pages) = MmapMut::map_anon(len)
        {
            // Advice: where it is not taken, nothing but time is lost.
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            return Buffer(Memory::Pages(pages));
        }
        Buffer(Memory::Heap(vec![0; len]))
    }

    /// The buffer as shared bytes, not copied.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Memory::Heap(bytes) => bytes.into(),
            Memory::Pages(pages) => Bytes::from_owner(pages),
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Pages(pages) => pages,
        }
    }
}
