//! Ends the writing of a large file early.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

thread_local! {
    static STOPPED: RefCell<Option<Rc<dyn Fn() -> bool>>> = const { RefCell::new(None) };
}

/// Bytes that are written between two questions.
const PIECE: usize = 4 << 20;

/// Runs `work`. Files that it writes on this thread are given up as soon as `stopped` returns true,
/// with [`ErrorKind::Stopped`](crate::ErrorKind::Stopped): what was at their paths stays.
///
/// `stopped` is asked before each write of at most 4 MiB, and for the last time before the new file
/// replaces the old one. So is that of a call around this one.
///
/// ```
/// use quantize_rs_onnx::{ErrorKind, stop_when, write_file};
/// let path = std::env::temp_dir().join("never-written.onnx");
/// let outcome = stop_when(|| true, || write_file(&path, b"content"));
/// assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::Stopped);
/// assert!(!path.exists());
/// ```
pub fn stop_when<T>(stopped: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Rc<dyn Fn() -> bool>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            STOPPED.set(self.0.take());
        }
    }
    let around = STOPPED.with_borrow(Clone::clone);
    let either = move || stopped() || around.as_ref().is_some_and(|around| around());
    let _restore = Restore(STOPPED.replace(Some(Rc::new(either))));
    work()
}

/// Whether the work on this thread is to stop.
pub(crate) fn is_stopped() -> bool {
    STOPPED.with_borrow(Clone::clone).is_some_and(|stopped| stopped())
}

/// An error if the work on this thread is to stop.
pub(crate) fn check() -> io::Result<()> {
    if is_stopped() { Err(io::Error::other("stopped")) } else { Ok(()) }
}

/// Writes in pieces, until the work is to stop.
pub(crate) struct Stoppable<W>(pub(crate) W);

impl<W: Write> Write for Stoppable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        check()?;
        self.0.write(&bytes[..bytes.len().min(PIECE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
