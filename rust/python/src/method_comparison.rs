//! The comparison of calibration methods in Python.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::ranges::Ranges;

/// The ranges and the accuracy of each calibration method on the same samples.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct MethodComparison {
    found: quantize_rs::MethodComparison,
    /// Seconds that the comparison took.
    seconds: f64,
    /// Warnings about the samples.
    #[pyo3(get)]
    warnings: Vec<String>,
}

impl MethodComparison {
    pub(crate) fn new(
        found: quantize_rs::MethodComparison,
        seconds: f64,
        warnings: Vec<String>,
    ) -> MethodComparison {
        MethodComparison { found, seconds, warnings }
    }
}

#[pymethods]
impl MethodComparison {
    /// The comparison as a table for people.
    fn __str__(&self) -> String {
        self.found.to_string()
    }

    /// The comparison as JSON, without the ranges.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        convert::json(py, &self.found)
    }

    /// The comparison as plain dicts, lists, strings and numbers, without the ranges.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &self.found)
    }

    /// The ranges of each method, by the name of the method.
    fn ranges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (row, ranges) in self.found.methods.iter().zip(&self.found.ranges) {
            let ranges = Ranges::new(ranges.clone(), self.seconds);
            all.set_item(&row.method, ranges)?;
        }
        Ok(all)
    }
}
