//! Work away from the interpreter: other Python threads go on, Ctrl-C is heard, and no panic
//! reaches Python as one.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyCFunction;
use quantize_rs::QuantizeError;
use serde::Serialize;

use crate::errors;

/// How often a waiting thread looks for signals.
const PATIENCE: Duration = Duration::from_millis(50);

/// Runs `work` on this thread, detached from the interpreter. `path` is the model it is about.
pub(crate) fn detached<T: Send, E: Into<QuantizeError> + Send>(
    py: Python<'_>,
    path: Option<&Path>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    match py.detach(|| caught(work)) {
        Ok(outcome) => outcome.map_err(|error| errors::raised(py, &error.into(), path)),
        Err(panic) => Err(errors::internal(py, &panic)),
    }
}

/// As [`detached`], on a thread of its own, so that Ctrl-C is heard at once. The work then goes on
/// unheard and its result is dropped: only for work that leaves nothing behind.
pub(crate) fn interruptible<T: Send + 'static, E: Into<QuantizeError> + Send + 'static>(
    py: Python<'_>,
    path: Option<&Path>,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    let interrupt = Interrupt::default();
    match py.detach(|| interrupt.wait_for(work)) {
        Some(Ok(outcome)) => outcome.map_err(|error| errors::raised(py, &error.into(), path)),
        Some(Err(panic)) => Err(errors::internal(py, &panic)),
        None => Err(interrupt.take().unwrap_or_else(|| errors::internal(py, "interrupted"))),
    }
}

/// Runs long work on a thread of its own, for which it does on this one what that asks through the
/// [`Line`]: calls of Python's functions above all. Ctrl-C is heard at once.
///
/// An exception, kept in `interrupt`, ends the work: nothing it asks is done any more. The work is
/// waited for, but no longer than `patience` says; then it goes on unheard until it notices, at the
/// latest when the process ends.
pub(crate) fn conversing<T: Send + 'static, E: Into<QuantizeError> + Send + 'static>(
    py: Python<'_>,
    path: Option<&Path>,
    interrupt: &Interrupt,
    patience: Option<Duration>,
    work: impl FnOnce(Line) -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    let outcome = py.detach(|| {
        let (line, asked) = mpsc::channel();
        let (give, result) = mpsc::channel();
        let started = thread::Builder::new().spawn(move || {
            // Nobody listens any more when it was given up.
            let _ = give.send(caught(|| work(Line(line))));
        });
        let worker = match started {
            Ok(worker) => worker,
            Err(error) => return Some(Err(format!("no thread could be started: {error}"))),
        };
        let (mut listened, mut raised) = (Instant::now(), None::<Instant>);
        loop {
            match asked.recv_timeout(PATIENCE) {
                // Dropped unheard, a question is answered with no.
                Ok(_) if raised.is_some() => {}
                Ok(question) => {
                    if let Err(panic) = caught(question) {
                        return Some(Err(panic));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Its end of the line is gone: the work is done.
                Err(RecvTimeoutError::Disconnected) => {
                    let lost = |_| Err("a thread ended without a result".to_owned());
                    return Some(result.recv().unwrap_or_else(lost));
                }
            }
            if listened.elapsed() >= PATIENCE {
                interrupt.listen();
                listened = Instant::now();
            }
            if interrupt.is_raised() {
                let since = *raised.get_or_insert_with(Instant::now);
                if patience.is_some_and(|patience| since.elapsed() >= patience) {
                    interrupt.keep(leave(worker));
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
        (None, Some(Err(panic))) => Err(errors::internal(py, &panic)),
        (None, None) => Err(errors::internal(py, "interrupted")),
    }
}

/// Threads that were given up.
static LEFT: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Leaves a thread to itself until the process ends, which then waits for it: the library of an
/// engine must not be taken down beneath it.
fn leave(thread: JoinHandle<()>) -> PyResult<()> {
    if let Ok(mut left) = LEFT.lock() {
        left.push(thread);
    }
    Python::attach(|py| {
        let wait = PyCFunction::new_closure(py, None, None, |arguments, _| {
            arguments.py().detach(|| {
                let left = LEFT.lock().map(|mut left| std::mem::take(&mut *left));
                for thread in left.unwrap_or_default() {
                    // It told nobody what came of it, and nobody asks.
                    let _ = thread.join();
                }
            });
        })?;
        py.import("atexit")?.call_method1("register", (wait,)).map(drop)
    })
}

/// What the thread of some work asks of the one that Python called on.
#[derive(Clone)]
pub(crate) struct Line(Sender<Question>);

type Question = Box<dyn FnOnce() + Send>;

impl Line {
    /// What comes of doing this over there; `None` when nobody listens any more.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (give, answer) = mpsc::channel();
        let question = move || {
            // Whoever asks waits for the answer.
            let _ = give.send(question());
        };
        self.0.send(Box::new(question)).ok()?;
        answer.recv().ok()
    }
}

/// A report as JSON.
pub(crate) fn json(py: Python<'_>, report: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(report).map_err(|error| errors::internal(py, &error.to_string()))
}

/// The Python exception that ends some work early: of a signal, a callback, an iterator.
#[derive(Default)]
pub(crate) struct Interrupt {
    kept: Mutex<Option<PyErr>>,
    /// Whether there is one, for who cannot ask.
    flag: Arc<AtomicBool>,
}

impl Interrupt {
    /// Keeps the exception, if there is one and no earlier; `None` then.
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

    /// Whether there is one.
    pub(crate) fn is_raised(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Is set as long as there is one.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// The exception, to be raised.
    pub(crate) fn take(&self) -> Option<PyErr> {
        let mut kept = self.kept.lock().ok()?;
        self.flag.store(false, Ordering::Relaxed);
        kept.take()
    }

    /// Runs the handlers of signals and keeps what they raise; `None` then.
    #[allow(clippy::redundant_closure_for_method_calls)] // the method is not general enough
    fn listen(&self) -> Option<()> {
        self.keep(Python::attach(|py| py.check_signals()))
    }

    /// Runs `work` on a thread of its own and looks for signals meanwhile; `None` when there was
    /// one, else what came of the work, or the message of its panic.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, String>> {
        let (give, result) = mpsc::channel();
        let started = thread::Builder::new().spawn(move || {
            // Nobody listens any more when the wait was interrupted.
            let _ = give.send(caught(work));
        });
        if let Err(error) = started {
            return Some(Err(format!("no thread could be started: {error}")));
        }
        loop {
            match result.recv_timeout(PATIENCE) {
                Ok(outcome) => return Some(outcome),
                Err(RecvTimeoutError::Timeout) => self.listen()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err("a thread ended without a result".to_owned()));
                }
            }
        }
    }
}

/// What `work` returns, or the message of its panic.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // What the work touched is dropped with it, or immutable.
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| message(payload.as_ref()))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
