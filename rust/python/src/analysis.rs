//! The analyses and accuracy control: functions that run models or read their weights.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use quantize_rs::{
    AccuracyControl, AccuracyCriteria, CheckSamples, CompareOptions, Control, LatencyOptions,
    Metric, MixedOptions, OutlierOptions, QuantizeError, Request, SampleSource, Sensitivity,
    SensitivityOptions, Shard, Target, Validation,
};

use quantize_rs_runner::samples;

use crate::calibrate::Run;
use crate::gil;
use crate::model::Model;
use crate::option_dict::{ConfigOptions, OptionDict};
use crate::outcome::Outcome;
use crate::output_metric::PythonMetric;
use crate::plan::Plan;
use crate::quantized::Quantized;
use crate::ranges::Ranges;
use crate::source::Source;

/// What to compare besides the outputs; each key of the dict is an option of the Python function.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Compared {
    labels: Option<Vec<i64>>,
    scores: Option<String>,
    latency: bool,
    runs: usize,
    latency_threads: usize,
    metric: Option<Py<PyAny>>,
}

impl Compared {
    fn options(self, py: Python<'_>) -> PyResult<(CompareOptions, PythonMetric)> {
        let Compared { labels, scores, latency, runs, latency_threads: threads, metric } = self;
        let options = LatencyOptions { runs, threads, ..LatencyOptions::default() };
        let metric = PythonMetric::new(py, metric)?;
        let handle = metric.handle.clone();
        let latency = latency.then_some(options);
        Ok((CompareOptions { labels, scores, latency, metric: handle }, metric))
    }
}

/// Compares a quantized model with the original.
#[pyfunction]
pub(crate) fn compare(
    py: Python<'_>,
    original: &Model,
    quantized: &Model,
    source: &Source,
    options: Compared,
    run: &Run,
) -> PyResult<Outcome> {
    let (options, metric) = options.options(py)?;
    let (its_model, quantized) = (Arc::clone(&original.model), Arc::clone(&quantized.model));
    let done = run.on(py, &original.model, source, move |engine, samples, control| {
        quantize_rs::compare(&its_model, &quantized, engine, samples, &options, control)
    });
    let done = metric.raised(done)?;
    Ok(Outcome::new(done.logged(py)?))
}

/// Recommends how to quantize a model, and measures the strategies on samples. `path` is what the
/// call names; `None` for samples in memory.
#[pyfunction]
pub(crate) fn recommended(
    py: Python<'_>,
    model: &Model,
    target: Option<&str>,
    path: Option<String>,
    source: &Source,
    run: &Run,
) -> PyResult<Outcome> {
    run.require_models(py, "measuring strategies")?;
    let target = gil::detached(py, None, || target.map(str::parse::<Target>).transpose())?;
    let its_model = Arc::clone(&model.model);
    let done = run.on(py, &model.model, source, move |engine, samples, control| {
        let samples_of = path.as_deref().map_or(SampleSource::Memory, SampleSource::File);
        let wanted = Request { target, samples: Some(samples_of) };
        quantize_rs::recommend_measured(&its_model, wanted, engine, samples, control)
    })?;
    Ok(Outcome::new(done.logged(py)?))
}

/// Accuracy criteria; each key of the dict is an option of the Python functions.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct AccuracyOptions {
    min_sqnr: Option<f64>,
    max_accuracy_drop: Option<f64>,
    require_faster: bool,
    fall_back: bool,
    labels: Option<Vec<i64>>,
    scores: Option<String>,
    held_out: bool,
    metric: Option<Py<PyAny>>,
}

impl AccuracyOptions {
    fn options(self, py: Python<'_>) -> PyResult<(AccuracyControl, PythonMetric)> {
        let AccuracyOptions { min_sqnr, max_accuracy_drop, require_faster, .. } = self;
        let AccuracyOptions { fall_back, labels, scores, held_out, metric, .. } = self;
        let criteria = AccuracyCriteria { min_sqnr, max_accuracy_drop, require_faster };
        let (latency, metric) = (LatencyOptions::default(), PythonMetric::new(py, metric)?);
        let handle = metric.handle.clone();
        let options = AccuracyControl {
            criteria,
            fall_back,
            labels,
            scores,
            metric: handle,
            latency,
            held_out,
        };
        Ok((options, metric))
    }
}

/// Rejects criteria that no result can be checked against, before any work.
#[pyfunction]
pub(crate) fn check_accuracy_criteria(
    py: Python<'_>,
    options: OptionDict<AccuracyOptions>,
) -> PyResult<()> {
    let (options, _) = options.0.options(py)?;
    gil::detached(py, None, || options.check())
}

/// Makes a quantized model that meets the criteria.
#[pyfunction]
pub(crate) fn quantize_with_accuracy_control(
    py: Python<'_>,
    model: &Model,
    config: ConfigOptions,
    ranges: Option<&Ranges>,
    source: &Source,
    options: OptionDict<AccuracyOptions>,
    run: &Run,
) -> PyResult<Quantized> {
    let (options, metric) = options.0.options(py)?;
    let config = gil::detached(py, model.model.path(), || config.config())?;
    let its_model = Arc::clone(&model.model);
    let seconds = ranges.map_or(0.0, |ranges| ranges.seconds);
    let ranges = ranges.map(|ranges| Arc::clone(&ranges.found));
    let done = run.on(py, &model.model, source, move |engine, samples, control| {
        let ranges = ranges.as_deref();
        quantize_rs::quantize_with_accuracy_control(
            &its_model, &config, ranges, engine, samples, &options, control,
        )
    });
    let done = metric.raised(done)?;
    // The calibration has warned about samples that are read again.
    let found = if source.is_again() { done.found } else { done.logged(py)? };
    Ok(Quantized::new(found, seconds))
}

/// Adds the output error of a quantized model, measured on a few samples, to its report.
#[pyfunction]
pub(crate) fn check_outputs(
    py: Python<'_>,
    model: &Model,
    quantized: &Quantized,
    ranges: Option<&Ranges>,
    run: &Run,
) -> PyResult<Quantized> {
    let (made, calibrated) = quantized.parts();
    let mut made = made.clone();
    let kept = ranges.map_or(&[][..], |ranges| &ranges.kept);
    let (inputs, samples) = gil::detached(py, model.model.path(), || {
        Ok::<_, QuantizeError>(samples::for_check(&model.model, kept))
    })?;
    let samples = match samples {
        Ok(samples) => samples,
        Err(error) => {
            made.outputs_not_checked(inputs, &QuantizeError::from(error));
            return Ok(Quantized::new(made, calibrated));
        }
    };
    let (its_model, source) = (Arc::clone(&model.model), Source::of(samples.clone()));
    let ranges = ranges.map(|ranges| Arc::clone(&ranges.found));
    let done = run.on(py, &model.model, &source, move |engine, _, control| {
        let given = CheckSamples { samples: &samples, inputs, calibrated };
        made.check_outputs(&its_model, ranges.as_deref(), engine, given, control)?;
        Ok(made)
    })?;
    Ok(Quantized::new(done.found, calibrated))
}

/// Chooses a bit width for each layer.
#[pyfunction]
pub(crate) fn mixed_precision(
    py: Python<'_>,
    model: &Model,
    config: ConfigOptions,
    goal: (Option<f64>, Option<f64>, Vec<u8>),
    metric: (Option<Py<PyAny>>, Option<f64>),
    data: Option<(PyRef<'_, Source>, PyRef<'_, Run>)>,
) -> PyResult<Outcome> {
    let (target_size, min_sqnr, bits) = goal;
    let (metric, max_accuracy_drop) = (PythonMetric::new(py, metric.0)?, metric.1);
    let options = MixedOptions {
        target_size,
        min_sqnr,
        max_accuracy_drop,
        metric: metric.handle.clone(),
        bits,
    };
    let config = gil::detached(py, model.model.path(), || config.config())?;
    let its_model = Arc::clone(&model.model);
    let found = match data {
        Some((source, run)) => {
            let done = run.on(py, &model.model, &source, move |engine, samples, control| {
                let data = Some((engine, samples));
                quantize_rs::mixed_precision(&its_model, &config, &options, data, control)
            });
            metric.raised(done)?.logged(py)?
        }
        None => gil::interruptible(py, model.model.path(), move || {
            let control = Control { threads: 1, progress: &mut |_| true };
            quantize_rs::mixed_precision(&its_model, &config, &options, None, control)
        })?,
    };
    Ok(Outcome::new(found))
}

/// Compares each value of a quantized model with that of the original.
#[pyfunction]
pub(crate) fn layer_errors(
    py: Python<'_>,
    original: &Model,
    quantized: &Model,
    source: &Source,
    run: &Run,
) -> PyResult<Outcome> {
    let (its_model, quantized) = (Arc::clone(&original.model), Arc::clone(&quantized.model));
    let done = run.on(py, &original.model, source, move |engine, samples, control| {
        quantize_rs::layer_errors(&its_model, &quantized, engine, samples, control)
    })?;
    Ok(Outcome::new(done.logged(py)?))
}

/// Ranks the layers of a plan by the error that quantizing each of them causes.
#[pyfunction]
pub(crate) fn sensitivity(
    py: Python<'_>,
    plan: &Plan,
    ranges: Option<&Ranges>,
    source: &Source,
    options: (String, bool, Option<PathBuf>, Option<(usize, usize)>),
    metric: Option<Py<PyAny>>,
    run: &Run,
) -> PyResult<Outcome> {
    let (name, all_but_one, resume, part) = options;
    let part = gil::detached(py, None, || {
        part.map(|(index, count)| Shard::new(index, count)).transpose()
    })?;
    let own = PythonMetric::new(py, metric)?;
    let metric = match &own.handle {
        Some(_) => Metric::Custom,
        None => gil::detached(py, None, || name.parse::<Metric>())?,
    };
    let options =
        SensitivityOptions { metric, custom: own.handle.clone(), all_but_one, resume, part };
    let (model, plan) = plan.parts();
    let (its_model, ranges) = (Arc::clone(&model), ranges.map(|ranges| Arc::clone(&ranges.found)));
    let done = run.on(py, &model, source, move |engine, samples, control| {
        let ranges = ranges.as_deref();
        quantize_rs::sensitivity(&its_model, &plan, ranges, engine, samples, &options, control)
    });
    Ok(Outcome::new(own.raised(done)?.logged(py)?))
}

/// The ranking of all parts of the layers, each as JSON.
#[pyfunction]
pub(crate) fn merged_sensitivity(py: Python<'_>, parts: Vec<String>) -> PyResult<Outcome> {
    let found = gil::detached(py, None, move || {
        let parts = parts.iter().map(|part| Sensitivity::from_json(part));
        Sensitivity::merge(parts.collect::<Result<_, _>>()?)
    })?;
    Ok(Outcome::new(found))
}

/// Ranks the layers of a plan by the errors of their weights.
#[pyfunction]
pub(crate) fn weight_sensitivity(py: Python<'_>, plan: &Plan) -> PyResult<Outcome> {
    let (model, plan) = plan.parts();
    let path = model.path().map(PathBuf::from);
    let found = gil::interruptible(py, path.as_deref(), move || {
        quantize_rs::weight_sensitivity(&model, &plan)
    })?;
    Ok(Outcome::new(found))
}

/// Finds weights with elements far from all others.
#[pyfunction]
pub(crate) fn outliers(
    py: Python<'_>,
    model: &Model,
    fence: f64,
    most: usize,
) -> PyResult<Outcome> {
    let its_model = Arc::clone(&model.model);
    let found = gil::interruptible(py, model.model.path(), move || {
        quantize_rs::outliers(&its_model, &OutlierOptions { fence, most })
    })?;
    Ok(Outcome::new(found))
}

/// Checks a quantized file against its original.
#[pyfunction]
pub(crate) fn validate(
    py: Python<'_>,
    original: &Model,
    quantized: &Model,
    passes: Option<Vec<String>>,
    target: Option<String>,
) -> PyResult<Outcome> {
    let (before, after) = (Arc::clone(&original.model), Arc::clone(&quantized.model));
    let path = after.path().map(PathBuf::from);
    let found = gil::interruptible(py, path.as_deref(), move || {
        let target = target.map(|name| name.parse::<Target>()).transpose()?;
        let found = quantize_rs::validate(&before, &after, passes.as_deref())?;
        match target {
            Some(target) => found.on(&after, target),
            None => Ok(found),
        }
    })?;
    Ok(Outcome::new(found))
}

/// The validation of a quantized file that is not a model.
#[pyfunction]
pub(crate) fn unreadable(path: Option<PathBuf>, error: String) -> Outcome {
    Outcome::new(Validation::unreadable(path.as_deref(), error))
}
