//! A calibration that Python started: its callbacks, its samples, its Ctrl-C.

use std::num::NonZero;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind as Kind, Control, Engine as Runs, InputSpec, Method,
    Model, Plan, Progress, QuantizeError, Sample, Samples,
};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::engine::Engine;
use crate::errors;
use crate::gil;
use crate::gil::{Interrupt, Line};
use crate::method_comparison::Comparison;
use crate::ranges::Ranges;
use crate::source::Source;

/// How long a calibration that was stopped is waited for.
const PATIENCE: Duration = Duration::from_millis(700);

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
pub(crate) struct Done<T> {
    pub(crate) found: T,
    /// What is to be said of the samples.
    warnings: Vec<String>,
}

impl Run {
    /// Runs the model on the samples of `source` and finds ranges.
    pub(crate) fn ranges(
        &self,
        py: Python<'_>,
        (model, plan): (&Arc<Model>, &Arc<Plan>),
        source: &Source,
        method: &str,
    ) -> PyResult<Ranges> {
        let begun = Instant::now();
        let method = gil::detached(py, None, || method.parse::<Method>())?;
        if matches!(method, Method::Auto) {
            self.require_models(py, "method `auto`")?;
        }
        let (its_model, plan) = (Arc::clone(model), Arc::clone(plan));
        let mut done = self.on(py, model, source, move |engine, samples, control| {
            quantize_rs::calibrate(&its_model, &plan, engine, samples, &method, control)
        })?;
        self.sign(&mut done.found, &done.warnings);
        Ok(Ranges::new(done.found, begun.elapsed().as_secs_f64()))
    }

    /// Runs the model on the samples of `source` and compares all methods.
    pub(crate) fn comparison(
        &self,
        py: Python<'_>,
        (model, plan): (&Arc<Model>, &Arc<Plan>),
        source: &Source,
    ) -> PyResult<Comparison> {
        let begun = Instant::now();
        self.require_models(py, "comparing methods")?;
        let (its_model, plan) = (Arc::clone(model), Arc::clone(plan));
        let mut done = self.on(py, model, source, move |engine, samples, control| {
            quantize_rs::compare_methods(&its_model, &plan, engine, samples, control)
        })?;
        if let Some(class) = self.engine.get().class() {
            class.clone_into(&mut done.found.engine);
        }
        for ranges in &mut done.found.ranges {
            self.sign(ranges, &done.warnings);
        }
        Ok(Comparison::new(done.found, begun.elapsed().as_secs_f64(), done.warnings))
    }

    /// Says in the ranges who ran the model, as far as they do not know it, and on what samples.
    fn sign(&self, ranges: &mut quantize_rs::Ranges, warnings: &[String]) {
        if let Some(class) = self.engine.get().class() {
            class.clone_into(&mut ranges.engine);
        }
        ranges.warnings.extend_from_slice(warnings);
    }

    /// Does some work on the samples of `source`.
    ///
    /// What is Python's is called on this thread, the work is done on another. The exception of a
    /// callback, an iterator, an engine or a signal is raised as it is; it stops the work.
    pub(crate) fn on<T: Send + 'static>(
        &self,
        py: Python<'_>,
        model: &Model,
        source: &Source,
        work: impl FnOnce(&dyn Runs, &mut dyn Samples, Control<'_>) -> Result<T, QuantizeError>
        + Send
        + 'static,
    ) -> PyResult<Done<T>> {
        let interrupt = Arc::new(Interrupt::default());
        let samples = gil::detached(py, None, || source.samples(model, self.limit, &interrupt))?;
        let samples = SampleDiagnostics::new(samples, &InputSpec::of(model));
        let samples = Arc::new(Mutex::new(Ahead { samples, first: None }));
        let (is_random, is_iterator) = (source.is_random(), source.is_iterator());
        let engine = self.engine.clone_ref(py);
        let progress = Arc::new(self.progress.as_ref().map(|call| call.clone_ref(py)));
        // An object may keep something in itself from one line to the next.
        let alone = engine.get().class().is_some();
        let threads = self.threads.unwrap_or_else(|| if alone { 1 } else { cores() });
        // What runs in an object of Python's cannot be left alone.
        let patience = if alone { None } else { Some(PATIENCE) };
        let raised = Arc::clone(&interrupt);
        gil::conversing(py, model.path(), &raised, patience, move |line| {
            let engine = engine.get().open(&line, &interrupt)?;
            let mut seen = None;
            let mut go_on = |Progress { done, total }| {
                let is_news = seen.replace(done) != Some(done);
                if progress.is_some() && is_news {
                    let (progress, interrupt) = (Arc::clone(&progress), Arc::clone(&interrupt));
                    line.ask(move || {
                        interrupt.keep(Python::attach(|py| match &*progress {
                            Some(call) => call.call1(py, (done, total)).map(drop),
                            None => Ok(()),
                        }))
                    });
                }
                !interrupt.is_raised()
            };
            let control = Control { threads, progress: &mut go_on };
            let there = is_iterator.then(|| line.clone());
            let mut pulled = Pulled { samples: Arc::clone(&samples), there };
            let found = work(&*engine, &mut pulled, control)?;
            let warnings = match samples.lock() {
                Ok(samples) if !is_random => samples.samples.warnings(),
                _ => Vec::new(),
            };
            Ok::<_, QuantizeError>(Done { found, warnings })
        })
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

/// Samples that come from the thread that Python called on, where its iterators belong.
struct Pulled {
    samples: Arc<Mutex<Ahead>>,
    /// The line to it; `None` for samples that have nothing to do with Python.
    there: Option<Line>,
}

impl Samples for Pulled {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let samples = Arc::clone(&self.samples);
        let pull = move || samples.lock().ok()?.next_sample();
        let cancelled = || Some(Err(CalibrationError::new(Kind::Cancelled)));
        self.ask(pull).unwrap_or_else(cancelled)
    }

    fn len_hint(&self) -> Option<usize> {
        let (samples, items) = (Arc::clone(&self.samples), self.there.is_some());
        self.ask(move || samples.lock().ok()?.count(items)).flatten()
    }
}

impl Pulled {
    /// What comes of doing this where the samples come from; `None` when nobody listens any more.
    fn ask<T: Send + 'static>(&self, question: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match &self.there {
            None => Some(question()),
            Some(line) => line.ask(question),
        }
    }
}

/// Samples of which the first may have been pulled, to see how many each item has.
struct Ahead {
    samples: SampleDiagnostics,
    first: Option<Result<Sample, CalibrationError>>,
}

impl Ahead {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.first.take().or_else(|| self.samples.next_sample())
    }

    /// How many are left, where that is known; of `items` the first is pulled to tell.
    fn count(&mut self, items: bool) -> Option<usize> {
        self.samples.len_hint()?;
        if items && self.first.is_none() {
            self.first = self.samples.next_sample();
        }
        Some(self.samples.len_hint()? + usize::from(self.first.is_some()))
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
