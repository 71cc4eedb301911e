//! Recurrent operators: LSTM, GRU and RNN.

use super::{IntegerSupport, OpRule, Slot};

/// Inputs and hidden states stay float: no integer kernel exists for the recurrent operators of the
/// ONNX domain.
const fn recurrent(op_type: &'static str) -> OpRule {
    OpRule {
        op_type,
        inputs: &[Slot::Other, Slot::Rows, Slot::Rows, Slot::Bias],
        more: Slot::Other,
        min_inputs: 3,
        integer: |_, _| IntegerSupport::No("runtimes run it in float"),
        range: None,
    }
}

pub(super) const RULES: &[OpRule] = &[recurrent("LSTM"), recurrent("GRU"), recurrent("RNN")];
