//! Operators that ONNX Runtime does not run on a CPU in a newer opset, though it runs them in an
//! older one.

use std::collections::BTreeMap;

use quantize_rs_onnx::NodeProto;

/// Operators, and the opset from which ONNX Runtime 1.32 has no CPU kernels of them. Those that it
/// expands into other operators are not listed.
const WITHOUT_KERNEL: &[(&str, i64)] = &[
    ("Bernoulli", 22),
    ("DequantizeLinear", 28),
    ("GlobalLpPool", 22),
    ("MaxRoiPool", 22),
    ("Multinomial", 22),
    ("Optional", 28),
    ("OptionalGetElement", 28),
    ("OptionalHasElement", 28),
    ("QuantizeLinear", 28),
    ("RandomNormal", 22),
    ("RandomNormalLike", 22),
    ("RandomUniform", 22),
    ("RandomUniformLike", 22),
    ("RoiAlign", 22),
];

/// Nodes that lost their kernel in a conversion: by operator, the opset and the label of the first.
#[derive(Default)]
pub(super) struct LostKernels(BTreeMap<&'static str, (i64, String)>);

impl LostKernels {
    /// Adds an ONNX node that is converted, if it loses its kernel.
    pub(super) fn add(&mut self, node: &NodeProto, from: i64, to: i64) {
        let row = WITHOUT_KERNEL.iter().find(|(op_type, _)| *op_type == node.op_type);
        if let Some((op_type, since)) = row.filter(|(_, since)| (from + 1..=to).contains(since)) {
            self.0.entry(op_type).or_insert_with(|| (*since, node.label()));
        }
    }

    /// A warning for each operator.
    pub(super) fn warnings(self) -> Vec<String> {
        let warning = |(_, (since, node)): (&str, (i64, String))| {
            format!(
                "ONNX Runtime 1.32 cannot load the result on a CPU: it has no kernel for {node} \
                 from opset {since} on"
            )
        };
        self.0.into_iter().map(warning).collect()
    }
}
