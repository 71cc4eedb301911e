//! Arithmetic where rayon's threads do not exist: in a forked process, or because the system starts
//! none.

use std::cell::RefCell;
use std::error::Error;
use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The process that rayon's threads belong to, if the system started them.
static PROCESS: OnceLock<Option<u32>> = OnceLock::new();

thread_local! {
    /// The pool of this thread alone, where there is no other.
    static ALONE: RefCell<Option<ThreadPool>> = const { RefCell::new(None) };
}

/// Lets arithmetic of this crate run on the calling thread. Call it at the start of each thread
/// that does some.
///
/// A process that another one forked has only the thread that did so. Arithmetic would wait for
/// threads of the other process for ever; after this call it runs on the calling thread alone, as
/// it does where a limit on memory or processes leaves no room for further threads. In the process
/// that called this function first, with its threads, it does nothing.
///
/// ```
/// quantize_rs_math::begin_thread();
/// ```
pub fn begin_thread() {
    let process = std::process::id();
    if *PROCESS.get_or_init(|| starts_threads().then_some(process)) == Some(process) {
        return;
    }
    ALONE.with_borrow_mut(|alone| {
        if alone.is_none() {
            // It fails on a thread of rayon, which needs no other pool.
            *alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().ok();
        }
    });
}

/// Starts rayon's threads, unless they run already, and returns whether there are any.
fn starts_threads() -> bool {
    // Where they run already, the error has no cause.
    ThreadPoolBuilder::new().build_global().err().is_none_or(|error| error.source().is_none())
}
