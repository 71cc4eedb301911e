//! Optimized models in Python: saved, or returned as bytes.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::gil;
use crate::outcome::Outcome;

/// A model after the passes, and their changes.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Optimized {
    made: quantize_rs::Optimized,
}

impl Optimized {
    pub(crate) fn new(made: quantize_rs::Optimized) -> Optimized {
        Optimized { made }
    }
}

#[pymethods]
impl Optimized {
    /// The changes of the passes.
    fn report(&self) -> Outcome {
        Outcome::new(self.made.report().clone())
    }

    /// Writes the model, completely or not at all, and returns the report.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<Outcome> {
        let (made, to) = (self.made.clone(), path.clone());
        let report = gil::saving(py, &path, move || made.save(to))?;
        Ok(Outcome::new(report))
    }

    /// The model as the bytes of one file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let path = self.made.model().path();
        gil::detached_bytes(py, path, || self.made.to_bytes())
    }
}
