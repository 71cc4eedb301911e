//! Finds outputs that look like class scores, and the class with the highest score.

use quantize_rs_onnx::NodeProto;

use crate::graph::{Graph, Producer, ValueId};

/// Operators that keep the order of the scores, or only move them.
const PASSING: &[&str] = &[
    "Add",
    "Cast",
    "DequantizeLinear",
    "Flatten",
    "Identity",
    "QuantizeLinear",
    "Reshape",
    "Sigmoid",
    "Squeeze",
];

/// Operators that produce scores: one for each class, along the last axis.
const MAKING: &[&str] = &["Gemm", "GlobalAveragePool", "LogSoftmax", "MatMul", "Softmax"];

/// The maximum number of nodes that are followed.
const DEPTH: usize = 8;

/// Whether an output of the model looks like class scores along its last axis: it comes from the
/// matrix multiplication at the end of a classifier, or from a softmax.
pub(super) fn look_like_classes(graph: &Graph<'_>, output: ValueId) -> bool {
    let mut value = output;
    for _ in 0..DEPTH {
        let Producer::Node { node, .. } = graph.values[value].producer else { return false };
        let proto: &NodeProto = graph.nodes[node];
        let op_type = proto.op_type.as_str();
        if !proto.is_onnx() {
            return false;
        }
        if MAKING.contains(&op_type) {
            return true;
        }
        if !PASSING.contains(&op_type) {
            return false;
        }
        // The first input that is not a constant: a bias may be either input.
        let inputs = (0..proto.input.len()).filter_map(|input| graph.input(node, input));
        let mut flowing = inputs.filter(|input| graph.constant_behind(*input).is_none());
        match (flowing.next(), op_type, flowing.next()) {
            // A sum of two computed values is a residual connection.
            (Some(_), "Add", Some(_)) | (None, ..) => return false,
            (Some(next), ..) => value = next,
        }
    }
    false
}

/// The position of the highest score in each row along the last axis: the first of equal scores,
/// and NaN before all others, as in `NumPy`. Returns `None` if there are fewer than two classes.
pub(super) fn highest(shape: &[usize], values: &[f32]) -> Option<Vec<usize>> {
    let classes = *shape.last().filter(|_| shape.len() >= 2).filter(|classes| **classes >= 2)?;
    Some(values.chunks_exact(classes).map(first_highest).collect())
}

fn first_highest(row: &[f32]) -> usize {
    let mut best = 0;
    for (place, score) in row.iter().enumerate() {
        let highest = row[best];
        if *score > highest || score.is_nan() && !highest.is_nan() {
            best = place;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equals_is_the_highest() {
        let nan = f32::NAN;
        assert_eq!(highest(&[2, 3], &[1.0, 2.0, 2.0, 0.0, nan, 9.0]), Some(vec![1, 1]));
        assert_eq!(highest(&[2, 3], &[9.0, nan, nan, nan, 1.0, nan]), Some(vec![1, 0]));
        assert_eq!(highest(&[3], &[1.0, 2.0, 3.0]), None);
        assert_eq!(highest(&[3, 1], &[1.0, 2.0, 3.0]), None);
        assert_eq!(highest(&[0, 3], &[]), Some(vec![]));
    }
}
