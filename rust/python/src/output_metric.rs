//! A Python object as a metric of outputs.

use std::fmt;
use std::sync::Arc;

use numpy::{PyArray1, PyArrayMethods, ToPyArray};
use pyo3::prelude::*;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, MetricHandle, OutputMetric, QuantizeError, Sample,
    SampleOutputs,
};

use crate::gil::Interrupt;

/// A Python object that takes the names of the outputs and the samples, and returns two scores.
struct Object {
    adapter: Py<PyAny>,
    name: String,
    higher_is_better: bool,
    interrupt: Arc<Interrupt>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Object").field(&self.name).finish()
    }
}

/// A metric from Python, and the place for the exception that it raises.
pub(crate) struct PythonMetric {
    pub(crate) handle: Option<MetricHandle>,
    interrupt: Arc<Interrupt>,
}

impl PythonMetric {
    /// Wraps an adapter with the attributes `name` and `higher_is_better`.
    pub(crate) fn new(py: Python<'_>, adapter: Option<Py<PyAny>>) -> PyResult<PythonMetric> {
        let interrupt = Arc::new(Interrupt::default());
        let handle = match adapter {
            None => None,
            Some(adapter) => Some(MetricHandle::new(Object {
                name: adapter.getattr(py, "name")?.extract(py)?,
                higher_is_better: adapter.getattr(py, "higher_is_better")?.extract(py)?,
                adapter,
                interrupt: Arc::clone(&interrupt),
            })),
        };
        Ok(PythonMetric { handle, interrupt })
    }

    /// The outcome of a run, with the exception of the metric if there was one.
    pub(crate) fn raised<T>(&self, done: PyResult<T>) -> PyResult<T> {
        done.map_err(|error| self.interrupt.take().unwrap_or(error))
    }
}

type Inputs<'py> = Vec<(String, &'static str, Vec<usize>, Bound<'py, PyArray1<u8>>)>;

fn inputs<'py>(py: Python<'py>, sample: &Sample) -> Inputs<'py> {
    let arrays = sample.inputs.iter().map(|(name, tensor)| {
        (name.clone(), tensor.dtype.name(), tensor.shape.clone(), tensor.data.to_pyarray(py))
    });
    arrays.collect()
}

impl Object {
    fn call(
        &self,
        py: Python<'_>,
        names: &[String],
        samples: &[SampleOutputs],
    ) -> PyResult<(f64, f64)> {
        let mut rows = Vec::with_capacity(samples.len());
        for SampleOutputs { sample, original, quantized } in samples {
            let mut sides = Vec::new();
            for values in [original, quantized] {
                let arrays = values.iter().map(|(shape, values)| {
                    values.to_pyarray(py).reshape(shape.clone()).map(Bound::into_any)
                });
                sides.push(arrays.collect::<PyResult<Vec<_>>>()?);
            }
            rows.push((inputs(py, sample), sides));
        }
        self.adapter.bind(py).call1((names.to_vec(), rows))?.extract()
    }
}

impl OutputMetric for Object {
    fn name(&self) -> &str {
        &self.name
    }

    fn higher_is_better(&self) -> bool {
        self.higher_is_better
    }

    fn scores(
        &self,
        names: &[String],
        samples: &[SampleOutputs],
    ) -> Result<(f64, f64), QuantizeError> {
        let found = Python::attach(|py| self.call(py, names, samples));
        let cancelled = || CalibrationError::new(CalibrationErrorKind::Cancelled).into();
        self.interrupt.keep(found).ok_or_else(cancelled)
    }
}
