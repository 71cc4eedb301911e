//! Ctrl-C: the first ends the work within a second and leaves no partial files, the second ends the
//! process at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use quantize_rs::stop_when;
use signal_hook::consts::SIGINT;
use signal_hook::{flag, low_level};

use crate::failure::{Failure, INTERRUPTED};

/// The interval at which it is checked.
const EVERY: Duration = Duration::from_millis(50);

/// How long work may take to end by itself. The preparation of a model does not check for Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(700);

/// Whether Ctrl-C was pressed; empty if no handler is installed.
static PRESSED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Held while a file is written.
static WRITING: Mutex<()> = Mutex::new(());

/// Installs the handler of Ctrl-C for the lifetime of the process.
pub(crate) fn listen() {
    PRESSED.get_or_init(|| {
        let pressed = Arc::new(AtomicBool::new(false));
        // In this order: on the first Ctrl-C, the conditional shutdown finds the flag unset; on the
        // second, it finds it set.
        let listening = flag::register_conditional_shutdown(
            SIGINT,
            i32::from(INTERRUPTED),
            Arc::clone(&pressed),
        )
        .and_then(|_| flag::register(SIGINT, Arc::clone(&pressed)));
        let seen = Arc::clone(&pressed);
        if listening.is_ok() {
            // Without the thread, Ctrl-C is noticed at the next step.
            let _ = thread::Builder::new().spawn(move || end_when(&seen));
        }
        pressed
    });
}

/// Ends the process some time after Ctrl-C, but not while it writes a file.
fn end_when(pressed: &AtomicBool) {
    while !pressed.load(Ordering::Relaxed) {
        thread::sleep(EVERY);
    }
    thread::sleep(PATIENCE);
    let _not_writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    low_level::exit(i32::from(INTERRUPTED));
}

/// Whether Ctrl-C was pressed.
pub(crate) fn is_pressed() -> bool {
    PRESSED.get().is_some_and(|pressed| pressed.load(Ordering::Relaxed))
}

/// A flag that is set when Ctrl-C is pressed.
pub(crate) fn pressed() -> Arc<AtomicBool> {
    PRESSED.get().cloned().unwrap_or_default()
}

/// Runs work that writes a file. The process does not end while it runs. After Ctrl-C the file is
/// given up unless it is already in place; the command is interrupted in either case.
pub(crate) fn finishing<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_pressed() {
        return Err(Failure::Interrupted);
    }
    let done = stop_when(is_pressed, work);
    if is_pressed() { Err(Failure::Interrupted) } else { done }
}
