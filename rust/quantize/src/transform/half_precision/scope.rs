//! A graph, or the body of a control operator, with the types of its values.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{DataType, GraphProto, Model, NodeProto, Tensor, TensorProto, topological};

use super::operators::takes_any;
use crate::QuantizeError;
use crate::graph::constants;
use crate::graph::elements::is_single_or_half;
use crate::graph::infer::{Facts, Inferred};
use crate::graph::ops::MICROSOFT;

/// A graph and what its nodes read and compute.
pub(super) struct Scope<'s> {
    pub(super) model: &'s Model,
    pub(super) graph: &'s GraphProto,
    /// The graph around it.
    pub(super) outer: Option<&'s Scope<'s>>,
    /// The nodes, each after those that it reads.
    pub(super) order: Vec<usize>,
    inferred: &'s Inferred<'s>,
    facts: Option<&'s Facts<'s>>,
    /// The types of values of which inference knows nothing.
    assumed: HashMap<&'s str, DataType>,
    inputs: HashSet<&'s str>,
    producers: HashMap<&'s str, usize>,
    consumers: HashMap<&'s str, Vec<(usize, usize)>>,
    tensors: HashMap<&'s str, &'s TensorProto>,
}

impl<'s> Scope<'s> {
    /// The main graph of a model.
    pub(super) fn main(
        model: &'s Model,
        inferred: &'s Inferred<'s>,
    ) -> Result<Scope<'s>, QuantizeError> {
        Scope::of(model, model.graph(), inferred, None)
    }

    /// A body of a node of this graph.
    pub(super) fn body<'b>(&'b self, graph: &'b GraphProto) -> Result<Scope<'b>, QuantizeError> {
        Scope::of(self.model, graph, self.inferred, Some(self))
    }

    fn of(
        model: &'s Model,
        graph: &'s GraphProto,
        inferred: &'s Inferred<'s>,
        outer: Option<&'s Scope<'s>>,
    ) -> Result<Scope<'s>, QuantizeError> {
        let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        // One that is an input too may be replaced by the caller.
        let fixed = |tensor: &TensorProto| {
            model.proto().ir_version < 4 || !inputs.contains(tensor.name.as_str())
        };
        let tensors = graph.initializer.iter().filter(|tensor| fixed(tensor));
        let mut scope = Scope {
            model,
            graph,
            outer,
            order: topological(&graph.node)?,
            inferred,
            facts: if outer.is_none() { Some(&inferred.main) } else { inferred.body(graph) },
            assumed: HashMap::new(),
            tensors: tensors.map(|tensor| (tensor.name.as_str(), &**tensor)).collect(),
            inputs,
            producers: HashMap::new(),
            consumers: HashMap::new(),
        };
        for (index, node) in graph.node.iter().enumerate() {
            let named = |names: &'s [String]| names.iter().filter(|name| !name.is_empty());
            scope.producers.extend(named(&node.output).map(|name| (name.as_str(), index)));
            for (input, name) in node.input.iter().enumerate() {
                scope.consumers.entry(name).or_default().push((index, input));
            }
        }
        for index in scope.order.clone() {
            scope.assume(&graph.node[index]);
        }
        Ok(scope)
    }

    /// The result of an operator of ONNX Runtime has the type of the first float that it reads.
    fn assume(&mut self, node: &'s NodeProto) {
        let Some(made) = node.output.first().filter(|_| node.domain == MICROSOFT) else {
            return;
        };
        if self.dtype(made).is_none()
            && let Some(dtype) = node
                .input
                .iter()
                .find_map(|name| self.dtype(name).filter(|dtype| is_single_or_half(*dtype)))
        {
            self.assumed.insert(made, dtype);
        }
    }

    /// Whether a value is computed here, or given to this graph.
    fn is_own(&self, name: &str) -> bool {
        self.producers.contains_key(name)
            || self.inputs.contains(name)
            || self.tensors.contains_key(name)
    }

    /// The type of a value of this graph, or of one around it.
    pub(super) fn dtype(&self, name: &str) -> Option<DataType> {
        if let Some(tensor) = self.tensors.get(name) {
            return tensor.dtype();
        }
        let known = self.facts.and_then(|facts| facts.get(name)?.dtype);
        known.or_else(|| self.assumed.get(name).copied()).or_else(|| {
            let outer = self.outer.filter(|_| !self.is_own(name))?;
            outer.dtype(name)
        })
    }

    /// Whether a value is a float32 tensor.
    pub(super) fn is_float(&self, name: &str) -> bool {
        !name.is_empty() && self.dtype(name) == Some(DataType::Float)
    }

    /// Whether a node computes in a type, here or in a subgraph.
    pub(super) fn computes_in(&self, dtype: DataType) -> Result<bool, QuantizeError> {
        for node in &self.graph.node {
            let casts = node.is_onnx() && matches!(node.op_type.as_str(), "Cast" | "Constant");
            let makes = |name: &String| self.dtype(name) == Some(dtype);
            if !casts && node.output.iter().any(makes) {
                return Ok(true);
            }
            for body in node.subgraphs() {
                if self.body(body)?.computes_in(dtype)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// How many nodes compute with values of a type, here or in subgraphs. A node that casts them
    /// or reads their shape does not.
    pub(super) fn readers_of(&self, dtype: DataType) -> Result<usize, QuantizeError> {
        let mut count = 0;
        for node in &self.graph.node {
            let reads = |name: &String| self.dtype(name) == Some(dtype);
            count += usize::from(!takes_any(node) && node.input.iter().any(reads));
            for body in node.subgraphs() {
                count += self.body(body)?.readers_of(dtype)?;
            }
        }
        Ok(count)
    }

    /// The node of this graph that computes a value.
    pub(super) fn producer(&self, name: &str) -> Option<usize> {
        self.producers.get(name).copied()
    }

    /// The node that computes a value, here or around this graph, and its graph.
    pub(super) fn producing(&self, name: &str) -> Option<(&Scope<'s>, &'s NodeProto)> {
        match self.producers.get(name) {
            Some(node) => Some((self, &*self.graph.node[*node])),
            None => self.outer.filter(|_| !self.is_own(name))?.producing(name),
        }
    }

    /// The nodes of this graph that read a value, and at which input.
    pub(super) fn consumers(&self, name: &str) -> &[(usize, usize)] {
        self.consumers.get(name).map_or(&[], Vec::as_slice)
    }

    /// The initializer of this name, here or around this graph, that no caller replaces.
    pub(super) fn initializer(&self, name: &str) -> Option<&'s TensorProto> {
        match self.tensors.get(name) {
            Some(tensor) => Some(tensor),
            None => self.outer.filter(|_| !self.is_own(name))?.initializer(name),
        }
    }

    /// Whether a value is constant, here or around this graph.
    pub(super) fn is_constant(&self, name: &str) -> bool {
        if self.tensors.contains_key(name) {
            return true;
        }
        if let Some(node) = self.producers.get(name) {
            return self.graph.node[*node].op_type == "Constant";
        }
        let outer = self.outer.filter(|_| !self.is_own(name));
        outer.is_some_and(|outer| outer.is_constant(name))
    }

    /// The elements of a constant, here or around this graph.
    pub(super) fn constant(&self, name: &str) -> Option<Tensor> {
        if let Some(tensor) = self.tensors.get(name) {
            return self.model.tensor(tensor).ok();
        }
        match self.producers.get(name) {
            Some(node) => constants::constant(self.model, &self.graph.node[*node]),
            None => self.outer.filter(|_| !self.is_own(name))?.constant(name),
        }
    }
}
