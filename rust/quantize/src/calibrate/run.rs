//! Runs a model on samples, several at once, and shows its values to observers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quantize_rs_math::begin_thread;
use quantize_rs_onnx::{DataType, Model, Span};

use super::engine::{Engine, Sample, Samples, Session, ValueSink};
use super::masks::refuse_infinity;
use super::threads::{start, start_up_to};
use crate::CalibrationError;
use crate::error::CalibrationErrorKind as Kind;

/// The interval at which the caller is asked whether to continue.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The maximum number of sessions, one for each set of input shapes, that are cached.
const MAX_SESSIONS: usize = 4;

/// More threads gain nothing, and the system may refuse them.
const MAX_THREADS: usize = 256;

/// The progress of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Samples that were run, each counted as often as it is run.
    pub done: usize,
    /// The total, if known; it grows when samples are run again for an evaluation.
    pub total: Option<usize>,
    /// While weights are rounded with the help of samples: how much of that is done, in percent of
    /// the expected time.
    pub rounding: Option<u8>,
}

impl Progress {
    /// The progress of samples.
    pub(crate) fn of(done: usize, total: Option<usize>) -> Progress {
        Progress { done, total, rounding: None }
    }
}

/// How a calibration is run.
pub struct Control<'a> {
    /// The number of samples that run at the same time, each on its own thread; at least 1.
    pub threads: usize,
    /// Called on the caller's thread every 50 ms and after each sample; `false` cancels the run.
    pub progress: &'a mut dyn FnMut(Progress) -> bool,
}

impl Control<'_> {
    /// Reports progress and asks whether to continue.
    ///
    /// # Errors
    /// The callback returned `false`.
    pub(crate) fn go_on(&mut self, progress: Progress) -> Result<(), CalibrationError> {
        if (self.progress)(progress) { Ok(()) } else { Err(CalibrationError::new(Kind::Cancelled)) }
    }

    /// Runs `work` on a thread of its own, and asks whether to continue while it runs. If not, the
    /// flag that `work` gets is set, and what it returns is dropped.
    ///
    /// # Errors
    /// The callback returned `false`, or the system starts no thread.
    pub(crate) fn on_thread<T: Send>(
        &mut self,
        progress: Progress,
        work: impl FnOnce(&AtomicBool) -> T + Send,
    ) -> Result<T, CalibrationError> {
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let (report, finished) = mpsc::channel();
            let worker = start(scope, move || {
                begin_thread();
                let made = work(stop);
                // The receiver lives until the end of the scope.
                let _ = report.send(());
                made
            })?;
            let mut asked = Ok(());
            // A worker does not panic; if it did, the channel would be closed.
            while let Err(RecvTimeoutError::Timeout) = finished.recv_timeout(POLL_INTERVAL) {
                asked = asked.and_then(|()| self.go_on(progress));
                stop.store(asked.is_err(), Ordering::Relaxed);
            }
            let stopped = |_| CalibrationError::engine(None, "a thread stopped unexpectedly");
            let made = worker.join().map_err(stopped)?;
            asked.map(|()| made)
        })
    }
}

/// Observes samples while they run, on a thread of its own.
pub(crate) trait ValueObserver: ValueSink + Send {
    /// The sample with this number, from 0, is about to run.
    fn begin(&mut self, number: usize, sample: &Sample);

    /// The sample has run.
    ///
    /// # Errors
    /// The observed values cannot be used.
    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError>;
}

/// The outcome of a run over all samples.
pub(crate) struct RunOutcome<W> {
    /// One observer for each thread, in no particular order.
    pub(crate) observers: Vec<W>,
    /// The number of samples.
    pub(crate) samples: usize,
    /// The engine that ran them.
    pub(crate) engine: &'static str,
    /// Notes of the engine.
    pub(crate) notes: Vec<String>,
}

/// Runs `model` on every sample and shows the values called `observed` to one observer for each
/// thread.
///
/// # Errors
/// No samples, a sample that does not fit the model, an engine that cannot run the model, or an
/// error of an observer.
pub(crate) fn observe<W: ValueObserver>(
    model: &Model,
    observed: &[String],
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
    observer: impl Fn() -> W,
) -> Result<RunOutcome<W>, CalibrationError> {
    let _span = Span::stage("run samples");
    let cancelled = AtomicBool::new(false);
    let threads = control.threads.clamp(1, MAX_THREADS);
    thread::scope(|scope| {
        let (give, work) = mpsc::sync_channel::<Job>(threads);
        let (report, events) = mpsc::channel();
        let work = Arc::new(Mutex::new(work));
        let workers = start_up_to(scope, threads, || {
            let (work, report) = (Arc::clone(&work), report.clone());
            let (cancelled, observer) = (&cancelled, observer());
            move || run_jobs(&work, &report, observer, cancelled)
        })?;
        drop(report);
        let total = samples.len_hint();
        let mut driver = Driver {
            control,
            threads,
            events,
            total,
            begun: 0,
            done: 0,
            engine: engine.name(),
            notes: Vec::new(),
        };
        let fed = driver.feed(model, engine, samples, observed, &give);
        drop(give);
        if fed.is_err() {
            cancelled.store(true, Ordering::Relaxed);
        }
        let finished = driver.finish(&cancelled);
        // A worker does not panic; if it did, its samples would be missing.
        let stopped = |_| CalibrationError::engine(None, "a worker thread stopped unexpectedly");
        let observers = workers.into_iter().map(|worker| worker.join().map_err(stopped));
        let observers = observers.collect::<Result<Vec<W>, _>>()?;
        earliest(finished.err(), fed.err())?;
        if driver.done == 0 {
            return Err(CalibrationError::no_samples());
        }
        let Driver { done: samples, engine, notes, .. } = driver;
        Ok(RunOutcome { observers, samples, engine, notes })
    })
}

/// One sample to run.
struct Job {
    number: usize,
    runner: Arc<dyn Session>,
    sample: Sample,
}

/// The caller's side of the loop.
struct Driver<'a, 'c> {
    control: &'a mut Control<'c>,
    threads: usize,
    events: Receiver<Result<(), CalibrationError>>,
    total: Option<usize>,
    begun: usize,
    done: usize,
    engine: &'static str,
    notes: Vec<String>,
}

impl Driver<'_, '_> {
    fn feed(
        &mut self,
        model: &Model,
        engine: &dyn Engine,
        samples: &mut dyn Samples,
        observed: &[String],
        give: &mpsc::SyncSender<Job>,
    ) -> Result<(), CalibrationError> {
        let mut runners: Vec<(ShapeKey, Arc<dyn Session>)> = Vec::new();
        self.ask()?;
        while let Some(sample) = samples.next_sample() {
            self.ask()?;
            let number = self.begun;
            let sample = sample.map_err(|error| error.at_sample(number))?;
            refuse_infinity(model, &sample).map_err(|error| error.at_sample(number))?;
            // A session for samples of any shape is the only one, with an empty key.
            let mut key = shape_key(&sample);
            if runners.iter().any(|(key, _)| key.is_empty()) {
                key.clear();
            }
            let known = runners.iter().find(|(its, _)| *its == key);
            let runner = if let Some((_, runner)) = known {
                Arc::clone(runner)
            } else {
                if runners.len() >= MAX_SESSIONS {
                    runners.remove(0);
                }
                let span = Span::stage("prepare the engine");
                let prepared = engine.prepare(model, observed, &sample);
                drop(span);
                let runner = prepared.map_err(|error| {
                    // The sample is not the cause if the engine cannot run the model.
                    if error.kind().is_unsupported() { error } else { error.at_sample(number) }
                })?;
                self.engine = runner.engine().unwrap_or(self.engine);
                if let Some(note) =
                    runner.note().filter(|note| !self.notes.iter().any(|n| n == note))
                {
                    self.notes.push(note.to_owned());
                }
                if runner.any_shape() {
                    key.clear();
                }
                let runner: Arc<dyn Session> = runner.into();
                runners.push((key, Arc::clone(&runner)));
                runner
            };
            // Two samples for each thread keep it busy; more would only take memory.
            while self.begun - self.done >= 2 * self.threads {
                self.wait()?;
            }
            self.begun += 1;
            if give.send(Job { number, runner, sample }).is_err() {
                return Err(CalibrationError::engine(None, "no worker thread is running"));
            }
            self.ask()?;
        }
        Ok(())
    }

    /// Waits for all samples that were started; of several failures that of the earliest sample is
    /// returned.
    fn finish(&mut self, cancelled: &AtomicBool) -> Result<(), CalibrationError> {
        let mut failure: Option<CalibrationError> = None;
        loop {
            let outcome = match self.events.recv_timeout(POLL_INTERVAL) {
                Ok(Ok(())) => {
                    self.done += 1;
                    self.ask()
                }
                Ok(Err(error)) => Err(error),
                Err(RecvTimeoutError::Timeout) => self.ask(),
                Err(RecvTimeoutError::Disconnected) => return failure.map_or(Ok(()), Err),
            };
            if let Err(error) = outcome {
                cancelled.store(true, Ordering::Relaxed);
                failure = earliest(failure, Some(error)).err();
            }
        }
    }

    fn wait(&mut self) -> Result<(), CalibrationError> {
        match self.events.recv_timeout(POLL_INTERVAL) {
            Ok(outcome) => {
                outcome?;
                self.done += 1;
                self.ask()
            }
            Err(RecvTimeoutError::Timeout) => self.ask(),
            Err(RecvTimeoutError::Disconnected) => {
                Err(CalibrationError::engine(None, "all worker threads stopped unexpectedly"))
            }
        }
    }

    fn ask(&mut self) -> Result<(), CalibrationError> {
        let progress = Progress::of(self.done, self.total);
        if (self.control.progress)(progress) {
            Ok(())
        } else {
            Err(CalibrationError::new(Kind::Cancelled))
        }
    }
}

/// Of two failures the one to report: that of the earlier sample, and not a cancellation that the
/// other one caused.
fn earliest(
    a: Option<CalibrationError>,
    b: Option<CalibrationError>,
) -> Result<(), CalibrationError> {
    match (a, b) {
        (None, None) => Ok(()),
        (Some(error), None) | (None, Some(error)) => Err(error),
        (Some(a), Some(b)) => {
            let rank = |error: &CalibrationError| {
                (matches!(error.kind(), Kind::Cancelled), error.sample().unwrap_or(usize::MAX))
            };
            Err(if rank(&b) < rank(&a) { b } else { a })
        }
    }
}

/// A worker: runs samples until there are no more, and returns its observer.
fn run_jobs<W: ValueObserver>(
    work: &Mutex<Receiver<Job>>,
    report: &Sender<Result<(), CalibrationError>>,
    mut observer: W,
    cancelled: &AtomicBool,
) -> W {
    begin_thread();
    loop {
        let job = match work.lock() {
            Ok(work) => work.recv(),
            Err(_) => return observer,
        };
        let Ok(Job { number, runner, sample }) = job else { return observer };
        if cancelled.load(Ordering::Relaxed) {
            continue;
        }
        let _span = Span::part("sample", || number.to_string());
        observer.begin(number, &sample);
        let outcome = runner
            .run(&sample, &mut observer, cancelled)
            .and_then(|()| observer.finish(&sample))
            .map_err(|error| error.at_sample(number));
        if report.send(outcome).is_err() {
            return observer;
        }
    }
}

/// Shapes and types of a sample: the key of a session.
type ShapeKey = Vec<(String, DataType, Vec<usize>)>;

fn shape_key(sample: &Sample) -> ShapeKey {
    let mut key: ShapeKey = sample
        .inputs
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.dtype, tensor.shape.clone()))
        .collect();
    key.sort();
    key
}
