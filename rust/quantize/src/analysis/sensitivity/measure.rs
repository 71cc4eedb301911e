//! Runs parts of models on values of the float model, several at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use quantize_rs_math::begin_thread;
use quantize_rs_onnx::{Model, Tensor};

use super::LayerRow;
use super::pieces::{Piece, PreparedPiece};
use crate::analysis::output_deviation::{OutputDeviation, row};
use crate::analysis::output_metric::{MetricHandle, SampleOutputs};
use crate::analysis::recorded::{RecordedValues, Value};
use crate::calibrate::engine::{Engine, Sample, ValueSink};
use crate::calibrate::padding::PaddingMask;
use crate::calibrate::pair::SliceSamples;
use crate::calibrate::threads::start_up_to;
use crate::calibrate::{Control, Progress, RunOutcome, ValueObserver, observe};
use crate::error::CalibrationErrorKind as Kind;
use crate::{CalibrationError, QuantizeError};

/// The interval at which the caller is asked whether to continue.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The progress, and the callback that decides whether to continue.
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

    /// Adds runs to the total.
    pub(super) fn expect(&mut self, more: usize) {
        self.total += more;
    }

    /// Removes runs from the total.
    pub(super) fn skip(&mut self, less: usize) {
        self.total -= less;
    }

    /// Reports progress and asks whether to continue.
    ///
    /// # Errors
    /// The callback returned `false`.
    pub(super) fn go_on(&mut self) -> Result<(), CalibrationError> {
        let progress = Progress::of(self.done, Some(self.total));
        if (self.ask)(progress) { Ok(()) } else { Err(CalibrationError::new(Kind::Cancelled)) }
    }

    /// Runs a model on all samples, with one observer for each thread.
    fn observe<W: ValueObserver>(
        &mut self,
        model: &Model,
        observed: &[String],
        engine: &dyn Engine,
        samples: &[Sample],
        observer: impl Fn() -> W,
    ) -> Result<RunOutcome<W>, CalibrationError> {
        let (before, total) = (self.done, self.total);
        let mut ask =
            |Progress { done, .. }: Progress| (self.ask)(Progress::of(before + done, Some(total)));
        let mut control = Control { threads: self.threads, progress: &mut ask };
        let mut given = SliceSamples(samples.iter());
        let outcome = observe(model, observed, engine, &mut given, &mut control, observer);
        self.done += samples.len();
        outcome
    }
}

/// The float outputs of each sample.
pub(super) struct Reference {
    observed: Vec<String>,
    /// The outputs, sample by sample.
    outputs: Vec<Vec<Value>>,
    /// The deviations if no output changes.
    same: Vec<Vec<OutputDeviation>>,
    pub(super) engine: String,
    pub(super) notes: Vec<String>,
}

/// Intermediate values of the float model, sample by sample.
pub(super) struct Cache(Vec<HashMap<String, Tensor>>);

/// The recorded values of the float model.
pub(super) struct FloatPass {
    pub(super) samples: Vec<RecordedValues>,
    pub(super) engine: String,
    pub(super) notes: Vec<String>,
}

/// Runs the float model on all samples, and records its outputs `observed` and the values `lent`,
/// which parts are fed with.
pub(super) fn float_pass(
    model: &Model,
    observed: &[String],
    lent: &[String],
    engine: &dyn Engine,
    samples: &[Sample],
    steps: &mut Steps<'_>,
) -> Result<FloatPass, CalibrationError> {
    let more = lent.iter().filter(|name| !observed.contains(name));
    let all: Vec<String> = observed.iter().chain(more).cloned().collect();
    let RunOutcome { observers, engine, notes, .. } =
        steps.observe(model, &all, engine, samples, || ValueRecorder::of(&all))?;
    Ok(FloatPass { samples: in_order(observers), engine: engine.to_owned(), notes })
}

impl FloatPass {
    /// Whether all these values were recorded.
    pub(super) fn has(&self, names: &[String]) -> bool {
        self.samples.iter().all(|sample| names.iter().all(|name| sample.get(name).is_some()))
    }

    /// Splits the values into the outputs `observed`, some of which are `scored`, and the values
    /// `lent`, which parts are fed with.
    pub(super) fn parted(
        self,
        observed: &[String],
        scored: &[bool],
        lent: &[String],
        samples: &[Sample],
    ) -> (Reference, Cache) {
        let (mut outputs, mut cache) = (Vec::new(), Vec::new());
        for mut sample in self.samples {
            let made = |name: &String| sample.get(name).cloned().unwrap_or_default();
            outputs.push(observed.iter().map(made).collect());
            let tensor = |name: &String| {
                let (shape, values) = sample.take(name);
                (name.clone(), Tensor::from_f32_vec(shape, values))
            };
            cache.push(lent.iter().map(tensor).collect());
        }
        let same = |(made, sample): (&Vec<Value>, &Sample)| {
            let mask = PaddingMask::of(sample).map(Arc::new);
            let made = made.iter().zip(scored);
            made.map(|((shape, values), top)| {
                OutputDeviation::of(shape, values, values, *top, mask.as_ref())
            })
            .collect()
        };
        let same = outputs.iter().zip(samples).map(same).collect();
        let FloatPass { engine, notes, .. } = self;
        (Reference { observed: observed.to_vec(), outputs, same, engine, notes }, Cache(cache))
    }
}

/// Records the values of each sample.
struct ValueRecorder<'a> {
    observed: &'a [String],
    number: usize,
    now: RecordedValues,
    done: Vec<(usize, RecordedValues)>,
}

impl<'a> ValueRecorder<'a> {
    fn of(observed: &'a [String]) -> ValueRecorder<'a> {
        ValueRecorder { observed, number: 0, now: RecordedValues::of(observed), done: Vec::new() }
    }
}

impl ValueSink for ValueRecorder<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        self.now.observe(index, shape, values);
    }
}

impl ValueObserver for ValueRecorder<'_> {
    fn begin(&mut self, number: usize, _: &Sample) {
        self.number = number;
        self.now = RecordedValues::of(self.observed);
    }

    fn finish(&mut self, _: &Sample) -> Result<(), CalibrationError> {
        let now = std::mem::replace(&mut self.now, RecordedValues::of(&[]));
        self.done.push((self.number, now));
        Ok(())
    }
}

/// The recorded values in the order of the samples.
fn in_order(observers: Vec<ValueRecorder<'_>>) -> Vec<RecordedValues> {
    let mut all: Vec<(usize, RecordedValues)> =
        observers.into_iter().flat_map(|one| one.done).collect();
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, kept)| kept).collect()
}

/// A layer, and the parts of the model that depend on it.
pub(super) struct Trial {
    pub(super) row: LayerRow,
    /// The parts of the model that are run, in this order; none if no output changes.
    pub(super) path: Vec<Arc<Piece>>,
}

impl Trial {
    /// Names of the values of the float model that it reads.
    pub(super) fn lent(&self) -> impl Iterator<Item = &String> {
        self.path.iter().flat_map(|piece| piece.lent.values())
    }
}

/// Layers to measure, and everything that they need.
pub(super) struct Work<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) samples: &'a [Sample],
    pub(super) reference: &'a Reference,
    pub(super) cache: &'a Cache,
    pub(super) trials: Vec<Trial>,
    /// A metric that is measured beside the errors.
    pub(super) metric: Option<&'a MetricHandle>,
}

/// What a trial found, sample by sample.
#[derive(Default)]
struct Seen {
    errors: Vec<(usize, Vec<OutputDeviation>)>,
    /// The outputs, if there is a metric of them.
    outputs: Vec<SampleOutputs>,
}

/// Events of the threads that run parts.
enum Event {
    /// A sample was run.
    Ran,
    /// A trial is finished.
    Done(usize, Result<Seen, CalibrationError>),
}

impl Work<'_> {
    /// Runs all trials, several at once, and passes each finished row to `finished`.
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
            start_up_to(scope, steps.threads.min(self.trials.len()), || {
                let (tell, next, cancelled) = (tell.clone(), &next, &cancelled);
                move || self.work(next, cancelled, &tell)
            })?;
            drop(tell);
            let mut failure: Option<QuantizeError> = None;
            loop {
                let outcome = match events.recv_timeout(POLL_INTERVAL) {
                    Err(RecvTimeoutError::Disconnected) => return failure.map_or(Ok(()), Err),
                    Err(RecvTimeoutError::Timeout) => Ok(()),
                    Ok(Event::Ran) => {
                        steps.done += 1;
                        Ok(())
                    }
                    Ok(Event::Done(index, Ok(seen))) => {
                        self.row(index, &seen).and_then(&mut *finished)
                    }
                    Ok(Event::Done(_, Err(error))) => Err(error.into()),
                };
                let outcome = outcome.and_then(|()| Ok(steps.go_on()?));
                if let Err(error) = outcome {
                    cancelled.store(true, Ordering::Relaxed);
                    // Later errors are cancellations that the first one caused.
                    failure.get_or_insert(error);
                }
            }
        })
    }

    fn row(&self, index: usize, seen: &Seen) -> Result<LayerRow, QuantizeError> {
        let names = &self.reference.observed;
        let observed = names.iter().enumerate();
        let outputs = observed.map(|(index, name)| row(name, index, &seen.errors)).collect();
        let accuracy = self.metric.map(|metric| metric.accuracy(names, &seen.outputs));
        let accuracy = accuracy.transpose()?;
        Ok(LayerRow { outputs, accuracy, ..self.trials[index].row.clone() })
    }

    /// Measures trials until there are no more.
    fn work(&self, next: &AtomicUsize, cancelled: &AtomicBool, tell: &Sender<Event>) {
        begin_thread();
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

    /// The deviation of each output for each sample.
    fn measure(
        &self,
        trial: &Trial,
        cancelled: &AtomicBool,
        tell: &Sender<Event>,
    ) -> Result<Seen, CalibrationError> {
        let mut ready: Vec<Option<Arc<PreparedPiece>>> = vec![None; trial.path.len()];
        let mut seen = Seen::default();
        for (number, sample) in self.samples.iter().enumerate() {
            let mut found = self.reference.same[number].clone();
            let mut handed_on = HashMap::new();
            let mut changed: HashMap<usize, Value> = HashMap::new();
            for (piece, ready) in trial.path.iter().zip(&mut ready) {
                let feed = self.feed(piece, &handed_on, number, sample)?;
                let prepared = piece.ready(self.engine, &feed, ready.take(), cancelled)?;
                let mut made = RecordedValues::of(&piece.part.outputs);
                let outcome = prepared.runner.run(&feed, &mut made, cancelled);
                outcome.map_err(|error| error.at_sample(number))?;
                *ready = Some(prepared);
                for (name, (shape, values)) in piece.makes.iter().zip(made.values) {
                    if let Some(place) = self.reference.observed.iter().position(|own| own == name)
                    {
                        let (wanted_shape, wanted) = &self.reference.outputs[number][place];
                        found[place] = if *wanted_shape == shape {
                            let same = &self.reference.same[number][place];
                            same.of_another(&shape, wanted, &values)
                        } else {
                            let wanted = &self.reference.outputs[number][place];
                            OutputDeviation::of_another_shape(name, wanted, &shape)
                                .map_err(|error| error.at_sample(number))?
                        };
                        if self.metric.is_some() {
                            changed.insert(place, (shape.clone(), values.clone()));
                        }
                    }
                    handed_on.insert(name.as_str(), Tensor::from_f32_vec(shape, values));
                }
            }
            seen.errors.push((number, found));
            if self.metric.is_some() {
                let original = self.reference.outputs[number].clone();
                let own = |(place, value): (usize, &Value)| {
                    changed.remove(&place).unwrap_or_else(|| value.clone())
                };
                let quantized = original.iter().enumerate().map(own).collect();
                seen.outputs.push(SampleOutputs { sample: sample.clone(), original, quantized });
            }
            // The receiver is gone if the run was cancelled.
            let _ = tell.send(Event::Ran);
        }
        Ok(seen)
    }

    /// The inputs of a part for a sample.
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
            let missing =
                || CalibrationError::input_mismatch(format!("input `{input}` is missing"));
            Ok((input.clone(), value.cloned().ok_or_else(missing)?))
        };
        Ok(Sample { inputs: piece.part.inputs.iter().map(value).collect::<Result<_, _>>()? })
    }
}
