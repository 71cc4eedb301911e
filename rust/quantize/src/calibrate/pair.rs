//! Runs two models on each sample, one after the other, and observes them as one.

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;

use quantize_rs_onnx::{DataType, Model, Tensor};

use super::engine::{Engine, Sample, Samples, Session, ValueSink};
use crate::graph::elements::to_f32;
use crate::{CalibrationError, InputSpec};

/// Runs the given model and a second one; the observed outputs of the second follow those of the
/// first, in the same order. Samples are those of the first: where an input of the second has
/// another type of float, it gets that.
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
        let types = FloatTypes::of(self.second);
        let second = self.engine.prepare(self.second, observed, &types.convert(sample))?;
        Ok(Box::new(PairSession { first, second, types, observed: observed.len() }))
    }
}

struct PairSession {
    first: Box<dyn Session>,
    second: Box<dyn Session>,
    types: FloatTypes,
    observed: usize,
}

/// The types of the inputs of a model that are floats.
pub(crate) struct FloatTypes(Vec<(String, DataType)>);

impl FloatTypes {
    pub(crate) fn of(model: &Model) -> FloatTypes {
        let inputs = InputSpec::of(model).into_iter();
        let typed = inputs.filter_map(|input| Some((input.name, input.dtype?)));
        FloatTypes(typed.filter(|(_, dtype)| dtype.is_float()).collect())
    }

    /// A sample with floats of these types in place of others. A number beyond a type becomes
    /// infinity, as in a `Cast`.
    pub(crate) fn convert<'s>(&self, sample: &'s Sample) -> Cow<'s, Sample> {
        let wanted = |name: &String, tensor: &Tensor| {
            let (_, dtype) = self.0.iter().find(|(input, _)| input == name)?;
            (tensor.dtype.is_float() && tensor.dtype != *dtype).then_some(*dtype)
        };
        if sample.inputs.iter().all(|(name, tensor)| wanted(name, tensor).is_none()) {
            return Cow::Borrowed(sample);
        }
        let mut converted = sample.clone();
        for (name, tensor) in &mut converted.inputs {
            if let Some(dtype) = wanted(name, tensor)
                && let Some(values) = to_f32(tensor)
            {
                *tensor = cast(std::mem::take(&mut tensor.shape), &values, dtype);
            }
        }
        Cow::Owned(converted)
    }
}

/// Numbers as a type of float.
fn cast(shape: Vec<usize>, values: &[f32], dtype: DataType) -> Tensor {
    let numbers = values.iter().copied();
    let data: Vec<u8> = match dtype {
        DataType::Float16 => numbers.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
        DataType::BFloat16 => numbers.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        DataType::Double => numbers.flat_map(|x| f64::from(x).to_le_bytes()).collect(),
        _ => return Tensor::from_f32(shape, values),
    };
    Tensor { dtype, shape, data: data.into() }
}

impl Session for PairSession {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        self.first.run(sample, sink, cancelled)?;
        let own = self.types.convert(sample);
        self.second.run(&own, &mut OffsetSink { sink, by: self.observed }, cancelled)
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
