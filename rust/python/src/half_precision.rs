//! Models in 16-bit floats in Python.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quantize_rs::{HalfOptions, QuantizeError};

use crate::calibrate::Run;
use crate::gil;
use crate::model::Model;
use crate::outcome::Outcome;
use crate::source::Source;

/// How a model is converted; each key of the dict is an option of the Python functions.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Converted {
    dtype: String,
    keep_io: bool,
    exclude: Vec<String>,
    enough_sqnr: f64,
}

impl TryFrom<Converted> for HalfOptions {
    type Error = QuantizeError;

    fn try_from(wanted: Converted) -> Result<HalfOptions, QuantizeError> {
        let Converted { dtype, keep_io, exclude, enough_sqnr } = wanted;
        Ok(HalfOptions { half: dtype.parse()?, keep_io, exclude, enough_sqnr })
    }
}

/// A model in 16-bit floats and the report about it.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct HalfPrecision {
    made: quantize_rs::HalfPrecision,
}

#[pymethods]
impl HalfPrecision {
    /// What the conversion did.
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

/// Converts a model to 16-bit floats.
#[pyfunction]
pub(crate) fn convert_half(
    py: Python<'_>,
    model: &Model,
    options: Converted,
) -> PyResult<HalfPrecision> {
    let model = Arc::clone(&model.model);
    let path = model.path().map(std::path::Path::to_owned);
    let made = gil::interruptible(py, path.as_deref(), move || {
        quantize_rs::convert_half(&model, &options.try_into()?)
    })?;
    Ok(HalfPrecision { made })
}

/// Converts a model to 16-bit floats, and measures its values on samples.
#[pyfunction]
pub(crate) fn convert_half_with_samples(
    py: Python<'_>,
    model: &Model,
    options: Converted,
    source: &Source,
    run: &Run,
) -> PyResult<HalfPrecision> {
    run.require_models(py, "converting to 16-bit floats")?;
    let its_model = Arc::clone(&model.model);
    let done = run.on(py, &model.model, source, move |engine, samples, control| {
        let options = options.try_into()?;
        quantize_rs::convert_half_with_samples(&its_model, &options, engine, samples, control)
    })?;
    Ok(HalfPrecision { made: done.logged(py)? })
}
