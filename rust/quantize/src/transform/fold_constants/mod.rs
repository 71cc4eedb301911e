//! Evaluates nodes with constant inputs, and nodes that compute constants from known shapes.

mod subgraphs;

use std::collections::HashMap;

use quantize_rs_onnx::{DataType, Edit, NodeProto, Tensor, TensorProto, topological};

use super::Changes;
use super::eval::{self, Call};
use super::pass_edits::{PassEdits, is_pure};
use crate::QuantizeError;
use crate::graph::constants::{fixed, of_ints, only_reader};
use crate::graph::{Graph, Producer, ValueId};

/// How much larger, in bytes, a computed constant may be than the constants that it makes unused.
const MAX_GROWTH_BYTES: usize = 64 << 10;

/// The same limit for constants that are only rearranged or cast, which the planner can follow.
const MAX_COPY_GROWTH_BYTES: usize = 64;

/// The same limit for constants that only repeat elements, which are cheap to compute at run time.
const MAX_REPEATED_GROWTH_BYTES: usize = 4 << 10;

/// The limit for the total size, in bytes, of large constants that are transposed. The results are
/// held in memory, whereas constants of the file are memory-mapped.
const MAX_TRANSPOSED_BYTES: usize = 256 << 20;

/// Operators that only change the order or shape of elements. The result keeps the name of the
/// constant, so that you can refer to it.
const REARRANGE: [&str; 5] = ["Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"];

/// A computed value.
struct ComputedValue {
    tensor: Tensor,
    /// The initializer that it replaces.
    origin: Option<ValueId>,
}

pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut known: HashMap<ValueId, ComputedValue> = HashMap::new();
    let mut folded = vec![false; graph.nodes.len()];
    let order = topological(&graph.model.graph().node)?;
    let transposes = transposed(graph) <= MAX_TRANSPOSED_BYTES;
    for index in &order {
        let large = graph.nodes[*index].op_type == "Transpose" && !transposes;
        if let Some((value, made)) = computed(graph, *index, &known, large) {
            known.insert(value, made);
            folded[*index] = true;
        }
    }
    let mut pass = PassEdits::of(graph);
    for index in order.into_iter().filter(|index| folded[*index]) {
        let Some(value) = graph.output(index, 0) else { continue };
        let Some(made) = known.get(&value) else { continue };
        pass.remove(index);
        let node = graph.nodes[index];
        pass.did(format!("replaced {} with its constant value", node.label()));
        let found = &graph.values[value];
        if !found.used_in_subgraph && found.consumers.iter().all(|consumer| folded[consumer.node]) {
            continue;
        }
        match made.origin.map(|origin| graph.values[origin].name) {
            Some(name) if pass.replace_uses(value, name) => {
                pass.edit(Edit::RemoveValueInfo(name.to_owned()));
                pass.edit(Edit::ReplaceInitializer(TensorProto::new(name, &made.tensor)));
            }
            _ => pass.edit(Edit::AddInitializer(TensorProto::new(found.name, &made.tensor))),
        }
    }
    let changes = pass.finish();
    // Subgraphs capture what remains in the main graph, so they are folded last.
    Ok(if changes.edits.is_empty() { subgraphs::run(graph) } else { changes })
}

/// Evaluates a node if its output is constant and within the size limit. If `small` is true, inputs
/// must be small, too.
fn computed(
    graph: &Graph<'_>,
    index: usize,
    known: &HashMap<ValueId, ComputedValue>,
    small: bool,
) -> Option<(ValueId, ComputedValue)> {
    let node = graph.nodes[index];
    let value = graph.output(index, 0)?;
    if node.output.len() != 1 || graph.values[value].is_output {
        return None;
    }
    if let Some(tensor) = of_shapes(graph, index, value) {
        return Some((value, ComputedValue { tensor, origin: None }));
    }
    let inputs: Option<Vec<Option<Tensor>>> = (0..node.input.len())
        .map(|input| match graph.input(index, input) {
            None => node.input[input].is_empty().then_some(None),
            Some(value) => Some(Some(match known.get(&value) {
                Some(known) => known.tensor.clone(),
                None => fixed(graph, value)?,
            })),
        })
        .collect();
    let inputs = inputs?;
    if small && inputs.iter().flatten().any(|tensor| tensor.data.len() > MAX_GROWTH_BYTES) {
        return None;
    }
    let own = |input: usize| {
        graph.input(index, input).filter(|value| only_reader(graph, *value) == Some(index))
    };
    let freed = (0..inputs.len())
        .filter_map(|input| own(input).and(inputs[input].as_ref()))
        .fold(0usize, |all, tensor| all.saturating_add(tensor.data.len()));
    let tensor = evaluated(graph, node, &inputs, freed)?;
    let rearranges = REARRANGE.contains(&&*node.op_type);
    let apart = graph.model.proto().ir_version >= 4;
    let origin = own(0).filter(|_| rearranges && apart).and_then(|value| {
        let initializer = matches!(graph.values[value].producer, Producer::Initializer { .. });
        if initializer { Some(value) } else { known.get(&value)?.origin }
    });
    Some((value, ComputedValue { tensor, origin }))
}

/// Evaluates a node with constant inputs. `freed` is the size in bytes of the inputs that become
/// unused.
fn evaluated(
    graph: &Graph<'_>,
    node: &NodeProto,
    inputs: &[Option<Tensor>],
    freed: usize,
) -> Option<Tensor> {
    let evaluate = eval::operator(node)?;
    let opset = graph.model.opset("").unwrap_or(1);
    let growth = match node.op_type.as_str() {
        "Cast" | "CastLike" => MAX_COPY_GROWTH_BYTES,
        rearranges if REARRANGE.contains(&rearranges) => MAX_COPY_GROWTH_BYTES,
        "ConstantOfShape" | "Expand" | "Tile" => MAX_REPEATED_GROWTH_BYTES,
        _ => MAX_GROWTH_BYTES,
    };
    let limit = freed.saturating_add(growth);
    // Views share their bytes, but are subject to the limit as well.
    evaluate(&Call { node, opset, inputs, limit }).filter(|tensor| tensor.data.len() <= limit)
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
