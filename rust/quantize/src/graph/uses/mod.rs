//! Where a constant ends up: followed through nodes that only rearrange it, and into the graphs
//! inside nodes, to the operators that read it as a weight.

mod subgraphs;
mod view;

use quantize_rs_onnx::{DataType, NodeProto, TensorProto};

use super::ops;
use super::ops::Slot;
use crate::graph::{Graph, Maker, Reader, ValueId};
use subgraphs::Read;
pub(crate) use subgraphs::{Bodies, made};
use view::View;

/// A constant float tensor that could be quantized.
#[derive(Debug)]
pub(crate) struct Constant<'m> {
    /// The value that the dequantized tensor will take the name of: the constant itself, or the
    /// output of a `Cast` of it.
    pub(crate) anchor: ValueId,
    /// The elements, in the layout of the anchor.
    pub(crate) tensor: &'m TensorProto,
    /// The type of the anchor: of the constant, or what it is cast to.
    pub(crate) dtype: Option<DataType>,
    /// The shape of the anchor.
    pub(crate) shape: Vec<usize>,
    /// How it is read.
    pub(crate) uses: Vec<Use<'m>>,
    /// Those who read the anchor for nothing but a weight, in the main graph.
    pub(crate) weighing: Vec<Reader>,
}

/// One way in which a constant is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use<'m> {
    /// As the weight of a node. `channels` are where the constant has its output channels, if it
    /// has them anywhere; `batched` says that the node finds them on the last of three or more axes.
    Weight { node: usize, channels: Option<Along>, batched: bool },
    /// As the weight of a node in a graph inside a node.
    Inside { node: &'m NodeProto, channels: Option<Along> },
    /// As the bias of a node.
    Bias { node: usize },
    /// By a node that has no use for integers here.
    Other { node: usize },
    /// As an output of the model.
    Output,
    /// By a graph inside a node, which has no use for integers here.
    Captured,
}

/// Where the output channels of a constant are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    /// Along this axis of it.
    Axis(usize),
    /// Each is a row of its last axis; so many there are.
    Rows(usize),
}

impl<'m> Constant<'m> {
    /// What it may be called: as its anchor is, and as what a `Cast` makes that of.
    pub(crate) fn names(&self, graph: &Graph<'m>) -> Vec<&'m str> {
        let anchor = &graph.values[self.anchor];
        let source = match anchor.maker {
            Maker::Node { node, .. } => graph.input(node, 0),
            _ => None,
        };
        let source = source.map(|source| graph.values[source].name);
        std::iter::once(anchor.name).chain(source).collect()
    }

    /// The nodes that multiply by it, those in graphs inside nodes included.
    pub(crate) fn multipliers(&self, graph: &Graph<'m>) -> impl Iterator<Item = &'m NodeProto> {
        self.uses.iter().filter_map(|usage| match usage {
            Use::Weight { node, .. } => Some(graph.nodes[*node]),
            Use::Inside { node, .. } => Some(*node),
            _ => None,
        })
    }

    /// Whether some node multiplies by it.
    pub(crate) fn is_weight(&self) -> bool {
        self.uses.iter().any(|usage| matches!(usage, Use::Weight { .. } | Use::Inside { .. }))
    }
}

/// Every constant tensor of the graph, in the order of its values.
pub(crate) fn constants<'m>(graph: &Graph<'m>) -> Vec<Constant<'m>> {
    let bodies = Bodies::of(graph);
    (0..graph.values.len())
        .filter_map(|value| {
            let (tensor, shape) = anchored(graph, value)?;
            let (uses, weighing) = Uses { graph, bodies: &bodies }.of(value, &shape);
            let dtype = float_type(graph, value);
            Some(Constant { anchor: value, tensor, dtype, shape, uses, weighing })
        })
        .collect()
}

/// The weights that stand in bodies: the body, the tensor, and its name there.
pub(crate) fn inside<'m>(
    graph: &Graph<'m>,
    bodies: &Bodies<'m>,
) -> Vec<(usize, &'m TensorProto, &'m str)> {
    let uses = Uses { graph, bodies };
    let mut found = Vec::new();
    for (index, body) in bodies.all.iter().enumerate() {
        let initializers = body.graph.initializer.iter().map(|tensor| tensor.name.as_str());
        let made = body.graph.node.iter().filter_map(|node| node.output.first());
        for name in initializers.chain(made.map(String::as_str)) {
            let Some(tensor) = body.own.get(name).copied().flatten() else { continue };
            let shape: Option<Vec<usize>> =
                tensor.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
            // A graph cannot hand out what it reads from outside.
            let handed_out = bodies.reads(index, name).iter().any(|read| read.by.is_none());
            if let Some(shape) = shape.filter(|_| is_float(tensor) && !handed_out)
                && uses.weighed(At::Inside(index, name), &shape)
            {
                found.push((index, tensor, name));
            }
        }
    }
    found
}

/// The bytes of a constant of floats in the file: what is only cast counts for what it is cast to.
pub(crate) fn bytes(graph: &Graph<'_>, value: ValueId) -> Option<u64> {
    if let Some(tensor) = graph.constant(value).filter(|tensor| !is_float(tensor)) {
        return byte_len(tensor);
    }
    byte_len(anchored(graph, value)?.0)
}

fn byte_len(tensor: &TensorProto) -> Option<u64> {
    let mut lengths = tensor.dims.iter().map(|length| usize::try_from(*length).ok());
    let elements = lengths.try_fold(1_usize, |all, length| all.checked_mul(length?))?;
    tensor.dtype()?.byte_len(elements).map(|bytes| bytes as u64)
}

/// The element type of an anchor.
pub(crate) fn float_type(graph: &Graph<'_>, anchor: ValueId) -> Option<DataType> {
    match (graph.constant(anchor), graph.values[anchor].maker) {
        (None, Maker::Node { node, .. }) => casts(graph.nodes[node]),
        (tensor, _) => tensor?.dtype(),
    }
}

/// The tensor behind an anchor, and the anchor's shape.
fn anchored<'m>(graph: &Graph<'m>, value: ValueId) -> Option<(&'m TensorProto, Vec<usize>)> {
    if let Some(tensor) = graph.constant(value) {
        // A constant that is only cast is quantized after the cast.
        if is_float(tensor) && only_cast(graph, value) {
            return None;
        }
        let shape: Option<Vec<usize>> =
            tensor.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        return Some((tensor, shape?));
    }
    let Maker::Node { node, .. } = graph.values[value].maker else { return None };
    casts(graph.nodes[node])?;
    let source = graph.input(node, 0)?;
    let (tensor, shape) = (graph.constant(source)?, graph.shape(source)?);
    if matches!(graph.values[source].maker, Maker::Initializer { overridable: true, .. }) {
        return None;
    }
    is_float(tensor).then_some(())?;
    Some((tensor, shape.into_iter().collect::<Option<_>>()?))
}

fn only_cast(graph: &Graph<'_>, value: ValueId) -> bool {
    let value = &graph.values[value];
    !value.captured
        && !value.is_output
        && !value.readers.is_empty()
        && value.readers.iter().all(|reader| casts(graph.nodes[reader.node]).is_some())
}

/// The types of floats that weights are of.
pub(crate) const FLOATS: [DataType; 4] =
    [DataType::Float, DataType::Float16, DataType::BFloat16, DataType::Double];

fn is_float(tensor: &TensorProto) -> bool {
    tensor.dtype().is_some_and(|dtype| FLOATS.contains(&dtype))
}

/// The floats that a node makes of another type, if that is what it does.
pub(crate) fn casts(node: &NodeProto) -> Option<DataType> {
    let to = || DataType::from_number(i32::try_from(node.int("to", 0)).ok()?);
    let casts = node.op_type == "Cast" && node.is_onnx();
    to().filter(|to| casts && FLOATS.contains(to))
}

/// Whether a node makes float32 of another type.
pub(crate) fn casts_to_float32(node: &NodeProto) -> bool {
    casts(node) == Some(DataType::Float)
}

/// Whether the axis of output channels is the same for each of several groups.
pub(crate) fn groups_outputs(node: &NodeProto) -> bool {
    node.op_type == "ConvTranspose" && node.int("group", 1) != 1
}

/// Whether a node gives the elements of its first input another order or shape.
pub(crate) fn rearranges(node: &NodeProto) -> bool {
    let op_types = ["Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"];
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

/// The nodes that rearrange a value one after the other, each of which alone reads what comes to it;
/// the value itself others read too, as it is.
pub(crate) fn rearranging(graph: &Graph<'_>, anchor: ValueId) -> Vec<usize> {
    let mut chain = Vec::new();
    let mut value = anchor;
    loop {
        let found = &graph.values[value];
        let moves = |reader: &Reader| rearranges(graph.nodes[reader.node]);
        let mut readers = found.readers.iter().filter(|reader| value != anchor || moves(reader));
        let (Some(reader), None) = (readers.next(), readers.next()) else { return chain };
        let next = graph
            .output(reader.node, 0)
            .filter(|_| moves(reader) && reader.input == 0 && !found.captured && !found.is_output);
        let Some(next) = next else { return chain };
        chain.push(reader.node);
        value = next;
    }
}

/// A value on the way from a constant to those who read it.
#[derive(Clone, Copy)]
enum At<'m> {
    /// One of the main graph.
    Outside(ValueId),
    /// One of a body.
    Inside(usize, &'m str),
}

/// Follows constants.
struct Uses<'g, 'm> {
    graph: &'g Graph<'m>,
    bodies: &'g Bodies<'m>,
}

/// What is on the way.
struct Way<'m> {
    at: At<'m>,
    /// What the constant looks like there, where that is known.
    view: Option<View>,
    /// Whether it is the constant itself.
    direct: bool,
    /// The reader of the constant that it came by.
    by: Option<Reader>,
}

impl<'m> Uses<'_, 'm> {
    /// How a constant of this shape is read, through all nodes that only rearrange it, and by whom
    /// for nothing but a weight.
    fn of(&self, anchor: ValueId, shape: &[usize]) -> (Vec<Use<'m>>, Vec<Reader>) {
        let mut spoilt = Vec::new();
        let uses = self.from(At::Outside(anchor), shape);
        for (usage, by) in &uses {
            if !matches!(usage, Use::Weight { .. } | Use::Inside { .. }) {
                spoilt.extend(*by);
            }
        }
        let weighing = self.graph.values[anchor].readers.iter().copied();
        let weighing = weighing.filter(|reader| !spoilt.contains(reader)).collect();
        (uses.into_iter().map(|(usage, _)| usage).collect(), weighing)
    }

    /// Whether some node reads what is there as a weight.
    fn weighed(&self, at: At<'m>, shape: &[usize]) -> bool {
        self.from(at, shape).iter().any(|(usage, _)| matches!(usage, Use::Inside { .. }))
    }

    /// How a constant of this shape is read, each time with the reader of the constant itself that
    /// it came by.
    fn from(&self, at: At<'m>, shape: &[usize]) -> Vec<(Use<'m>, Option<Reader>)> {
        let mut uses = Vec::new();
        // A list, not a recursion: a chain of a million nodes must not exhaust the stack. What has
        // no elements, or a shape that overflows, is not followed.
        let view = View::of(shape).filter(|_| !shape.contains(&0));
        let mut waiting = vec![Way { at, view, direct: true, by: None }];
        while let Some(way) = waiting.pop() {
            self.step(&way, &mut uses, &mut waiting);
        }
        uses
    }

    /// Who reads a value, and what it is rearranged to.
    fn step(
        &self,
        way: &Way<'m>,
        uses: &mut Vec<(Use<'m>, Option<Reader>)>,
        next: &mut Vec<Way<'m>>,
    ) {
        let Uses { graph, bodies } = self;
        let inside = match way.at {
            At::Outside(value) => {
                let found = &graph.values[value];
                if found.is_output {
                    uses.push((Use::Output, way.by));
                }
                for reader in &found.readers {
                    let (node, by) = (graph.nodes[reader.node], way.by.or(Some(*reader)));
                    let ints =
                        |input| ints(graph, graph.constant(graph.input(reader.node, input)?)?);
                    let seen = || way.view.as_ref()?.through(node, ints);
                    if reader.input == 0
                        && let Some(view) = seen()
                        && let Some(output) = graph.output(reader.node, 0)
                    {
                        let (at, view) = (At::Outside(output), Some(view));
                        next.push(Way { at, view, direct: false, by });
                        continue;
                    }
                    let usage = match weight(node, reader.input, way.view.as_ref()) {
                        Some((channels, batched)) => {
                            Use::Weight { node: reader.node, channels, batched }
                        }
                        None if way.direct && is_bias(node, reader.input) => {
                            Use::Bias { node: reader.node }
                        }
                        None => Use::Other { node: reader.node },
                    };
                    uses.push((usage, by));
                }
                bodies.captured(found.name)
            }
            At::Inside(body, name) => bodies.reads(body, name),
        };
        for Read { body, by: reader } in inside.iter().copied() {
            let Some((node, input)) = reader else {
                uses.push((Use::Captured, way.by));
                continue;
            };
            let constant = |input: usize| {
                let name = node.input.get(input)?;
                ints(graph, bodies.constant(graph, body, name)?)
            };
            let seen = || way.view.as_ref()?.through(node, constant);
            if input == 0
                && let Some(view) = seen()
                && let Some(output) = node.output.first()
            {
                let (at, view) = (At::Inside(body, output), Some(view));
                next.push(Way { at, view, direct: false, by: way.by });
                continue;
            }
            let usage = match weight(node, input, way.view.as_ref()) {
                Some((channels, _)) => Use::Inside { node, channels },
                None => Use::Captured,
            };
            uses.push((usage, way.by));
        }
    }
}

/// The output channels of what a node reads as a weight, and whether they are the last of three or
/// more axes; `None` where it does not.
fn weight(node: &NodeProto, input: usize, view: Option<&View>) -> Option<(Option<Along>, bool)> {
    let (view, rule) = (view?, ops::rule(node)?);
    let (rank, mut batched) = (view.rank(), false);
    let along = match rule.slot(input) {
        Slot::Weight { axis } | Slot::Operand { axis } => {
            let axis = axis(node, rank);
            batched = rank > 2 && axis == Some(rank - 1);
            axis.and_then(|axis| view.source_axis(axis)).map(Along::Axis)
        }
        Slot::Rows => rows(view),
        _ => return None,
    };
    Some((along, batched))
}

/// Each row of the last axis is a channel: those of one axis, where all axes before it are of
/// length 1, as in recurrent operators of one direction.
fn rows(view: &View) -> Option<Along> {
    let rows = view.rows();
    let last = view.rank().checked_sub(2)?;
    match view.source_axis(last).filter(|_| rows == view.length(last)) {
        Some(axis) => Some(Along::Axis(axis)),
        None => rows.map(Along::Rows),
    }
}

fn is_bias(node: &NodeProto, input: usize) -> bool {
    ops::rule(node).is_some_and(|rule| matches!(rule.slot(input), Slot::Bias))
}

/// The integers of a constant.
fn ints(graph: &Graph<'_>, tensor: &TensorProto) -> Option<Vec<i64>> {
    let tensor = graph.model.tensor(tensor).ok()?;
    (tensor.dtype == DataType::Int64).then(|| {
        tensor.data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    })
}
