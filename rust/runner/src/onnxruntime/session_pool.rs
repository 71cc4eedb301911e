//! The session of one model, and how many samples it runs at once.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ort::environment::Environment;
use ort::ep;
use ort::session::builder::SessionBuilder;
use ort::session::{NoSelectedOutputs, RunOptions};
use ort::value::Outlet;
use quantize_rs::{CalibrationError, CalibrationErrorKind};
use quantize_rs_onnx::Model;

use super::shared::{Outputs, SharedSession};
use super::values::InputValue;
use super::{TapSource, error_parsing, no_floats, session, values};

/// Matrices that are packed again for other nodes take no more than this together, or none is packed.
const MAX_REPACKED_BYTES: usize = 64 << 20;

/// Samples that run at once before each is given a second core. A sample on one core takes the
/// least of the processor, several at once take the most memory.
const MIN_PARALLEL_SAMPLES: usize = 4;

/// Cores that one sample makes good use of.
const MAX_CORES_PER_SAMPLE: usize = 4;

/// How often a run is asked whether to go on.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A run that takes no longer need not be stopped: whoever cancels waits for it.
const SHORT_RUN: Duration = Duration::from_millis(200);

/// The session of a model, and who runs in it.
pub(super) struct SessionPool {
    session: SharedSession,
    /// Samples that may run at once.
    most: usize,
    /// Samples that run now.
    now: Mutex<usize>,
    returned: Condvar,
    /// Runs on fewer input elements than this were [`SHORT_RUN`].
    short_below: AtomicUsize,
}

impl SessionPool {
    /// The session of `model` for all cores.
    pub(super) fn of(
        environment: &Environment,
        model: &Model,
    ) -> Result<SessionPool, CalibrationError> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let each = (cores / MIN_PARALLEL_SAMPLES).clamp(1, MAX_CORES_PER_SAMPLE);
        // Weights outside the arena, whose size depends on what was run before. And no block that is planned for all
        // values of a sample: it is in the way of the sample that runs beside it.
        let kept = |builder: SessionBuilder| -> ort::Result<SessionBuilder> {
            Ok(builder.with_device_allocated_initializers()?.with_memory_pattern(false)?)
        };
        SessionPool::made(environment, model, (each, cores / each), kept)
    }

    /// A session that computes each sample on one core, since others are busy beside it.
    pub(super) fn single_core(
        environment: &Environment,
        model: &Model,
    ) -> Result<SessionPool, CalibrationError> {
        // One of many that are soon gone: the memory of each is left to the next.
        let brief = |builder: SessionBuilder| -> ort::Result<SessionBuilder> {
            let processor = ep::CPU::default().with_arena_allocator(false).build();
            Ok(builder.with_memory_pattern(false)?.with_execution_providers([processor])?)
        };
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        SessionPool::made(environment, model, (1, cores), brief)
    }

    fn made(
        environment: &Environment,
        model: &Model,
        (cores_each, most): (usize, usize),
        options: impl FnOnce(SessionBuilder) -> ort::Result<SessionBuilder>,
    ) -> Result<SessionPool, CalibrationError> {
        let packed = session::repacked_bytes(model) <= MAX_REPACKED_BYTES;
        let quiet = |builder: SessionBuilder| -> ort::Result<SessionBuilder> {
            Ok(options(builder.with_intra_op_spinning(false)?)?.with_prepacking(packed)?)
        };
        let session = session::of(environment, model, cores_each, quiet)?;
        let session =
            SharedSession::new(session).map_err(|error| error_parsing::without_node(&error))?;
        Ok(SessionPool {
            session,
            most,
            now: Mutex::new(0),
            returned: Condvar::new(),
            short_below: AtomicUsize::new(0),
        })
    }

    /// Refuses taps whose values are no floats.
    pub(super) fn require_floats(
        &self,
        taps: &[String],
        sources: &[TapSource],
    ) -> Result<(), CalibrationError> {
        let outputs = self.session.outputs();
        for (tap, source) in taps.iter().zip(sources) {
            if let TapSource::Output(position) = source
                && let Some(of) = outputs.get(*position).map(Outlet::dtype)
                && !values::are_floats(of)
            {
                return Err(no_floats(tap, of));
            }
        }
        Ok(())
    }

    /// The outputs for these inputs, which have so many elements together.
    pub(super) fn run(
        &self,
        given: &HashMap<&str, InputValue<'_>>,
        elements: usize,
        cancelled: &AtomicBool,
    ) -> Result<Outputs<'_>, CalibrationError> {
        let _turn = self.acquire(cancelled)?;
        let options = RunOptions::new().map_err(|error| error_parsing::without_node(&error))?;
        let begun = Instant::now();
        let outputs = if elements < self.short_below.load(Ordering::Relaxed) {
            self.session.run(given, &options)
        } else {
            run_cancellable(&self.session, given, &options, cancelled)
        };
        if begun.elapsed() < SHORT_RUN {
            self.short_below.fetch_max(elements.saturating_add(1), Ordering::Relaxed);
        } else {
            self.short_below.fetch_min(elements, Ordering::Relaxed);
        }
        outputs.map_err(|error| error_parsing::of_running(&error))
    }

    /// Waits until fewer run than may.
    fn acquire(&self, cancelled: &AtomicBool) -> Result<RunPermit<'_>, CalibrationError> {
        let mut now = self.now();
        while *now >= self.most {
            if cancelled.load(Ordering::Relaxed) {
                return Err(CalibrationError::new(CalibrationErrorKind::Cancelled));
            }
            let waited = self.returned.wait_timeout(now, CANCEL_POLL_INTERVAL);
            now = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *now += 1;
        Ok(RunPermit(self))
    }

    fn now(&self) -> MutexGuard<'_, usize> {
        // Nothing that holds it can fail in between.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the samples that run at once.
struct RunPermit<'a>(&'a SessionPool);

impl Drop for RunPermit<'_> {
    fn drop(&mut self) {
        *self.0.now() -= 1;
        self.0.returned.notify_one();
    }
}

/// As [`SharedSession::run`], with somebody beside it who stops it when it is cancelled.
fn run_cancellable<'a>(
    session: &'a SharedSession,
    given: &HashMap<&str, InputValue<'_>>,
    options: &RunOptions<NoSelectedOutputs>,
    cancelled: &AtomicBool,
) -> ort::Result<Outputs<'a>> {
    thread::scope(|scope| {
        let (pool, finished) = mpsc::channel::<()>();
        let watch = move || {
            while finished.recv_timeout(CANCEL_POLL_INTERVAL)
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                if cancelled.load(Ordering::Relaxed) {
                    let _ = options.terminate();
                }
            }
        };
        // Should there be no thread for it, the run is only not stopped before its end.
        let _ = thread::Builder::new().spawn_scoped(scope, watch);
        let outputs = session.run(given, options);
        drop(pool);
        outputs
    })
}
