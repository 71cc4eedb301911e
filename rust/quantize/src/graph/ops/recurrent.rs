//! Operators that go along a sequence: LSTM, GRU, RNN.

use super::{Integer, OpRule, Slot};

/// What comes in and what is remembered stays float: no kernel of ONNX's own operators takes
/// integers.
const fn recurrent(op_type: &'static str) -> OpRule {
    OpRule {
        op_type,
        inputs: &[Slot::Other, Slot::Rows, Slot::Rows, Slot::Bias],
        more: Slot::Other,
        min_inputs: 3,
        integer: |_, _| Integer::No("runtimes run it in float"),
        range: None,
    }
}

pub(super) const RULES: &[OpRule] = &[recurrent("LSTM"), recurrent("GRU"), recurrent("RNN")];
