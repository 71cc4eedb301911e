//! Operators that multiply by a weight: convolutions, matrix products, table look-ups.

use quantize_rs_onnx::NodeProto;

use super::{IN_FLOAT, Integer, OpRule, Slot, einsum};
use crate::graph::Graph;

pub(super) const RULES: &[OpRule] = &[
    OpRule {
        op_type: "Conv",
        inputs: &[Slot::Activation, Slot::Weight { axis: first }, Slot::Bias],
        more: Slot::Other,
        min_inputs: 2,
        integer: |_, _| Integer::QuantizedOutput { kernel: Some("QLinearConv") },
        range: None,
    },
    OpRule {
        op_type: "ConvTranspose",
        inputs: &[Slot::Activation, Slot::Weight { axis: second }, Slot::Bias],
        more: Slot::Other,
        min_inputs: 2,
        integer: |_, _| Integer::QuantizedOutput { kernel: None },
        range: None,
    },
    OpRule {
        op_type: "Gemm",
        inputs: &[Slot::Operand { axis: gemm_a }, Slot::Operand { axis: gemm_b }, Slot::Bias],
        more: Slot::Other,
        min_inputs: 2,
        integer: gemm,
        range: None,
    },
    OpRule {
        op_type: "MatMul",
        inputs: &[Slot::Operand { axis: matmul_a }, Slot::Operand { axis: matmul_b }],
        more: Slot::Other,
        min_inputs: 2,
        integer: |_, _| Integer::FloatOutput,
        range: None,
    },
    OpRule {
        op_type: "Gather",
        inputs: &[Slot::Operand { axis: first }],
        more: Slot::Other,
        min_inputs: 2,
        integer: |_, _| Integer::SameAsInput { same_range: false },
        range: None,
    },
    OpRule {
        op_type: "Einsum",
        inputs: &[
            Slot::Operand { axis: einsum::channels::<0> },
            Slot::Operand { axis: einsum::channels::<1> },
        ],
        more: Slot::Operand { axis: |_, _| None },
        min_inputs: 1,
        integer: IN_FLOAT,
        range: None,
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

/// `QGemm` knows no factors, and its bias is added to products without them.
#[allow(clippy::float_cmp)] // the values are what the file says, not results
fn gemm(graph: &Graph<'_>, node: usize) -> Integer {
    let node = graph.nodes[node];
    if node.float("alpha", 1.0) == 1.0 && node.float("beta", 1.0) == 1.0 {
        Integer::FloatOutput
    } else {
        Integer::No("runtimes fuse it only with alpha = beta = 1")
    }
}
