//! A metric of the caller's: a number for each model, from its outputs on all samples.

use std::fmt;
use std::sync::Arc;

use crate::QuantizeError;
use crate::calibrate::engine::Sample;
use crate::report::Accuracy;

/// A value: shape and elements.
pub type OutputValue = (Vec<usize>, Vec<f32>);

/// A sample, and the float outputs that both models have for it; for models without any, those of
/// integers and booleans, as floats.
#[derive(Clone, Debug)]
pub struct SampleOutputs {
    /// The sample.
    pub sample: Sample,
    /// The outputs of the float model, in the order of the names.
    pub original: Vec<OutputValue>,
    /// The outputs of the quantized model.
    pub quantized: Vec<OutputValue>,
}

/// A metric of outputs: a score for each model.
///
/// ```
/// use quantize_rs::{MetricHandle, OutputMetric, QuantizeError, SampleOutputs};
///
/// #[derive(Debug)]
/// struct Largest;
///
/// impl OutputMetric for Largest {
///     fn name(&self) -> &str {
///         "largest output"
///     }
///     fn higher_is_better(&self) -> bool {
///         true
///     }
///     fn scores(
///         &self,
///         _: &[String],
///         samples: &[SampleOutputs],
///     ) -> Result<(f64, f64), QuantizeError> {
///         let largest = |values: &[f32]| values.iter().copied().fold(f32::MIN, f32::max);
///         let (a, b) = (&samples[0].original[0].1, &samples[0].quantized[0].1);
///         Ok((largest(a).into(), largest(b).into()))
///     }
/// }
///
/// assert_eq!(MetricHandle::new(Largest).name(), "largest output");
/// ```
pub trait OutputMetric: fmt::Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Whether a higher score is better.
    fn higher_is_better(&self) -> bool;

    /// The scores of the float model and of the quantized one. `names` are those of the outputs.
    ///
    /// # Errors
    /// The metric cannot be computed.
    fn scores(
        &self,
        names: &[String],
        samples: &[SampleOutputs],
    ) -> Result<(f64, f64), QuantizeError>;
}

/// A metric that options hold; two handles are equal if they hold the same object.
#[derive(Clone, Debug)]
pub struct MetricHandle(Arc<dyn OutputMetric>);

impl MetricHandle {
    /// Holds a metric.
    pub fn new(metric: impl OutputMetric + 'static) -> MetricHandle {
        MetricHandle(Arc::new(metric))
    }

    /// Its name in reports.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The scores of both models, in place of the accuracy.
    ///
    /// # Errors
    /// The metric cannot be computed.
    pub(crate) fn accuracy(
        &self,
        observed: &[String],
        samples: &[SampleOutputs],
    ) -> Result<Accuracy, QuantizeError> {
        let (original, quantized) = self.0.scores(observed, samples)?;
        let higher = self.0.higher_is_better();
        Ok(Accuracy {
            output: observed.first().cloned().unwrap_or_default(),
            original,
            quantized,
            drop: if higher { original - quantized } else { quantized - original },
            labels: 0,
            metric: Some(self.name().to_owned()),
        })
    }
}

impl PartialEq for MetricHandle {
    fn eq(&self, other: &MetricHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
