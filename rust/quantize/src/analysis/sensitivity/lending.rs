//! An engine that keeps what flows through the float model while it is calibrated: layers on trial are fed with it, and
//! the model need not be run a second time.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use quantize_rs_onnx::{Model, reads};

use super::layers::Layer;
use super::measure::Shown;
use crate::analysis::pair::Kept;
use crate::graph::Graph;
use crate::sample::{Engine, Runner, Sample, Sink};
use crate::{CalibrationError, Ranges};

/// What layers may read of the float model: what goes into them, and what is joined with something else on the way to the
/// outputs. Of these `sizes` says which can be kept.
pub(super) fn candidates(
    graph: &Graph<'_>,
    layers: &[Layer],
    sizes: &HashMap<String, usize>,
) -> BTreeSet<String> {
    let weighing: BTreeSet<usize> = layers.iter().flat_map(|layer| &layer.nodes).copied().collect();
    let mut found = BTreeSet::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let read: Vec<&str> =
            reads(node).into_iter().filter(|name| sizes.contains_key(*name)).collect();
        if read.len() > 1 || weighing.contains(&index) {
            found.extend(read.into_iter().map(str::to_owned));
        }
    }
    found
}

/// Runs models as another engine does, and keeps what each sample shows of some values.
pub(super) struct Lending<'a> {
    engine: &'a dyn Engine,
    names: Vec<String>,
    sizes: HashMap<String, usize>,
    store: Store,
}

/// What is known of the float model once it is calibrated.
pub(super) struct Known {
    pub(super) shown: Shown,
    /// Values that can be kept, with the bytes that they take for all samples.
    pub(super) sizes: HashMap<String, usize>,
}

/// What each sample showed, by its key.
type Store = Arc<Mutex<HashMap<u64, Kept>>>;

impl<'a> Lending<'a> {
    /// Keeps `names`, of values with these `sizes`.
    pub(super) fn new(
        engine: &'a dyn Engine,
        names: Vec<String>,
        sizes: HashMap<String, usize>,
    ) -> Lending<'a> {
        Lending { engine, names, sizes, store: Store::default() }
    }

    /// What these samples showed as `ranges` were found; `None` where one is missing.
    pub(super) fn known(self, samples: &[Sample], ranges: &Ranges) -> Option<Known> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        // Of equal samples one was kept: then the float model is run for all.
        let samples = samples.iter().map(|sample| store.remove(&sample.key()));
        let samples = samples.collect::<Option<_>>()?;
        let (engine, notes) = (ranges.engine.clone(), ranges.notes.clone());
        Some(Known { shown: Shown { samples, engine, notes }, sizes: self.sizes.clone() })
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
    store: Store,
}

impl Runner for LendingRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn Sink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let mut both = Both { sink, own: Kept::of(&self.names), runner: self };
        self.runner.run(sample, &mut both, cancelled)?;
        let own = both.own;
        self.store.lock().unwrap_or_else(PoisonError::into_inner).insert(sample.key(), own);
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
    own: Kept,
    runner: &'a LendingRunner,
}

impl Sink for Both<'_> {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        if tap < self.runner.taps {
            self.sink.observe(tap, shape, values);
        }
        if let Some(Some(place)) = self.runner.places.get(tap) {
            self.own.observe(*place, shape, values);
        }
    }
}
