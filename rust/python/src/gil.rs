//! Work without the interpreter lock: other Python threads continue, Ctrl-C is handled, and a panic
//! becomes an exception.

use std::any::Any;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCFunction};
use quantize_rs::{CalibrationError, QuantizeError};

use crate::errors;
use crate::trace;

/// How often a waiting thread checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work` on this thread, detached from the interpreter. `path` is the model for errors.
pub(crate) fn detached<T: Send, E: Into<QuantizeError> + Send>(
    py: Python<'_>,
    path: Option<&Path>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    let outcome = py.detach(|| caught(work));
    if let Some(error) = trace::raised() {
        return Err(error);
    }
    match outcome {
        Ok(outcome) => outcome.map_err(|error| errors::raised(py, &error.into(), path)),
        Err(failure) => Err(failure.raised(py)),
    }
}

/// As [`detached`], for arithmetic on arrays, which needs no model.
pub(crate) fn arithmetic<T: Send, E: Into<QuantizeError> + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    py.detach(quantize_rs_math::start_threads);
    detached(py, None, work)
}

/// As [`detached`], for work that makes the bytes of a model. There is a `MemoryError` where no
/// room is left for a copy that Python owns.
pub(crate) fn detached_bytes<'py, E: Into<QuantizeError> + Send>(
    py: Python<'py>,
    path: Option<&Path>,
    work: impl FnOnce() -> Result<Vec<u8>, E> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    py_bytes(py, &detached(py, path, work)?)
}

/// A copy of `bytes` that Python owns, or a `MemoryError`, where `PyBytes::new` panics.
pub(crate) fn py_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, bytes.len(), |place| {
        place.copy_from_slice(bytes);
        Ok(())
    })
}

/// As [`detached`], on a separate thread, so that Ctrl-C is handled at once. After Ctrl-C the work
/// continues and its result is dropped, so use this only for work without side effects.
pub(crate) fn interruptible<T: Send + 'static, E: Into<QuantizeError> + Send + 'static>(
    py: Python<'_>,
    path: Option<&Path>,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    let interrupt = Interrupt::default();
    match py.detach(|| interrupt.wait_for(work)) {
        Some(Ok(outcome)) => outcome.map_err(|error| errors::raised(py, &error.into(), path)),
        Some(Err(failure)) => Err(failure.raised(py)),
        None => Err(interrupt.take().unwrap_or_else(|| errors::internal(py, "interrupted"))),
    }
}

/// As [`interruptible`], for work that borrows from Python. Ctrl-C sets the flag that the work
/// gets; it then returns `None` soon, which is waited for.
pub(crate) fn stoppable<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Option<T> + Send,
) -> PyResult<T> {
    let interrupt = Interrupt::default();
    let flag = interrupt.flag();
    let outcome = py.detach(|| {
        thread::scope(|scope| {
            let (give, result) = mpsc::channel();
            let started = thread::Builder::new().spawn_scoped(scope, move || {
                // This thread waits for the result.
                let _ = give.send(computed(|| work(&flag)));
            });
            if let Err(error) = started {
                return Err(Failure::NoThread(error));
            }
            loop {
                match result.recv_timeout(SIGNAL_INTERVAL) {
                    Ok(outcome) => return outcome,
                    Err(RecvTimeoutError::Timeout) => drop(interrupt.check_signals()),
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(Failure::ended());
                    }
                }
            }
        })
    });
    match (interrupt.take(), outcome) {
        (Some(raised), _) => Err(raised),
        (None, Ok(Some(value))) => Ok(value),
        (None, Ok(None)) => Err(errors::internal(py, "interrupted")),
        (None, Err(failure)) => Err(failure.raised(py)),
    }
}

/// Runs long work on a separate thread. The functions that the work sends through the
/// [`CallbackChannel`], such as calls of Python functions, run on this thread. Ctrl-C is handled at
/// once.
///
/// An exception, which is stored in `interrupt`, ends the work: its callbacks do not run any more.
/// This function waits for the work to end, but not longer than `patience`. After that, the work
/// continues until it sees the interrupt, or until the process ends.
pub(crate) fn with_callbacks<T: Send + 'static, E: Into<QuantizeError> + Send + 'static>(
    py: Python<'_>,
    path: Option<&Path>,
    interrupt: &Interrupt,
    patience: Option<Duration>,
    work: impl FnOnce(CallbackChannel) -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    let outcome = py.detach(|| {
        let (sender, callbacks) = mpsc::channel();
        let (give, result) = mpsc::channel();
        let started = thread::Builder::new().spawn(move || {
            // Without a receiver the work was abandoned.
            let _ = give.send(computed(|| work(CallbackChannel(sender))));
        });
        let worker = match started {
            Ok(worker) => worker,
            Err(error) => return Some(Err(Failure::NoThread(error))),
        };
        let (mut checked, mut raised) = (Instant::now(), None::<Instant>);
        loop {
            match callbacks.recv_timeout(SIGNAL_INTERVAL) {
                // A callback that is dropped returns `None`.
                Ok(_) if raised.is_some() => {}
                Ok(callback) => {
                    if let Err(panic) = caught(callback) {
                        return Some(Err(panic));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The sender is dropped: the work is done.
                Err(RecvTimeoutError::Disconnected) => {
                    let lost = |_| Err(Failure::ended());
                    return Some(result.recv().unwrap_or_else(lost));
                }
            }
            if checked.elapsed() >= SIGNAL_INTERVAL {
                interrupt.check_signals();
                checked = Instant::now();
            }
            if interrupt.is_raised() {
                let since = *raised.get_or_insert_with(Instant::now);
                if patience.is_some_and(|patience| since.elapsed() >= patience) {
                    interrupt.keep(abandon(worker));
                    return None;
                }
            }
        }
    });
    match (interrupt.take(), outcome) {
        (Some(raised), _) => Err(raised),
        (None, Some(Ok(outcome))) => {
            outcome.map_err(|error| errors::raised(py, &error.into(), path))
        }
        (None, Some(Err(failure))) => Err(failure.raised(py)),
        (None, None) => Err(errors::internal(py, "interrupted")),
    }
}

/// How long a save may take to stop after Ctrl-C: it may wait for the disk.
const SAVE_PATIENCE: Duration = Duration::from_millis(500);

/// As [`detached`], for work that writes a file: after Ctrl-C, the file is given up unless it is
/// already in place.
pub(crate) fn saving<T: Send + 'static, E: Into<QuantizeError> + Send + 'static>(
    py: Python<'_>,
    path: &Path,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    // After Ctrl-C nothing is written.
    py.check_signals()?;
    let interrupt = Interrupt::default();
    let flag = interrupt.flag();
    with_callbacks(py, Some(path), &interrupt, Some(SAVE_PATIENCE), |channel| {
        let outcome = quantize_rs::stop_when(move || flag.load(Ordering::Relaxed), work);
        drop(channel);
        outcome
    })
}

/// Threads that were abandoned.
static ABANDONED: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Lets a thread continue until the process ends, which then waits for it: the library of an engine
/// must not be unloaded while the thread uses it.
fn abandon(thread: JoinHandle<()>) -> PyResult<()> {
    if let Ok(mut threads) = ABANDONED.lock() {
        threads.push(thread);
    }
    Python::attach(|py| {
        let wait = PyCFunction::new_closure(py, None, None, |arguments, _| {
            arguments.py().detach(|| {
                let threads = ABANDONED.lock().map(|mut threads| std::mem::take(&mut *threads));
                for thread in threads.unwrap_or_default() {
                    // Its result is not used.
                    let _ = thread.join();
                }
            });
        })?;
        py.import("atexit")?.call_method1("register", (wait,)).map(drop)
    })
}

/// Sends functions from the thread of some work to the thread that Python called, which runs them.
#[derive(Clone)]
pub(crate) struct CallbackChannel(Sender<Callback>);

type Callback = Box<dyn FnOnce() + Send>;

impl CallbackChannel {
    /// Runs `callback` on the other thread and waits for the result; `None` if that thread has
    /// stopped.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        callback: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (give, result) = mpsc::channel();
        let callback = move || {
            // The caller waits for the result.
            let _ = give.send(callback());
        };
        self.0.send(Box::new(callback)).ok()?;
        result.recv().ok()
    }
}

/// The Python exception that ends some work early: from a signal, a callback or an iterator.
#[derive(Default)]
pub(crate) struct Interrupt {
    kept: Mutex<Option<PyErr>>,
    /// Whether there was one, for other threads.
    flag: Arc<AtomicBool>,
}

impl Interrupt {
    /// Stores the exception, unless there is an earlier one, and returns `None`; else the value.
    pub(crate) fn keep<T>(&self, outcome: PyResult<T>) -> Option<T> {
        outcome
            .map_err(|error| {
                if let Ok(mut kept) = self.kept.lock() {
                    kept.get_or_insert(error);
                    self.flag.store(true, Ordering::Relaxed);
                }
            })
            .ok()
    }

    /// Whether there was one.
    pub(crate) fn is_raised(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// A flag that is set from the first one on.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// Takes the exception out, to raise it. The flag stays: a thread that was abandoned sees it.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.kept.lock().ok()?.take()
    }

    /// Runs the signal handlers and stores the exception that they raise; `None` then.
    #[allow(clippy::redundant_closure_for_method_calls)] // the method is not general enough
    fn check_signals(&self) -> Option<()> {
        self.keep(Python::attach(|py| py.check_signals()))
    }

    /// Runs `work` on a separate thread and checks for signals meanwhile. Returns `None` if a
    /// handler raised an exception, else the result of the work, or the message of its panic.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, Failure>> {
        let (give, result) = mpsc::channel();
        let started = thread::Builder::new().spawn(move || {
            // Without a receiver the wait was interrupted.
            let _ = give.send(computed(work));
        });
        if let Err(error) = started {
            return Some(Err(Failure::NoThread(error)));
        }
        loop {
            match result.recv_timeout(SIGNAL_INTERVAL) {
                Ok(outcome) => return Some(outcome),
                Err(RecvTimeoutError::Timeout) => self.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err(Failure::ended()));
                }
            }
        }
    }
}

/// Why work has no result.
pub(crate) enum Failure {
    /// The message of a panic, or what else must not happen.
    Internal(String),
    /// The system starts no thread.
    NoThread(io::Error),
}

impl Failure {
    fn ended() -> Failure {
        Failure::Internal("a thread ended without a result".to_owned())
    }

    fn raised(self, py: Python<'_>) -> PyErr {
        match self {
            Failure::Internal(what) => errors::internal(py, &what),
            Failure::NoThread(cause) => {
                errors::raised(py, &CalibrationError::no_thread(&cause).into(), None)
            }
        }
    }
}

/// As [`caught`], for work that computes with weights or samples.
fn computed<T>(work: impl FnOnce() -> T) -> Result<T, Failure> {
    quantize_rs_math::start_threads();
    caught(work)
}

/// The result of `work`, or the message of its panic.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Failure> {
    quantize_rs_math::begin_thread();
    // What the work changes is dropped with it.
    panic::catch_unwind(AssertUnwindSafe(work))
        .map_err(|payload| Failure::Internal(message(payload.as_ref())))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
