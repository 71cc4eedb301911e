//! What a model is fed with: samples, where they come from, and who runs the model on them.

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
    /// Bytes that its values take.
    pub(crate) fn bytes(&self) -> usize {
        self.inputs.iter().map(|(_, tensor)| tensor.data.len()).sum()
    }

    /// A number that follows from the content alone: the same for the same inputs in any order
    /// (FNV-1a over words, 64 bits).
    pub(crate) fn key(&self) -> u64 {
        let mut inputs: Vec<_> = self.inputs.iter().collect();
        inputs.sort_by_key(|(name, _)| name);
        let mut hash = Fnv::default();
        for (name, tensor) in inputs {
            hash.write(name.as_bytes());
            hash.write_u32(tensor.dtype.number().cast_unsigned());
            tensor.shape.iter().for_each(|length| hash.write_usize(*length));
            let (words, rest) = tensor.data.as_chunks::<8>();
            for word in words {
                hash.word(u64::from_le_bytes(*word));
            }
            hash.write(rest);
        }
        hash.finish()
    }
}

/// A source of samples; they stream, nobody holds them all.
pub trait Samples {
    /// The next sample, or `None` at the end.
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>>;

    /// How many samples are left, when that is known.
    fn len_hint(&self) -> Option<usize> {
        None
    }
}

/// Receives the values of a tapped tensor right after the node that made it ran.
pub trait Sink {
    /// `tap` is the position in the list of names given to [`Engine::prepare`]; `values` are the
    /// elements in C order, as many as `shape` says.
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]);
}

/// Something that can run ONNX models and show what flows through them.
pub trait Engine: Sync {
    /// The name written in reports: `tract`.
    fn name(&self) -> &'static str;

    /// Gets `model` ready for samples with the shapes and types of `sample`.
    ///
    /// `taps` are the ONNX names of the float32 values to show (graph inputs and node outputs of
    /// the main graph).
    ///
    /// # Errors
    /// [`CalibrationError`] naming the node and operator that the engine cannot run, or the input
    /// whose shape or type does not fit.
    fn prepare(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError>;

    /// As [`Engine::prepare`], for one of several runners that are busy beside each other: where an
    /// engine has a choice, this one computes on one core.
    ///
    /// # Errors
    /// As [`Engine::prepare`].
    fn prepare_beside(
        &self,
        model: &Model,
        taps: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        self.prepare(model, taps, sample)
    }

    /// Gets `model` ready to be timed on this sample, each run computed on so many threads; `None`
    /// for an engine whose time says nothing of that of a deployed model.
    ///
    /// # Errors
    /// As [`Engine::prepare`].
    fn timed(
        &self,
        model: &Model,
        sample: &Sample,
        threads: usize,
    ) -> Result<Option<Box<dyn Timed>>, CalibrationError> {
        let _ = (model, sample, threads);
        Ok(None)
    }

    /// How often each type of operator runs for this sample, once the engine has optimized the
    /// model; `None` for an engine that does not tell.
    ///
    /// # Errors
    /// As [`Engine::prepare`].
    fn kernels(
        &self,
        model: &Model,
        sample: &Sample,
    ) -> Result<Option<BTreeMap<String, usize>>, CalibrationError> {
        let _ = (model, sample);
        Ok(None)
    }
}

/// A model and a sample that are ready to be timed.
pub trait Timed {
    /// Runs the sample once; the outputs are dropped.
    ///
    /// # Errors
    /// As [`Runner::run`].
    fn run(&mut self) -> Result<(), CalibrationError>;

    /// Who runs the model, as [`Runner::engine`].
    fn engine(&self) -> Option<&'static str> {
        None
    }

    /// Threads that a run is computed on, where these are not as many as were asked for.
    fn threads(&self) -> Option<usize> {
        None
    }
}

/// A model ready to run; shared by threads, one sample each.
pub trait Runner: Send + Sync {
    /// Runs one sample and shows every tapped value to `sink`; stops early when `cancelled` is set.
    ///
    /// # Errors
    /// [`CalibrationError`] naming the node that failed.
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn Sink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError>;

    /// Whether it runs samples of any shape, not only those like the one it was prepared for: then
    /// one is enough for all samples.
    fn any_shape(&self) -> bool {
        false
    }

    /// Who runs the model, where that is not the engine that prepared it: one that chooses among
    /// others says here what it chose.
    fn engine(&self) -> Option<&'static str> {
        None
    }

    /// What the caller should know of how the model is run: why another engine was chosen.
    fn note(&self) -> Option<&str> {
        None
    }
}
