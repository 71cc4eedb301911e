//! Runs models with ONNX Runtime. This directory is the only one that uses `ort`.
//!
//! Observed values become outputs of the model, which ONNX Runtime's optimizer keeps. Large weights
//! stay in our memory and are shared with the session, so that a model may have any size.

mod error_parsing;
mod library;
mod session;
mod session_pool;
mod shared;
mod timed;
mod values;
mod weights;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ort::environment::Environment;
use ort::value::DynValue;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Engine, InputSpec, RanOperators, Sample, Session,
    TimedSession, ValueSink,
};
use quantize_rs_onnx::{DataType, Edit, Model};

use crate::{catch_panic, inputs};
use session_pool::SessionPool;
use timed::OrtTimedSession;
use values::InputValue;

/// ONNX Runtime, from the library of an installed `onnxruntime` package.
///
/// It runs every model that ONNX Runtime runs, with samples of any shape, and is faster than tract
/// on all but the smallest. It is not linked: [`OnnxRuntime::open`] loads the library.
///
/// Samples from several threads run in parallel in one session: each on one core on machines with
/// up to 7 cores, on up to 4 cores on larger ones.
#[derive(Clone, Debug)]
pub struct OnnxRuntime {
    environment: Environment,
}

impl OnnxRuntime {
    /// Loads the library, a file such as `onnxruntime/capi/libonnxruntime.so.1.31.1`.
    ///
    /// A process can use one library until it exits: opening the same file again is free, opening
    /// another one is an error. The Python module `onnxruntime` can be imported at the same time.
    ///
    /// # Errors
    /// There is no library at the path, it is not ONNX Runtime, or its version is below 1.18. The
    /// Python package includes it since 1.19.
    pub fn open(path: &Path) -> Result<OnnxRuntime, CalibrationError> {
        Ok(OnnxRuntime { environment: library::open(path)? })
    }

    /// Finds the library of the installed `onnxruntime` package, as far as possible without Python.
    ///
    /// It is the file that the environment variable `ORT_DYLIB_PATH` names, or the newest one in
    /// the `site-packages` of the active virtual environment (`VIRTUAL_ENV`, `CONDA_PREFIX`) or of
    /// the one that the running program is installed in.
    pub fn find() -> Option<PathBuf> {
        library::find()
    }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        self.runner(model, observed, sample, SessionPool::of)
    }

    fn prepare_beside(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        self.runner(model, observed, sample, SessionPool::single_core)
    }

    fn timed(
        &self,
        model: &Model,
        sample: &Sample,
        threads: usize,
    ) -> Result<Option<Box<dyn TimedSession>>, CalibrationError> {
        inputs::check(&known_inputs(model)?, sample)?;
        let session = OrtTimedSession::of(self, model, sample, threads, Ok)?;
        Ok(Some(Box::new(session)))
    }

    fn kernels(
        &self,
        model: &Model,
        sample: &Sample,
    ) -> Result<Option<RanOperators>, CalibrationError> {
        inputs::check(&known_inputs(model)?, sample)?;
        Ok(Some((self.name(), timed::kernels(self, model, sample)?)))
    }
}

impl OnnxRuntime {
    /// A runner with the session that `pool` creates.
    fn runner(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
        pool: fn(&Environment, &Model) -> Result<SessionPool, CalibrationError>,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let inputs = known_inputs(model)?;
        inputs::check(&inputs, sample)?;
        let (sources, outputs) = value_sources(model, observed)?;
        let mut with_outputs = model.clone();
        let edits = outputs.into_iter().map(Edit::AddOutput).collect();
        with_outputs.apply(edits).map_err(|error| unwritable().caused_by(error))?;
        let runner = catch_panic::caught(|| {
            let pool = pool(&self.environment, &with_outputs)?;
            pool.require_floats(observed, &sources)?;
            Ok(OnnxRuntimeRunner { pool, inputs, sources })
        });
        Ok(Box::new(runner.unwrap_or_else(|panic| Err(panicked(&panic)))?))
    }
}

/// A model with its observed values among its outputs.
struct OnnxRuntimeRunner {
    pool: SessionPool,
    inputs: Vec<InputSpec>,
    /// Where each observed value comes from.
    sources: Vec<ValueSource>,
}

/// Where an observed value comes from.
enum ValueSource {
    /// The sample's input with this name.
    Input(String),
    /// A constant of the model.
    Constant(DynValue),
    /// The output of the session at this position.
    Output(usize),
}

impl Session for OnnxRuntimeRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        inputs::check(&self.inputs, sample)?;
        let outcome = catch_panic::caught(|| self.run_and_show(sample, sink, cancelled));
        if cancelled.load(Ordering::Relaxed) {
            return Err(CalibrationError::new(CalibrationErrorKind::Cancelled));
        }
        outcome.unwrap_or_else(|panic| Err(panicked(&panic)))
    }

    fn any_shape(&self) -> bool {
        true
    }
}

impl OnnxRuntimeRunner {
    fn run_and_show(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let given = sample.inputs.iter().map(|(name, tensor)| {
            let value = values::input_value(tensor).map_err(|error| error.at_value(name))?;
            Ok((name.as_str(), value))
        });
        let given: HashMap<&str, InputValue<'_>> =
            given.collect::<Result<_, CalibrationError>>()?;
        let elements = sample.inputs.iter().map(|(_, tensor)| tensor.elements()).sum();
        let outputs = self.pool.run(&given, elements, cancelled)?;
        for (index, source) in self.sources.iter().enumerate() {
            if cancelled.load(Ordering::Relaxed) {
                break;
            }
            let value = match source {
                ValueSource::Input(name) => given.get(name.as_str()).map(|value| &**value),
                ValueSource::Constant(value) => Some(value),
                ValueSource::Output(position) => outputs.get(*position),
            };
            let value = value.ok_or_else(|| failed("onnxruntime returned too few outputs"))?;
            values::show(value, index, sink)?;
        }
        Ok(())
    }
}

/// The inputs of the model, whose types ONNX Runtime must support.
fn known_inputs(model: &Model) -> Result<Vec<InputSpec>, CalibrationError> {
    let inputs = InputSpec::of(model);
    match inputs.iter().find(|input| !input.dtype.is_some_and(values::is_known)) {
        None => Ok(inputs),
        Some(input) => {
            let (engine, name) = ("onnxruntime", input.name.clone());
            let kind = match input.dtype.map(DataType::name) {
                Some(dtype) => {
                    CalibrationErrorKind::UnsupportedInput { engine, input: name, dtype }
                }
                None => CalibrationErrorKind::NoTensorInput { input: name },
            };
            Err(CalibrationError::new(kind).at_value(&input.name))
        }
    }
}

/// Where each observed value is found, and the values that must become outputs for it.
fn value_sources(
    model: &Model,
    observed: &[String],
) -> Result<(Vec<ValueSource>, Vec<String>), CalibrationError> {
    let graph = model.graph();
    let inputs = InputSpec::of(model);
    let made: HashSet<&String> = graph.node.iter().flat_map(|node| &node.output).collect();
    let mut outputs: Vec<String> = graph.output.iter().map(|output| output.name.clone()).collect();
    let real = outputs.len();
    let mut positions: HashMap<String, usize> =
        outputs.iter().cloned().enumerate().map(|(position, name)| (name, position)).collect();
    let mut sources = Vec::new();
    for name in observed {
        let input = inputs.iter().find(|input| input.name == *name);
        let constant = graph.initializer.iter().find(|tensor| tensor.name == *name);
        let dtype = input.and_then(|input| input.dtype);
        if let Some(dtype) = dtype.or(constant.and_then(|tensor| tensor.dtype()))
            && !dtype.is_float()
        {
            return Err(no_floats(name, dtype.name()));
        }
        sources.push(if input.is_some() {
            ValueSource::Input(name.clone())
        } else if let Some(constant) = constant {
            let tensor = model.tensor(constant).map_err(|error| {
                failed("its elements cannot be read").at_value(name).caused_by(error)
            })?;
            ValueSource::Constant(values::value(&tensor).map_err(|error| error.at_value(name))?)
        } else if !name.is_empty() && made.contains(name) {
            ValueSource::Output(*positions.entry(name.clone()).or_insert_with(|| {
                outputs.push(name.clone());
                outputs.len() - 1
            }))
        } else {
            let message = format!("the main graph has no value `{name}` to observe");
            return Err(failed(message).at_value(name));
        });
    }
    Ok((sources, outputs.split_off(real)))
}

/// The error of an observed value that is not of floats.
fn no_floats(name: &str, what: impl fmt::Display) -> CalibrationError {
    failed(format!("value `{name}` is {what}, but only floats can be observed")).at_value(name)
}

/// An error of the engine, without a node.
fn failed(message: impl Into<String>) -> CalibrationError {
    CalibrationError::engine(Some("onnxruntime"), message)
}

fn panicked(message: &str) -> CalibrationError {
    failed(format!("onnxruntime panicked: {message}"))
}

fn unwritable() -> CalibrationError {
    failed("the model cannot be written for onnxruntime")
}
