//! A calibration that Python started: its callbacks, its samples, its Ctrl-C.

use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use pyo3::prelude::*;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Control, Engine, InputSpec, Method, Model, Plan,
    Progress, Runner, Sample,
};
use quantize_rs_runner::Tract;

use crate::ranges::Ranges;
use crate::source::Source;
use crate::work::{self, Interrupt};

/// A calibration to run.
pub(crate) struct Run<'a> {
    pub(crate) model: &'a Model,
    pub(crate) plan: &'a Plan,
    pub(crate) method: Method,
    pub(crate) limit: Option<usize>,
    pub(crate) threads: Option<usize>,
    /// Called with the samples done and the samples in all, or `None`.
    pub(crate) progress: Option<Py<PyAny>>,
}

impl Run<'_> {
    /// Runs the model on the samples of `source`.
    ///
    /// The exception of a callback, an iterator or a signal is raised as it is; it stops the run.
    pub(crate) fn on(self, py: Python<'_>, source: &Source) -> PyResult<Ranges> {
        let begun = Instant::now();
        let interrupt = Arc::new(Interrupt::default());
        let inputs = InputSpec::of(self.model);
        let outcome = work::detached(py, self.model.path(), || {
            let mut samples = source.samples(inputs, self.limit, &interrupt)?;
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
            let engine = Heedful(&interrupt);
            quantize_rs::calibrate(
                self.model,
                self.plan,
                &engine,
                &mut *samples,
                &self.method,
                control,
            )
        });
        match interrupt.take() {
            Some(raised) => Err(raised),
            None => Ok(Ranges::new(outcome?, begun.elapsed().as_secs_f64())),
        }
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// The engine, which may take seconds to get a large model ready, with an ear for Ctrl-C.
struct Heedful<'a>(&'a Interrupt);

impl Engine for Heedful<'_> {
    fn name(&self) -> &'static str {
        Tract.name()
    }

    fn prepare(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        // Handles; the weights and the sample are shared.
        let (model, taps, sample) = (model.clone(), taps.to_vec(), sample.clone());
        let failed = |kind| Err(CalibrationError::new(kind));
        match self.0.wait_for(move || Tract.prepare(&model, &taps, &sample)) {
            Some(Ok(runner)) => runner,
            Some(Err(panic)) => failed(CalibrationErrorKind::Engine(panic)),
            None => failed(CalibrationErrorKind::Cancelled),
        }
    }
}
