//! A calibration that Python started: its callbacks, its samples, its Ctrl-C.

use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use pyo3::prelude::*;
use quantize_rs::{
    Control, Engine as Runs, InputSpec, Method, Model, Plan, Progress, QuantizeError, Samples,
};
use quantize_rs_runner::samples::Watched;

use crate::comparison::Comparison;
use crate::engine::{Engine, Opened};
use crate::errors;
use crate::ranges::Ranges;
use crate::source::Source;
use crate::work::{self, Interrupt};

/// How to run a model on samples.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Run {
    engine: Py<Engine>,
    limit: Option<usize>,
    threads: Option<usize>,
    /// Called with the samples done and the samples in all, or `None`.
    progress: Option<Py<PyAny>>,
}

#[pymethods]
impl Run {
    #[new]
    #[pyo3(signature = (engine, *, limit, threads, progress))]
    fn new(
        engine: Py<Engine>,
        limit: Option<usize>,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> Run {
        Run { engine, limit, threads, progress }
    }
}

/// What came of a run.
struct Done<T> {
    found: T,
    /// What is to be said of the engine.
    note: Option<String>,
    /// What is to be said of the samples.
    warnings: Vec<String>,
}

impl Run {
    /// Runs the model on the samples of `source` and finds ranges.
    pub(crate) fn ranges(
        &self,
        py: Python<'_>,
        (model, plan): (&Model, &Plan),
        source: &Source,
        method: &str,
    ) -> PyResult<Ranges> {
        let begun = Instant::now();
        let method = work::detached(py, None, || method.parse::<Method>())?;
        if matches!(method, Method::Auto) {
            self.require_models(py, "method `auto`")?;
        }
        let mut done = self.on(py, model, source, |engine, samples, control| {
            quantize_rs::calibrate(model, plan, engine, samples, &method, control)
        })?;
        self.sign(&mut done.found, done.note);
        Ok(Ranges::new(done.found, begun.elapsed().as_secs_f64(), done.warnings))
    }

    /// Runs the model on the samples of `source` and compares all methods.
    pub(crate) fn comparison(
        &self,
        py: Python<'_>,
        (model, plan): (&Model, &Plan),
        source: &Source,
    ) -> PyResult<Comparison> {
        let begun = Instant::now();
        self.require_models(py, "comparing methods")?;
        let mut done = self.on(py, model, source, |engine, samples, control| {
            quantize_rs::compare_methods(model, plan, engine, samples, control)
        })?;
        if let Some(class) = self.engine.get().class() {
            class.clone_into(&mut done.found.engine);
        }
        for ranges in &mut done.found.ranges {
            self.sign(ranges, done.note.clone());
        }
        Ok(Comparison::new(done.found, begun.elapsed().as_secs_f64(), done.warnings))
    }

    /// Says in the ranges who ran the model, as far as they do not know it.
    fn sign(&self, ranges: &mut quantize_rs::Ranges, note: Option<String>) {
        if let Some(class) = self.engine.get().class() {
            class.clone_into(&mut ranges.engine);
        }
        ranges.notes.splice(..0, note);
    }

    /// Does some work on the samples of `source`.
    ///
    /// The exception of a callback, an iterator, an engine or a signal is raised as it is; it stops
    /// the work.
    fn on<T: Send>(
        &self,
        py: Python<'_>,
        model: &Model,
        source: &Source,
        work: impl FnOnce(&dyn Runs, &mut dyn Samples, Control<'_>) -> Result<T, QuantizeError> + Send,
    ) -> PyResult<Done<T>> {
        let interrupt = Arc::new(Interrupt::default());
        let inputs = InputSpec::of(model);
        let engine = self.engine.get();
        let outcome = work::detached(py, model.path(), || -> Result<_, QuantizeError> {
            let Opened { engine, note } = engine.open(&interrupt)?;
            let mut samples = Watched::new(source.samples(inputs, self.limit, &interrupt)?);
            let mut seen = None;
            let mut go_on = |progress: Progress| {
                let asked = Python::attach(|py| {
                    py.check_signals()?;
                    if seen.replace(progress.done) == Some(progress.done) {
                        return Ok(());
                    }
                    match &self.progress {
                        Some(call) => call.call1(py, (progress.done, progress.total)).map(drop),
                        None => Ok(()),
                    }
                });
                interrupt.keep(asked).is_some()
            };
            let threads = self.threads.unwrap_or_else(cores);
            let control = Control { threads, progress: &mut go_on };
            let found = work(&*engine, &mut samples, control)?;
            let warnings = if source.is_random() { Vec::new() } else { samples.warnings() };
            Ok(Done { found, note, warnings })
        });
        match interrupt.take() {
            Some(raised) => Err(raised),
            None => outcome,
        }
    }

    /// Refuses an engine that runs one model only for what runs several.
    fn require_models(&self, py: Python<'_>, what: &str) -> PyResult<()> {
        let engine = self.engine.get();
        match engine.class() {
            Some(class) if !engine.takes_models() => {
                let what = format!(
                    "is of type {class} without prepare(model, outputs), but {what} runs quantized \
                     models, too"
                );
                Err(errors::of_option(py, "engine", &what))
            }
            _ => Ok(()),
        }
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
