//! Parts of models, run on what the float model computed before; several at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use quantize_rs_onnx::{Model, Tensor};

use super::LayerRow;
use super::pieces::{Piece, Prepared};
use crate::analysis::compare::{Seen, other_shape, row};
use crate::analysis::pair::{Given, Kept, Value};
use crate::calibrate::engine::{Engine, Sample, Sink};
use crate::calibrate::{Control, Progress, Watched, Watcher, watch};
use crate::error::CalibrationErrorKind as Kind;
use crate::{CalibrationError, QuantizeError};

/// How often somebody who waits is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// How far the work has come, and who is asked whether to go on.
pub(super) struct Steps<'a> {
    threads: usize,
    done: usize,
    total: usize,
    ask: &'a mut dyn FnMut(Progress) -> bool,
}

impl<'a> Steps<'a> {
    pub(super) fn new(control: Control<'a>, total: usize) -> Steps<'a> {
        let Control { threads, progress: ask } = control;
        Steps { threads: threads.max(1), done: 0, total, ask }
    }

    /// So many runs more than were foreseen.
    pub(super) fn expect(&mut self, more: usize) {
        self.total += more;
    }

    /// So many runs less.
    pub(super) fn skip(&mut self, less: usize) {
        self.total -= less;
    }

    fn go_on(&mut self) -> Result<(), CalibrationError> {
        let progress = Progress { done: self.done, total: Some(self.total) };
        if (self.ask)(progress) { Ok(()) } else { Err(CalibrationError::new(Kind::Cancelled)) }
    }

    /// Runs a model on all samples, and lets one somebody a thread watch.
    fn watch<W: Watcher>(
        &mut self,
        model: &Model,
        taps: &[String],
        engine: &dyn Engine,
        samples: &[Sample],
        watcher: impl Fn() -> W,
    ) -> Result<Watched<W>, CalibrationError> {
        let (before, total) = (self.done, self.total);
        let mut ask = |Progress { done, .. }: Progress| {
            (self.ask)(Progress { done: before + done, total: Some(total) })
        };
        let mut control = Control { threads: self.threads, progress: &mut ask };
        let mut given = Given(samples.iter());
        let outcome = watch(model, taps, engine, &mut given, &mut control, watcher);
        self.done += samples.len();
        outcome
    }
}

/// What the float model makes of each sample.
pub(super) struct Reference {
    taps: Vec<String>,
    /// The outputs, sample by sample.
    outputs: Vec<Vec<Value>>,
    /// What it comes to when none of them changes.
    same: Vec<Vec<Seen>>,
    pub(super) engine: String,
    pub(super) notes: Vec<String>,
}

/// Values in the middle of the float model, sample by sample.
pub(super) struct Cache(Vec<HashMap<String, Tensor>>);

/// What the float model showed.
pub(super) struct Shown {
    pub(super) samples: Vec<Kept>,
    pub(super) engine: String,
    pub(super) notes: Vec<String>,
}

/// Runs the float model on all samples, and keeps its outputs `taps` and the values that are `lent` to parts.
pub(super) fn float_pass(
    model: &Model,
    taps: &[String],
    lent: &[String],
    engine: &dyn Engine,
    samples: &[Sample],
    steps: &mut Steps<'_>,
) -> Result<Shown, CalibrationError> {
    let more = lent.iter().filter(|name| !taps.contains(name));
    let all: Vec<String> = taps.iter().chain(more).cloned().collect();
    let Watched { watchers, engine, notes, .. } =
        steps.watch(model, &all, engine, samples, || Keeper::of(&all))?;
    Ok(Shown { samples: in_order(watchers), engine: engine.to_owned(), notes })
}

impl Shown {
    /// Whether all of these are among what was shown.
    pub(super) fn has(&self, names: &[String]) -> bool {
        self.samples.iter().all(|sample| names.iter().all(|name| sample.get(name).is_some()))
    }

    /// The outputs `taps`, some of which are `scored`, and what is `lent` to parts.
    pub(super) fn parted(
        self,
        taps: &[String],
        scored: &[bool],
        lent: &[String],
    ) -> (Reference, Cache) {
        let (mut outputs, mut cache) = (Vec::new(), Vec::new());
        for mut sample in self.samples {
            let made = |name: &String| sample.get(name).cloned().unwrap_or_default();
            outputs.push(taps.iter().map(made).collect());
            let tensor = |name: &String| {
                let (shape, values) = sample.take(name);
                (name.clone(), Tensor::from_f32_vec(shape, values))
            };
            cache.push(lent.iter().map(tensor).collect());
        }
        let same = |made: &Vec<Value>| {
            let made = made.iter().zip(scored);
            made.map(|((shape, values), top)| Seen::of(shape, values, values, *top)).collect()
        };
        let same = outputs.iter().map(same).collect();
        let Shown { engine, notes, .. } = self;
        (Reference { taps: taps.to_vec(), outputs, same, engine, notes }, Cache(cache))
    }
}

/// Keeps what each sample shows.
struct Keeper<'a> {
    taps: &'a [String],
    number: usize,
    now: Kept,
    done: Vec<(usize, Kept)>,
}

impl<'a> Keeper<'a> {
    fn of(taps: &'a [String]) -> Keeper<'a> {
        Keeper { taps, number: 0, now: Kept::of(taps), done: Vec::new() }
    }
}

impl Sink for Keeper<'_> {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        self.now.observe(tap, shape, values);
    }
}

impl Watcher for Keeper<'_> {
    fn begin(&mut self, number: usize, _: &Sample) {
        self.number = number;
        self.now = Kept::of(self.taps);
    }

    fn finish(&mut self, _: &Sample) -> Result<(), CalibrationError> {
        let now = std::mem::replace(&mut self.now, Kept::of(&[]));
        self.done.push((self.number, now));
        Ok(())
    }
}

/// What was kept, sample by sample.
fn in_order(watchers: Vec<Keeper<'_>>) -> Vec<Kept> {
    let mut all: Vec<(usize, Kept)> = watchers.into_iter().flat_map(|one| one.done).collect();
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, kept)| kept).collect()
}

/// A layer, and what follows from it.
pub(super) struct Trial {
    pub(super) row: LayerRow,
    /// The parts of the model that are run, in this order; none where no output changes.
    pub(super) path: Vec<Arc<Piece>>,
}

impl Trial {
    /// Names of the values that it reads of what the float model computes.
    pub(super) fn lent(&self) -> impl Iterator<Item = &String> {
        self.path.iter().flat_map(|piece| piece.lent.values())
    }
}

/// Layers on trial, and all that they need.
pub(super) struct Work<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) samples: &'a [Sample],
    pub(super) reference: &'a Reference,
    pub(super) cache: &'a Cache,
    pub(super) trials: Vec<Trial>,
}

/// What a thread that runs parts has to say.
enum Event {
    /// One more sample was run.
    Ran,
    /// A trial is over.
    Done(usize, Result<Vec<(usize, Vec<Seen>)>, CalibrationError>),
}

impl Work<'_> {
    /// Runs all of them, several at once, and gives each row to `finished` as soon as it is known.
    pub(super) fn run(
        &self,
        steps: &mut Steps<'_>,
        finished: &mut dyn FnMut(LayerRow) -> Result<(), QuantizeError>,
    ) -> Result<(), QuantizeError> {
        let (next, cancelled) = (AtomicUsize::new(0), AtomicBool::new(false));
        let pieces = self.trials.iter().flat_map(|trial| &trial.path);
        pieces.for_each(|piece| piece.expect_one());
        thread::scope(|scope| {
            let (tell, events) = mpsc::channel();
            for _ in 0..steps.threads.min(self.trials.len()) {
                let (tell, next, cancelled) = (tell.clone(), &next, &cancelled);
                scope.spawn(move || self.work(next, cancelled, &tell));
            }
            drop(tell);
            let mut failure: Option<QuantizeError> = None;
            loop {
                let outcome = match events.recv_timeout(PATIENCE) {
                    Err(RecvTimeoutError::Disconnected) => return failure.map_or(Ok(()), Err),
                    Err(RecvTimeoutError::Timeout) => Ok(()),
                    Ok(Event::Ran) => {
                        steps.done += 1;
                        Ok(())
                    }
                    Ok(Event::Done(index, Ok(seen))) => finished(self.row(index, &seen)),
                    Ok(Event::Done(_, Err(error))) => Err(error.into()),
                };
                let outcome = outcome.and_then(|()| Ok(steps.go_on()?));
                if let Err(error) = outcome {
                    cancelled.store(true, Ordering::Relaxed);
                    // What follows is only that the others were told to stop.
                    failure.get_or_insert(error);
                }
            }
        })
    }

    fn row(&self, index: usize, seen: &[(usize, Vec<Seen>)]) -> LayerRow {
        let taps = self.reference.taps.iter().enumerate();
        let outputs = taps.map(|(tap, name)| row(name, tap, seen)).collect();
        LayerRow { outputs, ..self.trials[index].row.clone() }
    }

    /// Takes trials until there are no more.
    fn work(&self, next: &AtomicUsize, cancelled: &AtomicBool, tell: &Sender<Event>) {
        while !cancelled.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(trial) = self.trials.get(index) else { return };
            let outcome = self.measure(trial, cancelled, tell);
            trial.path.iter().for_each(|piece| piece.leave());
            if tell.send(Event::Done(index, outcome)).is_err() {
                return;
            }
        }
    }

    /// What each output of each sample is off by.
    fn measure(
        &self,
        trial: &Trial,
        cancelled: &AtomicBool,
        tell: &Sender<Event>,
    ) -> Result<Vec<(usize, Vec<Seen>)>, CalibrationError> {
        let mut ready: Vec<Option<Arc<Prepared>>> = vec![None; trial.path.len()];
        let mut seen = Vec::with_capacity(self.samples.len());
        for (number, sample) in self.samples.iter().enumerate() {
            let mut found = self.reference.same[number].clone();
            let mut handed_on = HashMap::new();
            for (piece, ready) in trial.path.iter().zip(&mut ready) {
                let feed = self.feed(piece, &handed_on, number, sample)?;
                let prepared = piece.ready(self.engine, &feed, ready.take(), cancelled)?;
                let mut made = Kept::of(&piece.part.outputs);
                let outcome = prepared.runner.run(&feed, &mut made, cancelled);
                outcome.map_err(|error| error.at_sample(number))?;
                *ready = Some(prepared);
                for (name, (shape, values)) in piece.makes.iter().zip(made.values) {
                    if let Some(place) = self.reference.taps.iter().position(|tap| tap == name) {
                        let (wanted_shape, wanted) = &self.reference.outputs[number][place];
                        if *wanted_shape != shape {
                            return Err(other_shape(name, wanted_shape, &shape).at_sample(number));
                        }
                        let same = &self.reference.same[number][place];
                        found[place] = same.of_another(&shape, wanted, &values);
                    }
                    handed_on.insert(name.as_str(), Tensor::from_f32_vec(shape, values));
                }
            }
            seen.push((number, found));
            // Nobody listens any more when the work was given up.
            let _ = tell.send(Event::Ran);
        }
        Ok(seen)
    }

    /// What a part reads of a sample.
    fn feed(
        &self,
        piece: &Piece,
        handed_on: &HashMap<&str, Tensor>,
        number: usize,
        sample: &Sample,
    ) -> Result<Sample, CalibrationError> {
        let value = |input: &String| {
            let lent = piece.lent.get(input).and_then(|name| self.cache.0[number].get(name));
            let value =
                lent.or_else(|| handed_on.get(input.as_str())).or_else(|| sample.get(input));
            let missing = || Kind::InputMismatch(format!("input `{input}` is missing"));
            Ok((input.clone(), value.cloned().ok_or_else(|| CalibrationError::new(missing()))?))
        };
        Ok(Sample { inputs: piece.part.inputs.iter().map(value).collect::<Result<_, _>>()? })
    }
}
