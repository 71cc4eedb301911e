//! Scales of quantized constants: the largest number that they stand for may be beyond 16 bits
//! where the scales are not.

use quantize_rs_onnx::{DataType, NodeProto};

use crate::graph::elements::qtype_of;
use crate::graph::quantized_ops::{WeightForm, quantized_op};

/// The number of bits of integers in blocks if their attribute is omitted.
const DEFAULT_BITS: i64 = 4;

/// The input with the integers that an input scales, and the largest of them without its zero
/// point; `None` if the input does not hold scales. `dtype` is the type of an input.
pub(super) fn scaled(
    node: &NodeProto,
    input: usize,
    dtype: impl Fn(usize) -> Option<DataType>,
) -> Option<(usize, f32)> {
    let has = |input: usize| node.input.get(input).is_some_and(|name| !name.is_empty());
    let row = quantized_op(node)?;
    if row.op_type == "DequantizeLinear" && input == 1 {
        return Some((0, largest(dtype(0)?, has(2))?));
    }
    let Some(WeightForm::Blocks(blocks) | WeightForm::Experts(blocks)) = row.weight else {
        return None;
    };
    let (integers, _) = blocks.weights.iter().find(|(_, scales)| *scales == input)?;
    let bits = u32::try_from(node.int(blocks.bits, DEFAULT_BITS)).ok();
    let bits = bits.filter(|bits| (1..=16).contains(bits))?;
    Some((*integers, largest_of_bits(bits, has(blocks.zero_points))))
}

/// The largest magnitude of an element of `DequantizeLinear` without its zero point.
fn largest(dtype: DataType, has_zero_point: bool) -> Option<f32> {
    let qtype = qtype_of(dtype)?;
    match qtype.format() {
        Some(format) => Some(format.max()),
        None => Some(largest_of_bits(qtype.bits(), has_zero_point || !qtype.signed())),
    }
}

/// With a zero point at either end, an integer may be as far from it as all values reach; with one
/// in the middle half as far.
fn largest_of_bits(bits: u32, may_be_far: bool) -> f32 {
    let values = (0..bits).fold(1.0, |values, _| 2.0 * values);
    if may_be_far { values } else { values / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ops::MICROSOFT;

    fn node(domain: &str, op_type: &str, inputs: &[&str]) -> NodeProto {
        let inputs = inputs.iter().map(|name| (*name).to_owned()).collect();
        let mut node = NodeProto::new("", op_type, inputs, vec!["y".to_owned()], Vec::new());
        node.domain = domain.to_owned();
        node
    }

    #[test]
    fn the_largest_integer_follows_from_type_and_zero_point() {
        let of = |node: &NodeProto, input, dtype| scaled(node, input, |_| Some(dtype));
        let without = node("", "DequantizeLinear", &["q", "s"]);
        let with = node("", "DequantizeLinear", &["q", "s", "z"]);
        assert_eq!(of(&without, 1, DataType::Int8), Some((0, 128.0)));
        assert_eq!(of(&without, 1, DataType::UInt8), Some((0, 256.0)));
        assert_eq!(of(&with, 1, DataType::Int4), Some((0, 16.0)));
        assert_eq!(of(&without, 1, DataType::Float8E4M3FN), Some((0, 448.0)));
        assert_eq!(of(&with, 0, DataType::Int4), None);
        let blocks = node(MICROSOFT, "MatMulNBits", &["a", "b", "s"]);
        assert_eq!(of(&blocks, 2, DataType::UInt8), Some((1, 8.0)));
        assert_eq!(of(&blocks, 1, DataType::UInt8), None);
        assert_eq!(of(&node("", "MatMulNBits", &["a", "b", "s"]), 2, DataType::UInt8), None);
    }
}
