//! What ONNX Runtime would carry on as integers by itself, and not load then.

use quantize_rs_math::QType;

use super::activations::Planner;
use super::{Draft, Readers};
use crate::graph::ValueId;
use crate::graph::ops;
use crate::graph::ops::IntegerSupport;

/// Operators behind which ONNX Runtime puts a `QuantizeLinear` and a `DequantizeLinear` of its own
/// when what flows into them is dequantized and what flows out is not quantized.
const CARRIERS: &[&str] = &["MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"];

/// The operator set from which on the `QuantizeLinear` that ONNX Runtime makes has an `output_dtype`.
const SINCE: i64 = 21;

impl Planner<'_, '_> {
    /// Quantizes what comes out of a node that only moves int8, whoever reads it and even where the
    /// node is excluded: the numbers stay what they are.
    ///
    /// ONNX Runtime would do so itself. On x86 it then turns int8 into uint8, overlooks the
    /// `output_dtype` of what it made and refuses the model (seen in 1.32).
    pub(super) fn carry_on(&self, draft: &mut Draft) {
        if self.graph.model.opset("").unwrap_or(0) < SINCE {
            return;
        }
        for node in self.order.iter().copied() {
            let proto = self.graph.nodes[node];
            let carries = CARRIERS.contains(&proto.op_type.as_str())
                && ops::rule(proto).is_some_and(|rule| {
                    matches!((rule.integer)(self.graph, node), IntegerSupport::SameAsInput { .. })
                });
            let Some(input) = self.graph.input(node, 0).filter(|_| carries) else { continue };
            let reads_int8 = draft
                .quantized(input)
                .is_some_and(|how| how.spec.qtype == QType::Int8 && how.consumers == Readers::All);
            let ends = |output: ValueId| draft.quantized(output).is_none();
            if reads_int8 && self.outputs(node).any(ends) {
                self.pass_on(draft, node);
            }
        }
    }
}
