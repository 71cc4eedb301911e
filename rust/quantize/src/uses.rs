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
    Weight { node: usize, input: usize, axis: Option<usize>, rank: usize, direct: bool },
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
            let mut uses = Vec::new();
            follow(graph, value, &View::of(&shape), true, &mut uses);
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

fn casts_to_float32(node: &NodeProto) -> bool {
    node.op_type == "Cast"
        && node.is_onnx()
        && node.int("to", 0) == i64::from(DataType::Float.number())
}

/// Collects the uses of a value that holds the constant as `view` shows it.
fn follow(graph: &Graph<'_>, value: ValueId, view: &View, direct: bool, uses: &mut Vec<Use>) {
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
            && let Some(next) = view.through(graph, reader.node)
            && let Some(output) = graph.output(reader.node, 0)
        {
            follow(graph, output, &next, false, uses);
            continue;
        }
        let rank = view.axes.len();
        uses.push(match ops::rule(node).map(|rule| rule.slot(reader.input)) {
            Some(Slot::Weight { axis } | Slot::Operand { axis }) => Use::Weight {
                node: reader.node,
                input: reader.input,
                axis: axis(node, rank).and_then(|axis| view.source_axis(axis)),
                rank,
                direct,
            },
            Some(Slot::Bias) if direct => Use::Bias { node: reader.node },
            _ => Use::Other { node: reader.node },
        });
    }
}

/// How rearranged axes relate to the constant: length and stride in its elements, axis by axis.
#[derive(Clone, Debug)]
struct View {
    axes: Vec<(usize, usize)>,
    source: Vec<(usize, usize)>,
}

impl View {
    fn of(shape: &[usize]) -> View {
        let axes = strided(shape);
        View { source: axes.clone(), axes }
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
                let axis = at(proto.int("axis", 1), self.axes.len() + 1)?;
                let lengths: Vec<usize> = self.axes.iter().map(|(length, _)| *length).collect();
                let (rows, columns) = lengths.split_at(axis);
                self.with_shape(&[rows.iter().product(), columns.iter().product()])
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
        let elements: usize = self.axes.iter().map(|(length, _)| length).product();
        let mut lengths = Vec::new();
        for (axis, length) in shape.iter().enumerate() {
            lengths.push(match *length {
                0 if !allow_zero => self.axes.get(axis)?.0,
                -1 => 0,
                length => usize::try_from(length).ok()?,
            });
        }
        if let Some(inferred) = shape.iter().position(|length| *length == -1) {
            let known: usize = lengths
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != inferred)
                .map(|(_, n)| n)
                .product();
            lengths[inferred] = elements.checked_div(known)?;
        }
        (lengths.iter().product::<usize>() == elements).then(|| self.with_shape(&lengths))?
    }

    /// The same elements in the same order under another shape; only while they are in order.
    fn with_shape(&self, shape: &[usize]) -> Option<View> {
        let lengths: Vec<usize> = self.axes.iter().map(|(length, _)| *length).collect();
        (self.axes == strided(&lengths))
            .then(|| View { axes: strided(shape), source: self.source.clone() })
    }
}

/// Axes of a tensor in C order: length and stride.
fn strided(shape: &[usize]) -> Vec<(usize, usize)> {
    let mut stride = 1;
    let mut axes: Vec<(usize, usize)> = shape
        .iter()
        .rev()
        .map(|length| {
            let axis = (*length, stride);
            stride *= length;
            axis
        })
        .collect();
    axes.reverse();
    axes
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
        let view = View::of(&[16, 4, 4, 10]).reshaped(&[256, 10], false).unwrap();
        assert_eq!(view.source_axis(1), Some(3));
        assert_eq!(view.source_axis(0), None);
    }

    #[test]
    fn a_transposed_axis_is_found_again() {
        let view = View::of(&[3, 5]);
        let view = View { axes: vec![view.axes[1], view.axes[0]], source: view.source };
        assert_eq!(view.source_axis(1), Some(0));
        assert!(view.reshaped(&[15], false).is_none(), "elements are no longer in order");
    }

    #[test]
    fn zero_and_minus_one_are_worked_out() {
        let view = View::of(&[6, 4]).reshaped(&[0, 2, -1], false).unwrap();
        assert_eq!(view.axes, [(6, 4), (2, 2), (2, 1)]);
        assert!(View::of(&[6, 4]).reshaped(&[5, -1], false).is_none());
    }
}
