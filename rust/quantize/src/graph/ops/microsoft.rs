//! ONNX Runtime's own operators with weights, as its optimizer writes them into transformers.

use super::{IntegerSupport, OpRule, Slot};
use crate::graph::qattention;

const fn in_float(op_type: &'static str, inputs: &'static [Slot], min_inputs: usize) -> OpRule {
    OpRule {
        op_type,
        inputs,
        more: Slot::Other,
        min_inputs,
        integer: |_, _| IntegerSupport::No("ONNX Runtime runs it in float"),
        range: None,
    }
}

/// A table of which rows are read.
const TABLE: Slot = Slot::Weight { axis: |_, rank| (rank > 1).then_some(0) };

/// A matrix whose columns are output channels.
const MATRIX: Slot = Slot::Weight { axis: |_, rank| rank.checked_sub(1).filter(|axis| *axis > 0) };

pub(super) const RULES: &[OpRule] = &[
    // Queries, keys and values are the product of the input and one matrix.
    OpRule {
        integer: |graph, node| match qattention::fits(graph, graph.nodes[node]) {
            Ok(()) => IntegerSupport::OperatorAlone,
            Err(why) => IntegerSupport::No(why),
        },
        ..in_float("Attention", &[Slot::Activation, MATRIX, Slot::Bias], 2)
    },
    // A matrix for each expert, before and after the activation function, and of the gates.
    in_float(
        "MoE",
        &[
            Slot::Other,
            Slot::Other,
            Slot::Rows,
            Slot::Bias,
            Slot::Rows,
            Slot::Bias,
            Slot::Rows,
            Slot::Bias,
        ],
        3,
    ),
    // The tables of words, positions and segments. Segments may be left out, at input 1.
    in_float("EmbedLayerNormalization", &[Slot::Other, Slot::Other, TABLE, TABLE, TABLE], 1),
];
