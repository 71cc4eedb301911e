//! Arithmetic in a forked process, where rayon's threads do not exist.

use std::cell::RefCell;
use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The process that rayon's threads belong to.
static PROCESS: OnceLock<u32> = OnceLock::new();

thread_local! {
    /// The pool of this thread alone, in a forked process.
    static ALONE: RefCell<Option<ThreadPool>> = const { RefCell::new(None) };
}

/// Lets arithmetic of this crate run on the calling thread. Call it at the start of each thread
/// that does some.
///
/// A process that another one forked has only the thread that did so. Arithmetic would wait for
/// threads of the other process for ever; after this call it runs on the calling thread alone. In
/// the process that called this function first, it does nothing.
///
/// ```
/// quantize_rs_math::begin_thread();
/// ```
pub fn begin_thread() {
    let process = std::process::id();
    if *PROCESS.get_or_init(|| process) == process {
        return;
    }
    ALONE.with_borrow_mut(|alone| {
        if alone.is_none() {
            // It fails on a thread of rayon, which needs no other pool.
            *alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().ok();
        }
    });
}
