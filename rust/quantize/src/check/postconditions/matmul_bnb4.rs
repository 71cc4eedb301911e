//! Checks of the `matmul_bnb4` format: constants match the attributes of their nodes.

use quantize_rs_math::Codebook;

use super::shape;
use crate::graph::Graph;
use crate::graph::ops::MICROSOFT;

/// The first new `MatMulBnb4` whose constants do not match its attributes, and the reason.
pub(in crate::check) fn fault(before: &Graph<'_>, graph: &Graph<'_>) -> Option<(String, String)> {
    for (index, node) in graph.nodes.iter().enumerate() {
        let there = node.input.get(1).is_some_and(|name| before.value(name).is_some());
        if node.domain != MICROSOFT || node.op_type != "MatMulBnb4" || there {
            continue;
        }
        let wrong = |what: String| Some((node.named().to_owned(), what));
        let number = |name: &str| usize::try_from(node.int(name, 0)).unwrap_or(0);
        let (elements, block) = (number("K").checked_mul(number("N")), number("block_size"));
        if !(16..=256).contains(&block) || !block.is_power_of_two() {
            return wrong(format!("block_size is {block}, expected a power of 2 from 16 to 256"));
        }
        let kind = node.int("quant_type", -1);
        if Codebook::of_number(kind).is_none() {
            return wrong(format!("quant_type is {kind}, expected 0 or 1"));
        }
        let Some(elements) = elements else { return wrong("K and N are too large".to_owned()) };
        for (input, expected) in [(1, elements.div_ceil(2)), (2, elements.div_ceil(block))] {
            let found = graph.input(index, input).and_then(|id| graph.constant(id));
            if let Some(found) = found.map(shape).filter(|found| *found != [expected]) {
                return wrong(format!("input {input} has shape {found:?}, expected [{expected}]"));
            }
        }
    }
    None
}
