//! Arithmetic where rayon's threads do not exist: in a forked process, or because the system starts
//! none.

use std::cell::RefCell;
use std::error::Error;
use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The process that rayon's threads belong to.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Whether the system started rayon's threads.
static STARTED: OnceLock<bool> = OnceLock::new();

thread_local! {
    /// The pool of this thread alone, where there is no other.
    static ALONE: RefCell<Option<ThreadPool>> = const { RefCell::new(None) };
}

/// Lets arithmetic of this crate run on the calling thread. Call it at the start of each thread
/// that does some.
///
/// A process that another one forked has only the thread that did so. Arithmetic would wait for
/// threads of the other process for ever; after this call it runs on the calling thread alone, as
/// it does where [`start_threads`] failed. Otherwise, in the process that called this function
/// first, it does nothing.
///
/// ```
/// quantize_rs_math::begin_thread();
/// ```
pub fn begin_thread() {
    if is_first_process() && STARTED.get() != Some(&false) {
        return;
    }
    ALONE.with_borrow_mut(|alone| {
        if alone.is_none() {
            // It fails on a thread of rayon, which needs no other pool.
            *alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().ok();
        }
    });
}

/// Starts the threads of arithmetic, unless they run already. Call it before [`begin_thread`] where
/// a limit on memory or processes may leave no room for them: without this call, the first
/// arithmetic panics then, or waits for ever.
///
/// ```
/// quantize_rs_math::start_threads();
/// quantize_rs_math::begin_thread();
/// ```
pub fn start_threads() {
    if is_first_process() {
        STARTED.get_or_init(|| {
            let failed = ThreadPoolBuilder::new().build_global().err();
            // Where they run already, the error has no cause.
            failed.is_none_or(|error| error.source().is_none())
        });
    }
}

/// Whether this is the process that asked this first, and not one that it forked.
fn is_first_process() -> bool {
    let process = std::process::id();
    *PROCESS.get_or_init(|| process) == process
}
