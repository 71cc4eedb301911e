//! Samples that are kept, and values that are recorded by name.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use quantize_rs_onnx::Model;

use crate::CalibrationError;
use crate::calibrate::engine::{Engine, Sample, Samples, ValueSink};
use crate::graph::infer::Inferred;

/// Streams samples and keeps the first one.
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

/// Records observed values by name.
pub(super) struct RecordedValues {
    places: HashMap<String, usize>,
    /// The observed values, in order.
    pub(super) values: Vec<Value>,
}

impl RecordedValues {
    pub(super) fn of(observed: &[String]) -> RecordedValues {
        let places =
            observed.iter().enumerate().map(|(index, name)| (name.clone(), index)).collect();
        RecordedValues { places, values: vec![(Vec::new(), Vec::new()); observed.len()] }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.places.get(name).map(|place| &self.values[*place])
    }

    /// The size of all values in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.values.iter().map(|(_, values)| values.len() * size_of::<f32>()).sum()
    }

    /// Takes the value out; an empty value if there is none.
    pub(super) fn take(&mut self, name: &str) -> Value {
        let place = self.places.get(name).and_then(|place| self.values.get_mut(*place));
        place.map(std::mem::take).unwrap_or_default()
    }
}

impl ValueSink for RecordedValues {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        self.values[index] = (shape.to_vec(), values.to_vec());
    }
}

/// The number of elements of values in a sample: inferred, or observed where dimensions are
/// dynamic.
pub(super) struct Sizes(pub(super) Vec<usize>);

/// The number of values that are observed at once to find their sizes.
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

impl ValueSink for Sizes {
    fn observe(&mut self, index: usize, _: &[usize], values: &[f32]) {
        self.0[index] = values.len();
    }
}

/// Samples that are kept to be run several times.
pub(super) struct SampleBuffer(Vec<Sample>);

impl SampleBuffer {
    pub(super) fn one(sample: Sample) -> SampleBuffer {
        SampleBuffer(vec![sample])
    }

    pub(super) fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The samples that are kept, then the rest.
    pub(super) fn again<'a>(&'a self, left: &'a mut dyn Samples) -> BufferedThenRest<'a> {
        BufferedThenRest { kept: self.0.iter(), left }
    }
}

/// Samples that are kept, then the rest.
pub(super) struct BufferedThenRest<'a> {
    kept: std::slice::Iter<'a, Sample>,
    left: &'a mut dyn Samples,
}

impl Samples for BufferedThenRest<'_> {
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
