//! Memory for large data: memory-mapped files, small files read into memory, and buffers for large
//! tensors.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use memmap2::{Mmap, MmapMut};

use crate::error::{Error, ErrorKind};
#[cfg(unix)]
use crate::guard::Guarded;

/// A file that is open.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    /// Its bytes. Cloning or slicing them copies nothing.
    pub(crate) bytes: Bytes,
    /// How to see whether it was changed; `None` for a file in memory.
    pub(crate) watch: Option<Watch>,
}

impl Opened {
    /// Opens a file. With at most `max_read` bytes it is read into memory, where nothing changes
    /// it; a larger one is mapped.
    pub(crate) fn at(path: &Path, max_read: u64) -> Result<Opened, Error> {
        let failed = |cause| Error::io(cause, path);
        // Checked before opening, because opening a pipe waits for a writer, and after opening,
        // because the file may have been replaced in between.
        require_file(&fs::metadata(path).map_err(failed)?, path)?;
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        require_file(&metadata, path)?;
        let stamp = Stamp::of(&metadata);
        if stamp.len <= max_read {
            let mut bytes = Vec::new();
            // One byte more, to see the end.
            let len = usize::try_from(stamp.len).unwrap_or(usize::MAX).saturating_add(1);
            bytes.try_reserve_exact(len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
            (&file).take(stamp.len + 1).read_to_end(&mut bytes).map_err(failed)?;
            let same = Stamp::of(&file.metadata().map_err(failed)?) == stamp;
            if !same || bytes.len() as u64 != stamp.len {
                return Err(changed(path));
            }
            return Ok(Opened { bytes: bytes.into(), watch: None });
        }
        // SAFETY: the mapping is read-only and private, and lives as long as the `Bytes` that own
        // it. The remaining risk, shared by every program that maps files, is that another process
        // changes the file in the meantime. That it becomes shorter does not end the process, see
        // `guard`, and results are not given out once `Watch` finds a change. Our own writer never
        // changes a file: it writes a new one and renames it into place, so that an old mapping
        // keeps the old file.
        let map = Mapping::new(unsafe { Mmap::map(&file) }.map_err(failed)?);
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let watch = Watch { path, stamp, map: Arc::clone(&map.0) };
        Ok(Opened { bytes: Bytes::from_owner(map), watch: Some(watch) })
    }
}

fn changed(path: &Path) -> Error {
    Error::new(ErrorKind::Changed).at(Some(path))
}

/// On Windows, a mapped file cannot be shortened.
#[cfg(not(unix))]
type Guarded = Mmap;

#[derive(Clone)]
struct Mapping(Arc<Guarded>);

impl Mapping {
    fn new(map: Mmap) -> Mapping {
        #[cfg(unix)]
        let map = Guarded::new(map);
        Mapping(Arc::new(map))
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().as_ref()
    }
}

/// What a write to a file changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    /// Device and number of the file, where the system has them.
    file: (u64, u64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        #[cfg(unix)]
        let file = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let file = (0, 0);
        Stamp { len: metadata.len(), modified: metadata.modified().ok(), file }
    }
}

/// Sees whether a mapped file was changed since it was opened.
#[derive(Clone)]
pub(crate) struct Watch {
    path: PathBuf,
    stamp: Stamp,
    #[cfg_attr(not(unix), allow(dead_code))] // it is not shortened there
    map: Arc<Guarded>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({:?}, {:?})", self.path, self.stamp)
    }
}

impl Watch {
    /// An error if the file was changed, or could not be read any more.
    ///
    /// The file itself is not kept open, since a model may have hundreds. A file that was moved, or
    /// that another one replaced, keeps its bytes.
    pub(crate) fn unchanged(&self) -> Result<(), Error> {
        #[cfg(unix)]
        if self.map.is_lost() {
            return Err(changed(&self.path));
        }
        let Ok(metadata) = fs::metadata(&self.path) else { return Ok(()) };
        let now = Stamp::of(&metadata);
        if now.file == self.stamp.file && now != self.stamp {
            return Err(changed(&self.path));
        }
        Ok(())
    }
}

fn require_file(metadata: &Metadata, path: &Path) -> Result<(), Error> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = if metadata.is_dir() { "a directory" } else { "a device, socket or pipe" };
    Err(Error::new(ErrorKind::NotAFile(what)).at(Some(path)))
}

/// The minimum size of a buffer that gets its own pages.
const MIN_PAGED_BYTES: usize = 512 << 10;

/// The maximum total size of large buffers in memory.
const MAX_RESIDENT_BYTES: usize = 128 << 20;

/// The total size of the large buffers in memory.
static RESIDENT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Zero-initialized memory for the elements of a tensor.
///
/// Buffers from 2 MiB on use huge pages: 16 MB then cause 8 page faults instead of 4096. Once 128
/// MiB of them are in memory, further buffers are moved to unnamed temporary files when they are
/// complete, so that the quantized model may be larger than the memory.
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
    Pages(Pages),
}

/// Pages that count as resident as long as they exist.
#[derive(Debug)]
struct Pages(MmapMut);

impl Pages {
    fn zeroed(len: usize) -> Option<Pages> {
        let pages = MmapMut::map_anon(len).ok()?;
        // This is only advice: if the system ignores it, the code is slower.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage);
        RESIDENT_BYTES.fetch_add(len, Ordering::Relaxed);
        Some(Pages(pages))
    }

    /// The same bytes in a mapped temporary file; `None` if it cannot be written.
    fn to_temp_file(&self) -> Option<Mmap> {
        let mut file = tempfile::tempfile().ok()?;
        file.write_all(&self.0).ok()?;
        // SAFETY: the mapping is read-only, and the file has no name, so that no other process
        // opens or shortens it.
        unsafe { Mmap::map(&file) }.ok()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        RESIDENT_BYTES.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Buffer {
    /// `len` bytes, all 0.
    pub fn zeroed(len: usize) -> Buffer {
        if len < MIN_PAGED_BYTES {
            return Buffer(Memory::Heap(vec![0; len]));
        }
        let pages = Pages::zeroed(len).map(Memory::Pages);
        Buffer(pages.unwrap_or_else(|| Memory::Heap(vec![0; len])))
    }

    /// The buffer as shared bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Memory::Heap(bytes) => bytes.into(),
            Memory::Pages(pages) => {
                let full = RESIDENT_BYTES.load(Ordering::Relaxed) > MAX_RESIDENT_BYTES;
                match full.then(|| pages.to_temp_file()).flatten() {
                    Some(file) => Bytes::from_owner(file),
                    None => Bytes::from_owner(pages),
                }
            }
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Pages(pages) => &mut pages.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_beyond_memory_have_the_same_bytes_in_a_file() {
        let len = MAX_RESIDENT_BYTES / 2 + 1;
        let filled = |value: u8| {
            let mut buffer = Buffer::zeroed(len);
            buffer.as_mut()[len - 1] = value;
            buffer.into_bytes()
        };
        let all: Vec<Bytes> = (1..4).map(filled).collect();
        // Other tests may have buffers at the same time, but not for long.
        assert!(RESIDENT_BYTES.load(Ordering::Relaxed) < 3 * len, "one at least is in a file");
        for (bytes, value) in all.iter().zip(1..) {
            assert_eq!((bytes.len(), bytes[0], bytes[len - 1]), (len, 0, value));
        }
    }
}
