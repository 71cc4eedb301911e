//! The variants of a model that a platform looks for, in Python.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use quantize_rs::{Control, VariantOptions};

use crate::calibrate::Run;
use crate::gil;
use crate::model::Model;
use crate::outcome::Outcome;
use crate::source::Source;

/// Which variants are made; each key of the dict is an option of the Python function.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Wanted {
    platform: String,
    only: Option<Vec<String>>,
    stem: String,
}

impl From<Wanted> for VariantOptions {
    fn from(wanted: Wanted) -> VariantOptions {
        let Wanted { platform, only, stem } = wanted;
        VariantOptions { platform, only, stem }
    }
}

/// Writes variants of a model into a folder.
#[pyfunction]
pub(crate) fn variants(
    py: Python<'_>,
    model: &Model,
    folder: PathBuf,
    options: Wanted,
) -> PyResult<Outcome> {
    let model = Arc::clone(&model.model);
    let path = model.path().map(std::path::Path::to_owned);
    let made = gil::interruptible(py, path.as_deref(), move || {
        quantize_rs::variants(&model, &folder, &options.into(), None, &mut |_| true)
    })?;
    Ok(Outcome::new(made))
}

/// Writes variants of a model into a folder, and measures them on samples.
#[pyfunction]
pub(crate) fn variants_with_samples(
    py: Python<'_>,
    model: &Model,
    folder: PathBuf,
    options: Wanted,
    source: &Source,
    run: &Run,
) -> PyResult<Outcome> {
    run.require_models(py, "making variants")?;
    let its_model = Arc::clone(&model.model);
    let done = run.on(py, &model.model, source, move |engine, samples, control| {
        let Control { threads, progress } = control;
        let given = Some((engine, samples, threads));
        quantize_rs::variants(&its_model, &folder, &options.into(), given, progress)
    })?;
    Ok(Outcome::new(done.logged(py)?))
}
