//! Ranges in Python's hands: kept as JSON, merged, compared.

use std::sync::Arc;

use pyo3::prelude::*;
use quantize_rs::Method;

use crate::gil;
use crate::model::Model;

/// The range of each observed value of a model.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Ranges {
    pub(crate) found: Arc<quantize_rs::Ranges>,
    /// Seconds that gathering them took; 0 when they were read.
    pub(crate) seconds: f64,
}

impl Ranges {
    pub(crate) fn new(ranges: quantize_rs::Ranges, seconds: f64) -> Ranges {
        Ranges { found: Arc::new(ranges), seconds }
    }
}

#[pymethods]
impl Ranges {
    /// Reads what `to_json` wrote.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Ranges> {
        let ranges = gil::detached(py, None, || quantize_rs::Ranges::from_json(text))?;
        Ok(Ranges::new(ranges, 0.0))
    }

    /// The ranges as JSON.
    fn to_json(&self) -> String {
        self.found.to_json()
    }

    /// The ranges as JSON, without what was seen.
    fn summary(&self) -> String {
        let mut summary = quantize_rs::Ranges::clone(&self.found);
        summary.notes = summary.said();
        summary.statistics = Arc::default();
        summary.to_json()
    }

    /// What was seen of a value, as the JSON of a histogram, where something was kept of it.
    fn histogram(&self, py: Python<'_>, value: &str) -> PyResult<Option<String>> {
        self.found.histogram(value).map(|found| gil::json(py, &found)).transpose()
    }

    /// What is to be said of the samples.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.found.warnings.clone()
    }

    /// Reads a calibration cache of TensorRT.
    #[staticmethod]
    fn from_tensorrt(py: Python<'_>, text: &str, model: &Model) -> PyResult<Ranges> {
        let ranges =
            gil::detached(py, None, || quantize_rs::Ranges::from_tensorrt(text, &model.model))?;
        Ok(Ranges::new(ranges, 0.0))
    }

    /// The ranges as a calibration cache of TensorRT.
    fn to_tensorrt(&self, version: &str) -> String {
        self.found.to_tensorrt(version)
    }

    /// The ranges that another method finds.
    fn using(&self, py: Python<'_>, method: &str) -> PyResult<Ranges> {
        let method = gil::detached(py, None, || method.parse::<Method>())?;
        let ranges = Arc::clone(&self.found);
        let found = gil::interruptible(py, None, move || ranges.using(&method))?;
        Ok(Ranges::new(found, self.seconds))
    }

    /// The differences, as JSON and as text.
    fn diff(&self, py: Python<'_>, other: &Ranges) -> PyResult<(String, String)> {
        let diff = self.found.diff(&other.found);
        Ok((gil::json(py, &diff)?, diff.to_string()))
    }

    fn __eq__(&self, other: &Ranges) -> bool {
        self.found == other.found
    }

    /// The ranges of both.
    fn merge(&self, py: Python<'_>, other: &Ranges) -> PyResult<Ranges> {
        let merged = gil::detached(py, None, || self.found.merge(&other.found))?;
        Ok(Ranges::new(merged, self.seconds + other.seconds))
    }
}
