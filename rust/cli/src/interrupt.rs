//! Ctrl-C: the first ends the work within a second and leaves nothing half done, the second ends
//! the process there and then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::SIGINT;
use signal_hook::{flag, low_level};

use crate::failure::{Failure, INTERRUPTED};

/// How often it is looked at.
const EVERY: Duration = Duration::from_millis(50);

/// How long work may take to end by itself: a model that is being prepared does not look up.
const PATIENCE: Duration = Duration::from_millis(700);

/// Whether Ctrl-C was pressed; empty where nothing listens.
static PRESSED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Held while a file is written.
static WRITING: Mutex<()> = Mutex::new(());

/// Listens to Ctrl-C from now on, for as long as the process lives.
pub(crate) fn listen() {
    PRESSED.get_or_init(|| {
        let pressed = Arc::new(AtomicBool::new(false));
        // In this order: the first finds it unset, and the second set.
        let listening = flag::register_conditional_shutdown(
            SIGINT,
            i32::from(INTERRUPTED),
            Arc::clone(&pressed),
        )
        .and_then(|_| flag::register(SIGINT, Arc::clone(&pressed)));
        let seen = Arc::clone(&pressed);
        if listening.is_ok() {
            thread::spawn(move || end_when(&seen));
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

/// Is set when Ctrl-C is pressed.
pub(crate) fn pressed() -> Arc<AtomicBool> {
    PRESSED.get().cloned().unwrap_or_default()
}

/// Does what must be finished once it is begun, as a file must that is written. That it was
/// finished does not make an interrupted command a success.
pub(crate) fn finishing<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_pressed() {
        return Err(Failure::Interrupted);
    }
    let done = work()?;
    if is_pressed() { Err(Failure::Interrupted) } else { Ok(done) }
}
