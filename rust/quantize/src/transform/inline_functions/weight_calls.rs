//! Determines whether a function call multiplies by a constant, and whether its results are
//! constant: a weight may pass through one function before another multiplies by it.

use std::collections::HashMap;

use quantize_rs_onnx::{Functions, GraphProto, NodeProto, Raw, topological};

use crate::graph::Graph;
use crate::graph::ops;

/// The maximum nesting depth of calls. Deeper calls are assumed to have no weights.
pub(super) const MAX_DEPTH: usize = 64;

/// The maximum number of nodes to visit. A function is visited once per combination of constant
/// inputs.
const MAX_VISITS: usize = 1 << 20;

/// The constants of a graph and its enclosing graphs, by name, and whether they hold floats.
pub(super) struct ConstantScope<'o> {
    own: HashMap<String, bool>,
    outer: Option<&'o ConstantScope<'o>>,
}

impl<'o> ConstantScope<'o> {
    /// The constants that a graph declares.
    pub(super) fn of(
        graph: &GraphProto,
        outer: Option<&'o ConstantScope<'o>>,
    ) -> ConstantScope<'o> {
        let mut own: HashMap<String, bool> = HashMap::new();
        let tensors = graph.initializer.iter();
        own.extend(tensors.map(|tensor| (tensor.name.clone(), tensor.is_float())));
        // Initializers that are also inputs can be overridden.
        for input in &graph.input {
            own.remove(&input.name);
        }
        ConstantScope { own, outer }
    }

    /// The constants that the main graph declares.
    pub(super) fn of_main(graph: &Graph<'_>) -> ConstantScope<'o> {
        let proto = graph.model.graph();
        let mut fixed = ConstantScope::of(proto, None);
        // Before IR version 4, each initializer also had to be listed as an input.
        let all = proto.initializer.iter().filter(|_| graph.model.proto().ir_version < 4);
        fixed.own.extend(all.map(|tensor| (tensor.name.clone(), tensor.is_float())));
        fixed
    }

    /// Whether a constant holds floats; `None` if the value is not constant.
    fn of_name(&self, name: &str) -> Option<bool> {
        self.own.get(name).copied().or_else(|| self.outer?.of_name(name))
    }

    /// Adds the outputs of a node that is not a call if its inputs are constant.
    fn learn(&mut self, node: &NodeProto) {
        let float = if !node.is_onnx() {
            None
        } else if node.op_type == "Constant" {
            // Attribute types: 1 is a float, 6 is a list of floats, 4 is a tensor. A reference to
            // an attribute of the caller declares the type.
            let held = node.attribute.first();
            held.map(|held| match held.t.as_deref() {
                Some(tensor) => tensor.is_float(),
                None => matches!(held.kind, 1 | 4 | 6),
            })
        } else {
            self.all(node)
        };
        if let Some(float) = float {
            self.own.extend(node.output.iter().map(|name| (name.clone(), float)));
        }
    }

    /// Whether floats are among the inputs of a node; `None` if any input is not constant.
    fn all(&self, node: &NodeProto) -> Option<bool> {
        let mut names = node.input.iter().filter(|name| !name.is_empty()).peekable();
        names.peek()?;
        let found: Option<Vec<bool>> = names.map(|name| self.of_name(name)).collect();
        let closed = node.subgraphs().next().is_none();
        found.filter(|_| closed).map(|found| found.contains(&true))
    }

    /// Whether a node multiplies by a constant.
    fn weighs(&self, node: &NodeProto) -> bool {
        let Some(rule) = ops::rule(node) else { return false };
        let weight = |(input, name): (usize, &String)| {
            rule.takes_weight(input) && self.of_name(name) == Some(true)
        };
        node.input.iter().enumerate().any(weight) && self.all(node).is_none()
    }
}

/// What a function computes from the constants among its inputs.
#[derive(Clone, PartialEq)]
enum Effect {
    /// It multiplies by one of them, or by its own.
    Multiplies,
    /// All results are constant; for each, whether it holds floats.
    Constant(Vec<bool>),
    /// Neither.
    Other,
}

/// Determines which calls multiply by constants, or compute them.
pub(super) struct WeightCalls<'g, 'm> {
    functions: &'g Functions<'m>,
    /// By function and constant inputs.
    known: HashMap<(usize, Vec<Option<bool>>), Effect>,
    looks: usize,
}

impl<'g, 'm> WeightCalls<'g, 'm> {
    pub(super) fn of(functions: &'g Functions<'m>) -> WeightCalls<'g, 'm> {
        WeightCalls { functions, known: HashMap::new(), looks: 0 }
    }

    /// Whether to inline a call: the function multiplies by a constant input or by its own
    /// constants, or computes constants, which may be weights of other nodes.
    pub(super) fn call(
        &mut self,
        node: &NodeProto,
        function: usize,
        fixed: &ConstantScope<'_>,
    ) -> bool {
        node.is_onnx() || self.effect(node, function, fixed, 0) != Effect::Other
    }

    /// The functions with weights that a node calls, itself or in its subgraphs.
    pub(super) fn callees(
        &mut self,
        node: &NodeProto,
        fixed: &mut ConstantScope<'_>,
    ) -> Vec<usize> {
        let mut found = Vec::new();
        if let Some(function) = self.functions.called(node) {
            found.extend(self.multiplies(node, function, fixed).then_some(function));
        }
        for body in node.subgraphs() {
            let mut inner = ConstantScope::of(body, Some(fixed));
            for node in &body.node {
                found.extend(self.callees(node, &mut inner));
            }
        }
        self.learn(node, fixed);
        found
    }

    /// Adds the outputs of a node to the constants if they are constant.
    pub(super) fn learn(&mut self, node: &NodeProto, fixed: &mut ConstantScope<'_>) {
        self.learn_at(node, fixed, 0);
    }

    fn learn_at(&mut self, node: &NodeProto, fixed: &mut ConstantScope<'_>, depth: usize) {
        let Some(function) = self.functions.called(node) else { return fixed.learn(node) };
        if let Effect::Constant(results) = self.effect(node, function, fixed, depth) {
            fixed.own.extend(node.output.iter().cloned().zip(results));
        }
    }

    /// A function with the name of an ONNX operator always counts, so that its nodes are not
    /// mistaken for the operator.
    fn multiplies(&mut self, node: &NodeProto, function: usize, fixed: &ConstantScope<'_>) -> bool {
        node.is_onnx() || self.effect(node, function, fixed, 0) == Effect::Multiplies
    }

    fn effect(
        &mut self,
        node: &NodeProto,
        function: usize,
        fixed: &ConstantScope<'_>,
        depth: usize,
    ) -> Effect {
        let body = &self.functions.all()[function];
        // An input that the call leaves out holds no floats.
        let given = |input: usize| match node.input.get(input).filter(|name| !name.is_empty()) {
            Some(name) => fixed.of_name(name),
            None => Some(false),
        };
        let key = (function, (0..body.input.len()).map(given).collect::<Vec<_>>());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let inputs = body.input.iter().zip(&key.1);
        let own = inputs.filter_map(|(name, given)| Some((name.clone(), (*given)?))).collect();
        let mut inner = ConstantScope { own, outer: None };
        let found = if depth >= MAX_DEPTH {
            Effect::Other
        } else if self.nodes(&body.node, &mut inner, depth + 1) {
            Effect::Multiplies
        } else {
            let results: Option<Vec<bool>> =
                body.output.iter().map(|name| inner.of_name(name)).collect();
            results.map_or(Effect::Other, Effect::Constant)
        };
        self.known.insert(key, found.clone());
        found
    }

    /// Whether one of the nodes multiplies by a constant.
    fn nodes(
        &mut self,
        nodes: &[Raw<NodeProto>],
        fixed: &mut ConstantScope<'_>,
        depth: usize,
    ) -> bool {
        self.looks = self.looks.saturating_add(nodes.len());
        let Some(order) = topological(nodes).ok().filter(|_| self.looks <= MAX_VISITS) else {
            return false;
        };
        for index in order {
            let node = &nodes[index];
            let found = match self.functions.called(node) {
                Some(function) => self.effect(node, function, fixed, depth) == Effect::Multiplies,
                None => fixed.weighs(node),
            };
            let inside = |calls: &mut Self, body: &GraphProto| {
                let mut inner = ConstantScope::of(body, Some(fixed));
                calls.nodes(&body.node, &mut inner, depth)
            };
            if found || node.subgraphs().any(|body| inside(self, body)) {
                return true;
            }
            self.learn_at(node, fixed, depth);
        }
        false
    }
}
