//! Which inputs may hold −∞: masks, whose −∞ a Softmax turns into 0.

use quantize_rs_onnx::{DataType, Model, Tensor};

use super::engine::Sample;
use crate::graph::Graph;
use crate::graph::masks::{is_softmax, passes_masks_on};
use crate::{CalibrationError, CalibrationErrorKind};

/// What the names of masks contain.
const NAMES: [&str; 2] = ["mask", "bias"];

/// The maximum number of operators between an input and the softmax that reads it.
const DEPTH: usize = 16;

/// Rejects −∞ in an input of a sample that is no mask.
///
/// # Errors
/// [`CalibrationErrorKind::NonFinite`] with the input and the position.
pub(super) fn refuse_infinity(model: &Model, sample: &Sample) -> Result<(), CalibrationError> {
    for (name, tensor) in &sample.inputs {
        let Some(index) = first_infinity(tensor) else { continue };
        if is_called_mask(name) || has_one_other_value(tensor) || reaches_softmax(model, name) {
            continue;
        }
        let (found, position) = ("-infinity".to_owned(), tensor.position(index));
        let kind = CalibrationErrorKind::NonFinite { found, position };
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
            let node = graph.nodes[reader.node];
            if is_softmax(node) {
                return true;
            }
            if passes_masks_on(node) {
                next.extend(graph.output(reader.node, 0));
            }
        }
        next.sort_unstable();
        next.dedup();
        values = next;
    }
    false
}
