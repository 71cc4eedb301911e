//! Iteration over samples in Python.

use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, ToPyArray};
use pyo3::prelude::*;
use quantize_rs::{CalibrationError, Sample};
use quantize_rs_runner::samples::BoxedSamples;

use crate::gil;
use crate::gil::Interrupt;

/// An iterator over samples: lists of name, element type, shape, and the elements as bytes.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Feeds {
    samples: Mutex<(usize, BoxedSamples)>,
    interrupt: Arc<Interrupt>,
}

/// A tensor for Python.
type Array<'py> = (String, &'static str, Vec<usize>, Bound<'py, PyArray1<u8>>);

#[pymethods]
impl Feeds {
    fn __iter__(feeds: PyRef<'_, Self>) -> PyRef<'_, Self> {
        feeds
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Array<'py>>>> {
        let outcome = gil::detached(py, None, || self.next_sample().transpose());
        if let Some(raised) = self.interrupt.take() {
            return Err(raised);
        }
        let array = |(name, tensor): (String, quantize_rs::Tensor)| {
            (name, tensor.dtype.name(), tensor.shape, tensor.data.to_pyarray(py))
        };
        Ok(outcome?.map(|sample| sample.inputs.into_iter().map(array).collect()))
    }
}

impl Feeds {
    pub(crate) fn new(samples: BoxedSamples, interrupt: Arc<Interrupt>) -> Feeds {
        Feeds { samples: Mutex::new((0, samples)), interrupt }
    }

    fn next_sample(&self) -> Option<Result<Sample, CalibrationError>> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, samples) = &mut *samples;
        let sample = samples.next_sample()?;
        let sample = sample.map_err(|error| error.at_sample(*number));
        *number += 1;
        Some(sample)
    }
}
