//! An engine that keeps what flows through the float model while it is calibrated: layers on trial are fed with it, and
//! the model need not be run a second time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use quantize_rs_onnx::{Model, reads};

use super::layers::Layer;
use super::measure::Shown;
use crate::analysis::pair::Kept;
use crate::calibrate::engine::{Engine, Runner, Sample, Sink};
use crate::graph::{Graph, ValueId};
use crate::{CalibrationError, Ranges};

/// What layers alone may read of the float model, of the values that `is_kept` tells: what goes into them, and what is
/// joined on the way to the outputs with what follows from more of them.
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
    // The layers that each value follows from.
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

/// Runs models as another engine does, and keeps what each sample shows of some values.
pub(super) struct Lending<'a> {
    engine: &'a dyn Engine,
    names: Vec<String>,
    store: Arc<Store>,
}

/// What samples showed, as long as there is room for all.
struct Store {
    room: usize,
    kept: Mutex<Option<All>>,
}

#[derive(Default)]
struct All {
    bytes: usize,
    /// By the key of the sample.
    samples: HashMap<u64, Kept>,
}

impl Store {
    fn keep(&self, sample: &Sample, kept: Kept) {
        let mut place = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(all) = &mut *place else { return };
        all.bytes += kept.bytes();
        all.samples.insert(sample.key(), kept);
        if all.bytes > self.room {
            *place = None;
        }
    }

    /// Keeps nothing any more, and forgets what there is.
    fn close(&self) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn is_closed(&self) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl<'a> Lending<'a> {
    /// Keeps `names`, or nothing where they take more than so many bytes.
    pub(super) fn new(engine: &'a dyn Engine, names: Vec<String>, room: usize) -> Lending<'a> {
        let kept = Mutex::new(Some(All::default()));
        Lending { engine, names, store: Arc::new(Store { room, kept }) }
    }

    /// What these samples showed as `ranges` were found; `None` where one is missing.
    pub(super) fn shown(self, samples: &[Sample], ranges: &Ranges) -> Option<Shown> {
        let mut kept = self.store.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut kept.as_mut()?.samples;
        // Of equal samples one was kept: then the float model is run for all.
        let samples = samples.iter().map(|sample| kept.remove(&sample.key()));
        let samples = samples.collect::<Option<_>>()?;
        Some(Shown { samples, engine: ranges.engine.clone(), notes: ranges.notes.clone() })
    }
}

impl Engine for Lending<'_> {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn prepare(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        if self.names.is_empty() {
            return self.engine.prepare(model, taps, sample);
        }
        let more = self.names.iter().filter(|name| !taps.contains(name));
        let all: Vec<String> = taps.iter().chain(more).cloned().collect();
        let place = |name: &String| self.names.iter().position(|kept| kept == name);
        Ok(Box::new(LendingRunner {
            runner: self.engine.prepare(model, &all, sample)?,
            taps: taps.len(),
            places: all.iter().map(place).collect(),
            names: self.names.clone(),
            store: self.store.clone(),
        }))
    }
}

struct LendingRunner {
    runner: Box<dyn Runner>,
    /// How many values somebody else looks at.
    taps: usize,
    /// For each value that is shown, where among `names` it is kept.
    places: Vec<Option<usize>>,
    names: Vec<String>,
    store: Arc<Store>,
}

impl Runner for LendingRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn Sink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let own = (!self.store.is_closed()).then(|| Kept::of(&self.names));
        let mut both = Both { sink, own, room: self.store.room, runner: self };
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

/// Shows values to those who want them, and keeps those that are to be lent.
struct Both<'a> {
    sink: &'a mut dyn Sink,
    own: Option<Kept>,
    /// Bytes that there is room for.
    room: usize,
    runner: &'a LendingRunner,
}

impl Sink for Both<'_> {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        if tap < self.runner.taps {
            self.sink.observe(tap, shape, values);
        }
        let (Some(own), Some(Some(place))) = (&mut self.own, self.runner.places.get(tap)) else {
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
    fn nothing_is_kept_where_there_is_no_room_for_all() {
        for (room, full) in [(16, false), (15, true)] {
            let store = Store { room, kept: Mutex::new(Some(All::default())) };
            for shape in [[1], [3]] {
                let mut kept = Kept::of(&["x".to_owned()]);
                kept.observe(0, &shape, &vec![0.5; shape[0]]);
                let input =
                    quantize_rs_onnx::Tensor::from_f32(shape.to_vec(), &vec![0.5; shape[0]]);
                store.keep(&Sample { inputs: vec![("x".to_owned(), input)] }, kept);
            }
            assert_eq!(store.is_closed(), full);
        }
    }
}
