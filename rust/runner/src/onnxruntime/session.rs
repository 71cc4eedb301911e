//! Creates sessions.

use std::collections::HashMap;

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use quantize_rs::CalibrationError;
use quantize_rs_onnx::{DataType, ExternalDataSplit, Model, TensorProto};

use super::weights::Weights;
use super::{error_parsing, unwritable};

/// Smaller weights stay in the model.
const MIN_SEPARATE_BYTES: usize = 1 << 20;

/// The maximum total size of weights that stay in the model although they could be separate.
const MAX_EMBEDDED_BYTES: usize = 64 << 20;

/// In models that exceed it, weights below this size stay: the optimizer reads shapes and axes from
/// them.
const MIN_SEPARATE_BYTES_WHEN_LARGE: usize = 1024;

/// A session of the model with this many threads, and further options.
pub(super) fn of(
    environment: &Environment,
    model: &Model,
    cores: usize,
    options: impl FnOnce(SessionBuilder) -> ort::Result<SessionBuilder>,
) -> Result<Session, CalibrationError> {
    let level = level(model);
    let separate =
        |from: usize| model.split(|tensor| byte_len(tensor).is_some_and(|bytes| bytes >= from));
    // Weights below that size may fill the message alone.
    let split =
        separate(min_separate_bytes(model)).or_else(|_| separate(MIN_SEPARATE_BYTES_WHEN_LARGE));
    let ExternalDataSplit { bytes, tensors } =
        split.map_err(|error| unwritable().caused_by(error))?;
    let weights = Weights::of(tensors)?;
    let session = || -> ort::Result<Session> {
        let builder = Session::builder(environment)?
            .with_intra_threads(cores)?
            .with_inter_threads(1)?
            .with_optimization_level(level)?
            // Whatever it would print, it also returns.
            .with_log_level(LogLevel::Fatal)?;
        weights.session(options(builder)?, &bytes)
    };
    session().map_err(|error| error_parsing::of_loading(&error))
}

/// The optimization level. ONNX Runtime treats 8-bit floats as integers and removes a `Relu` before
/// them (1.32), and fuses operators with them into ones for which it has no kernel (1.31).
fn level(model: &Model) -> GraphOptimizationLevel {
    let float8 = [DataType::Float8E4M3FN, DataType::Float8E5M2];
    let mut types = model.graph().initializer.iter().filter_map(|tensor| tensor.dtype());
    if types.any(|dtype| float8.contains(&dtype)) {
        GraphOptimizationLevel::Level1
    } else {
        GraphOptimizationLevel::All
    }
}

/// The bytes of matrices that are packed once more per additional node: every node has its own
/// copy.
pub(super) fn repacked_bytes(model: &Model) -> usize {
    let mut readers: HashMap<&str, usize> = HashMap::new();
    for node in &model.graph().node {
        if let ("MatMul" | "Gemm", [_, matrix, ..]) = (&*node.op_type, &node.input[..]) {
            *readers.entry(matrix).or_default() += 1;
        }
    }
    let again = |tensor: &TensorProto| {
        let more = readers.get(&*tensor.name)?.saturating_sub(1);
        Some(byte_len(tensor)?.saturating_mul(more))
    };
    let bytes = model.graph().initializer.iter().filter_map(|tensor| again(tensor));
    bytes.fold(0, usize::saturating_add)
}

/// The minimum size of the initializers that the session gets apart from the model.
fn min_separate_bytes(model: &Model) -> usize {
    let sizes = model.graph().initializer.iter().filter_map(|tensor| byte_len(tensor));
    let kept = sizes.filter(|bytes| *bytes < MIN_SEPARATE_BYTES).fold(0, usize::saturating_add);
    if kept <= MAX_EMBEDDED_BYTES { MIN_SEPARATE_BYTES } else { MIN_SEPARATE_BYTES_WHEN_LARGE }
}

/// The bytes of the elements of an initializer.
fn byte_len(tensor: &TensorProto) -> Option<usize> {
    let lengths = tensor.dims.iter().map(|length| usize::try_from(*length).ok());
    let elements = lengths.reduce(|a, b| a?.checked_mul(b?)).unwrap_or(Some(1))?;
    tensor.dtype()?.byte_len(elements)
}

#[cfg(test)]
mod tests {
    use quantize_rs_onnx::{Edit, NodeProto};

    use super::*;

    #[test]
    fn a_matrix_is_packed_once_more_for_every_additional_node() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
        let mut model = Model::open(path).unwrap();
        assert_eq!(repacked_bytes(&model), 0);
        let gemm = model.graph().node.iter().find(|node| node.op_type == "Gemm").unwrap();
        let gemm = NodeProto::clone(gemm);
        let matrix = model.graph().initializer.iter().find(|it| it.name == gemm.input[1]);
        let bytes = byte_len(matrix.unwrap()).unwrap();
        for count in 1..3 {
            let mut copy = gemm.clone();
            copy.output = vec![format!("copy {count}")];
            model.apply(vec![Edit::AddNode(copy)]).unwrap();
            assert_eq!(repacked_bytes(&model), count * bytes);
        }
    }
}
