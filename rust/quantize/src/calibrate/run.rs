//! The loop: runs a model on samples, several at once, and lets somebody watch what flows through.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quantize_rs_onnx::{DataType, Model};

use super::engine::{Engine, Runner, Sample, Samples, Sink};
use crate::CalibrationError;
use crate::error::CalibrationErrorKind as Kind;

/// How often somebody who waits is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// Models prepared for different input shapes that are kept at once.
const SHAPES_KEPT: usize = 4;

/// More threads than this gain nothing and may not be had.
const MOST_THREADS: usize = 256;

/// How far a calibration has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Samples done, each as often as it is run.
    pub done: usize,
    /// Samples in all, when that is known; more once it is known how many are run again to judge by.
    pub total: Option<usize>,
}

/// How to run a calibration.
pub struct Control<'a> {
    /// Samples that run at once, each on a thread of its own; at least 1.
    pub threads: usize,
    /// Called on the caller's thread, every 50 ms and after each sample; `false` stops the run.
    pub progress: &'a mut dyn FnMut(Progress) -> bool,
}

impl Control<'_> {
    /// Asks whether to go on, between samples.
    ///
    /// # Errors
    /// The answer was no.
    pub(crate) fn go_on(&mut self, done: usize) -> Result<(), CalibrationError> {
        let progress = Progress { done, total: None };
        if (self.progress)(progress) { Ok(()) } else { Err(CalibrationError::new(Kind::Cancelled)) }
    }
}

/// Somebody who watches samples being run, on a thread of their own.
pub(crate) trait Watcher: Sink + Send {
    /// The sample of this number, from 0, is about to be run.
    fn begin(&mut self, number: usize, sample: &Sample);

    /// The sample has been run to its end.
    ///
    /// # Errors
    /// What was seen cannot be used.
    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError>;
}

/// What came of a run over all samples.
pub(crate) struct Watched<W> {
    /// One for each thread, in no particular order.
    pub(crate) watchers: Vec<W>,
    /// Samples run.
    pub(crate) samples: usize,
    /// Who ran them.
    pub(crate) engine: &'static str,
    /// What the engine had to say.
    pub(crate) notes: Vec<String>,
}

/// Runs `model` on every sample and shows the values called `taps` to one watcher a thread.
///
/// # Errors
/// No samples, a sample that does not fit the model, an engine that cannot run the model, or what a
/// watcher refuses.
pub(crate) fn watch<W: Watcher>(
    model: &Model,
    taps: &[String],
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
    watcher: impl Fn() -> W,
) -> Result<Watched<W>, CalibrationError> {
    let cancelled = AtomicBool::new(false);
    let threads = control.threads.clamp(1, MOST_THREADS);
    thread::scope(|scope| {
        let (give, work) = mpsc::sync_channel::<Job>(threads);
        let (report, events) = mpsc::channel();
        let work = Arc::new(Mutex::new(work));
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (work, report) = (Arc::clone(&work), report.clone());
                let (cancelled, watcher) = (&cancelled, watcher());
                scope.spawn(move || work_off(&work, &report, watcher, cancelled))
            })
            .collect();
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
        let fed = driver.feed(model, engine, samples, taps, &give);
        drop(give);
        if fed.is_err() {
            cancelled.store(true, Ordering::Relaxed);
        }
        let finished = driver.finish(&cancelled);
        // A worker does nothing that can panic; if it did, its samples would be missing.
        let stopped = |_| CalibrationError::new(Kind::Engine("a thread stopped".to_owned()));
        let watchers = workers.into_iter().map(|worker| worker.join().map_err(stopped));
        let watchers = watchers.collect::<Result<Vec<W>, _>>()?;
        earliest(finished.err(), fed.err())?;
        if driver.done == 0 {
            let reason = "the source gave none".to_owned();
            return Err(CalibrationError::new(Kind::NoSamples { reason }));
        }
        let Driver { done: samples, engine, notes, .. } = driver;
        Ok(Watched { watchers, samples, engine, notes })
    })
}

/// One sample to run.
struct Job {
    number: usize,
    runner: Arc<dyn Runner>,
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
        taps: &[String],
        give: &mpsc::SyncSender<Job>,
    ) -> Result<(), CalibrationError> {
        let mut runners: Vec<(ShapeKey, Arc<dyn Runner>)> = Vec::new();
        self.ask()?;
        while let Some(sample) = samples.next_sample() {
            self.ask()?;
            let number = self.begun;
            let sample = sample.map_err(|error| error.at_sample(number))?;
            // A runner for samples of any shape stands alone, under no shape.
            let mut key = shape_key(&sample);
            if runners.iter().any(|(key, _)| key.is_empty()) {
                key.clear();
            }
            let known = runners.iter().find(|(its, _)| *its == key);
            let runner = if let Some((_, runner)) = known {
                Arc::clone(runner)
            } else {
                if runners.len() >= SHAPES_KEPT {
                    runners.remove(0);
                }
                let prepared = engine.prepare(model, taps, &sample);
                let runner = prepared.map_err(|error| {
                    // No sample is at fault when the engine cannot run the model.
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
                let runner: Arc<dyn Runner> = runner.into();
                runners.push((key, Arc::clone(&runner)));
                runner
            };
            // Two samples a thread are enough to keep it busy; more would only take memory.
            while self.begun - self.done >= 2 * self.threads {
                self.wait()?;
            }
            self.begun += 1;
            if give.send(Job { number, runner, sample }).is_err() {
                return Err(CalibrationError::new(Kind::Engine(
                    "no thread took the work".to_owned(),
                )));
            }
            self.ask()?;
        }
        Ok(())
    }

    /// Waits for all that has begun; of several failures the one of the earliest sample counts.
    fn finish(&mut self, cancelled: &AtomicBool) -> Result<(), CalibrationError> {
        let mut failure: Option<CalibrationError> = None;
        loop {
            let outcome = match self.events.recv_timeout(PATIENCE) {
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
        match self.events.recv_timeout(PATIENCE) {
            Ok(outcome) => {
                outcome?;
                self.done += 1;
                self.ask()
            }
            Err(RecvTimeoutError::Timeout) => self.ask(),
            Err(RecvTimeoutError::Disconnected) => Err(CalibrationError::new(Kind::Engine(
                "all calibration threads stopped".to_owned(),
            ))),
        }
    }

    fn ask(&mut self) -> Result<(), CalibrationError> {
        let progress = Progress { done: self.done, total: self.total };
        if (self.control.progress)(progress) {
            Ok(())
        } else {
            Err(CalibrationError::new(Kind::Cancelled))
        }
    }
}

/// Of two failures the one to speak of: that of the earlier sample, and none that only followed
/// from the other.
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

/// A worker: runs samples until there are no more, and returns who watched.
fn work_off<W: Watcher>(
    work: &Mutex<Receiver<Job>>,
    report: &Sender<Result<(), CalibrationError>>,
    mut watcher: W,
    cancelled: &AtomicBool,
) -> W {
    loop {
        let job = match work.lock() {
            Ok(work) => work.recv(),
            Err(_) => return watcher,
        };
        let Ok(Job { number, runner, sample }) = job else { return watcher };
        if cancelled.load(Ordering::Relaxed) {
            continue;
        }
        watcher.begin(number, &sample);
        let outcome = runner
            .run(&sample, &mut watcher, cancelled)
            .and_then(|()| watcher.finish(&sample))
            .map_err(|error| error.at_sample(number));
        if report.send(outcome).is_err() {
            return watcher;
        }
    }
}

/// Shapes and types of a sample, by which prepared models are told apart.
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
