//! Spans of time for Python: stages as log records, and everything as a file.

use std::sync::{Arc, Once};

use pyo3::prelude::*;
use quantize_rs::{ChromeTrace, FinishedSpan, SpanListener};

/// The level DEBUG of Python's logging.
const DEBUG: u8 = 10;

/// Logs each stage with its time, where Python's logging wants to know.
struct StageLog;

impl SpanListener for StageLog {
    fn finished(&self, span: &FinishedSpan) {
        // A log handler that raises must not end the work; none is called while Python ends.
        let _ = Python::try_attach(|py| -> PyResult<()> {
            let logging = py.import("logging")?;
            let logger = logging.call_method1("getLogger", ("quantize_rs.stages",))?;
            if logger.call_method1("isEnabledFor", (DEBUG,))?.is_truthy()? {
                let arguments = ("%s: %.3f s", span.name, span.took.as_secs_f64());
                logger.call_method1("debug", arguments)?;
            }
            Ok(())
        });
    }

    fn takes_parts(&self) -> bool {
        false
    }
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
