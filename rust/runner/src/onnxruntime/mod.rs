//! Runs models with ONNX Runtime. This directory is the only place that names a symbol of `ort`.
//!
//! The taps become outputs of the model, which ONNX Runtime's optimizer keeps. Large weights stay
//! in our memory and are lent to the session, so that a model may be of any size.

mod error_parsing;
mod library;
mod session;
mod session_pool;
mod shared;
mod timed;
mod values;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ort::environment::Environment;
use ort::value::DynValue;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Engine, InputSpec, Runner, Sample, Sink, Timed,
};
use quantize_rs_onnx::{DataType, Edit, Model};

use crate::{catch_panic, inputs};
use session_pool::Running;
use timed::TimedSession;
use values::Fed;

/// ONNX Runtime, from the library of an installed `onnxruntime` package.
///
/// It runs every model that ONNX Runtime runs, on samples of any shape, and is faster than tract
/// on all but the smallest. Nothing of it is built in: [`OnnxRuntime::open`] loads the library.
///
/// Samples given by several threads run at once in one session: on a machine of up to 7 cores each on
/// one core, on larger ones on up to 4.
#[derive(Clone, Debug)]
pub struct OnnxRuntime {
    environment: Environment,
}

impl OnnxRuntime {
    /// Loads the library, a file such as `onnxruntime/capi/libonnxruntime.so.1.31.1`.
    ///
    /// A process holds one library for as long as it runs: opening the same file again is free,
    /// opening another is refused. That the Python module `onnxruntime` is imported does no harm.
    ///
    /// # Errors
    /// No library is there, it is none of ONNX Runtime, or of a version before 1.17. The Python
    /// package brings one from 1.19 on.
    pub fn open(path: &Path) -> Result<OnnxRuntime, CalibrationError> {
        Ok(OnnxRuntime { environment: library::open(path)? })
    }

    /// Where the library of the installed `onnxruntime` package is, as far as that can be known
    /// without asking Python.
    ///
    /// It is the file that the variable `ORT_DYLIB_PATH` names, or else the newest in the
    /// `site-packages` of the active virtual environment (`VIRTUAL_ENV`, `CONDA_PREFIX`) or of the
    /// one that the running program is installed in.
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
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        self.runner(model, taps, sample, Running::of)
    }

    fn prepare_beside(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        self.runner(model, taps, sample, Running::of_one_core)
    }

    fn timed(
        &self,
        model: &Model,
        sample: &Sample,
        threads: usize,
    ) -> Result<Option<Box<dyn Timed>>, CalibrationError> {
        inputs::check(&known_inputs(model)?, sample)?;
        let session = TimedSession::of(self, model, sample, threads, Ok)?;
        Ok(Some(Box::new(session)))
    }

    fn kernels(
        &self,
        model: &Model,
        sample: &Sample,
    ) -> Result<Option<BTreeMap<String, usize>>, CalibrationError> {
        inputs::check(&known_inputs(model)?, sample)?;
        timed::kernels(self, model, sample).map(Some)
    }
}

impl OnnxRuntime {
    /// A runner whose session is made by `running`.
    fn runner(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
        running: fn(&Environment, &Model) -> Result<Running, CalibrationError>,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        let inputs = known_inputs(model)?;
        inputs::check(&inputs, sample)?;
        let (places, outputs) = place(model, taps)?;
        let mut tapped = model.clone();
        let edits = outputs.into_iter().map(Edit::AddOutput).collect();
        tapped.apply(edits).map_err(|error| unwritable().caused_by(error))?;
        let runner = catch_panic::caught(|| {
            let running = running(&self.environment, &tapped)?;
            running.require_floats(taps, &places)?;
            Ok(OnnxRuntimeRunner { running, inputs, places })
        });
        Ok(Box::new(runner.unwrap_or_else(|panic| Err(panicked(&panic)))?))
    }
}

/// A model with its taps among its outputs.
struct OnnxRuntimeRunner {
    running: Running,
    inputs: Vec<InputSpec>,
    /// Where the values of each tap come from.
    places: Vec<Place>,
}

/// Where the values of a tap come from.
enum Place {
    /// The sample, under this name.
    Input(String),
    /// The model itself.
    Constant(DynValue),
    /// The outputs of the session, at this position.
    Output(usize),
}

impl Runner for OnnxRuntimeRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn Sink,
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
        sink: &mut dyn Sink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let given = sample.inputs.iter().map(|(name, tensor)| {
            let value = values::fed(tensor).map_err(|error| error.at_value(name))?;
            Ok((name.as_str(), value))
        });
        let given: HashMap<&str, Fed<'_>> = given.collect::<Result<_, CalibrationError>>()?;
        let elements = sample.inputs.iter().map(|(_, tensor)| tensor.elements()).sum();
        let outputs = self.running.run(&given, elements, cancelled)?;
        for (tap, place) in self.places.iter().enumerate() {
            if cancelled.load(Ordering::Relaxed) {
                break;
            }
            let value = match place {
                Place::Input(name) => given.get(name.as_str()).map(|value| &**value),
                Place::Constant(value) => Some(value),
                Place::Output(position) => outputs.get(*position),
            };
            let value = value.ok_or_else(|| failed("onnxruntime gave too few outputs"))?;
            values::show(value, tap, sink)?;
        }
        Ok(())
    }
}

/// The model's inputs, all of types that ONNX Runtime can be given.
fn known_inputs(model: &Model) -> Result<Vec<InputSpec>, CalibrationError> {
    let inputs = InputSpec::of(model);
    match inputs.iter().find(|input| !input.dtype.is_some_and(values::is_known)) {
        None => Ok(inputs),
        Some(input) => {
            let dtype = input.dtype.map_or("no tensor of a known type", DataType::name);
            let (engine, name) = ("onnxruntime", input.name.clone());
            let kind = CalibrationErrorKind::UnsupportedInput { engine, input: name, dtype };
            Err(CalibrationError::new(kind).at_value(&input.name))
        }
    }
}

/// Where each tap is found, and the values that must become outputs for it.
fn place(model: &Model, taps: &[String]) -> Result<(Vec<Place>, Vec<String>), CalibrationError> {
    let graph = model.graph();
    let inputs = InputSpec::of(model);
    let made: HashSet<&String> = graph.node.iter().flat_map(|node| &node.output).collect();
    let mut outputs: Vec<String> = graph.output.iter().map(|output| output.name.clone()).collect();
    let real = outputs.len();
    let mut positions: HashMap<String, usize> =
        outputs.iter().cloned().enumerate().map(|(position, name)| (name, position)).collect();
    let mut places = Vec::new();
    for tap in taps {
        let input = inputs.iter().find(|input| input.name == *tap);
        let constant = graph.initializer.iter().find(|tensor| tensor.name == *tap);
        let dtype = input.and_then(|input| input.dtype);
        if let Some(dtype) = dtype.or(constant.and_then(|tensor| tensor.dtype()))
            && !values::is_float(dtype)
        {
            return Err(no_floats(tap, dtype.name()));
        }
        places.push(if input.is_some() {
            Place::Input(tap.clone())
        } else if let Some(constant) = constant {
            let tensor = model.tensor(constant).map_err(|error| {
                failed("its elements cannot be read").at_value(tap).caused_by(error)
            })?;
            Place::Constant(values::value(&tensor).map_err(|error| error.at_value(tap))?)
        } else if !tap.is_empty() && made.contains(tap) {
            Place::Output(*positions.entry(tap.clone()).or_insert_with(|| {
                outputs.push(tap.clone());
                outputs.len() - 1
            }))
        } else {
            let message = format!("the main graph has no value `{tap}` to observe");
            return Err(failed(message).at_value(tap));
        });
    }
    Ok((places, outputs.split_off(real)))
}

/// A tap whose values are no floats.
fn no_floats(tap: &str, what: impl fmt::Display) -> CalibrationError {
    failed(format!("value `{tap}` is {what}, and only floating point can be observed"))
        .at_value(tap)
}

/// A failure of the engine, at no particular node.
fn failed(message: impl Into<String>) -> CalibrationError {
    CalibrationError::new(CalibrationErrorKind::Engine(message.into()))
}

fn panicked(message: &str) -> CalibrationError {
    failed(format!("onnxruntime panicked: {message}"))
}

fn unwritable() -> CalibrationError {
    failed("the model cannot be written for onnxruntime")
}
