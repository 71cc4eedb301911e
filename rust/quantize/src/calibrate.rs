//! The calibration loop: runs the model on samples and gathers where its activations live.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quantize_rs_math::Range;
use quantize_rs_math::stats::MinMax;
use quantize_rs_onnx::{DataType, Model};

use crate::error::CalibrationErrorKind as Kind;
use crate::ranges::{Ranges, fingerprint};
use crate::sample::{Engine, Runner, Sample, Samples, Sink};
use crate::{CalibrationError, Plan};

/// How often somebody who waits is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// Models prepared for different input shapes that are kept at once.
const SHAPES_KEPT: usize = 4;

/// More threads than this gain nothing and may not be had.
const MOST_THREADS: usize = 256;

/// How far a calibration has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Samples done.
    pub done: usize,
    /// Samples in all, when that is known.
    pub total: Option<usize>,
}

/// How to run a calibration.
pub struct Control<'a> {
    /// Samples that run at once, each on a thread of its own; at least 1.
    pub threads: usize,
    /// Called on the caller's thread, every 50 ms and after each sample; `false` stops the run.
    pub progress: &'a mut dyn FnMut(Progress) -> bool,
}

/// Runs `model` on every sample and gathers the range of each value that `plan` observes.
///
/// The result does not depend on the number of threads or the order of the samples.
///
/// # Errors
/// No samples, a sample that does not fit the model, NaN or infinity in an observed value, or an
/// engine that cannot run the model.
pub fn calibrate(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: Control<'_>,
) -> Result<Ranges, CalibrationError> {
    let taps = plan.observed();
    if taps.is_empty() {
        // Nothing to look for: the engine need not even be able to run the model.
        return Ok(ranges(model, engine, 0, BTreeMap::new()));
    }
    let cancelled = AtomicBool::new(false);
    let threads = control.threads.clamp(1, MOST_THREADS);
    let (gathered, done) = thread::scope(|scope| {
        let (give, work) = mpsc::sync_channel::<Job>(threads);
        let (report, events) = mpsc::channel();
        let work = Arc::new(Mutex::new(work));
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (work, report) = (Arc::clone(&work), report.clone());
                let (taps, cancelled) = (&taps[..], &cancelled);
                scope.spawn(move || work_off(&work, &report, taps, cancelled))
            })
            .collect();
        drop(report);
        let mut driver =
            Driver { control, threads, events, total: samples.len_hint(), begun: 0, done: 0 };
        let fed = driver.feed(model, engine, samples, &taps, &give);
        drop(give);
        if fed.is_err() {
            cancelled.store(true, Ordering::Relaxed);
        }
        let finished = driver.finish(&cancelled);
        let mut gathered = vec![MinMax::default(); taps.len()];
        for worker in workers {
            // A worker does nothing that can panic; if it did, its samples would be missing.
            let stats = worker.join().map_err(|_| {
                CalibrationError::new(Kind::Engine("a calibration thread stopped".to_owned()))
            })?;
            gathered.iter_mut().zip(&stats).for_each(|(all, one)| all.merge(one));
        }
        earliest(finished.err(), fed.err())?;
        Ok::<_, CalibrationError>((gathered, driver.done))
    })?;
    if done == 0 {
        return Err(CalibrationError::new(Kind::NoSamples("the source gave none".to_owned())));
    }
    let values = taps.into_iter().zip(gathered.iter().map(MinMax::range)).collect();
    Ok(ranges(model, engine, done, values))
}

fn ranges(
    model: &Model,
    engine: &dyn Engine,
    samples: usize,
    values: BTreeMap<String, Range>,
) -> Ranges {
    Ranges {
        method: "minmax".to_owned(),
        engine: engine.name().to_owned(),
        samples,
        model: fingerprint(model),
        values,
    }
}

/// One sample to run.
struct Job {
    number: usize,
    runner: Arc<dyn Runner>,
    sample: Sample,
}

/// The caller's side of the loop.
struct Driver<'a> {
    control: Control<'a>,
    threads: usize,
    events: Receiver<Result<(), CalibrationError>>,
    total: Option<usize>,
    begun: usize,
    done: usize,
}

impl Driver<'_> {
    fn feed(
        &mut self,
        model: &Model,
        engine: &dyn Engine,
        samples: &mut dyn Samples,
        taps: &[String],
        give: &mpsc::SyncSender<Job>,
    ) -> Result<(), CalibrationError> {
        let mut runners: HashMap<ShapeKey, Arc<dyn Runner>> = HashMap::new();
        while let Some(sample) = samples.next_sample() {
            let number = self.begun;
            let sample = sample.map_err(|error| error.at_sample(number))?;
            let key = shape_key(&sample);
            if !runners.contains_key(&key) {
                if runners.len() >= SHAPES_KEPT {
                    runners.clear();
                }
                let prepared = engine.prepare(model, taps, &sample);
                let runner = prepared.map_err(|error| match error.kind() {
                    // No sample is at fault when the engine cannot run the model.
                    Kind::Unsupported(_) => error,
                    _ => error.at_sample(number),
                })?;
                runners.insert(key.clone(), runner.into());
            }
            let runner = Arc::clone(&runners[&key]);
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

/// A worker: runs samples until there are no more, and returns what it saw.
fn work_off(
    work: &Mutex<Receiver<Job>>,
    report: &Sender<Result<(), CalibrationError>>,
    taps: &[String],
    cancelled: &AtomicBool,
) -> Vec<MinMax> {
    let mut all = vec![MinMax::default(); taps.len()];
    loop {
        let job = match work.lock() {
            Ok(work) => work.recv(),
            Err(_) => return all,
        };
        let Ok(Job { number, runner, sample }) = job else { return all };
        if cancelled.load(Ordering::Relaxed) {
            continue;
        }
        let mut seen = Gather(vec![MinMax::default(); taps.len()]);
        let outcome = runner
            .run(&sample, &mut seen, cancelled)
            .and_then(|()| seen.finite(taps))
            .map_err(|error| error.at_sample(number));
        all.iter_mut().zip(&seen.0).for_each(|(all, one)| all.merge(one));
        if report.send(outcome).is_err() {
            return all;
        }
    }
}

/// What one sample showed.
struct Gather(Vec<MinMax>);

impl Sink for Gather {
    fn observe(&mut self, tap: usize, _shape: &[usize], values: &[f32]) {
        if let Some(stats) = self.0.get_mut(tap) {
            stats.observe(values);
        }
    }
}

impl Gather {
    fn finite(&self, taps: &[String]) -> Result<(), CalibrationError> {
        match self.0.iter().position(|stats| stats.non_finite > 0) {
            None => Ok(()),
            Some(tap) => {
                let MinMax { count, non_finite, .. } = self.0[tap];
                let all = count + non_finite;
                let what = format!(
                    "{non_finite} of {all} elements are NaN or infinite; no scale can hold them: look at \
                     the sample, or exclude the node"
                );
                Err(CalibrationError::new(Kind::NonFinite(what)).at_value(&taps[tap]))
            }
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
