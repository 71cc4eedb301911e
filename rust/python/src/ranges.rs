//! Ranges in Python: saved as JSON, merged, compared.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use quantize_rs::{Method, Range, Sample, Shard};

use crate::convert;
use crate::gil;
use crate::model::Model;
use crate::outcome::Outcome;

/// The range of each observed value of a model.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Ranges {
    pub(crate) found: Arc<quantize_rs::Ranges>,
    /// Seconds that the calibration took; 0 for ranges from a file.
    pub(crate) seconds: f64,
    /// Some of the samples of the calibration, if they were kept.
    pub(crate) kept: Vec<Sample>,
}

impl Ranges {
    pub(crate) fn new(ranges: quantize_rs::Ranges, seconds: f64) -> Ranges {
        Ranges { found: Arc::new(ranges), seconds, kept: Vec::new() }
    }

    /// The ranges alone, which are a hundredth of the whole, with all notes.
    fn without_statistics(&self) -> quantize_rs::Ranges {
        let mut summary = quantize_rs::Ranges::clone(&self.found);
        summary.notes = summary.said();
        summary.statistics = Arc::default();
        summary
    }
}

/// How often the numbers of a value occurred, by size.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Histogram(quantize_rs::Histogram);

#[pymethods]
impl Histogram {
    /// The smallest and the largest number.
    #[getter]
    fn ends(&self) -> (f64, f64) {
        (self.0.from, self.0.to)
    }

    /// How many numbers are in each of the bins of equal width between them.
    #[getter]
    fn counts(&self) -> Vec<u64> {
        self.0.counts.clone()
    }

    /// The fraction of numbers outside the range.
    #[getter]
    fn outside(&self) -> f64 {
        self.0.outside
    }
}

#[pymethods]
impl Ranges {
    /// Reads the JSON that `to_json` returns.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Ranges> {
        let ranges = gil::detached(py, None, || quantize_rs::Ranges::from_json(text))?;
        Ok(Ranges::new(ranges, 0.0))
    }

    /// Reads a file that `save` wrote.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Ranges> {
        let ranges = gil::detached(py, None, || quantize_rs::Ranges::load(path))?;
        Ok(Ranges::new(ranges, 0.0))
    }

    /// Writes a file, completely or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let (found, to) = (Arc::clone(&self.found), path.clone());
        gil::saving(py, &path, move || found.save(to))
    }

    /// Whether the ranges hold second moments.
    #[getter]
    fn has_moments(&self) -> bool {
        self.found.moments.is_some()
    }

    /// These ranges, as those of a part of the samples.
    fn of_shard(&self, py: Python<'_>, index: usize, count: usize) -> PyResult<Ranges> {
        let shard = gil::detached(py, None, || Shard::new(index, count))?;
        let shards = if count > 1 { vec![shard] } else { Vec::new() };
        let found = quantize_rs::Ranges { shards, ..quantize_rs::Ranges::clone(&self.found) };
        Ok(Ranges::new(found, self.seconds))
    }

    /// These ranges, with the weights that were rounded in several calls.
    fn with_rounded(&self, parts: Vec<PyRef<'_, Ranges>>) -> Ranges {
        let parts = parts.iter().map(|part| &*part.found);
        Ranges::new(self.found.with_rounded(parts), self.seconds)
    }

    /// The ranges as JSON.
    fn to_json(&self) -> String {
        self.found.to_json()
    }

    /// The rounded weights and the notes alone, as JSON.
    fn rounded_json(&self) -> String {
        let bare = quantize_rs::Ranges {
            values: BTreeMap::new(),
            statistics: Arc::default(),
            moments: None,
            ..quantize_rs::Ranges::clone(&self.found)
        };
        bare.to_json()
    }

    /// The ranges and statistics as plain dicts, lists, strings and numbers.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &*self.found)
    }

    /// The same without the statistics.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &self.without_statistics())
    }

    /// The histogram of a value; None without statistics, or if all its numbers are equal.
    fn histogram(&self, value: &str) -> Option<Histogram> {
        self.found.histogram(value).map(Histogram)
    }

    /// Warnings about the samples.
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

    /// The ranges of another method from the same statistics.
    fn using(&self, py: Python<'_>, method: &str) -> PyResult<Ranges> {
        let method = gil::detached(py, None, || method.parse::<Method>())?;
        let ranges = Arc::clone(&self.found);
        let found = gil::interruptible(py, None, move || ranges.using(&method))?;
        Ok(Ranges::new(found, self.seconds))
    }

    /// These ranges with other ends for some values.
    fn with_values(
        &self,
        py: Python<'_>,
        values: BTreeMap<String, (f32, f32)>,
    ) -> PyResult<Ranges> {
        let values = values.into_iter().map(|(name, (min, max))| (name, Range { min, max }));
        let found = gil::detached(py, None, || self.found.with_values(values))?;
        Ok(Ranges::new(found, self.seconds))
    }

    /// The differences between two calibrations.
    fn diff(&self, other: &Ranges) -> Outcome {
        Outcome::new(self.found.diff(&other.found))
    }

    fn __eq__(&self, other: &Ranges) -> bool {
        self.found == other.found
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.without_statistics().to_json().hash(&mut hasher);
        hasher.finish()
    }

    /// The ranges of one calibration over the samples of all parts.
    #[staticmethod]
    fn merge_all(py: Python<'_>, parts: Vec<PyRef<'_, Ranges>>) -> PyResult<Ranges> {
        let seconds = parts.iter().map(|part| part.seconds).sum();
        let found: Vec<Arc<quantize_rs::Ranges>> =
            parts.iter().map(|part| Arc::clone(&part.found)).collect();
        let merged = gil::detached(py, None, move || {
            let found: Vec<quantize_rs::Ranges> =
                found.iter().map(|part| quantize_rs::Ranges::clone(part)).collect();
            quantize_rs::Ranges::merge_all(&found)
        })?;
        Ok(Ranges::new(merged, seconds))
    }

    /// The ranges of one calibration over the samples of both.
    fn merge(&self, py: Python<'_>, other: &Ranges) -> PyResult<Ranges> {
        let merged = gil::detached(py, None, || self.found.merge(&other.found))?;
        Ok(Ranges::new(merged, self.seconds + other.seconds))
    }
}
