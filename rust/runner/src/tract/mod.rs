//! Runs models with tract. This directory is the only one that uses tract.
//!
//! tract fuses operators while it optimizes, so a tensor of the ONNX graph survives only as an
//! output. The observed values therefore become outputs *before* optimization, and are removed from
//! the outputs *after* it, so that the plan frees them like any other value. A hook around every
//! node passes them to the sink.

mod build;
mod dequantize;
mod logarithms;
mod names;
mod preflight;
mod widen;
mod workarounds;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quantize_rs::rewrite::with_float_weights;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Engine, InputSpec, QuantizeError, Sample, Session,
    TimedSession, ValueSink,
};
use quantize_rs_onnx::{DataType, Model, Tensor};
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::{TractErrorContext, bail, ensure};

use crate::{catch_panic, inputs};
use names::NodeNames;

/// The built-in engine: [tract](https://github.com/sonos/tract), in pure Rust.
///
/// It runs each sample on one thread; for more, run samples on several threads. Operators that
/// tract does not support, or is known to compute incorrectly, are refused by
/// [`prepare`](Engine::prepare), all of them in one error. A panic inside tract becomes an error,
/// and is not printed. Weights in blocks, in fewer than 8 bits or in 8-bit floats, which tract
/// cannot read, are dequantized before.
///
/// Inputs must be dense tensors; values inside the subgraphs of `If` and `Scan` cannot be observed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tract;

impl Engine for Tract {
    fn name(&self) -> &'static str {
        "tract"
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        keep_to_plain_arithmetic();
        let unwritten = |error: QuantizeError| {
            failed("the model cannot be written for tract".to_owned()).caused_by(error)
        };
        let plain = with_float_weights(model).map_err(unwritten)?;
        let bytes = plain.as_ref().unwrap_or(model).to_bytes();
        let bytes = bytes.map_err(|error| unwritten(error.into()))?;
        drop(plain);
        let inputs = InputSpec::of(model);
        let runner = catch_panic::caught(move || build::runner(bytes, inputs, observed, sample))
            .unwrap_or_else(|panic| Err(failed(format!("tract panicked: {panic}"))))?;
        Ok(Box::new(runner))
    }

    fn timed(
        &self,
        model: &Model,
        sample: &Sample,
        _: usize,
    ) -> Result<Option<Box<dyn TimedSession>>, CalibrationError> {
        let runner = self.prepare(model, &[], sample)?;
        Ok(Some(Box::new(TimedRunner { runner, sample: sample.clone() })))
    }
}

/// A runner and the sample for timing it.
struct TimedRunner {
    runner: Box<dyn Session>,
    sample: Sample,
}

impl TimedSession for TimedRunner {
    fn run(&mut self) -> Result<(), CalibrationError> {
        self.runner.run(&self.sample, &mut NullSink, &AtomicBool::new(false))
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }
}

/// A sink that ignores all values.
struct NullSink;

impl ValueSink for NullSink {
    fn observe(&mut self, _: usize, _: &[usize], _: &[f32]) {}
}

/// An optimized model, with the observed values of its nodes.
struct TractRunner {
    plan: Arc<TypedSimplePlan>,
    /// The inputs, with the shapes of the sample that the model was prepared for.
    inputs: Vec<InputSpec>,
    /// For every node of the plan: output slot and index of the observed value.
    observed: Vec<Vec<(usize, usize)>>,
    /// Observed values that are constants, which no node outputs.
    constants: Vec<(usize, Vec<usize>, Vec<f32>)>,
    names: NodeNames,
}

impl Session for TractRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        inputs::check(&self.inputs, sample)?;
        let node = Cell::new(None);
        let result = catch_panic::caught(|| self.run_nodes(sample, sink, cancelled, &node));
        if cancelled.load(Ordering::Relaxed) {
            return Err(CalibrationError::new(CalibrationErrorKind::Cancelled));
        }
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.names.locate(&error)),
            Err(panic) => {
                let node = node.get().map(|id| self.plan.model().node(id).name.as_str());
                Err(self.names.locate_text(node.unwrap_or(""), &format!("panicked: {panic}")))
            }
        }
    }
}

impl TractRunner {
    /// Runs the plan; `at` is updated to the current node.
    fn run_nodes(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
        at: &Cell<Option<usize>>,
    ) -> TractResult<()> {
        let values = self.inputs.iter().map(|spec| {
            let value = sample.get(&spec.name).context("the sample was checked")?;
            Ok(tract_tensor(value)?.into_tvalue())
        });
        let values = values.collect::<TractResult<TVec<TValue>>>()?;
        for (index, shape, values) in &self.constants {
            sink.observe(*index, shape, values);
        }
        // A new state for every run, so that no sample or failure affects the next.
        let mut state = self.plan.spawn()?;
        state.run_plan_with_eval(values, |context, op_state, node, inputs| {
            ensure!(!cancelled.load(Ordering::Relaxed), "cancelled");
            at.set(Some(node.id));
            let outputs = tract_onnx::tract_core::plan::eval(context, op_state, node, inputs)?;
            for (slot, index) in &self.observed[node.id] {
                show(&outputs[*slot], *index, sink)?;
            }
            TractResult::Ok(outputs)
        })?;
        Ok(())
    }
}

/// Passes the elements to the sink without a copy.
fn show(
    value: &tract_onnx::prelude::Tensor,
    index: usize,
    sink: &mut dyn ValueSink,
) -> TractResult<()> {
    sink.observe(index, value.shape(), value.try_as_plain_ram()?.as_slice::<f32>()?);
    Ok(())
}

/// Environment variables can make tract truncate float32 products to bfloat16, and let attention
/// start threads: neither must affect the observed values.
fn keep_to_plain_arithmetic() {
    use tract_onnx::prelude::tract_data::knobs;
    knobs::set_str("TRACT_AMX_BF16", "0");
    knobs::set_str("TRACT_FLASH_SDPA_ST", "1");
}

/// tract's type for an ONNX type; `None` if tract has none that is reliable.
fn datum_type(dtype: DataType) -> Option<DatumType> {
    Some(match dtype {
        DataType::Float | DataType::Float16 => DatumType::F32,
        DataType::Double => DatumType::F64,
        DataType::Bool => DatumType::Bool,
        DataType::UInt8 => DatumType::U8,
        DataType::UInt16 => DatumType::U16,
        DataType::UInt32 => DatumType::U32,
        DataType::UInt64 => DatumType::U64,
        DataType::Int8 => DatumType::I8,
        DataType::Int16 => DatumType::I16,
        DataType::Int32 => DatumType::I32,
        DataType::Int64 => DatumType::I64,
        _ => return None,
    })
}

/// A copy of the tensor in tract's memory, which has its own alignment.
fn tract_tensor(tensor: &Tensor) -> TractResult<tract_onnx::prelude::Tensor> {
    fn read<const N: usize, T: Datum + Copy>(
        tensor: &Tensor,
        element: impl Fn([u8; N]) -> T,
    ) -> TractResult<tract_onnx::prelude::Tensor> {
        let elements = tensor.data.as_chunks::<N>().0.iter().map(|bytes| element(*bytes));
        let elements: Vec<T> = elements.collect();
        tract_onnx::prelude::Tensor::from_shape(&tensor.shape, &elements)
    }
    match tensor.dtype {
        DataType::Float => read(tensor, f32::from_le_bytes),
        DataType::Float16 => read(tensor, |bytes| f16::from_le_bytes(bytes).to_f32()),
        DataType::Double => read(tensor, f64::from_le_bytes),
        DataType::Bool => read(tensor, |[byte]| byte != 0),
        DataType::UInt8 => read(tensor, u8::from_le_bytes),
        DataType::UInt16 => read(tensor, u16::from_le_bytes),
        DataType::UInt32 => read(tensor, u32::from_le_bytes),
        DataType::UInt64 => read(tensor, u64::from_le_bytes),
        DataType::Int8 => read(tensor, i8::from_le_bytes),
        DataType::Int16 => read(tensor, i16::from_le_bytes),
        DataType::Int32 => read(tensor, i32::from_le_bytes),
        DataType::Int64 => read(tensor, i64::from_le_bytes),
        other => bail!("tract has no element type {other}"),
    }
}

/// An error of the engine, without a node.
fn failed(message: String) -> CalibrationError {
    CalibrationError::engine(Some("tract"), message)
}
