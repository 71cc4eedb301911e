//! Whether a call multiplies by something that is the same in every run.

use std::collections::HashMap;

use quantize_rs_onnx::{DataType, Functions, GraphProto, NodeProto, Raw, TensorProto, topological};

use crate::graph::Graph;
use crate::graph::ops;

/// How deep functions may call functions; what is called deeper is not looked into.
pub(super) const DEEPEST: usize = 64;

/// Nodes that are looked at: what functions call often is looked at for each set of constants.
const LOOKS: usize = 1 << 20;

/// What is the same in every run, in one graph and those around it, by name; whether it holds
/// floats.
pub(super) struct Fixed<'o> {
    own: HashMap<String, bool>,
    outer: Option<&'o Fixed<'o>>,
}

impl<'o> Fixed<'o> {
    /// What a graph says is constant.
    pub(super) fn of(graph: &GraphProto, outer: Option<&'o Fixed<'o>>) -> Fixed<'o> {
        let mut own: HashMap<String, bool> = HashMap::new();
        let tensors = graph.initializer.iter();
        own.extend(tensors.map(|tensor| (tensor.name.clone(), is_float(tensor))));
        // What is an input too may be replaced.
        for input in &graph.input {
            own.remove(&input.name);
        }
        Fixed { own, outer }
    }

    /// What the main graph says is constant.
    pub(super) fn of_main(graph: &Graph<'_>) -> Fixed<'o> {
        let proto = graph.model.graph();
        let mut fixed = Fixed::of(proto, None);
        // Before IR 4 every constant had to stand among the inputs.
        let all = proto.initializer.iter().filter(|_| graph.model.proto().ir_version < 4);
        fixed.own.extend(all.map(|tensor| (tensor.name.clone(), is_float(tensor))));
        fixed
    }

    /// Whether a value is the same in every run, and then whether it holds floats.
    fn of_name(&self, name: &str) -> Option<bool> {
        self.own.get(name).copied().or_else(|| self.outer?.of_name(name))
    }

    /// Takes in what a node makes of what is known.
    pub(super) fn learn(&mut self, node: &NodeProto) {
        let float = if !node.is_onnx() {
            None
        } else if node.op_type == "Constant" {
            // One that is an attribute of the caller's holds what that says: 1 float, 6 floats,
            // 4 a tensor.
            let held = node.attribute.first();
            held.map(|held| match held.t.as_deref() {
                Some(tensor) => is_float(tensor),
                None => matches!(held.kind, 1 | 4 | 6),
            })
        } else {
            self.all(node)
        };
        if let Some(float) = float {
            self.own.extend(node.output.iter().map(|name| (name.clone(), float)));
        }
    }

    /// Whether all that a node reads is the same in every run, and then whether floats are among it.
    fn all(&self, node: &NodeProto) -> Option<bool> {
        let mut names = node.input.iter().filter(|name| !name.is_empty()).peekable();
        names.peek()?;
        let found: Option<Vec<bool>> = names.map(|name| self.of_name(name)).collect();
        let closed = node.subgraphs().next().is_none();
        found.filter(|_| closed).map(|found| found.contains(&true))
    }

    /// Whether a node multiplies by what is the same in every run.
    fn weighs(&self, node: &NodeProto) -> bool {
        let Some(rule) = ops::rule(node) else { return false };
        let weight = |(input, name): (usize, &String)| {
            rule.takes_weight(input) && self.of_name(name) == Some(true)
        };
        node.input.iter().enumerate().any(weight) && self.all(node).is_none()
    }
}

fn is_float(tensor: &TensorProto) -> bool {
    tensor.dtype().is_some_and(DataType::is_float)
}

/// Which calls multiply by constants.
pub(super) struct Holds<'g, 'm> {
    functions: &'g Functions<'m>,
    /// By function and what its caller gives.
    known: HashMap<(usize, Vec<Option<bool>>), bool>,
    looks: usize,
}

impl<'g, 'm> Holds<'g, 'm> {
    pub(super) fn of(functions: &'g Functions<'m>) -> Holds<'g, 'm> {
        Holds { functions, known: HashMap::new(), looks: 0 }
    }

    /// Whether the function that a node calls multiplies by what it is given, or by constants of its
    /// own. One that has the name of an operator of ONNX's own always does: nobody looks at the
    /// name twice.
    pub(super) fn call(&mut self, node: &NodeProto, function: usize, fixed: &Fixed<'_>) -> bool {
        node.is_onnx() || self.called(node, function, fixed, 0)
    }

    /// The functions that a node calls, itself or in graphs inside it, and that hold weights.
    pub(super) fn callees(&mut self, node: &NodeProto, fixed: &mut Fixed<'_>) -> Vec<usize> {
        let mut found = Vec::new();
        if let Some(function) = self.functions.called(node) {
            found.extend(self.call(node, function, fixed).then_some(function));
        }
        for body in node.subgraphs() {
            let mut inner = Fixed::of(body, Some(fixed));
            for node in &body.node {
                found.extend(self.callees(node, &mut inner));
            }
        }
        fixed.learn(node);
        found
    }

    fn called(
        &mut self,
        node: &NodeProto,
        function: usize,
        fixed: &Fixed<'_>,
        depth: usize,
    ) -> bool {
        let given: Vec<Option<bool>> = node.input.iter().map(|name| fixed.of_name(name)).collect();
        let key = (function, given);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let body = &self.functions.all()[function];
        let inputs = body.input.iter().zip(&key.1);
        let own = inputs.filter_map(|(name, given)| Some((name.clone(), (*given)?))).collect();
        let found =
            depth < DEEPEST && self.nodes(&body.node, &mut Fixed { own, outer: None }, depth + 1);
        self.known.insert(key, found);
        found
    }

    fn nodes(&mut self, nodes: &[Raw<NodeProto>], fixed: &mut Fixed<'_>, depth: usize) -> bool {
        self.looks = self.looks.saturating_add(nodes.len());
        let Some(order) = topological(nodes).ok().filter(|_| self.looks <= LOOKS) else {
            return false;
        };
        for index in order {
            let node = &nodes[index];
            let found = match self.functions.called(node) {
                Some(function) => self.called(node, function, fixed, depth),
                None => fixed.weighs(node),
            };
            let inside = |holds: &mut Self, body: &GraphProto| {
                let mut inner = Fixed::of(body, Some(fixed));
                holds.nodes(&body.node, &mut inner, depth)
            };
            if found || node.subgraphs().any(|body| inside(self, body)) {
                return true;
            }
            fixed.learn(node);
        }
        false
    }
}
