//! What may have become of the original before it was quantized: the passes that may have run.

use quantize_rs_onnx::Model;

use crate::QuantizeError;
use crate::graph::qattention::is_attention;
use crate::transform::{self, Pass, PassStage, Purpose};

/// Passes, and what they ran for.
pub(super) type Candidate = (Vec<&'static Pass>, Purpose);

/// The passes that may have run before quantization, the most likely ones first. `names` are those
/// that did.
pub(super) fn all(
    original: &Model,
    quantized: &Model,
    names: Option<&[String]>,
) -> Result<Vec<Candidate>, QuantizeError> {
    if let Some(names) = names {
        return Ok(vec![(transform::named("optimize", names)?, Purpose::Optimizing)]);
    }
    let widening = transform::these(&[transform::WIDEN_FLOATS]);
    // A constant that is not there cannot hide what the nodes around it read.
    let graph = quantized.graph();
    let negated = graph.initializer.iter().any(|tensor| tensor.name.contains(transform::NEGATED));
    let mut outputs = graph.node.iter().flat_map(|node| &node.output);
    let equalized = outputs.any(|name| name.contains(transform::EQUALIZED));
    let planning_with = |integers: bool, equalized: bool| {
        let mut passes = transform::planning(integers);
        passes.retain(|pass| negated || pass.stage != PassStage::Floats);
        passes.retain(|pass| equalized || pass.name != transform::EQUALIZE);
        passes
    };
    let planning = |integers: bool| planning_with(integers, equalized);
    let mut candidates = Vec::new();
    let attention = original.graph().node.iter().any(|node| is_attention(node));
    for attention in if attention { vec![false, true] } else { vec![false] } {
        for per_tensor in [false, true] {
            let purpose = Purpose::Planning { per_tensor, attention };
            candidates.extend([(planning(true), purpose), (planning(false), purpose)]);
        }
    }
    let [plain, tensors] =
        [false, true].map(|per_tensor| Purpose::Planning { per_tensor, attention: false });
    candidates.extend([(widening, plain), (Vec::new(), plain)]);
    // Operators on integers read no value with the name that tells.
    let both = [plain, tensors].map(|purpose| (planning_with(true, true), purpose));
    candidates.extend(both);
    candidates.push((transform::optimizing(), Purpose::Optimizing));
    Ok(candidates)
}
