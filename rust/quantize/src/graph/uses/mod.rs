//! Finds the operators that use a constant as a weight, through nodes that only rearrange the
//! constant and into subgraphs.

mod subgraphs;
mod view;

use quantize_rs_onnx::{DataType, GraphProto, NodeProto, TensorProto};

use super::ops;
use super::ops::Slot;
use crate::graph::constants::{fixed, ints};
use crate::graph::{Consumer, Graph, Producer, ValueId};
pub(crate) use subgraphs::{Read, Subgraphs, made};
use view::View;

/// A constant floating-point tensor that could be quantized.
#[derive(Debug)]
pub(crate) struct Constant<'m> {
    /// The value whose name the dequantized tensor takes: the constant itself, or the output of a
    /// `Cast` of the constant.
    pub(crate) anchor: ValueId,
    /// The elements, in the layout of the anchor.
    pub(crate) tensor: &'m TensorProto,
    /// The type of the anchor: the type of the constant, or the type that it is cast to.
    pub(crate) dtype: Option<DataType>,
    /// The shape of the anchor.
    pub(crate) shape: Vec<usize>,
    /// How the constant is used.
    pub(crate) uses: Vec<Use<'m>>,
    /// The consumers in the main graph that use the anchor only as a weight.
    pub(crate) weighing: Vec<Consumer>,
    /// For each use, the consumer in the main graph through which it was reached.
    by: Vec<Option<Consumer>>,
}

/// One use of a constant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use<'m> {
    /// As the weight at this input of a node. `channels` locates the output channels in the
    /// constant, if the constant has any; `batched` is true if they are the last of three or more
    /// axes at the node.
    Weight { node: usize, input: usize, channels: Option<Along>, batched: bool },
    /// As the weight at this input of a node in a subgraph. `body` is the position of the subgraph
    /// in [`Subgraphs::all`].
    Inside {
        body: usize,
        node: &'m NodeProto,
        input: usize,
        channels: Option<Along>,
        batched: bool,
    },
    /// As the weight of a node that the options leave in float; in the main graph, its position.
    Float { node: &'m NodeProto, index: Option<usize> },
    /// As the bias of a node.
    Bias { node: usize },
    /// By a node that cannot use a quantized tensor here.
    Other { node: usize },
    /// As an output of the model.
    Output,
    /// By a subgraph that cannot use a quantized tensor here.
    Captured,
}

/// A node that multiplies by a constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiplier<'m> {
    pub(crate) node: &'m NodeProto,
    /// Its position in the main graph; `None` in a subgraph.
    pub(crate) index: Option<usize>,
    /// The position of its subgraph in [`Subgraphs::all`]; `None` in the main graph.
    pub(crate) body: Option<usize>,
    /// The input that is the constant, directly or rearranged.
    pub(crate) input: usize,
    pub(crate) channels: Option<Along>,
    pub(crate) batched: bool,
}

impl<'m> Use<'m> {
    /// The node that multiplies by the constant, if this use is one.
    pub(crate) fn multiplier(&self, graph: &Graph<'m>) -> Option<Multiplier<'m>> {
        match *self {
            Use::Weight { node: index, input, channels, batched } => {
                let (node, index) = (graph.nodes[index], Some(index));
                Some(Multiplier { node, index, body: None, input, channels, batched })
            }
            Use::Inside { body, node, input, channels, batched } => {
                let (index, body) = (None, Some(body));
                Some(Multiplier { node, index, body, input, channels, batched })
            }
            _ => None,
        }
    }
}

/// Where a constant has its output channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    /// Along this axis of the constant.
    Axis(usize),
    /// Each row of the last axis is one channel. Holds the number of rows.
    Rows(usize),
}

impl<'m> Constant<'m> {
    /// The names that refer to the constant: the name of the anchor and, if a `Cast` produces the
    /// anchor, the name of its input.
    pub(crate) fn names(&self, graph: &Graph<'m>) -> Vec<&'m str> {
        let anchor = &graph.values[self.anchor];
        let source = match anchor.producer {
            Producer::Node { node, .. } => graph.input(node, 0),
            _ => None,
        };
        let source = source.map(|source| graph.values[source].name);
        std::iter::once(anchor.name).chain(source).collect()
    }

    /// The nodes that multiply by the constant, including those in subgraphs.
    pub(crate) fn multipliers(&self, graph: &Graph<'m>) -> impl Iterator<Item = &'m NodeProto> {
        self.uses.iter().filter_map(|usage| Some(usage.multiplier(graph)?.node))
    }

    /// Whether any node multiplies by the constant, be it in float.
    pub(crate) fn is_weight(&self) -> bool {
        let is_weight = |usage: &Use<'_>| {
            matches!(usage, Use::Weight { .. } | Use::Inside { .. } | Use::Float { .. })
        };
        self.uses.iter().any(is_weight)
    }

    /// Leaves nodes that multiply by the constant in float.
    pub(crate) fn leave_float(
        &mut self,
        graph: &Graph<'m>,
        is_left: impl Fn(&Multiplier<'m>) -> bool,
    ) {
        for (usage, by) in self.uses.iter_mut().zip(&self.by) {
            let left = usage.multiplier(graph).filter(|multiplier| is_left(multiplier));
            let Some(Multiplier { node, index, .. }) = left else { continue };
            *usage = Use::Float { node, index };
            self.weighing.retain(|consumer| Some(*consumer) != *by);
        }
    }

    /// Whether the options leave a node in float that multiplies by the constant.
    pub(crate) fn stays_float(&self) -> bool {
        self.uses.iter().any(|usage| matches!(usage, Use::Float { .. }))
    }

    /// Whether a node of a subgraph reads the anchor itself as a weight.
    pub(crate) fn weighs_inside(&self, graph: &Graph<'m>) -> bool {
        let mut multipliers = self.uses.iter().filter_map(|usage| usage.multiplier(graph));
        let name = graph.values[self.anchor].name;
        multipliers.any(|found| found.body.is_some() && found.node.input[found.input] == name)
    }
}

/// All constant tensors of the graph, in the order of the graph's values.
pub(crate) fn constants<'m>(graph: &Graph<'m>) -> Vec<Constant<'m>> {
    let bodies = Subgraphs::of(graph);
    (0..graph.values.len())
        .filter_map(|value| {
            let (tensor, shape) = anchored(graph, value)?;
            let (uses, by, weighing) = Uses { graph, bodies: &bodies }.of(value, &shape);
            let dtype = float_type(graph, value);
            Some(Constant { anchor: value, tensor, dtype, shape, uses, weighing, by })
        })
        .collect()
}

/// The weights that are defined in subgraphs: the subgraph, the tensor, and its name there.
pub(crate) fn inside<'m>(
    graph: &Graph<'m>,
    bodies: &Subgraphs<'m>,
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
            // A subgraph cannot output a value that it captures from an outer graph.
            let handed_out = bodies.reads(index, name).iter().any(|read| read.by.is_none());
            if let Some(shape) = shape.filter(|_| tensor.is_float() && !handed_out)
                && uses.weighed(At::Inside(index, name), &shape)
            {
                found.push((index, tensor, name));
            }
        }
    }
    found
}

/// The floating-point constants with two axes or more that subgraphs define: the subgraph, and the
/// tensor with its name there.
pub(crate) fn tensors_inside<'m>(
    graph: &Graph<'m>,
) -> Vec<(&'m GraphProto, &'m str, &'m TensorProto)> {
    let bodies = Subgraphs::of(graph);
    let mut found = Vec::new();
    for body in &bodies.all {
        let initializers = body.graph.initializer.iter().map(|tensor| tensor.name.as_str());
        let made = body.graph.node.iter().filter_map(|node| node.output.first());
        for name in initializers.chain(made.map(String::as_str)) {
            let tensor = body.own.get(name).copied().flatten();
            let large = |tensor: &&TensorProto| {
                tensor.is_float() && tensor.dims.iter().filter(|length| **length > 1).count() > 1
            };
            found.extend(tensor.filter(large).map(|tensor| (body.graph, name, tensor)));
        }
    }
    found
}

/// The size in bytes of a floating-point constant in the file. A constant whose only use is a
/// `Cast` counts for the output of the `Cast`.
pub(crate) fn bytes(graph: &Graph<'_>, value: ValueId) -> Option<u64> {
    if let Some(tensor) = graph.constant(value).filter(|tensor| !tensor.is_float()) {
        return byte_len(tensor);
    }
    byte_len(anchored(graph, value)?.0)
}

pub(crate) fn byte_len(tensor: &TensorProto) -> Option<u64> {
    let mut lengths = tensor.dims.iter().map(|length| usize::try_from(*length).ok());
    let elements = lengths.try_fold(1_usize, |all, length| all.checked_mul(length?))?;
    tensor.dtype()?.byte_len(elements).map(|bytes| bytes as u64)
}

/// The element type of an anchor.
pub(crate) fn float_type(graph: &Graph<'_>, anchor: ValueId) -> Option<DataType> {
    match (graph.constant(anchor), graph.values[anchor].producer) {
        (None, Producer::Node { node, .. }) => casts(graph.nodes[node]),
        (tensor, _) => tensor?.dtype(),
    }
}

/// The tensor behind an anchor, and the shape of the anchor.
fn anchored<'m>(graph: &Graph<'m>, value: ValueId) -> Option<(&'m TensorProto, Vec<usize>)> {
    if let Some(tensor) = graph.constant(value) {
        // If every consumer is a `Cast`, the output of the `Cast` is quantized instead.
        if tensor.is_float() && only_cast(graph, value) {
            return None;
        }
        let shape: Option<Vec<usize>> =
            tensor.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        return Some((tensor, shape?));
    }
    let Producer::Node { node, .. } = graph.values[value].producer else { return None };
    casts(graph.nodes[node])?;
    let source = graph.input(node, 0)?;
    let (tensor, shape) = (graph.fixed_constant(source)?, graph.shape(source)?);
    tensor.is_float().then_some(())?;
    Some((tensor, shape.into_iter().collect::<Option<_>>()?))
}

fn only_cast(graph: &Graph<'_>, value: ValueId) -> bool {
    let value = &graph.values[value];
    !value.is_read_outside()
        && !value.consumers.is_empty()
        && value.consumers.iter().all(|consumer| casts(graph.nodes[consumer.node]).is_some())
}

/// The floating-point type that a node casts to, if the node is such a `Cast`.
pub(crate) fn casts(node: &NodeProto) -> Option<DataType> {
    let to = || DataType::from_number(i32::try_from(node.int("to", 0)).ok()?);
    let casts = node.op_type == "Cast" && node.is_onnx();
    to().filter(|to| casts && to.is_float())
}

/// Whether a node casts to float32.
pub(crate) fn casts_to_float32(node: &NodeProto) -> bool {
    casts(node) == Some(DataType::Float)
}

/// Whether the axis of output channels is shared by several groups.
pub(crate) fn groups_outputs(node: &NodeProto) -> bool {
    node.op_type == "ConvTranspose" && node.int("group", 1) != 1
}

/// Whether a node only changes the order or shape of its first input.
pub(crate) fn rearranges(node: &NodeProto) -> bool {
    let op_types = ["Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"];
    node.is_onnx() && op_types.contains(&&*node.op_type)
}

/// The constant that a value is, or is rearranged from.
pub(crate) fn rearranged_from(graph: &Graph<'_>, mut value: ValueId) -> Option<ValueId> {
    while graph.constant(value).is_none() {
        let Producer::Node { node, .. } = graph.values[value].producer else { return None };
        value = graph.input(node, 0).filter(|_| rearranges(graph.nodes[node]))?;
    }
    Some(value)
}

/// The chain of nodes that rearrange a value one after the other. Each node is the only consumer of
/// its input; only the anchor itself may have other consumers.
pub(crate) fn rearranging(graph: &Graph<'_>, anchor: ValueId) -> Vec<usize> {
    let mut chain = Vec::new();
    let mut value = anchor;
    loop {
        let found = &graph.values[value];
        let moves = |consumer: &Consumer| rearranges(graph.nodes[consumer.node]);
        let mut consumers =
            found.consumers.iter().filter(|consumer| value != anchor || moves(consumer));
        let (Some(consumer), None) = (consumers.next(), consumers.next()) else { return chain };
        let next = graph
            .output(consumer.node, 0)
            .filter(|_| moves(consumer) && consumer.input == 0 && !found.is_read_outside());
        let Some(next) = next else { return chain };
        chain.push(consumer.node);
        value = next;
    }
}

/// A value between a constant and its uses.
#[derive(Clone, Copy)]
enum At<'m> {
    /// A value of the main graph.
    Outside(ValueId),
    /// A value of a subgraph.
    Inside(usize, &'m str),
}

/// Follows constants to their uses.
struct Uses<'g, 'm> {
    graph: &'g Graph<'m>,
    bodies: &'g Subgraphs<'m>,
}

/// A value that is still to be visited.
struct Visit<'m> {
    at: At<'m>,
    /// How its axes relate to those of the constant, if that is known.
    view: Option<View>,
    /// Whether the value is the constant itself.
    direct: bool,
    /// The consumer of the constant through which the value was reached.
    by: Option<Consumer>,
}

impl<'m> Uses<'_, 'm> {
    /// The uses of a constant of this shape, through all nodes that only rearrange it, the consumer
    /// through which each was reached, and the consumers that use it only as a weight.
    fn of(
        &self,
        anchor: ValueId,
        shape: &[usize],
    ) -> (Vec<Use<'m>>, Vec<Option<Consumer>>, Vec<Consumer>) {
        let mut spoilt = Vec::new();
        let uses = self.from(At::Outside(anchor), shape);
        for (usage, by) in &uses {
            if !matches!(usage, Use::Weight { .. } | Use::Inside { .. }) {
                spoilt.extend(*by);
            }
        }
        let weighing = self.graph.values[anchor].consumers.iter().copied();
        let weighing = weighing.filter(|consumer| !spoilt.contains(consumer)).collect();
        let (uses, by) = uses.into_iter().unzip();
        (uses, by, weighing)
    }

    /// Whether any node uses the value as a weight.
    fn weighed(&self, at: At<'m>, shape: &[usize]) -> bool {
        self.from(at, shape).iter().any(|(usage, _)| matches!(usage, Use::Inside { .. }))
    }

    /// The uses of a constant of this shape, each with the consumer of the constant through which
    /// it was reached.
    fn from(&self, at: At<'m>, shape: &[usize]) -> Vec<(Use<'m>, Option<Consumer>)> {
        let mut uses = Vec::new();
        // An explicit stack instead of recursion: a chain of a million nodes must not overflow the
        // call stack. Constants without elements, or whose shape overflows, are not followed.
        let view = View::of(shape).filter(|_| !shape.contains(&0));
        let mut waiting = vec![Visit { at, view, direct: true, by: None }];
        while let Some(visit) = waiting.pop() {
            self.step(&visit, &mut uses, &mut waiting);
        }
        uses
    }

    /// Records the uses of a value, and queues the values that it is rearranged to.
    fn step(
        &self,
        visit: &Visit<'m>,
        uses: &mut Vec<(Use<'m>, Option<Consumer>)>,
        next: &mut Vec<Visit<'m>>,
    ) {
        let Uses { graph, bodies } = self;
        let inside = match visit.at {
            At::Outside(value) => {
                let found = &graph.values[value];
                if found.is_output {
                    uses.push((Use::Output, visit.by));
                }
                for consumer in &found.consumers {
                    let (node, by) = (graph.nodes[consumer.node], visit.by.or(Some(*consumer)));
                    let ints = |input| ints(&fixed(graph, graph.input(consumer.node, input)?)?);
                    let seen = || visit.view.as_ref()?.through(node, ints);
                    if consumer.input == 0
                        && let Some(view) = seen()
                        && let Some(output) = graph.output(consumer.node, 0)
                    {
                        let (at, view) = (At::Outside(output), Some(view));
                        next.push(Visit { at, view, direct: false, by });
                        continue;
                    }
                    let is_weight = !gathers_scales(graph, consumer.node);
                    let weight = weight(node, consumer.input, visit.view.as_ref());
                    let usage = match weight.filter(|_| is_weight) {
                        Some((channels, batched)) => {
                            let Consumer { node, input } = *consumer;
                            Use::Weight { node, input, channels, batched }
                        }
                        None if visit.direct && is_bias(node, consumer.input) => {
                            Use::Bias { node: consumer.node }
                        }
                        None => Use::Other { node: consumer.node },
                    };
                    uses.push((usage, by));
                }
                bodies.captured(found.name)
            }
            At::Inside(body, name) => bodies.reads(body, name),
        };
        for Read { body, by: consumer } in inside.iter().copied() {
            let Some((node, input)) = consumer else {
                uses.push((Use::Captured, visit.by));
                continue;
            };
            let constant = |input: usize| {
                let name = node.input.get(input)?;
                ints(&graph.model.tensor(bodies.constant(graph, body, name)?).ok()?)
            };
            let seen = || visit.view.as_ref()?.through(node, constant);
            if input == 0
                && let Some(view) = seen()
                && let Some(output) = node.output.first()
            {
                let (at, view) = (At::Inside(body, output), Some(view));
                next.push(Visit { at, view, direct: false, by: visit.by });
                continue;
            }
            // Only nodes of the main graph were checked when the graph was made.
            let valid = ops::check_arity(node).is_ok();
            let usage = match weight(node, input, visit.view.as_ref()).filter(|_| valid) {
                Some((channels, batched)) => Use::Inside { body, node, input, channels, batched },
                None => Use::Captured,
            };
            uses.push((usage, visit.by));
        }
    }
}

/// Whether a node looks up the scales or zero points of the rows of a quantized table, which
/// another node looks up: they dequantize, and are no weight.
fn gathers_scales(graph: &Graph<'_>, node: usize) -> bool {
    let is_gather =
        |node: usize| graph.nodes[node].is_onnx() && graph.nodes[node].op_type == "Gather";
    let Some(output) = graph.output(node, 0).filter(|_| is_gather(node)) else { return false };
    // The rows as integers, converted to floats.
    let is_integer = |value: ValueId| {
        let Producer::Node { node: cast, .. } = graph.values[value].producer else { return false };
        let rows = graph.input(cast, 0).filter(|_| casts(graph.nodes[cast]).is_some());
        rows.is_some_and(|rows| match graph.values[rows].producer {
            Producer::Node { node, .. } if is_gather(node) => {
                let table = graph.input(node, 0).and_then(|table| graph.constant_behind(table));
                table.is_some_and(|table| !table.is_float())
            }
            _ => false,
        })
    };
    let dequantizes = |consumer: &Consumer| {
        let node = graph.nodes[consumer.node];
        let other = || {
            let other = graph.input(consumer.node, 1_usize.checked_sub(consumer.input)?)?;
            is_integer(other).then_some(())
        };
        match node.op_type.as_str() {
            "DequantizeLinear" => consumer.input > 0,
            "Mul" => node.is_onnx() && other().is_some(),
            _ => false,
        }
    };
    let found = &graph.values[output];
    !found.is_read_outside()
        && !found.consumers.is_empty()
        && found.consumers.iter().all(dequantizes)
}

/// The output channels of a weight at this input of the node, and whether they are the last of
/// three or more axes; `None` if the input is not a weight.
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

/// Treats each row of the last axis as a channel. Uses a plain axis where all axes before it have
/// length 1, as in recurrent operators with one direction.
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
