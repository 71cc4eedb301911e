//! Two models side by side: both run each sample, one after the other, and are watched as one.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use quantize_rs_onnx::Model;

use crate::CalibrationError;
use crate::calibrate::engine::{Engine, Runner, Sample, Samples, Sink};
use crate::graph::infer::Inferred;

/// Runs the model that it is given and a second one; the taps of the second follow those of the
/// first, in the same order.
pub(super) struct Pair<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) second: &'a Model,
}

impl Engine for Pair<'_> {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn prepare(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        let first = self.engine.prepare(model, taps, sample)?;
        let second = self.engine.prepare(self.second, taps, sample)?;
        Ok(Box::new(PairRunner { first, second, taps: taps.len() }))
    }
}

struct PairRunner {
    first: Box<dyn Runner>,
    second: Box<dyn Runner>,
    taps: usize,
}

impl Runner for PairRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn Sink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        self.first.run(sample, sink, cancelled)?;
        self.second.run(sample, &mut Shifted { sink, by: self.taps }, cancelled)
    }

    fn any_shape(&self) -> bool {
        self.first.any_shape() && self.second.any_shape()
    }

    fn engine(&self) -> Option<&'static str> {
        // What runs the quantized model is what people ask after.
        self.second.engine()
    }

    fn note(&self) -> Option<&str> {
        self.second.note()
    }
}

/// Shows taps under numbers that are so much larger.
pub(super) struct Shifted<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) by: usize,
}

impl Sink for Shifted<'_> {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        self.sink.observe(tap + self.by, shape, values);
    }
}

/// Samples that stream through, of which the first is remembered.
pub(super) struct First<'a> {
    pub(super) samples: &'a mut dyn Samples,
    pub(super) first: Option<Sample>,
}

impl Samples for First<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let sample = self.samples.next_sample();
        if let (None, Some(Ok(sample))) = (&self.first, &sample) {
            self.first = Some(sample.clone());
        }
        sample
    }

    fn len_hint(&self) -> Option<usize> {
        self.samples.len_hint()
    }
}

/// A value: its shape and its elements.
pub(super) type Value = (Vec<usize>, Vec<f32>);

/// Keeps what is shown, by name.
pub(super) struct Kept {
    places: HashMap<String, usize>,
    /// The value of each tap.
    pub(super) values: Vec<Value>,
}

impl Kept {
    pub(super) fn of(taps: &[String]) -> Kept {
        let places = taps.iter().enumerate().map(|(tap, name)| (name.clone(), tap)).collect();
        Kept { places, values: vec![(Vec::new(), Vec::new()); taps.len()] }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.places.get(name).map(|place| &self.values[*place])
    }

    /// Bytes of all values.
    pub(super) fn bytes(&self) -> usize {
        self.values.iter().map(|(_, values)| values.len() * size_of::<f32>()).sum()
    }

    /// The value, which is then no longer here; an empty one where there is none.
    pub(super) fn take(&mut self, name: &str) -> Value {
        let place = self.places.get(name).and_then(|place| self.values.get_mut(*place));
        place.map(std::mem::take).unwrap_or_default()
    }
}

impl Sink for Kept {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        self.values[tap] = (shape.to_vec(), values.to_vec());
    }
}

/// How many elements values have in a sample: as inferred, and where lengths vary, as it shows.
pub(super) struct Sizes(pub(super) Vec<usize>);

/// So many values are shown at once to see how large they are.
const AT_ONCE: usize = 32;

impl Sizes {
    pub(super) fn of(
        model: &Model,
        engine: &dyn Engine,
        sample: &Sample,
        names: &[String],
    ) -> Result<Sizes, CalibrationError> {
        let inferred = Inferred::of(model).main;
        let known = |name: &String| inferred.get(name.as_str()).and_then(|fact| fact.size());
        let mut all: Vec<Option<usize>> = names.iter().map(known).collect();
        let unknown: Vec<usize> = (0..names.len()).filter(|at| all[*at].is_none()).collect();
        for places in unknown.chunks(AT_ONCE) {
            let names: Vec<String> = places.iter().map(|at| names[*at].clone()).collect();
            let mut sizes = Sizes(vec![0; names.len()]);
            let runner = engine.prepare(model, &names, sample)?;
            runner.run(sample, &mut sizes, &AtomicBool::new(false))?;
            places.iter().zip(sizes.0).for_each(|(at, size)| all[*at] = Some(size));
        }
        Ok(Sizes(all.into_iter().flatten().collect()))
    }
}

impl Sink for Sizes {
    fn observe(&mut self, tap: usize, _: &[usize], values: &[f32]) {
        self.0[tap] = values.len();
    }
}

/// Samples that are kept, to be run several times.
pub(super) struct Queue(Vec<Sample>);

impl Queue {
    pub(super) fn one(sample: Sample) -> Queue {
        Queue(vec![sample])
    }

    pub(super) fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that are kept, then those that are left.
    pub(super) fn again<'a>(&'a self, left: &'a mut dyn Samples) -> Again<'a> {
        Again { kept: self.0.iter(), left }
    }
}

/// Samples that are kept, then others.
pub(super) struct Again<'a> {
    kept: std::slice::Iter<'a, Sample>,
    left: &'a mut dyn Samples,
}

impl Samples for Again<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        match self.kept.next() {
            Some(sample) => Some(Ok(sample.clone())),
            None => self.left.next_sample(),
        }
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.kept.len() + self.left.len_hint()?)
    }
}

/// Samples that somebody else keeps.
pub(crate) struct Given<'a>(pub(crate) std::slice::Iter<'a, Sample>);

impl Samples for Given<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.0.next().cloned().map(Ok)
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}
