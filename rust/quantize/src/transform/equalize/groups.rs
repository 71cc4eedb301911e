//! Values whose channels can only be scaled together: those between products by constant weights,
//! joined by operators that pass a positive factor of a channel on.

use quantize_rs_onnx::Tensor;

use super::sets::Sets;
use crate::graph::clip;
use crate::graph::constants::{fixed, given, is_given};
use crate::graph::{Graph, Producer, ValueId};
use crate::transform::fold_batch_norm::product::Product;
use crate::util::axes::axis_of;

/// The position of the channels of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layout {
    pub(super) axis: usize,
    pub(super) rank: usize,
    pub(super) channels: usize,
    /// Whether each channel is a run of several positions of the axis.
    flattened: bool,
}

/// A product, and the groups of the channels that it reads and writes.
pub(super) struct Linked<'m> {
    pub(super) product: Product<'m>,
    pub(super) input: ValueId,
    pub(super) output: ValueId,
    pub(super) from: Option<usize>,
    pub(super) to: Option<usize>,
}

/// A constant with an element for each channel, which is scaled as the value beside it.
pub(super) struct Beside {
    pub(super) node: usize,
    pub(super) input: usize,
    pub(super) constant: ValueId,
    pub(super) value: ValueId,
}

/// A `Clip` with bounds other than 0.
pub(super) struct Clip {
    pub(super) node: usize,
    pub(super) input: ValueId,
    pub(super) bounds: [Option<f64>; 2],
}

/// The groups of a graph.
pub(super) struct Groups<'m> {
    pub(super) products: Vec<Linked<'m>>,
    pub(super) beside: Vec<Beside>,
    pub(super) clips: Vec<Clip>,
    /// The number of channels of each group.
    pub(super) channels: Vec<usize>,
    /// The group of each value, if it has one.
    pub(super) of: Vec<Option<usize>>,
    pub(super) layouts: Vec<Option<Layout>>,
}

struct Search<'g, 'm> {
    graph: &'g Graph<'m>,
    sets: Sets,
    layouts: Vec<Option<Layout>>,
    products: Vec<(Product<'m>, ValueId, ValueId)>,
    beside: Vec<Beside>,
    clips: Vec<Clip>,
    blocked: Vec<bool>,
}

impl<'m> Groups<'m> {
    /// The groups of all values whose channels can be scaled; without clips, those in which no
    /// `Clip` has to become other nodes.
    pub(super) fn of(graph: &Graph<'m>, with_clips: bool) -> Groups<'m> {
        let count = graph.values.len();
        let mut search = Search {
            graph,
            sets: Sets::new(count),
            layouts: vec![None; count],
            products: Vec::new(),
            beside: Vec::new(),
            clips: Vec::new(),
            blocked: vec![false; count],
        };
        for node in 0..graph.nodes.len() {
            if search.visit(node).is_none() {
                search.block(node);
            }
        }
        for (value, found) in graph.values.iter().enumerate() {
            let is_made = matches!(found.producer, Producer::Node { .. });
            search.blocked[value] |= found.is_output || found.used_in_subgraph || !is_made;
            search.blocked[value] |= search.layouts[value].is_none();
        }
        if !with_clips {
            for clip in &search.clips {
                search.blocked[clip.input] = true;
            }
        }
        search.finish()
    }
}

impl<'m> Search<'_, 'm> {
    /// Records what a node says about the channels of its values; `None` if it does not pass
    /// factors of channels on.
    fn visit(&mut self, node: usize) -> Option<()> {
        let proto = self.graph.nodes[node];
        let [_] = &proto.output[..] else { return None };
        let output = self.graph.output(node, 0)?;
        if matches!(proto.op_type.as_str(), "Conv" | "ConvTranspose" | "Gemm" | "MatMul") {
            return self.product(node, output);
        }
        // Before opset 7, attributes controlled broadcasting.
        if !proto.is_onnx() || self.graph.model.opset("").unwrap_or(1) < 8 {
            return None;
        }
        let input = self.graph.input(node, 0)?;
        match proto.op_type.as_str() {
            "Relu" | "LeakyRelu" | "Identity" => self.passes_on(input, output, Some),
            "PRelu" => {
                fixed(self.graph, self.graph.input(node, 1)?)?;
                self.passes_on(input, output, Some)
            }
            "MaxPool" | "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool" => {
                self.passes_on(input, output, |it| (it.axis == 1 && !it.flattened).then_some(it))
            }
            "ReduceMean" | "Squeeze" => self.without_axes(node, input, output),
            "Flatten" | "Reshape" => self.flatten(node, input, output),
            "Clip" => self.clip(node, input, output),
            "Add" | "Sub" | "Mul" | "Div" | "Min" | "Max" => self.binary(node, output),
            _ => None,
        }
    }

    fn product(&mut self, node: usize, output: ValueId) -> Option<()> {
        let graph = self.graph;
        let proto = graph.nodes[node];
        let product = Product::of(graph, node)?;
        let input = graph.input(node, 0)?;
        let rank = match proto.op_type.as_str() {
            "MatMul" => graph.shape(output)?.len(),
            "Gemm" => 2,
            _ => product.weight.shape.len(),
        };
        let axis = if proto.op_type == "MatMul" { rank.checked_sub(1)? } else { 1 };
        let reads = product.input_channels()?.count;
        product.biases()?;
        if axis == 0 || !product.owns_weight(graph) || graph.constant(input).is_some() {
            return None;
        }
        let channels = product.channels.count;
        self.layouts[output] = Some(Layout { axis, rank, channels, flattened: false });
        // What is read may be left alone while what is written is scaled.
        let fits = self.layouts[input].is_some_and(|it| {
            let whole = if it.flattened { reads % it.channels == 0 } else { reads == it.channels };
            whole && it.axis == axis && it.rank == rank
        });
        self.blocked[input] |= !fits;
        self.products.push((product, input, output));
        Some(())
    }

    /// A node that passes the channels of its input on.
    fn passes_on(
        &mut self,
        input: ValueId,
        output: ValueId,
        layout: impl Fn(Layout) -> Option<Layout>,
    ) -> Option<()> {
        self.layouts[output] = Some(layout(self.layouts[input]?)?);
        self.sets.join(input, output);
        Some(())
    }

    /// A node that removes axes, or makes them 1 long.
    fn without_axes(&mut self, node: usize, input: ValueId, output: ValueId) -> Option<()> {
        let proto = self.graph.nodes[node];
        if !is_given(self.graph, node, "axes", 1) {
            return None;
        }
        let axes = given(self.graph, node, "axes", 1)?;
        let keeps = proto.op_type == "ReduceMean" && proto.int("keepdims", 1) != 0;
        self.passes_on(input, output, |it| {
            let axes = axes.iter().map(|axis| axis_of(*axis, it.rank));
            let axes: Vec<usize> = axes.collect::<Option<_>>()?;
            let moves = it.flattened || axes.is_empty() || axes.contains(&it.axis);
            let before = axes.iter().filter(|axis| **axis < it.axis).count();
            let gone = if keeps { [0, 0] } else { [before, axes.len()] };
            let (axis, rank) = (it.axis - gone[0], it.rank.checked_sub(gone[1])?);
            (!moves).then_some(Layout { axis, rank, ..it })
        })
    }

    /// A node that makes a matrix of its input, in which each channel is a run of columns.
    fn flatten(&mut self, node: usize, input: ValueId, output: ValueId) -> Option<()> {
        let (graph, proto) = (self.graph, self.graph.nodes[node]);
        if proto.op_type == "Flatten" {
            if proto.int("axis", 1) != 1 {
                return None;
            }
        } else {
            let target = crate::graph::constants::ints(&fixed(graph, graph.input(node, 1)?)?)?;
            let [rows, columns] = target[..] else { return None };
            let shape = graph.shape(input)?;
            let mut lengths = shape.get(1..)?.iter().copied();
            let width = lengths.try_fold(1_usize, |all, length| all.checked_mul(length?));
            let is_whole = columns == -1 || usize::try_from(columns).ok() == width;
            let first = usize::try_from(rows).ok().filter(|rows| *rows > 0);
            let same =
                rows == 0 || rows == -1 && columns > 0 || first.is_some() && first == shape[0];
            if proto.int("allowzero", 0) != 0 || width.is_none() || !is_whole || !same {
                return None;
            }
        }
        self.passes_on(input, output, |it| {
            let fits = it.axis == 1 && !it.flattened;
            fits.then_some(Layout { rank: 2, flattened: true, ..it })
        })
    }

    fn clip(&mut self, node: usize, input: ValueId, output: ValueId) -> Option<()> {
        let [low, high] = clip::bounds(self.graph, node)?;
        let (low, high) = (low.or(f32::MIN)?, high.or(f32::MAX)?);
        // A bound at the wrong end of the range is no number that can be scaled.
        (low < f32::MAX && high > f32::MIN).then_some(())?;
        let bounds = [
            (low > f32::MIN).then_some(f64::from(low)),
            (high < f32::MAX).then_some(f64::from(high)),
        ];
        if bounds.iter().flatten().any(|bound| *bound != 0.0) {
            // The nodes that would replace it read float32 in every opset.
            let layout = self.layouts[input].filter(|it| !it.flattened)?;
            let is_float = self.graph.dtype(input) == Some(quantize_rs_onnx::DataType::Float);
            (is_float && layout.channels > 0).then_some(())?;
            self.clips.push(Clip { node, input, bounds });
        }
        self.passes_on(input, output, Some)
    }

    /// A node with two inputs, of which one may be constant.
    fn binary(&mut self, node: usize, output: ValueId) -> Option<()> {
        let graph = self.graph;
        let proto = graph.nodes[node];
        let (2, op_type) = (proto.input.len(), proto.op_type.as_str()) else { return None };
        let inputs = [graph.input(node, 0)?, graph.input(node, 1)?];
        let constants = inputs.map(|value| fixed(graph, value));
        match constants {
            [None, None] => {
                let layouts = inputs.map(|value| self.layouts[value]);
                let same = layouts[0].is_some() && layouts[0] == layouts[1];
                if !same || matches!(op_type, "Mul" | "Div") {
                    return None;
                }
                self.sets.join(inputs[0], inputs[1]);
                self.passes_on(inputs[0], output, Some)
            }
            [Some(_), Some(_)] => None,
            [first, second] => {
                let at = usize::from(second.is_some());
                let (value, constant) = (inputs[1 - at], first.or(second)?);
                let layout = self.layouts[value]?;
                let spans = is_per_channel(&constant, layout);
                match op_type {
                    // A factor of the channels commutes with a factor of the channels.
                    "Mul" | "Div" if op_type == "Div" && at == 0 => return None,
                    "Mul" | "Div" => {
                        let is_scalar =
                            constant.elements() == 1 && constant.shape.len() <= layout.rank;
                        (spans || is_scalar).then_some(())?;
                    }
                    _ => {
                        spans.then_some(())?;
                        self.beside.push(Beside { node, input: at, constant: inputs[at], value });
                    }
                }
                self.passes_on(value, output, Some)
            }
        }
    }

    /// Leaves the values of a node alone.
    fn block(&mut self, node: usize) {
        let proto = self.graph.nodes[node];
        let inputs = (0..proto.input.len()).filter_map(|input| self.graph.input(node, input));
        let outputs = (0..proto.output.len()).filter_map(|output| self.graph.output(node, output));
        for value in inputs.chain(outputs) {
            self.blocked[value] = true;
        }
    }

    fn finish(mut self) -> Groups<'m> {
        let count = self.blocked.len();
        let roots: Vec<usize> = (0..count).map(|value| self.sets.root(value)).collect();
        // Whether a set may not be scaled, is written by a product, is read by one.
        let mut facts = vec![[false; 3]; count];
        for (value, root) in roots.iter().enumerate() {
            facts[*root][0] |= self.blocked[value];
        }
        for (_, input, output) in &self.products {
            facts[roots[*output]][1] = true;
            facts[roots[*input]][2] = true;
        }
        let mut channels = Vec::new();
        let mut number = vec![None; count];
        for (root, facts) in facts.iter().enumerate() {
            if let ([false, true, true], Some(layout)) = (facts, self.layouts[root]) {
                number[root] = Some(channels.len());
                channels.push(layout.channels);
            }
        }
        let of: Vec<Option<usize>> = roots.iter().map(|root| number[*root]).collect();
        let link = |(product, input, output): (Product<'m>, ValueId, ValueId)| {
            let (from, to) = (of[input], of[output]);
            Linked { product, input, output, from, to }
        };
        let products = self.products.into_iter().map(link).collect();
        let Search { beside, clips, layouts, .. } = self;
        Groups { products, beside, clips, channels, of, layouts }
    }
}

/// Whether a constant has an element for each channel of a value, and no other axes.
fn is_per_channel(constant: &Tensor, layout: Layout) -> bool {
    let Some(axis) = (constant.shape.len() + layout.axis).checked_sub(layout.rank) else {
        return false;
    };
    !layout.flattened
        && constant.shape.len() <= layout.rank
        && constant.shape.get(axis) == Some(&layout.channels)
        && constant.elements() == layout.channels
}
