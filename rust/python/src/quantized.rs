//! Quantized models in Python, and HTML reports.

use std::borrow::Cow;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quantize_rs::{Comparison, LayerErrors, Page, QuantizeError, Report, Sensitivity};

use crate::gil;
use crate::model::Model;
use crate::outcome::{Document, Outcome};

/// A quantized model and its report.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Quantized {
    made: quantize_rs::Quantized,
    /// Seconds that the calibration took.
    calibrated: f64,
}

impl Quantized {
    /// The model and its report, and the seconds of the calibration.
    pub(crate) fn parts(&self) -> (&quantize_rs::Quantized, f64) {
        (&self.made, self.calibrated)
    }

    pub(crate) fn new(made: quantize_rs::Quantized, calibrated: f64) -> Quantized {
        Quantized { made, calibrated }
    }

    /// The report with the time of the calibration, which the Rust crates do not measure.
    fn timed(&self, mut report: Report) -> Outcome {
        report.seconds.calibrate = self.calibrated;
        Outcome::new(report)
    }
}

#[pymethods]
impl Quantized {
    /// The report so far.
    fn report(&self) -> Outcome {
        self.timed(self.made.report().clone())
    }

    /// The warnings of the report, without building the rest of it.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.made.report().warnings.clone()
    }

    /// Writes the model, completely or not at all, and returns the complete report. Weights become
    /// external data if that is asked for, or if the file would be too large.
    #[pyo3(signature = (path, *, external_data=false))]
    fn save(&self, py: Python<'_>, path: PathBuf, external_data: bool) -> PyResult<Outcome> {
        let limit = if external_data { 0 } else { u64::MAX };
        let (made, to) = (self.made.clone(), path.clone());
        let report = gil::saving(py, &path, move || made.save_within(to, limit))?;
        Ok(self.timed(report))
    }

    /// The same report with another model.
    fn with_model(&self, model: &Model) -> Quantized {
        Quantized {
            made: self.made.with_model((*model.model).clone()),
            calibrated: self.calibrated,
        }
    }

    /// The model as the bytes of one file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let path = self.made.model().path();
        gil::detached_bytes(py, path, || self.made.to_bytes())
    }
}

/// One HTML report with a section for each of the results.
#[pyfunction]
#[pyo3(signature = (*, report = None, comparison = None, sensitivity = None, layer_errors = None))]
pub(crate) fn page(
    py: Python<'_>,
    report: Option<&Outcome>,
    comparison: Option<&Outcome>,
    sensitivity: Option<&Outcome>,
    layer_errors: Option<&Outcome>,
) -> PyResult<String> {
    gil::detached(py, None, || -> Result<String, QuantizeError> {
        let report = read("report", report, Report::from_json)?;
        let comparison = read("comparison", comparison, Comparison::from_json)?;
        let sensitivity = read("sensitivity", sensitivity, Sensitivity::from_json)?;
        let layer_errors = read("layer_errors", layer_errors, LayerErrors::from_json)?;
        let page = Page {
            report: report.as_deref(),
            comparison: comparison.as_deref(),
            sensitivity: sensitivity.as_deref(),
            layer_errors: layer_errors.as_deref(),
        };
        Ok(page.html())
    })
}

/// The result that an argument of `page` holds.
fn read<'a, T: Document + Clone>(
    name: &str,
    outcome: Option<&'a Outcome>,
    parse: fn(&str) -> Result<T, QuantizeError>,
) -> Result<Option<Cow<'a, T>>, QuantizeError> {
    outcome.map(|outcome| outcome.read(name, parse)).transpose()
}
