//! Finds values that are never negative, or almost never. Their mean is about as large as their
//! standard deviation.

use std::collections::HashSet;

use quantize_rs_onnx::{NodeProto, TensorProto};

use crate::graph::clip::{self, Bound};
use crate::graph::elements::to_f32;
use crate::graph::uses::Subgraphs;
use crate::graph::{Graph, Producer};

/// Operators whose results are (almost) non-negative for any input.
const FUNCTIONS: &[&str] = &[
    "Abs",
    "Exp",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Mish",
    "Relu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Sqrt",
    "Swish",
];

/// Operators whose results are non-negative if their first input is.
const PASSING: &[&str] = &[
    "AveragePool",
    "Cast",
    "DepthToSpace",
    "Dropout",
    "Flatten",
    "Gather",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Identity",
    "MaxPool",
    "Pad",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "Reshape",
    "Resize",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
    "Upsample",
];

/// Operators whose results are non-negative if all their inputs are.
const JOINING: &[&str] = &["Add", "Concat", "Max", "Sum"];

/// A value of the main graph, or one that a subgraph can read.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Named<'m> {
    /// The position of the subgraph that reads it in [`Subgraphs::all`].
    pub(crate) body: Option<usize>,
    pub(crate) name: &'m str,
}

/// A node, and the position of the subgraph that it is in.
#[derive(Clone, Copy)]
struct Place<'m> {
    node: &'m NodeProto,
    body: Option<usize>,
}

impl<'m> Place<'m> {
    fn op_type(&self) -> &'m str {
        &self.node.op_type
    }

    fn input(&self, input: usize) -> Option<Named<'m>> {
        let name = self.node.input.get(input).filter(|name| !name.is_empty())?;
        Some(Named { body: self.body, name })
    }

    fn inputs(self) -> impl Iterator<Item = Named<'m>> {
        (0..self.node.input.len()).filter_map(move |input| self.input(input))
    }
}

/// The values of a model.
pub(crate) struct Values<'g, 'm> {
    pub(crate) graph: &'g Graph<'m>,
    pub(crate) bodies: &'g Subgraphs<'m>,
}

impl<'m> Values<'_, 'm> {
    /// Whether a value is (almost) non-negative because of the operators that produce it.
    pub(crate) fn one_sided(&self, value: Named<'m>) -> bool {
        let mut waiting = vec![value];
        let mut seen = HashSet::new();
        // An explicit stack instead of recursion: a chain of a million nodes must not overflow the
        // call stack.
        while let Some(value) = waiting.pop() {
            if !seen.insert(value) {
                continue;
            }
            let Some(made) = self.producer(value).filter(|made| made.node.is_onnx()) else {
                return false;
            };
            let op_type = made.op_type();
            if FUNCTIONS.contains(&op_type) || self.is_cut(made) {
                continue;
            }
            if PASSING.contains(&op_type) {
                waiting.extend(made.inputs().next());
            } else if JOINING.contains(&op_type) {
                waiting.extend(made.inputs());
            } else if op_type == "Mul" {
                // Multiplication by positive numbers preserves the sign.
                if !self.gates(made) {
                    waiting.extend(made.inputs().filter(|input| !self.is_positive(*input)));
                }
            } else {
                return false;
            }
        }
        true
    }

    /// Whether a node clips negative values, or at least damps them.
    fn is_cut(&self, made: Place<'m>) -> bool {
        let function = made.node;
        let all = |input: usize, holds: fn(f32) -> bool| {
            let value = made.input(input);
            value.map(|value| self.floats(value).is_some_and(|all| all.into_iter().all(holds)))
        };
        let slope = |slope: f32| (0.0..=0.5).contains(&slope);
        match made.op_type() {
            "Clip" => {
                let bounds = clip::bounds_of(function, |input| self.number(made.input(input)?));
                matches!(bounds, Some([Bound::At(least), _]) if least >= 0.0)
            }
            "LeakyRelu" => slope(function.float("alpha", 0.01)),
            "PRelu" => all(1, slope).unwrap_or(false),
            "ThresholdedRelu" => function.float("alpha", 1.0) >= 0.0,
            _ => false,
        }
    }

    /// Whether a product gates a value by a function of itself: `x · sigmoid(x)`, `x · (erf(x) +
    /// 1)` and similar.
    fn gates(&self, product: Place<'m>) -> bool {
        let (Some(a), Some(b)) = (product.input(0), product.input(1)) else { return false };
        let is_gate_of = |gate: Named<'m>, value: Named<'m>| {
            let Some(made) = self.producer(gate) else { return false };
            let inner = match made.op_type() {
                "Sigmoid" | "HardSigmoid" => made.input(0),
                "Add" => (0..2).find_map(|input| {
                    let one = made.input(1 - input).filter(|one| self.is_positive(*one));
                    let bent = self.producer(made.input(input)?)?;
                    one.filter(|_| matches!(bent.op_type(), "Erf" | "Tanh"))?;
                    bent.input(0)
                }),
                _ => None,
            };
            inner.is_some_and(|inner| self.root(inner) == self.root(value))
        };
        is_gate_of(a, b) || is_gate_of(b, a)
    }

    /// The node that produces a value.
    fn producer(&self, value: Named<'m>) -> Option<Place<'m>> {
        let inside = value.body.and_then(|body| self.bodies.producer(body, value.name));
        if let Some(body) = inside {
            let node = self.bodies.producer_node(body, value.name)?;
            return Some(Place { node, body: Some(body) });
        }
        match self.graph.values[self.graph.value(value.name)?].producer {
            Producer::Node { node, .. } => Some(Place { node: self.graph.nodes[node], body: None }),
            _ => None,
        }
    }

    fn constant(&self, value: Named<'m>) -> Option<&'m TensorProto> {
        match value.body {
            Some(body) => self.bodies.constant(self.graph, body, value.name),
            None => self.graph.constant(self.graph.value(value.name)?),
        }
    }

    /// The value that another is derived from by arithmetic with constants. For both `x / √2` and
    /// `√(2/π) · (x + 0.04 x³)`, this is `x`.
    fn root(&self, mut value: Named<'m>) -> &'m str {
        const MAX_STEPS: usize = 8;
        for _ in 0..MAX_STEPS {
            let Some(made) = self.producer(value) else { break };
            let arithmetic = matches!(made.op_type(), "Mul" | "Div" | "Add");
            let inputs = [made.input(0), made.input(1)];
            let mut own = inputs.into_iter().flatten().filter(|id| self.constant(*id).is_none());
            let Some(next) = own.next().filter(|_| arithmetic) else { break };
            value = next;
        }
        value.name
    }

    fn is_positive(&self, value: Named<'m>) -> bool {
        self.floats(value).is_some_and(|all| all.iter().all(|x| *x > 0.0))
    }

    /// The element of a constant.
    fn number(&self, value: Named<'m>) -> Option<f32> {
        match self.floats(value)?[..] {
            [number] => Some(number),
            _ => None,
        }
    }

    /// The elements of a small constant that no caller can replace.
    fn floats(&self, value: Named<'m>) -> Option<Vec<f32>> {
        const MAX_ELEMENTS: i64 = 1 << 16;
        if self.graph.value(value.name).is_some_and(|id| self.graph.values[id].is_overridable()) {
            return None;
        }
        let constant = self.constant(value)?;
        let few =
            constant.dims.iter().try_fold(1_i64, |all, dim| all.checked_mul(*dim))? <= MAX_ELEMENTS;
        to_f32(&self.graph.model.tensor(constant).ok().filter(|_| few)?)
    }
}
