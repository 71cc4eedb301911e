//! Which inputs may hold −∞: masks, whose −∞ a Softmax turns into 0.

use quantize_rs_onnx::{DataType, Model, Tensor};

use super::engine::Sample;
use crate::CalibrationError;
use crate::error::CalibrationErrorKind as Kind;
use crate::graph::Graph;

/// What the names of masks contain.
const NAMES: [&str; 2] = ["mask", "bias"];

/// Operators that pass a mask on to a Softmax, or add it to what the Softmax reads.
const PASSING: &[&str] = &[
    "Add",
    "Cast",
    "Clip",
    "Concat",
    "Div",
    "Expand",
    "Gather",
    "Identity",
    "Max",
    "Min",
    "Mul",
    "Reshape",
    "Slice",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// The maximum number of such operators in a row.
const DEPTH: usize = 16;

/// Rejects −∞ in an input of a sample that is no mask.
///
/// # Errors
/// [`Kind::NonFinite`] with the input and the position.
pub(super) fn refuse_infinity(model: &Model, sample: &Sample) -> Result<(), CalibrationError> {
    for (name, tensor) in &sample.inputs {
        let Some(index) = first_infinity(tensor) else { continue };
        if is_called_mask(name) || has_one_other_value(tensor) || reaches_softmax(model, name) {
            continue;
        }
        let (found, position) = ("-infinity".to_owned(), position(index, &tensor.shape));
        let kind = Kind::NonFinite { found, position };
        return Err(CalibrationError::new(kind).at_value(name));
    }
    Ok(())
}

/// The place of the first −∞ of a float tensor, in C order.
fn first_infinity(tensor: &Tensor) -> Option<usize> {
    let infinity = infinity(tensor.dtype)?;
    match infinity.len() {
        2 => first::<2>(&tensor.data, infinity),
        4 => first::<4>(&tensor.data, infinity),
        _ => first::<8>(&tensor.data, infinity),
    }
}

/// The place of the first element with these bytes. Comparing slices would call a function for each
/// element.
fn first<const N: usize>(data: &[u8], bytes: &[u8]) -> Option<usize> {
    let bytes: [u8; N] = bytes.try_into().ok()?;
    data.as_chunks().0.iter().position(|element| *element == bytes)
}

/// The bytes of −∞.
fn infinity(dtype: DataType) -> Option<&'static [u8]> {
    Some(match dtype {
        DataType::Float => &[0, 0, 0x80, 0xFF],
        DataType::Double => &[0, 0, 0, 0, 0, 0, 0xF0, 0xFF],
        DataType::Float16 => &[0, 0xFC],
        DataType::BFloat16 => &[0x80, 0xFF],
        _ => return None,
    })
}

/// The index along each axis of an element counted in C order.
fn position(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut position = vec![0; shape.len()];
    for (axis, length) in shape.iter().enumerate().rev() {
        let length = (*length).max(1);
        position[axis] = index % length;
        index /= length;
    }
    position
}

fn is_called_mask(name: &str) -> bool {
    let name = name.to_lowercase();
    NAMES.iter().any(|word| name.contains(word))
}

/// Whether all elements are −∞ or one other number, as in a mask.
fn has_one_other_value(tensor: &Tensor) -> bool {
    let Some(infinity) = infinity(tensor.dtype) else { return false };
    let mut others = tensor.data.chunks_exact(infinity.len()).filter(|one| *one != infinity);
    let first = others.next();
    others.all(|other| Some(other) == first)
}

/// Whether a Softmax or an attention operator reads the input as it is, or added to something.
fn reaches_softmax(model: &Model, input: &str) -> bool {
    let Ok(graph) = Graph::of(model) else { return false };
    let mut values = Vec::from_iter(graph.value(input));
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for reader in values.iter().flat_map(|value| &graph.values[*value].consumers) {
            let op_type = &*graph.nodes[reader.node].op_type;
            if op_type.contains("Softmax") || op_type.contains("Attention") {
                return true;
            }
            if PASSING.contains(&op_type) {
                next.extend(graph.output(reader.node, 0));
            }
        }
        next.sort_unstable();
        next.dedup();
        values = next;
    }
    false
}
