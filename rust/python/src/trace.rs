//! Spans of time for Python: stages as log records, and everything as a file.

use std::sync::{Arc, Mutex, Once, PoisonError};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use quantize_rs::{ChromeTrace, FinishedSpan, SpanListener};

/// The level DEBUG of Python's logging.
const DEBUG: u8 = 10;

/// Logs each stage with its time, where Python's logging wants to know.
struct StageLog;

impl SpanListener for StageLog {
    fn finished(&self, span: &FinishedSpan) {
        // Nothing is logged while Python ends.
        Python::try_attach(|py| {
            if let Err(error) = log(py, span)
                && !error.is_instance_of::<PyException>(py)
            {
                // Python called a signal handler: Ctrl-C is not an error of a log handler.
                let mut raised = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
                raised.get_or_insert(error);
            }
        });
    }

    fn takes_parts(&self) -> bool {
        false
    }
}

fn log(py: Python<'_>, span: &FinishedSpan) -> PyResult<()> {
    let logging = py.import("logging")?;
    let logger = logging.call_method1("getLogger", ("quantize_rs.stages",))?;
    if logger.call_method1("isEnabledFor", (DEBUG,))?.is_truthy()? {
        let arguments = ("%s: %.3f s", span.name, span.took.as_secs_f64());
        logger.call_method1("debug", arguments)?;
    }
    Ok(())
}

/// What a signal handler raised while a stage was logged.
static RAISED: Mutex<Option<PyErr>> = Mutex::new(None);

/// Takes what a signal handler raised while a stage was logged, to raise it now.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Logs the stages of this process from now on.
pub(crate) fn log_stages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::mem::forget(quantize_rs::listen(Arc::new(StageLog))));
}

/// Collects spans of time.
#[pyclass(frozen)]
pub(crate) struct Trace(ChromeTrace);

#[pymethods]
impl Trace {
    #[new]
    fn new() -> Trace {
        Trace(ChromeTrace::begin())
    }

    /// What was collected, as JSON of Chrome's trace viewer.
    fn to_json(&self) -> String {
        self.0.to_json()
    }
}
