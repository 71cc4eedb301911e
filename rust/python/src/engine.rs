//! Who runs a model on samples: an engine of ours, or an object of Python's.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Engine as Runs, InputSpec, Model, Runner, Sample, Sink,
};
use quantize_rs_onnx::Edit;
use quantize_rs_runner::{Auto, OnnxRuntime, Tract};

use crate::gil::{Interrupt, Line};

/// Who runs a model on samples.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Engine(Kind);

enum Kind {
    /// With the library of ONNX Runtime, or why there is none.
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
    /// The better of the others; `library` is that of ONNX Runtime.
    #[staticmethod]
    fn auto(library: PathBuf) -> Engine {
        Engine(Kind::Auto(Ok(library)))
    }

    /// The same where there is no ONNX Runtime, because of this.
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

    /// An object of Python's, of a class called `name`, behind an adapter that takes and gives
    /// arrays; `prepares` tells whether it can be given models.
    #[staticmethod]
    fn python(name: String, adapter: Py<PyAny>, prepares: bool) -> Engine {
        Engine(Kind::Object { name, adapter, prepares })
    }
}

impl Engine {
    /// Gets the engine ready. Exceptions of an object go to `interrupt`.
    pub(crate) fn open(
        &self,
        line: &Line,
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
                line: line.clone(),
                interrupt: Arc::clone(interrupt),
            }),
        })
    }

    /// The name of the class, for an object of Python's.
    pub(crate) fn class(&self) -> Option<&str> {
        match &self.0 {
            Kind::Object { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether it can run more than one model, as judging needs.
    pub(crate) fn takes_models(&self) -> bool {
        !matches!(self.0, Kind::Object { prepares: false, .. })
    }
}

/// An object of Python's as an engine.
struct Object {
    adapter: Arc<Py<PyAny>>,
    prepares: bool,
    line: Line,
    interrupt: Arc<Interrupt>,
}

impl Runs for Object {
    fn name(&self) -> &'static str {
        "python"
    }

    fn prepare(
        &self,
        model: &Model,
        taps: &[String],
        _: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        let inputs: Vec<String> =
            InputSpec::of(model).into_iter().map(|input| input.name).collect();
        let places: Vec<Place> = taps
            .iter()
            .map(|tap| if inputs.contains(tap) { Place::Given } else { Place::Made })
            .collect();
        let runner = ObjectRunner {
            adapter: Arc::clone(&self.adapter),
            interrupt: Arc::clone(&self.interrupt),
            taps: taps.to_vec(),
            places,
        };
        if self.prepares {
            let outputs = runner.made();
            let model = with_outputs(model, &outputs)?;
            let (adapter, interrupt) = (Arc::clone(&self.adapter), Arc::clone(&self.interrupt));
            let prepared = self.line.ask(move || {
                interrupt.keep(Python::attach(|py| {
                    let model = PyBytes::new(py, &model);
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

/// Where the values of a tap come from.
#[derive(PartialEq)]
enum Place {
    /// The sample.
    Given,
    /// The object.
    Made,
}

struct ObjectRunner {
    adapter: Arc<Py<PyAny>>,
    interrupt: Arc<Interrupt>,
    taps: Vec<String>,
    /// One for each tap.
    places: Vec<Place>,
}

impl Runner for ObjectRunner {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn Sink,
        cancel: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let found = Python::attach(|py| self.call(py, sample));
        let found = self.interrupt.keep(found).ok_or_else(cancelled)?;
        let mut found = found.iter();
        for (tap, (name, place)) in self.taps.iter().zip(&self.places).enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return Err(cancelled());
            }
            // One at a time, so that no more than one is there twice.
            let (shape, values) = match place {
                Place::Given => given(sample, name)?,
                Place::Made => match found.next() {
                    Some(array) => Python::attach(|py| floats(array.bind(py))),
                    None => return Err(failed("the engine gave too few values").at_value(name)),
                },
            };
            sink.observe(tap, &shape, &values);
        }
        Ok(())
    }

    fn any_shape(&self) -> bool {
        true
    }
}

impl ObjectRunner {
    /// The names of the values that the object is to give.
    fn made(&self) -> Vec<String> {
        let taps = self.taps.iter().zip(&self.places);
        taps.filter(|(_, place)| **place == Place::Made).map(|(tap, _)| tap.clone()).collect()
    }

    /// Runs the sample; the values in the order of [`ObjectRunner::made`].
    fn call(&self, py: Python<'_>, sample: &Sample) -> PyResult<Vec<Py<PyArrayDyn<f32>>>> {
        let arrays = sample.inputs.iter().map(|(name, tensor)| {
            (name, tensor.dtype.name(), &tensor.shape, tensor.data.to_pyarray(py))
        });
        let arrays: Vec<_> = arrays.collect();
        self.adapter.bind(py).call_method1("run", (arrays, self.made()))?.extract()
    }
}

/// The value of an input, as numbers.
fn given(sample: &Sample, name: &str) -> Result<(Vec<usize>, Vec<f32>), CalibrationError> {
    let tensor = sample.get(name).ok_or_else(|| failed("the sample lacks it").at_value(name))?;
    let values = tensor.to_f32().ok_or_else(|| failed("it is not float32").at_value(name))?;
    Ok((tensor.shape.clone(), values))
}

fn floats(array: &Bound<'_, PyArrayDyn<f32>>) -> (Vec<usize>, Vec<f32>) {
    (array.shape().to_vec(), array.readonly().as_array().iter().copied().collect())
}

fn failed(what: &str) -> CalibrationError {
    CalibrationError::new(CalibrationErrorKind::Engine(what.to_owned()))
}

fn cancelled() -> CalibrationError {
    CalibrationError::new(CalibrationErrorKind::Cancelled)
}
