//! Runs two models on each sample, one after the other, and observes them as one.

use std::sync::atomic::AtomicBool;

use quantize_rs_onnx::Model;

use super::engine::{Engine, Sample, Samples, Session, ValueSink};
use crate::CalibrationError;

/// Runs the given model and a second one; the observed outputs of the second follow those of the
/// first, in the same order.
pub(crate) struct Pair<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) second: &'a Model,
}

impl Engine for Pair<'_> {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let first = self.engine.prepare(model, observed, sample)?;
        let second = self.engine.prepare(self.second, observed, sample)?;
        Ok(Box::new(PairSession { first, second, observed: observed.len() }))
    }
}

struct PairSession {
    first: Box<dyn Session>,
    second: Box<dyn Session>,
    observed: usize,
}

impl Session for PairSession {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        self.first.run(sample, sink, cancelled)?;
        self.second.run(sample, &mut OffsetSink { sink, by: self.observed }, cancelled)
    }

    fn any_shape(&self) -> bool {
        self.first.any_shape() && self.second.any_shape()
    }

    fn engine(&self) -> Option<&'static str> {
        // The engine of the quantized model is the one to report.
        self.second.engine()
    }

    fn note(&self) -> Option<&str> {
        self.second.note()
    }
}

/// Adds an offset to the indices of observed values.
pub(crate) struct OffsetSink<'a> {
    pub(crate) sink: &'a mut dyn ValueSink,
    pub(crate) by: usize,
}

impl ValueSink for OffsetSink<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        self.sink.observe(index + self.by, shape, values);
    }
}

/// Samples of a slice.
pub(crate) struct SliceSamples<'a>(pub(crate) std::slice::Iter<'a, Sample>);

impl Samples for SliceSamples<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.0.next().cloned().map(Ok)
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}
