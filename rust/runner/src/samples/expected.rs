//! Samples whose shape was said beforehand.

use quantize_rs::{CalibrationError, CalibrationErrorKind, Sample, Samples};

use super::BoxedSamples;

/// Samples that are refused if no input of theirs has this shape, without its first axis.
///
/// ```
/// use quantize_rs::InputSpec;
/// use quantize_rs_onnx::{DataType, Tensor};
/// use quantize_rs_runner::samples::{expecting, from_arrays};
///
/// let shape = Some(vec![None, Some(2)]);
/// let input = InputSpec { name: "x".into(), dtype: Some(DataType::Float), shape };
/// let rows = || vec![("x".into(), Tensor::from_f32(vec![1, 2], &[1.0, 2.0]))];
/// let samples = || from_arrays(rows(), std::slice::from_ref(&input), None);
/// assert!(expecting(samples()?, vec![2]).next_sample().unwrap().is_ok());
/// assert!(expecting(samples()?, vec![3]).next_sample().unwrap().is_err());
/// # Ok::<(), quantize_rs::CalibrationError>(())
/// ```
pub fn expecting(samples: BoxedSamples, shape: Vec<usize>) -> BoxedSamples {
    Box::new(Expecting { samples, shape })
}

struct Expecting {
    samples: BoxedSamples,
    shape: Vec<usize>,
}

impl Expecting {
    fn checked(&self, sample: Sample) -> Result<Sample, CalibrationError> {
        let mut shapes = sample.inputs.iter().map(|(_, tensor)| tensor.shape.get(1..));
        let first = shapes.clone().next().flatten().unwrap_or_default().to_vec();
        if shapes.any(|shape| shape == Some(&*self.shape)) {
            return Ok(sample);
        }
        let (expected, found) = (self.shape.clone(), first);
        Err(CalibrationError::new(CalibrationErrorKind::SampleShape { expected, found }))
    }
}

impl Samples for Expecting {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let next = self.samples.next_sample()?;
        Some(next.and_then(|sample| self.checked(sample)))
    }

    fn skip_sample(&mut self) -> Option<Result<(), CalibrationError>> {
        self.samples.skip_sample()
    }

    fn len_hint(&self) -> Option<usize> {
        self.samples.len_hint()
    }

    fn count(&mut self) -> Option<usize> {
        self.samples.count()
    }

    fn conversions(&self) -> Vec<String> {
        self.samples.conversions()
    }
}
