//! An optimized model in Python's hands: saved, or given out as bytes.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quantize_rs::Optimization;

use crate::gil;

/// A model after the passes, and the report on them.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Optimized {
    made: quantize_rs::Optimized,
}

impl Optimized {
    pub(crate) fn new(made: quantize_rs::Optimized) -> Optimized {
        Optimized { made }
    }
}

/// The report as JSON, and as text for people.
fn written(report: &Optimization) -> (String, String) {
    (report.to_json(), report.to_string())
}

#[pymethods]
impl Optimized {
    /// The report so far, as JSON and as text.
    fn report(&self) -> (String, String) {
        written(self.made.report())
    }

    /// Writes the model, complete or not at all; the report, as JSON and as text.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<(String, String)> {
        // Whoever pressed Ctrl-C does not want the file.
        py.check_signals()?;
        let report = gil::detached(py, Some(&path), || self.made.save(&path))?;
        Ok(written(&report))
    }

    /// The model as the bytes of one file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let path = self.made.model().path();
        let bytes = gil::detached(py, path, || self.made.to_bytes())?;
        Ok(PyBytes::new(py, &bytes))
    }
}
