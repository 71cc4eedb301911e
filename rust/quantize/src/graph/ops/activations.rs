//! Elementwise activation functions, and functions whose results are probabilities.

use quantize_rs_math::Range;

use super::{IN_FLOAT, IntegerSupport, OpRule, Slot, flows};
use crate::graph::Graph;

const fn within(
    op_type: &'static str,
    min: f32,
    max: f32,
    integer: fn(&Graph<'_>, usize) -> IntegerSupport,
) -> OpRule {
    OpRule { range: Some(Range { min, max }), ..flows(op_type, integer) }
}

pub(super) const RULES: &[OpRule] = &[
    flows("LeakyRelu", |_, _| IntegerSupport::Computes { kernel: Some("QLinearLeakyRelu") }),
    OpRule {
        op_type: "PRelu",
        inputs: &[Slot::Activation, Slot::Activation],
        more: Slot::Other,
        min_inputs: 2,
        integer: IN_FLOAT,
        range: None,
    },
    flows("Elu", IN_FLOAT),
    flows("Gelu", IN_FLOAT),
    flows("HardSwish", IN_FLOAT),
    within("Sigmoid", 0.0, 1.0, |_, _| IntegerSupport::Computes { kernel: Some("QLinearSigmoid") }),
    within("HardSigmoid", 0.0, 1.0, IN_FLOAT),
    within("Tanh", -1.0, 1.0, IN_FLOAT),
    within("Softmax", 0.0, 1.0, |_, _| IntegerSupport::Computes { kernel: Some("QLinearSoftmax") }),
];
