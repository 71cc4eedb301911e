//! Every calibration method side by side, in Python's hands.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::gil;
use crate::ranges::Ranges;

/// What each method makes of the same samples.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Comparison {
    found: quantize_rs::MethodComparison,
    /// Seconds that the comparison took.
    seconds: f64,
    /// What is to be said of the samples.
    #[pyo3(get)]
    warnings: Vec<String>,
}

impl Comparison {
    pub(crate) fn new(
        found: quantize_rs::MethodComparison,
        seconds: f64,
        warnings: Vec<String>,
    ) -> Comparison {
        Comparison { found, seconds, warnings }
    }
}

#[pymethods]
impl Comparison {
    /// The comparison as a table for people.
    fn __str__(&self) -> String {
        self.found.to_string()
    }

    /// The comparison as JSON, without the ranges.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        gil::json(py, &self.found)
    }

    /// The ranges that each method found, by its name.
    fn ranges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (row, ranges) in self.found.methods.iter().zip(&self.found.ranges) {
            let ranges = Ranges::new(ranges.clone(), self.seconds);
            all.set_item(&row.method, ranges)?;
        }
        Ok(all)
    }
}
