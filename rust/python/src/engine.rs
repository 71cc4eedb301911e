//! Engines, which run a model on samples: those of the Rust crates, and Python objects.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods, ToPyArray};
use pyo3::prelude::*;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Engine as Runs, InputSpec, Model, Sample, Session,
    ValueSink,
};
use quantize_rs_onnx::Edit;
use quantize_rs_runner::{Auto, OnnxRuntime, Tract};

use crate::gil::{self, CallbackChannel, Interrupt};

/// An engine, which runs a model on samples.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Engine(Kind);

enum Kind {
    /// The path of the library of ONNX Runtime, or the reason why there is none.
    Auto(Result<PathBuf, String>),
    Tract,
    OnnxRuntime(PathBuf),
    Object {
        name: String,
        adapter: Py<PyAny>,
        prepares: bool,
    },
}

#[pymethods]
impl Engine {
    /// tract or ONNX Runtime, whichever suits the model; `library` is that of ONNX Runtime.
    #[staticmethod]
    fn auto(library: PathBuf) -> Engine {
        Engine(Kind::Auto(Ok(library)))
    }

    /// The same without ONNX Runtime; `why` is the reason.
    #[staticmethod]
    fn auto_without(why: String) -> Engine {
        Engine(Kind::Auto(Err(why)))
    }

    /// tract, which is built in.
    #[staticmethod]
    fn tract() -> Engine {
        Engine(Kind::Tract)
    }

    /// ONNX Runtime, from its library.
    #[staticmethod]
    fn onnxruntime(library: PathBuf) -> Engine {
        Engine(Kind::OnnxRuntime(library))
    }

    /// A Python object of the class `name`, behind an adapter that takes and returns arrays.
    /// `prepares`: whether the object has `prepare` and so can run several models.
    #[staticmethod]
    fn python(name: String, adapter: Py<PyAny>, prepares: bool) -> Engine {
        Engine(Kind::Object { name, adapter, prepares })
    }
}

impl Engine {
    /// Opens the engine. Exceptions of a Python object are stored in `interrupt`.
    pub(crate) fn open(
        &self,
        channel: &CallbackChannel,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Box<dyn Runs>, CalibrationError> {
        Ok(match &self.0 {
            Kind::Auto(library) => {
                let opened = library.clone().and_then(|library| {
                    OnnxRuntime::open(&library).map_err(|error| error.to_string())
                });
                let auto = opened.map_or_else(Auto::without, Auto::with);
                Box::new(auto.stopped_by(interrupt.flag()))
            }
            Kind::Tract => Box::new(Tract),
            Kind::OnnxRuntime(library) => Box::new(OnnxRuntime::open(library)?),
            Kind::Object { adapter, prepares, .. } => Box::new(Object {
                adapter: Arc::new(Python::attach(|py| adapter.clone_ref(py))),
                prepares: *prepares,
                channel: channel.clone(),
                interrupt: Arc::clone(interrupt),
            }),
        })
    }

    /// The name of the class of a Python object.
    pub(crate) fn class(&self) -> Option<&str> {
        match &self.0 {
            Kind::Object { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether it can run more than one model, as an evaluation of quantized models needs.
    pub(crate) fn takes_models(&self) -> bool {
        !matches!(self.0, Kind::Object { prepares: false, .. })
    }
}

/// A Python object as an engine.
struct Object {
    adapter: Arc<Py<PyAny>>,
    prepares: bool,
    channel: CallbackChannel,
    interrupt: Arc<Interrupt>,
}

impl Runs for Object {
    fn name(&self) -> &'static str {
        "python"
    }

    fn runs_any_model(&self) -> bool {
        self.prepares
    }

    fn runs_several_models(&self) -> bool {
        // `run` names no model.
        false
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        _: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let inputs: Vec<String> =
            InputSpec::of(model).into_iter().map(|input| input.name).collect();
        let origins: Vec<Origin> = observed
            .iter()
            .map(|name| if inputs.contains(name) { Origin::Input } else { Origin::Output })
            .collect();
        let runner = ObjectRunner {
            adapter: Arc::clone(&self.adapter),
            interrupt: Arc::clone(&self.interrupt),
            observed: observed.to_vec(),
            origins,
        };
        if self.prepares {
            let outputs = runner.outputs();
            let model = with_outputs(model, &outputs)?;
            let (adapter, interrupt) = (Arc::clone(&self.adapter), Arc::clone(&self.interrupt));
            let prepared = self.channel.call(move || {
                interrupt.keep(Python::attach(|py| {
                    let model = gil::py_bytes(py, &model)?;
                    adapter.call_method1(py, "prepare", (model, outputs)).map(drop)
                }))
            });
            prepared.flatten().ok_or_else(cancelled)?;
        }
        Ok(Box::new(runner))
    }
}

/// The bytes of the model with all of `outputs` among its outputs.
fn with_outputs(model: &Model, outputs: &[String]) -> Result<Vec<u8>, CalibrationError> {
    let there = &model.graph().output;
    let missing = outputs.iter().filter(|name| !there.iter().any(|output| output.name == **name));
    let edits = missing.cloned().map(Edit::AddOutput).collect();
    let mut model = model.clone();
    let bytes = model.apply(edits).and_then(|()| model.to_bytes());
    bytes.map_err(|error| failed("the model cannot be handed to the engine").caused_by(error))
}

/// Where an observed value comes from.
#[derive(PartialEq)]
enum Origin {
    /// An input of the sample.
    Input,
    /// An output of the object.
    Output,
}

struct ObjectRunner {
    adapter: Arc<Py<PyAny>>,
    interrupt: Arc<Interrupt>,
    observed: Vec<String>,
    /// One for each observed value.
    origins: Vec<Origin>,
}

impl Session for ObjectRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancel: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let found = Python::attach(|py| self.call(py, sample));
        let found = self.interrupt.keep(found).ok_or_else(cancelled)?;
        let mut found = found.iter();
        for (index, (name, origin)) in self.observed.iter().zip(&self.origins).enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return Err(cancelled());
            }
            // One at a time, so that at most one exists twice in memory.
            let (shape, values) = match origin {
                Origin::Input => given(sample, name)?,
                Origin::Output => match found.next() {
                    Some(array) => Python::attach(|py| floats(array.bind(py))),
                    None => return Err(failed("the engine gave too few values").at_value(name)),
                },
            };
            sink.observe(index, &shape, &values);
        }
        Ok(())
    }

    fn any_shape(&self) -> bool {
        true
    }
}

impl ObjectRunner {
    /// The names of the values that the object returns.
    fn outputs(&self) -> Vec<String> {
        let observed = self.observed.iter().zip(&self.origins);
        observed
            .filter(|(_, origin)| **origin == Origin::Output)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Runs the sample; the values are in the order of [`ObjectRunner::outputs`].
    fn call(&self, py: Python<'_>, sample: &Sample) -> PyResult<Vec<Py<PyArrayDyn<f32>>>> {
        let arrays = sample.inputs.iter().map(|(name, tensor)| {
            (name, tensor.dtype.name(), &tensor.shape, tensor.data.to_pyarray(py))
        });
        let arrays: Vec<_> = arrays.collect();
        self.adapter.bind(py).call_method1("run", (arrays, self.outputs()))?.extract()
    }
}

/// The numbers of an input.
fn given(sample: &Sample, name: &str) -> Result<(Vec<usize>, Vec<f32>), CalibrationError> {
    let tensor = sample.get(name).ok_or_else(|| failed("the sample lacks it").at_value(name))?;
    let values = tensor.to_f32().ok_or_else(|| failed("it is not float32").at_value(name))?;
    Ok((tensor.shape.clone(), values))
}

fn floats(array: &Bound<'_, PyArrayDyn<f32>>) -> (Vec<usize>, Vec<f32>) {
    (array.shape().to_vec(), array.readonly().as_array().iter().copied().collect())
}

fn failed(what: &str) -> CalibrationError {
    CalibrationError::engine(None, what)
}

fn cancelled() -> CalibrationError {
    CalibrationError::new(CalibrationErrorKind::Cancelled)
}
