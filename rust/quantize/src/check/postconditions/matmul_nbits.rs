//! Checks of the `matmul_nbits` format: constants match the attributes of their nodes.

use quantize_rs_onnx::{DataType, NodeProto};

use super::{experts, shape};
use crate::graph::Graph;
use crate::graph::ops::MICROSOFT;

/// The position of zero points among the constants.
const ZERO_POINTS: usize = 2;

/// The first new `MatMulNBits` whose constants do not match its attributes, and the reason.
pub(in crate::check) fn fault(before: &Graph<'_>, graph: &Graph<'_>) -> Option<(String, String)> {
    for (index, node) in graph.nodes.iter().enumerate() {
        let there = node.input.get(1).is_some_and(|name| before.value(name).is_some());
        if node.domain != MICROSOFT || node.op_type != "MatMulNBits" || there {
            continue;
        }
        let block = node.int("block_size", 0);
        if block < 16 || block.count_ones() != 1 {
            let what = format!("block_size is {block}, expected a power of 2 from 16 on");
            return Some((node.named().to_owned(), what));
        }
        let constants = product(node);
        let scales = constants[1].clone();
        for (input, expected) in constants.into_iter().enumerate() {
            let found = graph.input(index, input + 1).and_then(|id| graph.constant(id));
            // Float zero points are not packed.
            let packed = found.is_none_or(|found| found.dtype() == Some(DataType::UInt8));
            let expected = if input == ZERO_POINTS && !packed { &scales } else { &expected };
            if let Some(found) = found
                && shape(found) != *expected
            {
                let (at, found) = (input + 1, shape(found));
                let what = format!("input {at} has shape {found:?}, expected {expected:?}");
                return Some((node.named().to_owned(), what));
            }
        }
    }
    experts::fault(before, graph)
}

/// The expected shapes of integers, scales and zero points.
fn product(node: &NodeProto) -> [Vec<usize>; 3] {
    let number = |name: &str| usize::try_from(node.int(name, 0)).unwrap_or(0);
    let (depth, width) = (number("K"), number("N"));
    let (bits, block) = (number("bits"), number("block_size"));
    let blocks = depth.div_ceil(block.max(1));
    [
        vec![width, blocks, block.saturating_mul(bits) / 8],
        vec![width, blocks],
        vec![width, blocks.saturating_mul(bits).div_ceil(8)],
    ]
}
