//! Samples, their sources, and the engines that run a model on them.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::atomic::AtomicBool;

use quantize_rs_onnx::{Model, Tensor};

use crate::CalibrationError;
use crate::util::fnv::Fnv;

/// One set of inputs of a model, by input name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Input name and value, in no particular order.
    pub inputs: Vec<(String, Tensor)>,
}

impl Sample {
    /// The value for the input called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.inputs.iter().find(|(input, _)| input == name).map(|(_, value)| value)
    }
}

impl Sample {
    /// The size of its values in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.inputs.iter().map(|(_, tensor)| tensor.data.len()).sum()
    }

    /// A hash of the content: equal for equal inputs in any order (64-bit FNV-1a over words).
    pub(crate) fn key(&self) -> u64 {
        let mut inputs: Vec<_> = self.inputs.iter().collect();
        inputs.sort_by_key(|(name, _)| name);
        let mut hash = Fnv::default();
        for (name, tensor) in inputs {
            hash.write(name.as_bytes());
            hash.write_u32(tensor.dtype.number().cast_unsigned());
            tensor.shape.iter().for_each(|length| hash.write_usize(*length));
            hash.bytes(&tensor.data);
        }
        hash.finish()
    }
}

/// A source of samples. Samples are streamed: they are never all in memory.
pub trait Samples {
    /// The next sample, or `None` at the end.
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>>;

    /// Passes over the next sample; `None` at the end. Sources that can do so do not read it, and
    /// none converts or checks it.
    fn skip_sample(&mut self) -> Option<Result<(), CalibrationError>> {
        Some(self.next_sample()?.map(drop))
    }

    /// The number of samples that are left, if known.
    fn len_hint(&self) -> Option<usize> {
        None
    }

    /// The number of samples that are left; a source of items may read the next one to find out.
    fn count(&mut self) -> Option<usize> {
        self.len_hint()
    }

    /// Warnings about how samples are converted: about types, or units that do not go together.
    fn conversions(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Receives the values of an observed tensor right after its node was run.
pub trait ValueSink {
    /// `index` is the position in the list of names that was given to [`Engine::prepare`]. `values`
    /// are the elements in C order; their number is the product of `shape`.
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]);
}

/// The name of an engine, and the number of nodes of each operator type that it ran.
pub type RanOperators = (&'static str, BTreeMap<String, usize>);

/// An engine that runs ONNX models and shows their intermediate values.
pub trait Engine: Sync {
    /// The name that reports show, for example `tract`.
    fn name(&self) -> &'static str;

    /// Prepares `model` for samples with the shapes and types of `sample`.
    ///
    /// `observed` are the ONNX names of the float32 values to show: graph inputs and node outputs
    /// of the main graph.
    ///
    /// # Errors
    /// [`CalibrationError`] with the node and operator that the engine cannot run, or the input
    /// whose shape or type does not fit.
    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError>;

    /// As [`Engine::prepare`], for one of several sessions that run at the same time: an engine
    /// that can choose uses one core for it.
    ///
    /// # Errors
    /// See [`Engine::prepare`].
    fn prepare_beside(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        self.prepare(model, observed, sample)
    }

    /// Whether it can run other models than the one it was made for. An engine that cannot is no
    /// use for comparing quantized models.
    fn runs_any_model(&self) -> bool {
        true
    }

    /// Whether sessions of several models can be used in turn. An engine that only runs the model
    /// that was prepared last cannot be compared with itself, sample by sample.
    fn runs_several_models(&self) -> bool {
        self.runs_any_model()
    }

    /// Prepares `model` for timing on this sample, with `threads` threads for each run. Returns
    /// `None` for an engine whose time does not predict the time of a deployed model.
    ///
    /// # Errors
    /// See [`Engine::prepare`].
    fn timed(
        &self,
        model: &Model,
        sample: &Sample,
        threads: usize,
    ) -> Result<Option<Box<dyn TimedSession>>, CalibrationError> {
        let _ = (model, sample, threads);
        Ok(None)
    }

    /// The number of nodes of each operator type that run for this sample, after the optimizations
    /// of the engine, and the name of the engine. `None` for an engine that does not report it.
    ///
    /// # Errors
    /// See [`Engine::prepare`].
    fn kernels(
        &self,
        model: &Model,
        sample: &Sample,
    ) -> Result<Option<RanOperators>, CalibrationError> {
        let _ = (model, sample);
        Ok(None)
    }
}

/// A model and a sample that are ready for timing.
pub trait TimedSession {
    /// Runs the sample once and drops the outputs.
    ///
    /// # Errors
    /// See [`Session::run`].
    fn run(&mut self) -> Result<(), CalibrationError>;

    /// The engine that runs the model, as in [`Session::engine`].
    fn engine(&self) -> Option<&'static str> {
        None
    }

    /// The number of threads of a run, if it differs from the number requested.
    fn threads(&self) -> Option<usize> {
        None
    }
}

/// A model that is ready to run. Threads share it; each runs one sample at a time.
pub trait Session: Send + Sync {
    /// Runs one sample and shows every observed value to `sink`. Stops early when `cancelled` is
    /// set.
    ///
    /// # Errors
    /// [`CalibrationError`] with the node that failed.
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError>;

    /// Whether it accepts samples of any shape, not only of the shapes that it was prepared for. If
    /// so, one session serves all samples.
    fn any_shape(&self) -> bool {
        false
    }

    /// The engine that runs the model, if it is not the engine that prepared it: an engine that
    /// chooses among others reports its choice here.
    fn engine(&self) -> Option<&'static str> {
        None
    }

    /// A note on how the model is run, for example why another engine was chosen.
    fn note(&self) -> Option<&str> {
        None
    }
}
