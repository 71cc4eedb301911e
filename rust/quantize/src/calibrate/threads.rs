//! Threads that the system may refuse.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::CalibrationError;

/// Starts a thread.
///
/// # Errors
/// The system refuses it.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, CalibrationError> {
    Builder::new().spawn_scoped(scope, work).map_err(|cause| CalibrationError::no_thread(&cause))
}

/// Starts `count` threads, one for each call of `work`, or fewer if the system refuses some.
///
/// # Errors
/// The system refuses even the first.
pub(crate) fn start_up_to<'scope, T, W>(
    scope: &'scope Scope<'scope, '_>,
    count: usize,
    mut work: impl FnMut() -> W,
) -> Result<Vec<ScopedJoinHandle<'scope, T>>, CalibrationError>
where
    T: Send + 'scope,
    W: FnOnce() -> T + Send + 'scope,
{
    let mut threads = vec![start(scope, work())?];
    threads.extend((1..count).map_while(|_| start(scope, work()).ok()));
    Ok(threads)
}
