//! Evaluates nodes with constant inputs, and nodes that compute constants from known shapes.

mod budget;
mod main_graph;
mod splits;
mod subgraphs;

use quantize_rs_onnx::{DataType, Model, NodeProto, Tensor};

use super::Changes;
use super::eval::{self, Call};
use super::pass_edits::is_pure;
use crate::QuantizeError;
use crate::graph::constants::of_ints;
use crate::graph::{Graph, Producer, ValueId};

/// How much larger, in bytes, a computed constant may be than the constants that it makes unused.
const MAX_GROWTH_BYTES: usize = 64 << 10;

/// The same limit for constants that only repeat elements, which are cheap to compute at run time.
const MAX_REPEATED_GROWTH_BYTES: usize = 4 << 10;

/// All computed constants together may add this part of the size of the model, or
/// [`MAX_GROWTH_BYTES`] if that is more.
const TOTAL_GROWTH_DIVISOR: u64 = 64;

/// All computed constants together may take this much more memory than the model is large.
const MAX_SPARE_BYTES: usize = 16 << 20;

/// The number of products and additions that reductions and matrix products may take together, and
/// how many more for each byte of the model: a few seconds for a model of a gigabyte.
const SPARE_WORK: usize = 1 << 28;
const WORK_FOR_EACH_BYTE: usize = 4;

/// The limit for the total size, in bytes, of large constants that are transposed. The results are
/// held in memory, whereas constants of the file are memory-mapped.
const MAX_TRANSPOSED_BYTES: usize = 256 << 20;

/// Operators that only change the order or shape of elements. The result keeps the name of the
/// constant, so that you can refer to it.
const REARRANGE: [&str; 5] = ["Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"];

pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let changes = splits::run(graph);
    if !changes.edits.is_empty() {
        return Ok(changes);
    }
    let changes = main_graph::run(graph)?;
    // Subgraphs capture what remains in the main graph, so they are folded last.
    Ok(if changes.edits.is_empty() { subgraphs::run(graph) } else { changes })
}

/// How much larger, in bytes, the value of a node may be than what it makes unused.
fn growth(node: &NodeProto, is_bias: bool) -> usize {
    match node.op_type.as_str() {
        _ if is_followed(node) && !is_bias => budget::FREE_BYTES,
        "ConstantOfShape" | "Expand" | "Tile" => MAX_REPEATED_GROWTH_BYTES,
        _ => MAX_GROWTH_BYTES,
    }
}

/// Whether the planner follows a node to the constant that it reads, unless that is a bias.
fn is_followed(node: &NodeProto) -> bool {
    let op_type = node.op_type.as_str();
    matches!(op_type, "Cast" | "CastLike") || REARRANGE.contains(&op_type)
}

/// How much larger, in bytes, the file may become.
fn total_growth(model: &Model) -> usize {
    let part = model.byte_len() / TOTAL_GROWTH_DIVISOR;
    usize::try_from(part).unwrap_or(usize::MAX).max(MAX_GROWTH_BYTES)
}

/// Evaluates nodes, within limits for the memory that the values take and for the work.
struct Evaluation {
    opset: i64,
    memory_left: usize,
    work_left: usize,
}

impl Evaluation {
    fn of(model: &Model) -> Evaluation {
        let size = usize::try_from(model.byte_len()).unwrap_or(usize::MAX);
        let memory_left = size.saturating_add(MAX_SPARE_BYTES);
        let work_left = size.saturating_mul(WORK_FOR_EACH_BYTE).saturating_add(SPARE_WORK);
        Evaluation { opset: model.opset("").unwrap_or(1), memory_left, work_left }
    }

    /// The value of a node with constant inputs. It may be larger than them by `growth`, what the
    /// file may grow.
    fn value(
        &mut self,
        node: &NodeProto,
        inputs: &[Option<Tensor>],
        growth: usize,
    ) -> Option<Tensor> {
        let evaluate = eval::operator(node)?;
        self.work_left = self.work_left.checked_sub(eval::work(node, inputs))?;
        let given = inputs.iter().flatten();
        let limit = given.fold(growth, |all, tensor| all.saturating_add(tensor.data.len()));
        let limit = limit.min(self.memory_left);
        let tensor = evaluate(&Call { node, opset: self.opset, inputs, limit })?;
        // Views share their bytes, but are subject to the limit as well.
        if tensor.data.len() > limit {
            return None;
        }
        let bytes = tensor.data.as_ptr_range();
        let is_within = |input: &Tensor| {
            let whole = input.data.as_ptr_range();
            whole.start <= bytes.start && bytes.end <= whole.end
        };
        if !inputs.iter().flatten().any(is_within) {
            self.memory_left -= tensor.data.len();
        }
        Some(tensor)
    }
}

/// Evaluates a node whose output is an integer vector that follows from known shapes.
fn of_shapes(graph: &Graph<'_>, index: usize, value: ValueId) -> Option<Tensor> {
    if graph.nodes[index].op_type == "Constant" || !is_pure(graph.nodes[index]) {
        return None;
    }
    let fact = graph.fact(value)?;
    let elements = fact.elements.as_ref()?.iter().map(|element| (*element)?.fixed());
    let elements: Vec<i64> = elements.collect::<Option<_>>()?;
    let lengths = fact.shape.as_ref()?.iter().map(|length| usize::try_from(length.fixed()?).ok());
    let shape: Vec<usize> = lengths.collect::<Option<_>>()?;
    let data = match fact.dtype? {
        DataType::Int64 => return Some(of_ints(shape, &elements)),
        DataType::Int32 => {
            let narrow = |element: i64| Some(i32::try_from(element).ok()?.to_le_bytes());
            elements.into_iter().map(narrow).collect::<Option<Vec<_>>>()?.concat()
        }
        DataType::Bool => elements.into_iter().map(|element| u8::from(element != 0)).collect(),
        _ => return None,
    };
    Some(Tensor { dtype: fact.dtype?, shape, data: data.into() })
}

/// The size in bytes of the large constants that are transposed.
fn transposed(graph: &Graph<'_>) -> usize {
    let transposes = graph.nodes.iter().enumerate().filter(|(_, node)| node.op_type == "Transpose");
    let sizes = transposes.filter_map(|(index, _)| {
        let value = graph.input(index, 0)?;
        let Producer::Initializer { tensor, .. } = graph.values[value].producer else {
            return None;
        };
        let elements = tensor
            .dims
            .iter()
            .try_fold(1usize, |all, length| all.checked_mul(usize::try_from(*length).ok()?))?;
        tensor.dtype()?.byte_len(elements).filter(|bytes| *bytes > MAX_GROWTH_BYTES)
    });
    sizes.fold(0, usize::saturating_add)
}
