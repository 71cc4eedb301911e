//! Inputs that hold the lengths of sequences, as `sequence_lens` of recurrent operators.

use quantize_rs::{Graph, InputSpec};
use quantize_rs_onnx::DataType;

use super::synthetic::{PASSING, dimension_names, has_steps_first, readers};

/// Operators with one node for each direction of a sequence.
pub(super) const RECURRENT: &[&str] = &["GRU", "LSTM", "RNN"];

/// The place of `sequence_lens` among their inputs.
const SEQUENCE_LENS: usize = 4;

/// Operators that compute the length after some layers from the length before them.
const ARITHMETIC: &[&str] =
    &["Add", "Ceil", "Clip", "Div", "Floor", "Max", "Min", "Mod", "Mul", "Sub"];

/// The maximum number of operators between an input and the one that reads its lengths.
const DEPTH: usize = 12;

/// What the last word of the name of such an input is.
const NAMES: &[&str] = &["len", "length", "lengths", "lens"];

/// Words of names of other lengths: bounds, and the sizes of caches.
const OTHERS: &[&str] = &["cache", "max", "min", "past", "total"];

/// Whether an integer input holds lengths: a recurrent operator reads it as such, or it is called
/// so and has one number for each sequence.
pub(super) fn are_lengths(graph: &Graph<'_>, spec: &InputSpec) -> bool {
    !spec.dtype.is_some_and(DataType::is_float)
        && (recurrent(graph, &spec.name).next().is_some() || is_called_so(spec))
}

/// The length of the longest sequence that such an input may tell, if inputs have these shapes.
pub(super) fn longest(
    graph: &Graph<'_>,
    name: &str,
    inputs: &[(&InputSpec, Vec<usize>)],
) -> Option<usize> {
    let steps = recurrent(graph, name).filter_map(|node| steps(graph, node)).min();
    let batch: Vec<String> = dimension_names(graph, name).into_iter().flatten().collect();
    let (mut open, mut fixed) = (Vec::new(), Vec::new());
    for (spec, shape) in inputs.iter().filter(|(spec, shape)| shape.len() > 1 && spec.name != name)
    {
        let names = dimension_names(graph, &spec.name);
        let batch_axis = usize::from(has_steps_first(graph, &spec.name));
        for (axis, length) in shape.iter().enumerate() {
            let is_batch = match names.get(axis) {
                Some(Some(of)) if !batch.is_empty() => batch.contains(of),
                _ => axis == batch_axis,
            };
            let is_open = spec.shape.as_ref().is_some_and(|shape| shape.get(axis) == Some(&None));
            if !is_batch {
                (if is_open { &mut open } else { &mut fixed }).push(*length);
            }
        }
    }
    let least = |lengths: Vec<usize>| lengths.into_iter().min();
    steps.or_else(|| least(open)).or_else(|| least(fixed)).filter(|most| *most > 0)
}

/// Whether the name of an input says that it holds lengths.
fn is_called_so(spec: &InputSpec) -> bool {
    let name = spec.name.to_lowercase();
    let words: Vec<&str> = name.split(|letter: char| !letter.is_alphanumeric()).collect();
    spec.shape.as_ref().is_some_and(|shape| shape.len() == 1)
        && [words.first(), words.last()].into_iter().flatten().any(|word| NAMES.contains(word))
        && !words.iter().any(|word| OTHERS.contains(word))
}

/// The recurrent operators that an input gives the lengths of sequences to.
fn recurrent(graph: &Graph<'_>, input: &str) -> impl Iterator<Item = usize> {
    let passing: Vec<&str> = PASSING.iter().chain(ARITHMETIC).copied().collect();
    readers(graph, input, &passing, DEPTH)
        .into_iter()
        .filter(|(node, place)| {
            let node = graph.nodes[*node];
            *place == SEQUENCE_LENS && node.is_onnx() && RECURRENT.contains(&&*node.op_type)
        })
        .map(|(node, _)| node)
}

/// The number of steps of a recurrent operator, if it is fixed.
fn steps(graph: &Graph<'_>, node: usize) -> Option<usize> {
    let layout = graph.nodes[node].attribute("layout").and_then(|found| found.i).unwrap_or(0);
    let axis = usize::from(layout == 1);
    *graph.shape(graph.input(node, 0)?)?.get(axis)?
}
