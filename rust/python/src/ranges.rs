//! Ranges in Python's hands: kept as JSON, merged.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::work;

/// The range of each observed value of a model.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Ranges {
    pub(crate) ranges: Arc<quantize_rs::Ranges>,
    /// Seconds that gathering them took; 0 when they were read.
    pub(crate) seconds: f64,
}

impl Ranges {
    pub(crate) fn new(ranges: quantize_rs::Ranges, seconds: f64) -> Ranges {
        Ranges { ranges: Arc::new(ranges), seconds }
    }
}

#[pymethods]
impl Ranges {
    /// Reads what `to_json` wrote.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Ranges> {
        let ranges = work::detached(py, None, || quantize_rs::Ranges::from_json(text))?;
        Ok(Ranges::new(ranges, 0.0))
    }

    /// The ranges as JSON.
    fn to_json(&self) -> String {
        self.ranges.to_json()
    }

    /// The ranges of both.
    fn merge(&self, py: Python<'_>, other: &Ranges) -> PyResult<Ranges> {
        let merged = work::detached(py, None, || self.ranges.merge(&other.ranges))?;
        Ok(Ranges::new(merged, self.seconds + other.seconds))
    }
}
