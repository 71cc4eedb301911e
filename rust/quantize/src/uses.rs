//! Where a constant ends up: followed through nodes that only rearrange it, to the operators that
//! read it as a weight.

use quantize_rs_onnx::{DataType, NodeProto, TensorProto};

use crate::graph::{Graph, Maker, ValueId};
use crate::ops::{self, Slot};

/// A constant float tensor that could be quantized.
#[derive(Debug)]
pub(crate) struct Constant<'m> {
    /// The value that the dequantized tensor will take the name of: the constant itself, or the
    /// float32 output of a `Cast` of it.
    pub(crate) anchor: ValueId,
    /// The elements, in the layout of the anchor.
    pub(crate) tensor: &'m TensorProto,
    /// The shape of the anchor.
    pub(crate) shape: Vec<usize>,
    /// How it is read.
    pub(crate) uses: Vec<Use>,
}

/// One way in which a constant is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// As the weight of a node. `axis` is the constant's own axis of output channels, when one
    /// axis of it is that.
    Weight { node: usize, axis: Option<usize>, rank: usize },
    /// As the bias of a node.
    Bias { node: usize },
    /// By a node that has no use for integers here.
    Other { node: usize },
    /// As an output of the model.
    Output,
    /// By a graph inside a node.
    Captured,
}

/// Every constant tensor of the graph, in the order of its values.
pub(crate) fn constants<'m>(graph: &Graph<'m>) -> Vec<Constant<'m>> {
    (0..graph.values.len())
        .filter_map(|value| {
            let (tensor, shape) = anchored(graph, value)?;
            let uses = follow(graph, value, &shape);
            Some(Constant { anchor: value, tensor, shape, uses })
        })
        .collect()
}

/// The tensor behind an anchor, and the anchor's shape.
fn anchored<'m>(graph: &Graph<'m>, value: ValueId) -> Option<(&'m TensorProto, Vec<usize>)> {
    if let Some(tensor) = graph.constant(value) {
        // A half-precision constant that is only cast to float32 is quantized after the cast.
        if tensor.dtype() != Some(DataType::Float) && only_cast(graph, value) {
            return None;
        }
        let shape: Option<Vec<usize>> =
            tensor.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        return Some((tensor, shape?));
    }
    let Maker::Node { node, .. } = graph.values[value].maker else { return None };
    if !casts_to_float32(graph.nodes[node]) {
        return None;
    }
    let source = graph.input(node, 0)?;
    let (tensor, shape) = (graph.constant(source)?, graph.shape(source)?);
    if matches!(graph.values[source].maker, Maker::Initializer { overridable: true, .. }) {
        return None;
    }
    let widens =
        matches!(tensor.dtype(), Some(DataType::Float16 | DataType::BFloat16 | DataType::Double));
    widens.then_some(())?;
    Some((tensor, shape.into_iter().collect::<Option<_>>()?))
}

fn only_cast(graph: &Graph<'_>, value: ValueId) -> bool {
    let value = &graph.values[value];
    !value.captured
        && !value.is_output
        && !value.readers.is_empty()
        && value.readers.iter().all(|reader| casts_to_float32(graph.nodes[reader.node]))
}

/// Whether a node makes float32 of another type.
pub(crate) fn casts_to_float32(node: &NodeProto) -> bool {
    node.op_type == "Cast"
        && node.is_onnx()
        && node.int("to", 0) == i64::from(DataType::Float.number())
}

/// Whether a node gives the elements of its first input another order or shape.
pub(crate) fn rearranges(node: &NodeProto) -> bool {
    let op_types = ["Identity", "Transpose", "Reshape", "Flatten"];
    node.is_onnx() && op_types.contains(&&*node.op_type)
}

/// The constant that a value is, or is rearranged from.
pub(crate) fn rearranged_from(graph: &Graph<'_>, mut value: ValueId) -> Option<ValueId> {
    while graph.constant(value).is_none() {
        let Maker::Node { node, .. } = graph.values[value].maker else { return None };
        value = graph.input(node, 0).filter(|_| rearranges(graph.nodes[node]))?;
    }
    Some(value)
}

/// The nodes that rearrange a value one after the other, each of which alone reads what comes to it.
pub(crate) fn rearranging(graph: &Graph<'_>, anchor: ValueId) -> Vec<usize> {
    let mut chain = Vec::new();
    let mut value = anchor;
    loop {
        let found = &graph.values[value];
        let [reader] = found.readers[..] else { return chain };
        let node = graph.nodes[reader.node];
        let next = graph.output(reader.node, 0).filter(|_| {
            rearranges(node) && reader.input == 0 && !found.captured && !found.is_output
        });
        let Some(next) = next else { return chain };
        chain.push(reader.node);
        value = next;
    }
}

/// How a constant of this shape is read, through all nodes that only rearrange it.
fn follow(graph: &Graph<'_>, anchor: ValueId, shape: &[usize]) -> Vec<Use> {
    let mut uses = Vec::new();
    // A list, not a recursion: a chain of a million nodes must not exhaust the stack. What has no
    // elements, or a shape that overflows, is not followed.
    let view = View::of(shape).filter(|_| !shape.contains(&0));
    let mut waiting = vec![(anchor, view, true)];
    while let Some((value, view, direct)) = waiting.pop() {
        let found = &graph.values[value];
        if found.is_output {
            uses.push(Use::Output);
        }
        if found.captured {
            uses.push(Use::Captured);
        }
        for reader in &found.readers {
            let node = graph.nodes[reader.node];
            if reader.input == 0
                && let Some(next) = view.as_ref().and_then(|view| view.through(graph, reader.node))
                && let Some(output) = graph.output(reader.node, 0)
            {
                waiting.push((output, Some(next), false));
                continue;
            }
            let slot = ops::rule(node).map(|rule| rule.slot(reader.input));
            uses.push(match (slot, &view) {
                (Some(Slot::Weight { axis } | Slot::Operand { axis }), Some(view)) => {
                    let rank = view.axes.len();
                    let axis = axis(node, rank).and_then(|axis| view.source_axis(axis));
                    Use::Weight { node: reader.node, axis, rank }
                }
                (Some(Slot::Bias), _) if direct => Use::Bias { node: reader.node },
                _ => Use::Other { node: reader.node },
            });
        }
    }
    uses
}

/// How rearranged axes relate to the constant: length and stride in its elements, axis by axis.
#[derive(Clone, Debug)]
struct View {
    axes: Vec<(usize, usize)>,
    source: Vec<(usize, usize)>,
}

impl View {
    /// `None` for a shape with more elements than can be counted.
    fn of(shape: &[usize]) -> Option<View> {
        let axes = strided(shape)?;
        Some(View { source: axes.clone(), axes })
    }

    /// The axis of the constant that is exactly `axis` of the view.
    fn source_axis(&self, axis: usize) -> Option<usize> {
        let wanted = self.axes.get(axis)?;
        self.source.iter().position(|axis| axis == wanted)
    }

    /// The view after a node that only rearranges its input 0; `None` for other nodes.
    fn through(&self, graph: &Graph<'_>, node: usize) -> Option<View> {
        let proto = graph.nodes[node];
        if !proto.is_onnx() {
            return None;
        }
        match proto.op_type.as_str() {
            "Identity" => Some(self.clone()),
            "Transpose" => self.transposed(proto),
            "Reshape" => self.reshaped(&ints(graph, node, 1)?, proto.int("allowzero", 0) != 0),
            "Flatten" => {
                let (axis, rank) = (proto.int("axis", 1), self.axes.len());
                let axis = if usize::try_from(axis) == Ok(rank) { rank } else { at(axis, rank)? };
                let lengths = self.lengths();
                let (rows, columns) = lengths.split_at(axis);
                self.with_shape(&[product(rows)?, product(columns)?])
            }
            _ => None,
        }
    }

    fn transposed(&self, node: &NodeProto) -> Option<View> {
        let rank = self.axes.len();
        let order: Vec<usize> = match node.attribute("perm") {
            None => (0..rank).rev().collect(),
            Some(perm) => perm.ints.iter().map(|axis| at(*axis, rank)).collect::<Option<_>>()?,
        };
        let axes = order.iter().map(|axis| self.axes[*axis]).collect();
        (order.len() == rank).then(|| View { axes, source: self.source.clone() })
    }

    fn reshaped(&self, shape: &[i64], allow_zero: bool) -> Option<View> {
        let elements = product(&self.lengths())?;
        let mut lengths = Vec::new();
        for (axis, length) in shape.iter().enumerate() {
            lengths.push(match *length {
                0 if !allow_zero => self.axes.get(axis)?.0,
                -1 => 0,
                length => usize::try_from(length).ok()?,
            });
        }
        if let Some(inferred) = shape.iter().position(|length| *length == -1) {
            lengths[inferred] = 1;
            lengths[inferred] = elements.checked_div(product(&lengths)?)?;
        }
        (product(&lengths)? == elements).then(|| self.with_shape(&lengths))?
    }

    /// The same elements in the same order under another shape; only while they are in order.
    fn with_shape(&self, shape: &[usize]) -> Option<View> {
        let in_order = strided(&self.lengths())? == self.axes;
        in_order.then_some(View { axes: strided(shape)?, source: self.source.clone() })
    }

    fn lengths(&self) -> Vec<usize> {
        self.axes.iter().map(|(length, _)| *length).collect()
    }
}

/// Number of elements; `None` when they cannot be counted.
fn product(lengths: &[usize]) -> Option<usize> {
    lengths.iter().try_fold(1usize, |product, length| product.checked_mul(*length))
}

/// Axes of a tensor in C order: length and stride.
fn strided(shape: &[usize]) -> Option<Vec<(usize, usize)>> {
    let mut stride = 1usize;
    let mut axes = Vec::with_capacity(shape.len());
    for length in shape.iter().rev() {
        axes.push((*length, stride));
        stride = stride.checked_mul(*length)?;
    }
    axes.reverse();
    Some(axes)
}

/// An axis counted from either end.
fn at(axis: i64, rank: usize) -> Option<usize> {
    let signed = i64::try_from(rank).ok()?;
    usize::try_from(if axis < 0 { axis + signed } else { axis }).ok().filter(|axis| *axis < rank)
}

/// The integers of a constant int64 input.
fn ints(graph: &Graph<'_>, node: usize, input: usize) -> Option<Vec<i64>> {
    let tensor = graph.constant(graph.input(node, input)?)?;
    let tensor = graph.model.tensor(tensor).ok()?;
    (tensor.dtype == DataType::Int64).then(|| {
        tensor.data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reshape_that_merges_leading_axes_keeps_the_last() {
        let view = View::of(&[16, 4, 4, 10]).unwrap().reshaped(&[256, 10], false).unwrap();
        assert_eq!(view.source_axis(1), Some(3));
        assert_eq!(view.source_axis(0), None);
    }

    #[test]
    fn shapes_that_cannot_be_counted_are_no_views() {
        assert!(View::of(&[1 << 40, 1 << 40]).is_none());
        assert!(View::of(&[2, 2]).unwrap().reshaped(&[1 << 62, 4], false).is_none());
    }

    #[test]
    fn a_transposed_axis_is_found_again() {
        let view = View::of(&[3, 5]).unwrap();
        let view = View { axes: vec![view.axes[1], view.axes[0]], source: view.source };
        assert_eq!(view.source_axis(1), Some(0));
        assert!(view.reshaped(&[15], false).is_none(), "elements are no longer in order");
    }

    #[test]
    fn zero_and_minus_one_are_worked_out() {
        let view = View::of(&[6, 4]).unwrap().reshaped(&[0, 2, -1], false).unwrap();
        assert_eq!(view.axes, [(6, 4), (2, 2), (2, 1)]);
        assert!(View::of(&[6, 4]).unwrap().reshaped(&[5, -1], false).is_none());
    }
}
