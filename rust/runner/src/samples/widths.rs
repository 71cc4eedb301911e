//! The length of the last axis of an input, where a constant that meets it determines it.

use quantize_rs::Graph;
use quantize_rs_onnx::NodeProto;

/// The maximum number of operators between an input and the constant.
const DEPTH: usize = 6;

/// Operators that compute element by element, with operands that broadcast.
const ELEMENTWISE: [&str; 6] = ["Add", "Cast", "Div", "Identity", "Mul", "Sub"];

/// The length of the last axis of an input with `rank` axes, if a constant determines it: the
/// weight of a recurrent operator or a matrix multiplication, or a vector that is added or
/// multiplied. `None` if there is none before an operator that moves the axis.
pub(super) fn last_axis(graph: &Graph<'_>, input: &str, rank: usize) -> Option<usize> {
    let (mut value, mut rank) = (graph.value(input)?, rank);
    for _ in 0..DEPTH {
        let readers = &graph.values[value].consumers;
        let known = readers.iter().find_map(|reader| length(graph, reader.node, reader.input));
        if known.is_some() {
            return known;
        }
        let next = readers.iter().find_map(|reader| {
            Some((kept(graph, reader.node, rank)?, graph.output(reader.node, 0)?))
        });
        (rank, value) = next?;
    }
    None
}

/// The length of the last axis of an operand of a node, as a constant operand requires it.
fn length(graph: &Graph<'_>, node: usize, place: usize) -> Option<usize> {
    let proto = graph.nodes[node];
    let shape = |input: usize| {
        let value = graph.input(node, input)?;
        let shape = graph.constant(value).and_then(|_| graph.shape(value))?;
        shape.into_iter().collect::<Option<Vec<usize>>>()
    };
    let found = match (proto.op_type.as_str(), place) {
        ("LSTM" | "GRU" | "RNN", 0) => shape(1)?.get(2).copied(),
        ("MatMul", 0) => shape(1)?.iter().rev().nth(1).copied(),
        ("Gemm", 0) if proto.int("transA", 0) == 0 => {
            shape(1)?.get(usize::from(proto.int("transB", 0) != 0)).copied()
        }
        (op_type, 0 | 1) if ELEMENTWISE.contains(&op_type) => shape(1 - place)?.last().copied(),
        _ => None,
    };
    // A single element broadcasts.
    found.filter(|length| *length > 1)
}

/// The rank of the output of a node that keeps the last axis of its first operand.
fn kept(graph: &Graph<'_>, node: usize, rank: usize) -> Option<usize> {
    let proto = graph.nodes[node];
    match proto.op_type.as_str() {
        op_type if ELEMENTWISE.contains(&op_type) => Some(rank),
        "Unsqueeze" => {
            let axes = axes(graph, node, proto)?;
            let all = rank + axes.len();
            axes.iter().all(|axis| !is_last(*axis, all)).then_some(all)
        }
        "Squeeze" => {
            let axes = axes(graph, node, proto)?;
            let keeps = axes.iter().all(|axis| !is_last(*axis, rank));
            rank.checked_sub(axes.len()).filter(|_| keeps)
        }
        _ => None,
    }
}

fn axes(graph: &Graph<'_>, node: usize, proto: &NodeProto) -> Option<Vec<i64>> {
    if let Some(found) = proto.attribute("axes") {
        return Some(found.ints.to_vec());
    }
    let tensor = graph.model.tensor(graph.constant(graph.input(node, 1)?)?).ok()?;
    Some(tensor.data.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
}

fn is_last(axis: i64, rank: usize) -> bool {
    axis == -1 || usize::try_from(axis).is_ok_and(|axis| axis + 1 >= rank)
}
