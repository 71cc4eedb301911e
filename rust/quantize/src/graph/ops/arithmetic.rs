//! Operators that compute new values from their inputs: sums, products, averages, selections.

use quantize_rs_onnx::NodeProto;

use super::{FLOAT, IN_FLOAT, IntegerSupport, OpRule, Slot, flows};
use crate::graph::Graph;

/// Whether ONNX Runtime averages integers as it averages floats. It divides by another count where
/// the last window is cut and padding counts, and its integer kernel has no dilations (observed in
/// 1.32, which fuses both nevertheless).
pub(crate) fn averages_integers(node: &NodeProto) -> bool {
    let dilated = node.attribute("dilations").is_some_and(|own| own.ints.iter().any(|x| *x != 1));
    let cut = node.int("ceil_mode", 0) != 0 && node.int("count_include_pad", 0) != 0;
    !dilated && !cut
}

fn average_pool(graph: &Graph<'_>, node: usize) -> IntegerSupport {
    if averages_integers(graph.nodes[node]) {
        IntegerSupport::Computes { kernel: Some("QLinearAveragePool") }
    } else {
        IntegerSupport::No(FLOAT)
    }
}

const fn of_two(op_type: &'static str, integer: fn(&Graph<'_>, usize) -> IntegerSupport) -> OpRule {
    let inputs = &[Slot::Activation, Slot::Activation];
    OpRule { op_type, inputs, more: Slot::Other, min_inputs: 2, integer, range: None }
}

const fn of_any(op_type: &'static str, integer: fn(&Graph<'_>, usize) -> IntegerSupport) -> OpRule {
    let (inputs, more) = (&[], Slot::Activation);
    OpRule { op_type, inputs, more, min_inputs: 1, integer, range: None }
}

pub(super) const RULES: &[OpRule] = &[
    of_two("Add", |_, _| IntegerSupport::Computes { kernel: Some("QLinearAdd") }),
    of_two("Mul", |_, _| IntegerSupport::Computes { kernel: Some("QLinearMul") }),
    of_two("Sub", IN_FLOAT),
    of_two("Div", IN_FLOAT),
    of_any("Max", IN_FLOAT),
    of_any("Min", IN_FLOAT),
    of_any("Concat", |_, _| IntegerSupport::Computes { kernel: Some("QLinearConcat") }),
    OpRule {
        op_type: "Where",
        inputs: &[Slot::Other, Slot::Activation, Slot::Activation],
        more: Slot::Other,
        min_inputs: 3,
        integer: |_, _| IntegerSupport::Computes { kernel: Some("QLinearWhere") },
        range: None,
    },
    flows("AveragePool", average_pool),
    flows("GlobalAveragePool", |_, _| IntegerSupport::Computes {
        kernel: Some("QLinearGlobalAveragePool"),
    }),
    flows("ReduceMean", IN_FLOAT),
    flows("ReduceSum", IN_FLOAT),
];
