//! Operators that pass data on: they move it, pick among it, or cut its range.

use super::{Integer, OpRule, Slot, always};

const fn pass(op_type: &'static str, integer: Integer) -> OpRule {
    OpRule { op_type, inputs: &[Slot::Activation], min_inputs: 1, integer, allows: always }
}

const MOVES: Integer = Integer::SameAsInput { same_range: true };
const PICKS: Integer = Integer::SameAsInput { same_range: false };

pub(super) const RULES: &[OpRule] = &[
    // The largest of negative numbers hides how negative they were: what comes out may need a much
    // finer scale than what goes in.
    pass("MaxPool", PICKS),
    pass("Reshape", MOVES),
    pass("Transpose", MOVES),
    pass("Flatten", MOVES),
    pass("Squeeze", MOVES),
    pass("Unsqueeze", MOVES),
    pass("Slice", PICKS),
    pass("Relu", Integer::Fused),
    pass("Clip", Integer::Fused),
];
