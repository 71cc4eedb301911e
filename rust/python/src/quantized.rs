//! A quantized model in Python's hands: saved, or given out as bytes.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quantize_rs::{Comparison, LayerErrors, Page, QuantizeError, Report, Sensitivity};

use crate::gil;

/// A quantized model and the report on it.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Quantized {
    made: quantize_rs::Quantized,
    /// Seconds that the calibration took.
    calibrated: f64,
}

impl Quantized {
    pub(crate) fn new(made: quantize_rs::Quantized, calibrated: f64) -> Quantized {
        Quantized { made, calibrated }
    }

    /// The report as JSON, and as text for people.
    fn written(&self, mut report: Report) -> (String, String) {
        report.seconds.calibrate = self.calibrated;
        (report.to_json(), report.to_string())
    }
}

#[pymethods]
impl Quantized {
    /// The report so far, as JSON and as text.
    fn report(&self) -> (String, String) {
        self.written(self.made.report().clone())
    }

    /// Writes the model, complete or not at all; the report, as JSON and as text.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<(String, String)> {
        // Whoever pressed Ctrl-C does not want the file.
        py.check_signals()?;
        let report = gil::detached(py, Some(&path), || self.made.save(&path))?;
        Ok(self.written(report))
    }

    /// The model as the bytes of one file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let path = self.made.model().path();
        let bytes = gil::detached(py, path, || self.made.to_bytes())?;
        Ok(PyBytes::new(py, &bytes))
    }
}

/// The page of results that were written as JSON, as many as there are.
#[pyfunction]
#[pyo3(signature = (*, report = None, comparison = None, sensitivity = None, layer_errors = None))]
pub(crate) fn page(
    py: Python<'_>,
    report: Option<&str>,
    comparison: Option<&str>,
    sensitivity: Option<&str>,
    layer_errors: Option<&str>,
) -> PyResult<String> {
    gil::detached(py, None, || -> Result<String, QuantizeError> {
        let report = report.map(Report::from_json).transpose()?;
        let comparison = comparison.map(Comparison::from_json).transpose()?;
        let sensitivity = sensitivity.map(Sensitivity::from_json).transpose()?;
        let layer_errors = layer_errors.map(LayerErrors::from_json).transpose()?;
        let page = Page {
            report: report.as_ref(),
            comparison: comparison.as_ref(),
            sensitivity: sensitivity.as_ref(),
            layer_errors: layer_errors.as_ref(),
        };
        Ok(page.html())
    })
}
