//! What it takes to make a session of a model.

use std::sync::Arc;

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::value::DynValue;
use quantize_rs::CalibrationError;
use quantize_rs_onnx::{DataType, Model, Split, TensorProto};

use super::{message, unwritable, values};

/// Weights of fewer bytes stay in the model: the optimizer looks into such, for shapes and axes.
const LENT_FROM: usize = 1024;

/// A model and its weights, of which sessions are made.
pub(super) struct Recipe {
    environment: Environment,
    /// The model without its large weights.
    model: Vec<u8>,
    /// How far it is optimized.
    level: GraphOptimizationLevel,
    weights: Vec<(String, Arc<DynValue>)>,
    /// Bytes of these weights.
    pub(super) lent_bytes: u64,
}

impl Recipe {
    pub(super) fn of(environment: &Environment, model: &Model) -> Result<Recipe, CalibrationError> {
        let level = level(model);
        let Split { bytes: model, tensors } =
            model.split(is_lent).map_err(|error| unwritable().caused_by(error))?;
        let lent_bytes = tensors.iter().map(|(_, tensor)| tensor.data.len() as u64).sum();
        let weights = tensors.into_iter().map(|(name, tensor)| {
            let value = values::value(&tensor).map_err(|error| error.at_value(&name))?;
            Ok((name, Arc::new(value)))
        });
        let weights = weights.collect::<Result<_, CalibrationError>>()?;
        Ok(Recipe { environment: environment.clone(), model, level, weights, lent_bytes })
    }

    /// A session that computes on so many cores, with further options.
    pub(super) fn session(
        &self,
        cores: usize,
        options: impl FnOnce(SessionBuilder) -> ort::Result<SessionBuilder>,
    ) -> Result<Session, CalibrationError> {
        let session = || -> ort::Result<Session> {
            let builder = Session::builder(&self.environment)?
                .with_intra_threads(cores)?
                .with_inter_threads(1)?
                .with_optimization_level(self.level)?
                // What it would print it also returns.
                .with_log_level(LogLevel::Fatal)?;
            let mut builder = options(builder)?;
            for (name, value) in &self.weights {
                builder = builder.with_external_initializer(name, Arc::clone(value))?;
            }
            builder.commit_from_memory(&self.model)
        };
        session().map_err(|error| message::of_loading(&error))
    }
}

/// How far ONNX Runtime may optimize: 1.31 takes floats of 8 bits for integers, fuses operators with
/// them for which it has no kernel, and leaves out a `Relu` before them.
fn level(model: &Model) -> GraphOptimizationLevel {
    let float8 = [DataType::Float8E4M3FN, DataType::Float8E5M2];
    let mut types = model.graph().initializer.iter().filter_map(|tensor| tensor.dtype());
    if types.any(|dtype| float8.contains(&dtype)) {
        GraphOptimizationLevel::Level1
    } else {
        GraphOptimizationLevel::All
    }
}

/// Whether sessions share this constant.
fn is_lent(tensor: &TensorProto) -> bool {
    let bytes = tensor.dtype().filter(|dtype| values::is_known(*dtype)).and_then(|dtype| {
        let lengths = tensor.dims.iter().map(|length| usize::try_from(*length).ok());
        let elements = lengths.reduce(|a, b| a?.checked_mul(b?)).unwrap_or(Some(1))?;
        dtype.byte_len(elements)
    });
    bytes.is_some_and(|bytes| bytes >= LENT_FROM)
}
