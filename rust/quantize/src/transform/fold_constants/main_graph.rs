//! Folds constants in the main graph, where results become initializers.

use std::collections::HashMap;

use quantize_rs_onnx::{Edit, Tensor, TensorProto};

use super::budget::{self, Candidate, Part, Source};
use super::{
    Evaluation, MAX_GROWTH_BYTES, MAX_TRANSPOSED_BYTES, REARRANGE, growth, of_shapes, total_growth,
    transposed,
};
use crate::QuantizeError;
use crate::graph::constants::fixed;
use crate::graph::{Consumer, Graph, Producer, ValueId};
use crate::transform::Changes;
use crate::transform::pass_edits::PassEdits;

pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut expressions = Expressions {
        graph,
        evaluation: Evaluation::of(graph.model),
        computed: Vec::new(),
        candidates: Vec::new(),
        sources: Vec::new(),
        parts: HashMap::new(),
    };
    let transposes = transposed(graph) <= MAX_TRANSPOSED_BYTES;
    for index in graph.order()? {
        // A transposed weight that something else reads would be stored twice.
        let alone = |value| graph.is_only_consumer(index, value);
        let replaces = transposes && graph.input(index, 0).is_some_and(alone);
        let small = graph.nodes[index].op_type == "Transpose" && !replaces;
        expressions.add(index, small);
    }
    Ok(expressions.changes())
}

/// The values of the main graph that could be computed in advance.
struct Expressions<'g, 'm> {
    graph: &'g Graph<'m>,
    evaluation: Evaluation,
    /// The values, each with the candidate for the budget.
    computed: Vec<ComputedValue>,
    candidates: Vec<Candidate>,
    /// The constants that they are computed from.
    sources: Vec<(ValueId, usize)>,
    parts: HashMap<ValueId, Part>,
}

struct ComputedValue {
    node: usize,
    value: ValueId,
    tensor: Tensor,
    /// The initializer whose name it keeps.
    origin: Option<ValueId>,
}

impl Expressions<'_, '_> {
    /// Adds a node if its output is constant. If `small` is true, its inputs must be small, too.
    fn add(&mut self, index: usize, small: bool) -> Option<()> {
        let graph = self.graph;
        let node = graph.nodes[index];
        let value = graph.output(index, 0)?;
        let others = (1..node.output.len()).filter_map(|output| graph.output(index, output));
        if graph.values[value].is_output || others.into_iter().any(|value| self.is_read(value)) {
            return None;
        }
        let (tensor, origin) = match of_shapes(graph, index, value) {
            Some(tensor) => (tensor, None),
            None => self.evaluated(index, small)?,
        };
        let read = (0..node.input.len()).filter_map(|input| graph.input(index, input));
        let inputs = read.filter_map(|value| self.part(value)).collect();
        let (bytes, growth) = (tensor.data.len(), growth(node, self.is_bias(value)));
        self.parts.insert(value, Part::Candidate(self.candidates.len()));
        self.candidates.push(Candidate { inputs, bytes, growth, is_read: false, is_shared: false });
        self.computed.push(ComputedValue { node: index, value, tensor, origin });
        Some(())
    }

    /// The value of a node with constant inputs, and the initializer whose name it keeps.
    fn evaluated(&mut self, index: usize, small: bool) -> Option<(Tensor, Option<ValueId>)> {
        let graph = self.graph;
        let node = graph.nodes[index];
        let inputs: Vec<Option<Tensor>> = (0..node.input.len())
            .map(|input| match graph.input(index, input) {
                None => node.input[input].is_empty().then_some(None),
                Some(value) => Some(Some(self.constant(value)?)),
            })
            .collect::<Option<_>>()?;
        if small && inputs.iter().flatten().any(|tensor| tensor.data.len() > MAX_GROWTH_BYTES) {
            return None;
        }
        let is_bias = graph.output(index, 0).is_some_and(|value| self.is_bias(value));
        let tensor = self.evaluation.value(node, &inputs, growth(node, is_bias))?;
        let rearranges = REARRANGE.contains(&&*node.op_type);
        let apart = graph.model.proto().ir_version >= 4;
        let own = graph.input(index, 0).filter(|value| graph.is_only_consumer(index, *value));
        let origin = own.filter(|_| rearranges && apart).and_then(|value| {
            let initializer = matches!(graph.values[value].producer, Producer::Initializer { .. });
            if initializer { Some(value) } else { self.known(value)?.origin }
        });
        Some((tensor, origin))
    }

    /// Whether a value is read as a bias alone.
    fn is_bias(&self, value: ValueId) -> bool {
        let readers = &self.graph.values[value].consumers;
        let adds = |reader: &Consumer| {
            let op_type = self.graph.nodes[reader.node].op_type.as_str();
            reader.input == 2 && matches!(op_type, "Conv" | "ConvTranspose" | "Gemm")
        };
        !readers.is_empty() && readers.iter().all(adds)
    }

    /// The computed value, if it is one.
    fn known(&self, value: ValueId) -> Option<&ComputedValue> {
        match self.parts.get(&value)? {
            Part::Candidate(index) => self.computed.get(*index),
            Part::Source(_) => None,
        }
    }

    fn constant(&self, value: ValueId) -> Option<Tensor> {
        match self.known(value) {
            Some(known) => Some(known.tensor.clone()),
            None => fixed(self.graph, value),
        }
    }

    /// What computes a constant value.
    fn part(&mut self, value: ValueId) -> Option<Part> {
        if let Some(part) = self.parts.get(&value) {
            return Some(*part);
        }
        let bytes = fixed(self.graph, value)?.data.len();
        let part = Part::Source(self.sources.len());
        self.sources.push((value, bytes));
        self.parts.insert(value, part);
        Some(part)
    }

    /// Whether something that is no candidate reads a value.
    fn is_read(&self, value: ValueId) -> bool {
        let found = &self.graph.values[value];
        let computed = |node: usize| {
            let made = self.graph.output(node, 0).and_then(|made| self.parts.get(&made));
            matches!(made, Some(Part::Candidate(_)))
        };
        found.is_read_outside() || found.consumers.iter().any(|consumer| !computed(consumer.node))
    }

    fn changes(mut self) -> Changes {
        for index in 0..self.candidates.len() {
            self.candidates[index].is_read = self.is_read(self.computed[index].value);
        }
        let sources = self.sources.iter();
        let sources: Vec<Source> = sources
            .map(|(value, bytes)| Source { bytes: *bytes, stays: self.is_read(*value) })
            .collect();
        let chosen = budget::chosen(&self.candidates, &sources, total_growth(self.graph.model));
        let graph = self.graph;
        let mut folded = vec![false; graph.nodes.len()];
        for (made, _) in self.computed.iter().zip(&chosen).filter(|(_, chosen)| **chosen) {
            folded[made.node] = true;
        }
        let mut pass = PassEdits::of(graph);
        for made in self.computed.iter().filter(|made| folded[made.node]) {
            pass.remove(made.node);
            pass.did(format!(
                "replaced {} with its constant value",
                graph.nodes[made.node].label()
            ));
            let found = &graph.values[made.value];
            let mut consumers = found.consumers.iter();
            if !found.used_in_subgraph && consumers.all(|consumer| folded[consumer.node]) {
                continue;
            }
            match made.origin.map(|origin| graph.values[origin].name) {
                Some(name) if pass.replace_uses(made.value, name) => {
                    pass.edit(Edit::RemoveValueInfo(name.to_owned()));
                    pass.edit(Edit::ReplaceInitializer(TensorProto::new(name, &made.tensor)));
                }
                _ => pass.edit(Edit::AddInitializer(TensorProto::new(found.name, &made.tensor))),
            }
        }
        pass.finish()
    }
}
