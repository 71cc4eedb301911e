//! Turns a panic of a library into an error, without output on stderr.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside [`caught`], where panics are not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The result of `work`, or the message of its panic.
///
/// A panic calls the process-wide hook before it is caught, and the default hook prints. The first
/// call therefore installs a hook in front of the existing one: it does nothing for threads inside
/// `caught`, and forwards all other panics. Threads started by `work` are not covered; the engines
/// are configured to start none.
///
/// State that `work` modified must not be used after a panic: callers drop it.
pub(crate) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.try_with(Cell::get).unwrap_or(false) {
                previous(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(outer);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("a panic without a message").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message_and_the_thread_continues() {
        let zero = std::hint::black_box(0);
        assert_eq!(caught(|| 1), Ok(1));
        assert_eq!(caught(|| 1 / zero), Err("attempt to divide by zero".to_owned()));
        assert!(!QUIET.get());
    }
}
