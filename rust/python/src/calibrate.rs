//! Runs on samples that Python starts: calibration, and every analysis with data.

use std::num::NonZero;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind as Kind, Control, Engine as Runs, InputSpec, Method,
    Model, Plan, Progress, QuantizeError, RANDOM_SAMPLES, RetainingSamples, Sample, SampleEvidence,
    Samples, Shard, WeightAlgorithm,
};
use quantize_rs_runner::samples::SampleDiagnostics;

use crate::engine::Engine;
use crate::errors;
use crate::gil;
use crate::gil::{CallbackChannel, Interrupt};
use crate::method_comparison::MethodComparison;
use crate::ranges::Ranges;
use crate::source::Source;

/// The note of a part whose worker has no place to save second moments.
const NO_FOLDER: &str = "weights are rounded without samples: the workers had no folder for second \
    moments";

/// How long to wait for a calibration that was stopped.
const PATIENCE: Duration = Duration::from_millis(700);

/// How to run a model on samples.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Run {
    engine: Py<Engine>,
    limit: Option<usize>,
    threads: Option<usize>,
    /// Called with the number of samples done, and the total or `None`.
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

/// The result of a run.
pub(crate) struct Done<T> {
    pub(crate) found: T,
    /// Warnings about the samples.
    warnings: Vec<String>,
    /// What the warnings follow from.
    evidence: SampleEvidence,
}

impl<T> Done<T> {
    /// The result, after the warnings that hold for any use of samples are logged.
    pub(crate) fn logged(self, py: Python<'_>) -> PyResult<T> {
        let conversions = self.evidence.conversions;
        if !conversions.is_empty() {
            py.import("quantize_rs._inputs.run")?.call_method1("warn", (conversions,))?;
        }
        Ok(self.found)
    }
}

impl Run {
    /// Runs the model on the samples of `source` and finds ranges; with `keep`, some of the samples
    /// are kept to check a result on.
    pub(crate) fn ranges(
        &self,
        py: Python<'_>,
        (model, plan): (&Arc<Model>, &Arc<Plan>),
        source: &Source,
        (method, keep, shard): (&str, bool, Option<(usize, usize, bool)>),
    ) -> PyResult<Ranges> {
        let begun = Instant::now();
        let method = gil::detached(py, None, || method.parse::<Method>())?;
        let shard = gil::detached(py, None, || {
            shard
                .map(|(index, count, moments)| Ok((Shard::new(index, count)?, moments)))
                .transpose()
                .map_err(|error: QuantizeError| error)
        })?;
        let (its_model, plan) = (Arc::clone(model), Arc::clone(plan));
        let mut done = self.on(py, model, source, move |engine, samples, control| {
            if let Some((shard, moments)) = shard {
                let rounds = !moments && plan.rounding_cost(&its_model)?.is_some();
                let mut plan = plan;
                if rounds {
                    Arc::make_mut(&mut plan).config.weight_algorithm = WeightAlgorithm::Nearest;
                }
                let how = (&method, shard);
                let mut ranges =
                    quantize_rs::calibrate_shard(&its_model, &plan, engine, samples, how, control)?;
                ranges.notes.extend(rounds.then(|| NO_FOLDER.to_owned()));
                return Ok((ranges, Vec::new()));
            }
            if !keep {
                let ranges =
                    quantize_rs::calibrate(&its_model, &plan, engine, samples, &method, control)?;
                return Ok((ranges, Vec::new()));
            }
            let mut samples = RetainingSamples::new(samples);
            let ranges =
                quantize_rs::calibrate(&its_model, &plan, engine, &mut samples, &method, control)?;
            Ok((ranges, samples.kept()))
        })?;
        // If nothing is observed, samples are read for the check of the outputs alone.
        if done.found.0.samples > 0 {
            done.found.0.evidence = done.evidence;
            done.found.0.warnings.extend(done.warnings);
        }
        self.name_engine(&mut done.found.0);
        let (ranges, kept) = done.found;
        Ok(Ranges { kept, ..Ranges::new(ranges, begun.elapsed().as_secs_f64()) })
    }

    /// Runs the model on the samples of `source` and compares all methods.
    pub(crate) fn comparison(
        &self,
        py: Python<'_>,
        (model, plan): (&Arc<Model>, &Arc<Plan>),
        source: &Source,
    ) -> PyResult<MethodComparison> {
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
            self.name_engine(ranges);
            ranges.evidence.clone_from(&done.evidence);
            ranges.warnings.extend_from_slice(&done.warnings);
        }
        Ok(MethodComparison::new(done.found, begun.elapsed().as_secs_f64(), done.warnings))
    }

    /// Rounds weights with the second moments that ranges hold.
    pub(crate) fn rounded(
        &self,
        py: Python<'_>,
        (model, plan): (&Arc<Model>, &Arc<Plan>),
        ranges: &Ranges,
        only: Option<Vec<String>>,
    ) -> PyResult<Ranges> {
        let interrupt = Arc::new(Interrupt::default());
        let progress = Arc::new(self.progress.as_ref().map(|call| call.clone_ref(py)));
        let threads = self.threads.unwrap_or_else(cores);
        let (its_model, plan) = (Arc::clone(model), Arc::clone(plan));
        let (found, raised) = (Arc::clone(&ranges.found), Arc::clone(&interrupt));
        let begun = Instant::now();
        let found =
            gil::with_callbacks(py, model.path(), &raised, Some(PATIENCE), move |channel| {
                let mut go_on = asked(progress, &interrupt, &channel);
                let control = Control { threads, progress: &mut go_on };
                quantize_rs::round_weights(&its_model, &plan, &found, only.as_deref(), control)
            })?;
        let kept = ranges.kept.clone();
        let seconds = ranges.seconds + begun.elapsed().as_secs_f64();
        Ok(Ranges { kept, ..Ranges::new(found, seconds) })
    }

    /// Adds the engine to the ranges, where it is a Python object.
    fn name_engine(&self, ranges: &mut quantize_rs::Ranges) {
        if let Some(class) = self.engine.get().class() {
            class.clone_into(&mut ranges.engine);
        }
    }

    /// Runs `work` on the samples of `source`.
    ///
    /// Python code is called on this thread; the work runs on another thread. An exception of a
    /// callback, an iterator, an engine or a signal handler stops the work and is raised unchanged.
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
        let samples = Arc::new(Mutex::new(samples));
        let (is_random, is_iterator) = (source.is_random(), source.is_iterator());
        let engine = self.engine.clone_ref(py);
        let progress = Arc::new(self.progress.as_ref().map(|call| call.clone_ref(py)));
        // A Python object may have state, so its runs must not be concurrent.
        let alone = engine.get().class().is_some();
        let threads = self.threads.unwrap_or_else(|| if alone { 1 } else { cores() });
        // A thread that runs a Python object cannot be abandoned.
        let patience = if alone { None } else { Some(PATIENCE) };
        let raised = Arc::clone(&interrupt);
        gil::with_callbacks(py, model.path(), &raised, patience, move |channel| {
            let engine = engine.get().open(&channel, &interrupt)?;
            let mut go_on = asked(progress, &interrupt, &channel);
            let control = Control { threads, progress: &mut go_on };
            let channel = is_iterator.then(|| channel.clone());
            let mut pulled = Pulled { samples: Arc::clone(&samples), channel };
            let found = work(&*engine, &mut pulled, control)?;
            let (warnings, evidence) = match samples.lock() {
                Ok(samples) if !is_random => (samples.warnings(), samples.evidence()),
                Ok(_) => (vec![RANDOM_SAMPLES.to_owned()], SampleEvidence::of_random()),
                Err(_) => (Vec::new(), SampleEvidence::default()),
            };
            Ok::<_, QuantizeError>(Done { found, warnings, evidence })
        })
    }

    /// Rejects an engine that runs only one model, for work that runs several.
    pub(crate) fn require_models(&self, py: Python<'_>, what: &str) -> PyResult<()> {
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

/// Calls a Python function with the progress when it changes, and asks whether to continue.
fn asked(
    progress: Arc<Option<Py<PyAny>>>,
    interrupt: &Arc<Interrupt>,
    channel: &CallbackChannel,
) -> impl FnMut(Progress) -> bool {
    let mut seen = None;
    move |Progress { done, total, rounding }| {
        let is_news = seen.replace((done, rounding)) != Some((done, rounding));
        if progress.is_some() && is_news {
            let (progress, interrupt) = (Arc::clone(&progress), Arc::clone(interrupt));
            channel.call(move || {
                interrupt.keep(Python::attach(|py| match &*progress {
                    Some(call) => call.call1(py, (done, total, rounding)).map(drop),
                    None => Ok(()),
                }))
            });
        }
        !interrupt.is_raised()
    }
}

/// Samples that are read on the thread that Python called, as Python iterators must be.
struct Pulled {
    samples: Arc<Mutex<SampleDiagnostics>>,
    /// The channel to that thread; `None` for samples that do not come from Python.
    channel: Option<CallbackChannel>,
}

impl Samples for Pulled {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let samples = Arc::clone(&self.samples);
        let pull = move || samples.lock().ok()?.next_sample();
        let cancelled = || Some(Err(CalibrationError::new(Kind::Cancelled)));
        self.call(pull).unwrap_or_else(cancelled)
    }

    fn skip_sample(&mut self) -> Option<Result<(), CalibrationError>> {
        let samples = Arc::clone(&self.samples);
        let skip = move || samples.lock().ok()?.skip_sample();
        let cancelled = || Some(Err(CalibrationError::new(Kind::Cancelled)));
        self.call(skip).unwrap_or_else(cancelled)
    }

    fn len_hint(&self) -> Option<usize> {
        let samples = Arc::clone(&self.samples);
        self.call(move || samples.lock().ok()?.count()).flatten()
    }
}

impl Pulled {
    /// Runs `read` where the samples come from; `None` if that thread has stopped.
    fn call<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match &self.channel {
            None => Some(read()),
            Some(channel) => channel.call(read),
        }
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
