//! An engine that records values of the float model during calibration. Measured layers are fed
//! with them, and the model does not have to run a second time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use quantize_rs_onnx::{Model, reads};

use super::layers::Layer;
use super::measure::FloatPass;
use crate::analysis::recorded::RecordedValues;
use crate::calibrate::engine::{Engine, Sample, Session, ValueSink};
use crate::graph::fingerprint::fingerprint;
use crate::graph::{Graph, ValueId};
use crate::{CalibrationError, Ranges};

/// The values of the float model that single layers may read, of the values that `is_kept` accepts:
/// their inputs, and values that are joined on the way to the outputs with values that depend on
/// more layers.
pub(super) fn candidates(
    graph: &Graph<'_>,
    order: &[usize],
    layers: &[Layer],
    is_kept: impl Fn(ValueId) -> bool,
) -> BTreeSet<String> {
    let mut layers_of: HashMap<usize, Vec<usize>> = HashMap::new();
    for (layer, its) in layers.iter().enumerate() {
        its.nodes.iter().for_each(|node| layers_of.entry(*node).or_default().push(layer));
    }
    // The layers that each value depends on.
    let mut follows: HashMap<ValueId, Arc<HashSet<usize>>> = HashMap::new();
    let mut found = BTreeSet::new();
    for index in order {
        let read: BTreeSet<ValueId> =
            reads(graph.nodes[*index]).into_iter().filter_map(|name| graph.value(name)).collect();
        let sets: Vec<_> = read.iter().filter_map(|id| follows.get(id)).collect();
        let mut all = sets
            .iter()
            .max_by_key(|set| set.len())
            .map_or_else(Arc::default, |set| Arc::clone(set));
        let own = layers_of.get(index).into_iter().flatten();
        let more = sets.iter().flat_map(|set| set.iter()).chain(own);
        let more: Vec<usize> = more.filter(|layer| !all.contains(*layer)).copied().collect();
        if !more.is_empty() {
            Arc::make_mut(&mut all).extend(more);
        }
        let joined = |id: &ValueId| follows.get(id).map_or(0, |set| set.len()) < all.len();
        let lent = read.iter().filter(|id| is_kept(**id) && joined(id));
        found.extend(lent.map(|id| graph.values[*id].name.to_owned()));
        let made = graph.nodes[*index].output.iter().filter_map(|name| graph.value(name));
        follows.extend(made.map(|id| (id, all.clone())));
    }
    found
}

/// Runs models with another engine, and records some values of one of them for each sample.
pub(super) struct RecordingEngine<'a> {
    engine: &'a dyn Engine,
    /// The fingerprint of this model. Methods are compared by quantized models, whose values have
    /// the same names.
    model: String,
    names: Vec<String>,
    store: Arc<Store>,
}

/// The recorded values of the samples, as long as all of them fit.
struct Store {
    room: usize,
    kept: Mutex<Option<StoredSamples>>,
}

#[derive(Default)]
struct StoredSamples {
    bytes: usize,
    /// By the key of the sample.
    samples: HashMap<u64, RecordedValues>,
}

impl Store {
    fn keep(&self, sample: &Sample, kept: RecordedValues) {
        let mut place = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(all) = &mut *place else { return };
        all.bytes += kept.bytes();
        all.samples.insert(sample.key(), kept);
        if all.bytes > self.room {
            *place = None;
        }
    }

    /// Stops recording and drops the recorded values.
    fn close(&self) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn is_closed(&self) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl<'a> RecordingEngine<'a> {
    /// Records `names` of the model with this fingerprint, or nothing if they need more than `room`
    /// bytes.
    pub(super) fn new(
        engine: &'a dyn Engine,
        model: String,
        names: Vec<String>,
        room: usize,
    ) -> RecordingEngine<'a> {
        let kept = Mutex::new(Some(StoredSamples::default()));
        RecordingEngine { engine, model, names, store: Arc::new(Store { room, kept }) }
    }

    /// The values of these samples that were recorded while `ranges` were computed; `None` if a
    /// sample is missing.
    pub(super) fn shown(self, samples: &[Sample], ranges: &Ranges) -> Option<FloatPass> {
        let mut kept = self.store.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut kept.as_mut()?.samples;
        // Equal samples are recorded once: then the float model is run for all.
        let samples = samples.iter().map(|sample| kept.remove(&sample.key()));
        let samples = samples.collect::<Option<_>>()?;
        Some(FloatPass { samples, engine: ranges.engine.clone(), notes: ranges.notes.clone() })
    }
}

impl Engine for RecordingEngine<'_> {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        if self.names.is_empty() || fingerprint(model) != self.model {
            return self.engine.prepare(model, observed, sample);
        }
        let more = self.names.iter().filter(|name| !observed.contains(name));
        let all: Vec<String> = observed.iter().chain(more).cloned().collect();
        let place = |name: &String| self.names.iter().position(|kept| kept == name);
        Ok(Box::new(RecordingSession {
            runner: self.engine.prepare(model, &all, sample)?,
            observed: observed.len(),
            places: all.iter().map(place).collect(),
            names: self.names.clone(),
            store: self.store.clone(),
        }))
    }
}

struct RecordingSession {
    runner: Box<dyn Session>,
    /// The number of values that the caller observes.
    observed: usize,
    /// For each observed value, its position in `names`, if it is recorded.
    places: Vec<Option<usize>>,
    names: Vec<String>,
    store: Arc<Store>,
}

impl Session for RecordingSession {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let own = (!self.store.is_closed()).then(|| RecordedValues::of(&self.names));
        let mut both = TeeSink { sink, own, room: self.store.room, runner: self };
        self.runner.run(sample, &mut both, cancelled)?;
        if let Some(own) = both.own {
            self.store.keep(sample, own);
        }
        Ok(())
    }

    fn any_shape(&self) -> bool {
        self.runner.any_shape()
    }

    fn engine(&self) -> Option<&'static str> {
        self.runner.engine()
    }

    fn note(&self) -> Option<&str> {
        self.runner.note()
    }
}

/// Passes values on, and records those that layers read.
struct TeeSink<'a> {
    sink: &'a mut dyn ValueSink,
    own: Option<RecordedValues>,
    /// The bytes that are left.
    room: usize,
    runner: &'a RecordingSession,
}

impl ValueSink for TeeSink<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        if index < self.runner.observed {
            self.sink.observe(index, shape, values);
        }
        let (Some(own), Some(Some(place))) = (&mut self.own, self.runner.places.get(index)) else {
            return;
        };
        if let Some(room) = self.room.checked_sub(size_of_val(values)) {
            self.room = room;
            own.observe(*place, shape, values);
        } else {
            // A single sample is too large.
            self.own = None;
            self.runner.store.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_recorded_if_not_everything_fits() {
        for (room, full) in [(16, false), (15, true)] {
            let store = Store { room, kept: Mutex::new(Some(StoredSamples::default())) };
            for shape in [[1], [3]] {
                let mut kept = RecordedValues::of(&["x".to_owned()]);
                kept.observe(0, &shape, &vec![0.5; shape[0]]);
                let input =
                    quantize_rs_onnx::Tensor::from_f32(shape.to_vec(), &vec![0.5; shape[0]]);
                store.keep(&Sample { inputs: vec![("x".to_owned(), input)] }, kept);
            }
            assert_eq!(store.is_closed(), full);
        }
    }
}
