//! The producer and the consumers of each value of the main graph, and which values are constant.
//!
//! Input: a model. Output: a [`Graph`] that borrows it, and what follows from the graph alone:
//! names, constants, uses, shapes. This module imports `util` and `error`.

pub(crate) mod clip;
pub(crate) mod constants;
pub(crate) mod elements;
pub(crate) mod fingerprint;
pub(crate) mod granularity;
pub(crate) mod infer;
pub(crate) mod info;
pub(crate) mod interface;
pub(crate) mod kv_cache;
pub(crate) mod masks;
pub(crate) mod moe;
pub(crate) mod names;
pub(crate) mod non_negative;
pub mod ops;
pub(crate) mod qattention;
pub(crate) mod qlinear;
pub(crate) mod quantized_ops;
mod recurrent_batch;
pub(crate) mod uses;
pub(crate) mod value_range;

pub use infer::{ShapeInference, infer_shapes};
pub use info::{InputSpec, ModelInfo};
pub use quantized_ops::is_quantized_op;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use quantize_rs_onnx::{
    DataType, GraphProto, Model, NodeProto, TensorProto, ValueInfoProto, reads, topological,
};

use crate::QuantizeError;
use infer::{Dim, Fact, Inferred};

/// The index of a value in [`Graph::values`].
pub type ValueId = usize;

/// A read-only view of the main graph of a model.
#[derive(Debug)]
pub struct Graph<'m> {
    /// The model.
    pub model: &'m Model,
    /// The nodes, in file order.
    pub nodes: Vec<&'m NodeProto>,
    /// The values: inputs, constants, then the outputs of each node.
    pub values: Vec<Value<'m>>,
    by_name: HashMap<&'m str, ValueId>,
    inputs: Ends,
    outputs: Ends,
    /// The inferred types and shapes, in the order of `values`. Computed on first use.
    facts: OnceLock<Vec<Option<Arc<Fact>>>>,
}

/// A value of the graph.
#[derive(Debug)]
pub struct Value<'m> {
    /// The name.
    pub name: &'m str,
    /// Where the value comes from.
    pub producer: Producer<'m>,
    /// The nodes of the main graph that use the value.
    pub consumers: Vec<Consumer>,
    /// Whether a subgraph (a body of `If`, `Loop` or `Scan`) uses the value.
    pub used_in_subgraph: bool,
    /// Whether the value is an output of the model.
    pub is_output: bool,
    /// The declared type and shape, if the file contains them.
    pub info: Option<&'m ValueInfoProto>,
}

impl Value<'_> {
    /// Whether a subgraph uses the value or the model returns it, beside its `consumers`.
    pub fn is_read_outside(&self) -> bool {
        self.used_in_subgraph || self.is_output
    }

    /// Whether the value is an initializer that an input of the model may replace.
    pub fn is_overridable(&self) -> bool {
        matches!(self.producer, Producer::Initializer { overridable: true, .. })
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub enum Producer<'m> {
    /// An input of the model.
    Input,
    /// An initializer. It is `overridable` if an input of the same name may replace it (IR version
    /// ≥ 4).
    Initializer {
        /// The tensor.
        tensor: &'m TensorProto,
        /// Whether an input of the same name may replace it.
        overridable: bool,
    },
    /// A sparse initializer.
    Sparse,
    /// An output of a node.
    Node {
        /// The index of the node.
        node: usize,
        /// The index of the output.
        output: usize,
    },
}

/// A use of a value: a node and the input at which it takes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// The index of the node.
    pub node: usize,
    /// The index of the input.
    pub input: usize,
}

/// The values at the inputs of all nodes, or at their outputs. Looking up names takes longer.
#[derive(Debug, Default)]
struct Ends {
    /// Where the values of each node end.
    until: Vec<usize>,
    values: Vec<Option<ValueId>>,
}

impl Ends {
    /// Adds those of the next node.
    fn add(&mut self, values: impl Iterator<Item = Option<ValueId>>) {
        self.values.extend(values);
        self.until.push(self.values.len());
    }

    /// Those of a node.
    fn of(&self, node: usize) -> &[Option<ValueId>] {
        let start = if node == 0 { 0 } else { self.until[node - 1] };
        &self.values[start..self.until[node]]
    }

    fn get(&self, node: usize, at: usize) -> Option<ValueId> {
        self.of(node).get(at).copied().flatten()
    }
}

impl<'m> Graph<'m> {
    /// Creates the graph view of a model.
    ///
    /// # Errors
    /// A node has fewer inputs or outputs than its operator requires, or a convolution has a weight
    /// with fewer than three dimensions.
    pub fn of(model: &'m Model) -> Result<Graph<'m>, QuantizeError> {
        let proto = model.graph();
        // Tables that grow look up every name again.
        let made: usize = proto.node.iter().map(|node| node.output.len()).sum();
        let count = proto.input.len() + proto.initializer.len() + made;
        let mut graph = Graph {
            model,
            nodes: proto.node.iter().map(|node| &**node).collect(),
            values: Vec::with_capacity(count),
            by_name: HashMap::with_capacity(count),
            inputs: Ends::default(),
            outputs: Ends::default(),
            facts: OnceLock::new(),
        };
        graph.add_constants(proto);
        graph.add_made()?;
        graph.add_readers(proto);
        graph.check_ranks()?;
        Ok(graph)
    }

    /// Looks up a value by name.
    pub fn value(&self, name: &str) -> Option<ValueId> {
        self.by_name.get(name).copied()
    }

    /// The value at an input of a node; `None` if the input is omitted.
    pub fn input(&self, node: usize, input: usize) -> Option<ValueId> {
        self.inputs.get(node, input)
    }

    /// The value at an output of a node; `None` if the output is omitted.
    pub fn output(&self, node: usize, output: usize) -> Option<ValueId> {
        self.outputs.get(node, output)
    }

    /// The only use of a value; `None` if it has other uses, or is an output of the model.
    pub fn only_consumer(&self, value: ValueId) -> Option<Consumer> {
        let value = &self.values[value];
        match value.consumers[..] {
            [consumer] if !value.is_read_outside() => Some(consumer),
            _ => None,
        }
    }

    /// Whether a node uses a value once and nothing else uses it.
    pub fn is_only_consumer(&self, node: usize, value: ValueId) -> bool {
        self.only_consumer(value).is_some_and(|consumer| consumer.node == node)
    }

    /// All names used in the model, including those in subgraphs.
    pub fn names(&self) -> HashSet<&'m str> {
        all_names(self.model.graph())
    }

    /// The nodes in an order in which every value is produced before it is consumed.
    pub(crate) fn order(&self) -> Result<Vec<usize>, QuantizeError> {
        let comes_before = |value: ValueId, reader: usize| match self.values[value].producer {
            Producer::Node { node, .. } => node < reader,
            _ => true,
        };
        let is_in_place = |node: usize| {
            if self.nodes[node].subgraphs().next().is_none() {
                let inputs = self.inputs.of(node).iter().flatten();
                inputs.into_iter().all(|value| comes_before(*value, node))
            } else {
                let names = reads(self.nodes[node]).into_iter();
                names.filter_map(|name| self.value(name)).all(|value| comes_before(value, node))
            }
        };
        // Most files have their nodes in order, which needs no search by name.
        if (0..self.nodes.len()).all(is_in_place) {
            return Ok((0..self.nodes.len()).collect());
        }
        Ok(topological(&self.model.graph().node)?)
    }

    /// The constant tensor of a value: an initializer, or the tensor of a `Constant` node.
    pub fn constant(&self, value: ValueId) -> Option<&'m TensorProto> {
        match self.values[value].producer {
            Producer::Initializer { tensor, .. } => Some(tensor),
            Producer::Node { node, .. } => constant_of(self.nodes[node]),
            _ => None,
        }
    }

    /// The constant tensor of a value, if no input of the model may replace it.
    pub fn fixed_constant(&self, value: ValueId) -> Option<&'m TensorProto> {
        self.constant(value).filter(|_| !self.values[value].is_overridable())
    }

    /// The constant tensor of a value, or of the input of the `Cast` that produces the value.
    pub(crate) fn constant_behind(&self, value: ValueId) -> Option<&'m TensorProto> {
        let cast = |node: usize| self.nodes[node].op_type == "Cast";
        match self.values[value].producer {
            Producer::Node { node, .. } if cast(node) => self.constant(self.input(node, 0)?),
            _ => self.constant(value),
        }
    }

    /// The element type of a value, if it can be inferred.
    pub fn dtype(&self, value: ValueId) -> Option<DataType> {
        match self.fixed_constant(value) {
            Some(tensor) => tensor.dtype(),
            None => self.fact(value)?.dtype,
        }
    }

    /// The shape of a value, if it can be inferred. Dynamic dimensions are `None`.
    pub fn shape(&self, value: ValueId) -> Option<Vec<Option<usize>>> {
        if let Some(tensor) = self.fixed_constant(value) {
            return Some(tensor.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect());
        }
        let length = |dim: &Dim| usize::try_from(dim.fixed()?).ok();
        Some(self.fact(value)?.shape.as_ref()?.iter().map(length).collect())
    }

    /// The inferred type and shape of a value.
    pub(crate) fn fact(&self, value: ValueId) -> Option<&Fact> {
        let inferred = || {
            let mut facts = Inferred::of(self.model).main;
            self.values.iter().map(|value| facts.remove(value.name)).collect()
        };
        self.facts.get_or_init(inferred)[value].as_deref()
    }

    /// Returns an error if the weight of a convolution has too few dimensions.
    fn check_ranks(&self) -> Result<(), QuantizeError> {
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(weight) = self.input(index, 1)
                && let Some(tensor) = self.constant(weight)
                && ops::is_convolution(node)
                && tensor.dims.len() < 3
            {
                let (name, rank) = (self.values[weight].name, tensor.dims.len());
                let what = format!("weight `{name}` has {rank} dimensions, expected 3 or more");
                return Err(QuantizeError::node(node, what));
            }
        }
        Ok(())
    }

    /// Adds a value; one without a name is none.
    fn add(&mut self, name: &'m str, producer: Producer<'m>) -> Option<ValueId> {
        if name.is_empty() {
            return None;
        }
        let id = self.values.len();
        self.by_name.insert(name, id);
        self.values.push(Value {
            name,
            producer,
            consumers: Vec::new(),
            used_in_subgraph: false,
            is_output: false,
            info: None,
        });
        Some(id)
    }

    fn add_constants(&mut self, proto: &'m GraphProto) {
        let constant: HashSet<&str> =
            proto.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let inputs: HashSet<&str> = proto.input.iter().map(|input| input.name.as_str()).collect();
        // Before IR version 4, each initializer also had to be listed as an input, but was
        // constant.
        let may_override = self.model.proto().ir_version >= 4;
        for input in proto.input.iter().filter(|input| !constant.contains(input.name.as_str())) {
            self.add(&input.name, Producer::Input);
        }
        for tensor in &proto.initializer {
            let overridable = may_override && inputs.contains(tensor.name.as_str());
            self.add(&tensor.name, Producer::Initializer { tensor, overridable });
        }
        for tensor in proto.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref()) {
            self.add(&tensor.name, Producer::Sparse);
        }
    }

    fn add_made(&mut self) -> Result<(), QuantizeError> {
        for (index, node) in self.nodes.clone().into_iter().enumerate() {
            ops::check_arity(node)?;
            let mut made = Vec::with_capacity(node.output.len());
            for (output, name) in node.output.iter().enumerate() {
                made.push(self.add(name, Producer::Node { node: index, output }));
            }
            self.outputs.add(made.into_iter());
        }
        Ok(())
    }

    fn add_readers(&mut self, proto: &'m GraphProto) {
        for (index, node) in self.nodes.clone().into_iter().enumerate() {
            self.inputs.add(node.input.iter().map(|name| self.by_name.get(name.as_str()).copied()));
            for input in 0..node.input.len() {
                if let Some(value) = self.inputs.get(index, input) {
                    self.values[value].consumers.push(Consumer { node: index, input });
                }
            }
            if node.subgraphs().next().is_none() {
                continue;
            }
            let own = node.input.iter().filter(|name| !name.is_empty()).count();
            for name in &reads(node)[own..] {
                if let Some(value) = self.value(name) {
                    self.values[value].used_in_subgraph = true;
                }
            }
        }
        for output in &proto.output {
            if let Some(value) = self.value(&output.name) {
                self.values[value].is_output = true;
            }
        }
        for info in proto.value_info.iter().chain(&proto.input).chain(&proto.output) {
            if let Some(value) = self.value(&info.name) {
                self.values[value].info = Some(info);
            }
        }
    }
}

/// The declared shape of a value. Dynamic dimensions are `None`.
pub(crate) fn shape_of(info: &ValueInfoProto) -> Option<Vec<Option<usize>>> {
    let shape = info.tensor_type()?.shape.as_ref()?;
    Some(shape.dim.iter().map(|dim| usize::try_from(dim.value?).ok()).collect())
}

/// The tensor of a `Constant` node.
pub(crate) fn constant_of(node: &NodeProto) -> Option<&TensorProto> {
    (node.op_type == "Constant" && node.is_onnx())
        .then(|| node.attribute("value")?.t.as_deref())
        .flatten()
}

/// A copy of the node in which `other` has replaced subgraphs; `None` if it replaced none.
pub(crate) fn with_subgraphs<'n>(
    node: &'n NodeProto,
    mut other: impl FnMut(&'n GraphProto) -> Option<GraphProto>,
) -> Option<NodeProto> {
    let Ok(with) = try_with_subgraphs(node, |body| Ok::<_, Infallible>(other(body)));
    with
}

/// [`with_subgraphs`], where replacing may fail.
pub(crate) fn try_with_subgraphs<'n, E>(
    node: &'n NodeProto,
    mut other: impl FnMut(&'n GraphProto) -> Result<Option<GraphProto>, E>,
) -> Result<Option<NodeProto>, E> {
    let mut with: Option<NodeProto> = None;
    for (index, attribute) in node.attribute.iter().enumerate() {
        for (at, body) in attribute.subgraphs().enumerate() {
            let Some(body) = other(body)? else { continue };
            let with = with.get_or_insert_with(|| node.clone());
            if let Some(place) = with.attribute[index].edit().subgraphs_mut().nth(at) {
                *place = quantize_rs_onnx::Raw::new(body);
            }
        }
    }
    Ok(with)
}

/// All names in a graph and its subgraphs.
pub(crate) fn all_names(graph: &GraphProto) -> HashSet<&str> {
    // Each tensor has a name, each node one and about one output.
    let count = graph.initializer.len() + graph.value_info.len() + 2 * graph.node.len();
    let mut names = HashSet::with_capacity(count);
    collect_names(graph, &mut names);
    names
}

/// Collects all names in a graph and its subgraphs.
pub(crate) fn collect_names<'m>(graph: &'m GraphProto, names: &mut HashSet<&'m str>) {
    names.extend(graph.input.iter().map(|input| input.name.as_str()));
    names.extend(graph.output.iter().map(|output| output.name.as_str()));
    names.extend(graph.value_info.iter().map(|info| info.name.as_str()));
    names.extend(graph.initializer.iter().map(|tensor| tensor.name.as_str()));
    names.extend(graph.sparse_initializer.iter().filter_map(|sparse| sparse.name()));
    for node in &graph.node {
        names.insert(node.name.as_str());
        names.extend(node.input.iter().chain(&node.output).map(String::as_str));
        node.subgraphs().for_each(|body| collect_names(body, names));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn nodes_in_order_stay_and_others_are_sorted() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
        let mut moved = [0, 0];
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "onnx") {
                continue;
            }
            let Ok(model) = Model::open(&path) else { continue };
            let Ok(graph) = Graph::of(&model) else { continue };
            let sorted = topological(&model.graph().node).unwrap();
            assert_eq!(graph.order().unwrap(), sorted, "{path:?}");
            for (index, node) in graph.nodes.iter().enumerate() {
                for (output, name) in node.output.iter().enumerate() {
                    assert_eq!(graph.output(index, output), graph.value(name), "{name}");
                }
            }
            moved[usize::from(!sorted.is_sorted())] += 1;
        }
        assert!(moved[0] > 50 && moved[1] > 0, "{moved:?}");
    }
}
