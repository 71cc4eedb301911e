//! Operators that multiply by a weight: convolutions, matrix products, table look-ups.

use quantize_rs_onnx::NodeProto;

use super::{Integer, OpRule, Slot, always};

pub(super) const RULES: &[OpRule] = &[
    OpRule {
        op_type: "Conv",
        inputs: &[Slot::Activation, Slot::Weight { axis: first }, Slot::Bias],
        min_inputs: 2,
        integer: Integer::QuantizedOutput,
        allows: always,
    },
    OpRule {
        op_type: "ConvTranspose",
        inputs: &[Slot::Activation, Slot::Weight { axis: second }, Slot::Bias],
        min_inputs: 2,
        integer: Integer::No,
        allows: always,
    },
    OpRule {
        op_type: "Gemm",
        inputs: &[Slot::Weight { axis: gemm_a }, Slot::Operand { axis: gemm_b }, Slot::Bias],
        min_inputs: 2,
        integer: Integer::FloatOutput,
        allows: plain_gemm,
    },
    OpRule {
        op_type: "MatMul",
        inputs: &[Slot::Operand { axis: matmul_a }, Slot::Operand { axis: matmul_b }],
        min_inputs: 2,
        integer: Integer::FloatOutput,
        allows: always,
    },
    OpRule {
        op_type: "Gather",
        inputs: &[Slot::Weight { axis: first }, Slot::Other],
        min_inputs: 2,
        integer: Integer::No,
        allows: always,
    },
];

fn first(_: &NodeProto, rank: usize) -> Option<usize> {
    (rank > 1).then_some(0)
}

fn second(_: &NodeProto, rank: usize) -> Option<usize> {
    (rank > 1).then_some(1)
}

/// Rows of A: its axis 0, or 1 when it is transposed.
fn gemm_a(node: &NodeProto, rank: usize) -> Option<usize> {
    (rank == 2).then_some(usize::from(node.int("transA", 0) != 0))
}

/// Columns of B: its axis 1, or 0 when it is transposed.
fn gemm_b(node: &NodeProto, rank: usize) -> Option<usize> {
    (rank == 2).then_some(usize::from(node.int("transB", 0) == 0))
}

/// The last axis but one; a vector is multiplied along its only axis and has no channels.
fn matmul_a(_: &NodeProto, rank: usize) -> Option<usize> {
    (rank > 1).then(|| rank - 2)
}

fn matmul_b(_: &NodeProto, rank: usize) -> Option<usize> {
    (rank > 1).then(|| rank - 1)
}

/// ONNX Runtime fuses `Gemm` only without factors (seen in 1.31).
#[allow(clippy::float_cmp)] // the values are what the file says, not results
fn plain_gemm(node: &NodeProto) -> bool {
    node.float("alpha", 1.0) == 1.0 && node.float("beta", 1.0) == 1.0
}
