//! Checks of `QMoE`, which the `matmul_nbits` format writes: constants match the attributes.

use super::shape;
use crate::graph::{Graph, moe};

/// The first new `QMoE` whose constants do not match, and the reason.
pub(super) fn fault(before: &Graph<'_>, graph: &Graph<'_>) -> Option<(String, String)> {
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| moe::is_qmoe(node)) {
        let first = node.input.get(moe::PROJECTIONS[0].integers);
        if first.is_some_and(|name| before.value(name).is_some()) {
            continue;
        }
        let number = |name: &str, default| usize::try_from(node.int(name, default)).unwrap_or(0);
        let (block_size, bits) = (number("block_size", 0), number(moe::BITS.0, moe::BITS.1));
        if block_size != 0 && !moe::is_block(block_size) {
            let what = format!("block_size is {block_size}, expected a power of 2 from 16 on");
            return Some((node.named().to_owned(), what));
        }
        for projection in moe::PROJECTIONS {
            let constant = |input: usize| {
                graph.input(index, input).and_then(|id| graph.constant(id)).map(shape)
            };
            let integers = constant(projection.integers).unwrap_or_default();
            let &[experts, rows, bytes] = &integers[..] else {
                let what = format!("its integers have shape {integers:?}, expected 3 axes");
                return Some((node.named().to_owned(), what));
            };
            let bits_of_block = bits.saturating_mul(block_size);
            let blocks = bytes.saturating_mul(8).checked_div(bits_of_block);
            let scales: Vec<usize> = [experts, rows].into_iter().chain(blocks).collect();
            let packed = blocks.map(|blocks| blocks.saturating_mul(bits).div_ceil(8));
            let points: Vec<usize> = [experts, rows].into_iter().chain(packed).collect();
            for (input, expected) in
                [(projection.integers + 1, scales), (projection.zero_points, points)]
            {
                if let Some(found) = constant(input).filter(|found| *found != expected) {
                    let what = format!("input {input} has shape {found:?}, expected {expected:?}");
                    return Some((node.named().to_owned(), what));
                }
            }
        }
    }
    None
}
