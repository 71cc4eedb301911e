//! Ranges in Python's hands: kept as JSON, merged, compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use quantize_rs::Method;

use crate::model::Model;
use crate::work;

/// The range of each observed value of a model.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Ranges {
    pub(crate) found: Arc<quantize_rs::Ranges>,
    /// Seconds that gathering them took; 0 when they were read.
    pub(crate) seconds: f64,
    /// What is to be said of the samples; nothing when they were read.
    #[pyo3(get)]
    pub(crate) warnings: Vec<String>,
}

impl Ranges {
    pub(crate) fn new(ranges: quantize_rs::Ranges, seconds: f64, warnings: Vec<String>) -> Ranges {
        Ranges { found: Arc::new(ranges), seconds, warnings }
    }
}

#[pymethods]
impl Ranges {
    /// Reads what `to_json` wrote.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Ranges> {
        let ranges = work::detached(py, None, || quantize_rs::Ranges::from_json(text))?;
        Ok(Ranges::new(ranges, 0.0, Vec::new()))
    }

    /// The ranges as JSON.
    fn to_json(&self) -> String {
        self.found.to_json()
    }

    /// The ranges as JSON, without what was seen.
    fn summary(&self) -> String {
        let all = &*self.found;
        let summary = quantize_rs::Ranges {
            method: all.method.clone(),
            engine: all.engine.clone(),
            samples: all.samples,
            model: all.model.clone(),
            values: all.values.clone(),
            chosen: all.chosen.clone(),
            notes: all.notes.clone(),
            statistics: BTreeMap::new(),
        };
        summary.to_json()
    }

    /// Reads a calibration cache of TensorRT.
    #[staticmethod]
    fn from_tensorrt(py: Python<'_>, text: &str, model: &Model) -> PyResult<Ranges> {
        let ranges =
            work::detached(py, None, || quantize_rs::Ranges::from_tensorrt(text, &model.model))?;
        Ok(Ranges::new(ranges, 0.0, Vec::new()))
    }

    /// The ranges as a calibration cache of TensorRT.
    fn to_tensorrt(&self, version: &str) -> String {
        self.found.to_tensorrt(version)
    }

    /// The ranges that another method finds.
    fn using(&self, py: Python<'_>, method: &str) -> PyResult<Ranges> {
        let method = work::detached(py, None, || method.parse::<Method>())?;
        let ranges = Arc::clone(&self.found);
        let found = work::interruptible(py, None, move || ranges.using(&method))?;
        Ok(Ranges::new(found, self.seconds, self.warnings.clone()))
    }

    /// The differences, as JSON and as text.
    fn diff(&self, py: Python<'_>, other: &Ranges) -> PyResult<(String, String)> {
        let diff = self.found.diff(&other.found);
        Ok((work::json(py, &diff)?, diff.to_string()))
    }

    fn __eq__(&self, other: &Ranges) -> bool {
        self.found == other.found
    }

    /// The ranges of both.
    fn merge(&self, py: Python<'_>, other: &Ranges) -> PyResult<Ranges> {
        let merged = work::detached(py, None, || self.found.merge(&other.found))?;
        // What was said of the parts need not be true of the whole.
        Ok(Ranges::new(merged, self.seconds + other.seconds, Vec::new()))
    }
}
