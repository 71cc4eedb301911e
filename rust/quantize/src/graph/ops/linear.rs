//! Operators that multiply by a weight: convolutions, matrix multiplications, embedding lookups.

use quantize_rs_onnx::NodeProto;

use super::{IN_FLOAT, IntegerSupport, OpRule, Slot, einsum};
use crate::graph::Graph;

pub(super) const RULES: &[OpRule] = &[
    OpRule {
        op_type: "Conv",
        inputs: &[Slot::Activation, Slot::Weight { axis: first }, Slot::Bias],
        more: Slot::Other,
        min_inputs: 2,
        integer: |_, _| IntegerSupport::QuantizedOutput { kernel: Some("QLinearConv") },
        range: None,
    },
    OpRule {
        op_type: "ConvTranspose",
        inputs: &[Slot::Activation, Slot::Weight { axis: second }, Slot::Bias],
        more: Slot::Other,
        min_inputs: 2,
        integer: |_, _| IntegerSupport::QuantizedOutput { kernel: None },
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
        integer: |_, _| IntegerSupport::FloatOutput,
        range: None,
    },
    OpRule {
        op_type: "Gather",
        inputs: &[Slot::Operand { axis: first }],
        more: Slot::Other,
        min_inputs: 2,
        integer: |_, _| IntegerSupport::SameAsInput { same_range: false },
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

/// The rows of A: axis 0, or axis 1 if A is transposed.
fn gemm_a(node: &NodeProto, rank: usize) -> Option<usize> {
    (rank == 2).then_some(usize::from(node.int("transA", 0) != 0))
}

/// The columns of B: axis 1, or axis 0 if B is transposed.
fn gemm_b(node: &NodeProto, rank: usize) -> Option<usize> {
    (rank == 2).then_some(usize::from(node.int("transB", 0) == 0))
}

/// The second-to-last axis. A vector has no output channels: it is summed over its only axis.
fn matmul_a(_: &NodeProto, rank: usize) -> Option<usize> {
    (rank > 1).then(|| rank - 2)
}

fn matmul_b(_: &NodeProto, rank: usize) -> Option<usize> {
    (rank > 1).then(|| rank - 1)
}

/// `QGemm` does not support `alpha` and `beta`: it adds the bias to the unscaled product.
#[allow(clippy::float_cmp)] // compares attributes, not computed values
fn gemm(graph: &Graph<'_>, node: usize) -> IntegerSupport {
    let node = graph.nodes[node];
    if node.float("alpha", 1.0) == 1.0 && node.float("beta", 1.0) == 1.0 {
        IntegerSupport::FloatOutput
    } else {
        IntegerSupport::No("runtimes fuse it only with alpha = beta = 1")
    }
}
