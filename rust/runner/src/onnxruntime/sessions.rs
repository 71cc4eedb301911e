//! The sessions of one model: as many as samples run at once.
//!
//! `ort` lets a session run one sample at a time. So there are several, made when they are first
//! needed, all with the same weights in our memory and the same options: it makes no difference to
//! a result which of them computes it.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ort::environment::Environment;
use ort::session::builder::SessionBuilder;
use ort::session::{NoSelectedOutputs, RunOptions, Session};
use ort::value::{DynValue, Outlet};
use quantize_rs::{CalibrationError, CalibrationErrorKind};
use quantize_rs_onnx::Model;

use super::recipe::Recipe;
use super::values::Fed;
use super::{Place, failed, message, no_floats, values};

/// What the copies of the weights that sessions make for themselves may take together.
const MOST_BYTES: u64 = 2 << 30;

/// Cores that one session makes good use of: so many sessions as leave each that many. Making one
/// costs as much as running several samples.
const CORES_EACH: usize = 4;

/// How often a run is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// A run that takes no longer need not be stopped: whoever cancels waits for it.
const SHORT: Duration = Duration::from_millis(200);

/// The sessions of a model, and what it takes to make another.
pub(super) struct Sessions {
    recipe: Recipe,
    /// Cores that each session computes on.
    cores: usize,
    /// Sessions there may be.
    most: usize,
    state: Mutex<State>,
    returned: Condvar,
    /// Runs on fewer input elements than this were [`SHORT`].
    short_below: AtomicUsize,
}

/// Sessions there are.
struct State {
    idle: Vec<Session>,
    made: usize,
}

impl Sessions {
    /// The sessions of `model`, with the first already made.
    pub(super) fn of(
        environment: &Environment,
        model: &Model,
    ) -> Result<Sessions, CalibrationError> {
        let recipe = Recipe::of(environment, model)?;
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let affordable =
            usize::try_from(MOST_BYTES / recipe.lent_bytes.max(1)).unwrap_or(usize::MAX);
        let most = affordable.clamp(1, cores.div_ceil(CORES_EACH));
        Sessions::made(recipe, cores / most, most)
    }

    /// A single session that computes on one core, since others are busy beside it.
    pub(super) fn of_one_core(
        environment: &Environment,
        model: &Model,
    ) -> Result<Sessions, CalibrationError> {
        Sessions::made(Recipe::of(environment, model)?, 1, 1)
    }

    fn made(recipe: Recipe, cores: usize, most: usize) -> Result<Sessions, CalibrationError> {
        let sessions = Sessions {
            recipe,
            cores,
            most,
            state: Mutex::new(State { idle: Vec::new(), made: 1 }),
            returned: Condvar::new(),
            short_below: AtomicUsize::new(0),
        };
        let first = sessions.make()?;
        sessions.state().idle.push(first);
        Ok(sessions)
    }

    /// Refuses taps whose values are no floats.
    pub(super) fn require_floats(
        &self,
        taps: &[String],
        places: &[Place],
    ) -> Result<(), CalibrationError> {
        let state = self.state();
        let outputs = state.idle.first().map_or(&[][..], |session| session.outputs());
        for (tap, place) in taps.iter().zip(places) {
            if let Place::Output(position) = place
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
        given: &HashMap<&str, Fed<'_>>,
        elements: usize,
        cancelled: &AtomicBool,
    ) -> Result<Vec<DynValue>, CalibrationError> {
        let mut place = self.borrow(cancelled)?;
        let session = place.session.as_mut().ok_or_else(|| failed("there is no session"))?;
        let options = RunOptions::new().map_err(|error| message::without_node(&error))?;
        let begun = Instant::now();
        let outputs = if elements < self.short_below.load(Ordering::Relaxed) {
            run(session, given, &options)
        } else {
            run_watched(session, given, &options, cancelled)
        };
        if begun.elapsed() < SHORT {
            self.short_below.fetch_max(elements.saturating_add(1), Ordering::Relaxed);
        } else {
            self.short_below.fetch_min(elements, Ordering::Relaxed);
        }
        outputs.map_err(|error| message::of_running(&error))
    }

    /// A session that nobody uses, made if need be; waits when there are as many as there may be.
    fn borrow(&self, cancelled: &AtomicBool) -> Result<Borrowed<'_>, CalibrationError> {
        let mut state = self.state();
        loop {
            if cancelled.load(Ordering::Relaxed) {
                return Err(CalibrationError::new(CalibrationErrorKind::Cancelled));
            }
            if let Some(session) = state.idle.pop() {
                return Ok(Borrowed { sessions: self, session: Some(session) });
            }
            if state.made < self.most {
                state.made += 1;
                drop(state);
                // Counted before it is there: should that fail, dropping the place counts it back.
                let mut place = Borrowed { sessions: self, session: None };
                place.session = Some(self.make()?);
                // That takes a while: it is asked once more, with a session to give back.
                return if cancelled.load(Ordering::Relaxed) {
                    Err(CalibrationError::new(CalibrationErrorKind::Cancelled))
                } else {
                    Ok(place)
                };
            }
            let waited = self.returned.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn make(&self) -> Result<Session, CalibrationError> {
        let quiet = |builder: SessionBuilder| -> ort::Result<SessionBuilder> {
            Ok(builder
                .with_intra_op_spinning(false)?
                // Weights outside the arena, whose size depends on what was run before.
                .with_device_allocated_initializers()?)
        };
        self.recipe.session(self.cores, quiet)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can fail in between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session in use, or a place for one.
struct Borrowed<'a> {
    sessions: &'a Sessions,
    session: Option<Session>,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut state = self.sessions.state();
        match self.session.take().filter(|_| !thread::panicking()) {
            Some(session) => state.idle.push(session),
            None => state.made -= 1,
        }
        drop(state);
        self.sessions.returned.notify_one();
    }
}

fn run(
    session: &mut Session,
    given: &HashMap<&str, Fed<'_>>,
    options: &RunOptions<NoSelectedOutputs>,
) -> ort::Result<Vec<DynValue>> {
    let given: Vec<(&str, &DynValue)> =
        given.iter().map(|(name, value)| (*name, &**value)).collect();
    let outputs = session.run_with_options(given, options)?;
    Ok(outputs.into_iter().map(|(_, value)| value).collect())
}

/// As [`run`], with somebody beside it who stops it when it is cancelled.
fn run_watched(
    session: &mut Session,
    given: &HashMap<&str, Fed<'_>>,
    options: &RunOptions<NoSelectedOutputs>,
    cancelled: &AtomicBool,
) -> ort::Result<Vec<DynValue>> {
    thread::scope(|scope| {
        let (running, finished) = mpsc::channel::<()>();
        let watch = move || {
            while finished.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                if cancelled.load(Ordering::Relaxed) {
                    let _ = options.terminate();
                }
            }
        };
        // Should there be no thread for it, the run is only not stopped before its end.
        let _ = thread::Builder::new().spawn_scoped(scope, watch);
        let outputs = run(session, given, options);
        drop(running);
        outputs
    })
}
