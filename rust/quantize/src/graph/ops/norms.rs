//! Normalizations that are not folded into the preceding operator.

use super::{IN_FLOAT, OpRule, Slot};

const fn norm(op_type: &'static str, min_inputs: usize) -> OpRule {
    let inputs = &[Slot::Activation, Slot::Scale, Slot::Bias];
    OpRule { op_type, inputs, more: Slot::Other, min_inputs, integer: IN_FLOAT, range: None }
}

pub(super) const RULES: &[OpRule] = &[
    norm("LayerNormalization", 2),
    norm("InstanceNormalization", 3),
    norm("BatchNormalization", 5),
];
