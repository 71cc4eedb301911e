//! The session of a model, and the number of samples that it runs in parallel.

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
use super::{ValueSource, error_parsing, no_floats, session, values, weights};

/// The maximum total size of matrices that are packed more than once; above it, none is packed.
const MAX_REPACKED_BYTES: usize = 64 << 20;

/// The number of samples that run in parallel before each gets a second core. One core per sample
/// uses the least processor time; parallel samples use the most memory.
const MIN_PARALLEL_SAMPLES: usize = 4;

/// The maximum number of cores that a sample uses efficiently.
const MAX_CORES_PER_SAMPLE: usize = 4;

/// The interval at which a run is checked for cancellation.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs up to this long need not be cancelled: the caller waits for them.
const SHORT_RUN: Duration = Duration::from_millis(200);

/// The session of a model, shared by several threads.
pub(super) struct SessionPool {
    session: SharedSession,
    /// The maximum number of parallel samples.
    most: usize,
    /// The number of samples that are running.
    now: Mutex<usize>,
    returned: Condvar,
    /// Runs with fewer input elements than this took less than [`SHORT_RUN`].
    short_below: AtomicUsize,
}

impl SessionPool {
    /// A session of `model` that uses all cores.
    pub(super) fn of(
        environment: &Environment,
        model: &Model,
    ) -> Result<SessionPool, CalibrationError> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let each = (cores / MIN_PARALLEL_SAMPLES).clamp(1, MAX_CORES_PER_SAMPLE);
        // Weights are outside the arena, whose size depends on earlier runs. Memory is not planned
        // as one block for all values of a sample, because parallel samples would need several.
        let kept = |builder: SessionBuilder| -> ort::Result<SessionBuilder> {
            Ok(builder.with_device_allocated_initializers()?.with_memory_pattern(false)?)
        };
        let pool = SessionPool::made(environment, model, (each, cores / each), kept)?;
        weights::return_freed_memory();
        Ok(pool)
    }

    /// A session that runs each sample on one core, because other sessions use the other cores.
    pub(super) fn single_core(
        environment: &Environment,
        model: &Model,
    ) -> Result<SessionPool, CalibrationError> {
        // One of many short-lived sessions: the next one reuses its memory.
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

    /// Refuses observed values that are not of floats.
    pub(super) fn require_floats(
        &self,
        observed: &[String],
        sources: &[ValueSource],
    ) -> Result<(), CalibrationError> {
        let outputs = self.session.outputs();
        for (name, source) in observed.iter().zip(sources) {
            if let ValueSource::Output(position) = source
                && let Some(of) = outputs.get(*position).map(Outlet::dtype)
                && !values::are_floats(of)
            {
                return Err(no_floats(name, of));
            }
        }
        Ok(())
    }

    /// The outputs for these inputs, which have `elements` elements in total.
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

    /// Waits until fewer than the maximum number of samples run.
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
        // No code that holds the lock can panic.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permit of a running sample.
struct RunPermit<'a>(&'a SessionPool);

impl Drop for RunPermit<'_> {
    fn drop(&mut self) {
        *self.0.now() -= 1;
        self.0.returned.notify_one();
    }
}

/// As [`SharedSession::run`], with a thread that stops the run when it is cancelled.
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
        // Without the thread, the run is only not stopped before its end.
        let _ = thread::Builder::new().spawn_scoped(scope, watch);
        let outputs = session.run(given, options);
        drop(pool);
        outputs
    })
}
