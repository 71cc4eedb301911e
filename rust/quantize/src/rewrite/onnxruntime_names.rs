//! Gives the values, constants and nodes of a result the names that `onnxruntime.quantization`
//! gives them, for programs that look them up by name.
//!
//! The value itself keeps its name `X`. Its integers are `X_QuantizeLinear_Output`, the dequantized
//! value is `X_DequantizeLinear_Output`, and the constants are `X_scale` and `X_zero_point`. An
//! output of the model keeps its name too: it is the dequantized value then, and the float value is
//! `X_QuantizeLinear_Input`. A value that a subgraph reads keeps the names that it has.

use std::collections::{BTreeMap, HashMap, HashSet};

use quantize_rs_onnx::{DataType, Edit, Model, NodeProto, TensorProto};

use crate::QuantizeError;
use crate::graph::ops::MICROSOFT;
use crate::graph::{Graph, Producer, ValueId, collect_names};

/// The suffixes that [`super::writer::Writer`] appends to the name of a value.
const SUFFIXES: [&str; 4] = ["_quantized", "_float", "_dequantized", "_zp"];

/// The model with other names. `original` are the names of the float model.
///
/// # Errors
/// The result is not a valid model, which would be a bug.
pub(crate) fn with_onnxruntime_names(
    original: &HashSet<&str>,
    model: &Model,
) -> Result<Model, QuantizeError> {
    let graph = Graph::of(model)?;
    let mut naming = Naming {
        graph: &graph,
        original,
        renamed: BTreeMap::new(),
        nodes: HashMap::new(),
        taken_nodes: graph.nodes.iter().map(|node| node.name.clone()).collect(),
        inside: inside(&graph),
        points: HashMap::new(),
        copies: Vec::new(),
        given: HashSet::new(),
    };
    for node in 0..graph.nodes.len() {
        naming.node(node);
    }
    naming.others();
    let mut result = model.clone();
    let edits = naming.edits();
    if !edits.is_empty() {
        result.apply(edits)?;
    }
    Ok(result)
}

/// The new names found so far.
struct Naming<'g, 'm> {
    graph: &'g Graph<'m>,
    original: &'g HashSet<&'g str>,
    /// New names of values.
    renamed: BTreeMap<ValueId, String>,
    /// New names of nodes.
    nodes: HashMap<usize, String>,
    /// All names of nodes, old and new.
    taken_nodes: HashSet<String>,
    /// All names in subgraphs, where an outer value must not have the name of an inner one.
    inside: HashSet<&'g str>,
    /// The zero point that nodes read, by the scale that they read: each scale gets its own.
    points: HashMap<ValueId, (ValueId, String)>,
    /// Zero points to add.
    copies: Vec<TensorProto>,
    given: HashSet<String>,
}

impl Naming<'_, '_> {
    /// Names what belongs to a node that dequantizes or multiplies by a weight in blocks.
    fn node(&mut self, node: usize) {
        let proto = self.graph.nodes[node];
        match proto.op_type.as_str() {
            "DequantizeLinear" if proto.is_onnx() => match self.quantizes(node) {
                Some(quantizes) => self.activation(quantizes, node),
                None => self.constant(node),
            },
            "MatMulNBits" if proto.domain == MICROSOFT => self.blocks(node),
            _ => {}
        }
    }

    /// The `QuantizeLinear` before a `DequantizeLinear`.
    fn quantizes(&self, node: usize) -> Option<usize> {
        let codes = self.graph.input(node, 0)?;
        let Producer::Node { node, .. } = self.graph.values[codes].producer else { return None };
        (self.graph.nodes[node].op_type == "QuantizeLinear").then_some(node)
    }

    /// Names the integers of an activation, its dequantized value and its constants.
    fn activation(&mut self, quantizes: usize, dequantizes: usize) {
        let graph = self.graph;
        let (Some(float), Some(codes), Some(restored)) =
            (graph.input(quantizes, 0), graph.output(quantizes, 0), graph.output(dequantizes, 0))
        else {
            return;
        };
        // A pair of the original, as models that were trained with quantization have them.
        if self.is_original(codes) {
            return;
        }
        let base = match graph.values[restored].name {
            name if self.original.contains(name) => name.to_owned(),
            _ => self.base(float),
        };
        if graph.values[restored].is_output {
            self.rename(float, &format!("{base}_QuantizeLinear_Input"));
        } else if !graph.values[restored].used_in_subgraph {
            self.rename(restored, &format!("{base}_DequantizeLinear_Output"));
            self.rename(float, &base);
        }
        self.rename(codes, &format!("{base}_QuantizeLinear_Output"));
        self.name_node(quantizes, &format!("{base}_QuantizeLinear"));
        self.name_node(dequantizes, &format!("{base}_DequantizeLinear"));
        self.parameters(dequantizes, &base);
    }

    /// Names the constants from which a weight or a bias is dequantized, and the result of a
    /// weight.
    fn constant(&mut self, node: usize) {
        let graph = self.graph;
        let (Some(codes), Some(restored)) = (graph.input(node, 0), graph.output(node, 0)) else {
            return;
        };
        let Some(tensor) = graph.constant(codes).filter(|_| !self.is_original(codes)) else {
            return;
        };
        let mut base = self.base(codes);
        self.name_node(node, &format!("{base}_DequantizeLinear"));
        if tensor.dtype() == Some(DataType::Int32) {
            base.push_str("_quantized");
        } else {
            self.rename(restored, &format!("{base}_DequantizeLinear_Output"));
        }
        self.parameters(node, &base);
    }

    /// Names the scale and the zero point that a node reads.
    fn parameters(&mut self, node: usize, base: &str) {
        let Some(scale) = self.graph.input(node, 1).filter(|id| !self.is_original(*id)) else {
            return;
        };
        self.rename(scale, &format!("{base}_scale"));
        let Some(point) = self.graph.input(node, 2).filter(|id| !self.is_original(*id)) else {
            return;
        };
        let Producer::Initializer { tensor, .. } = self.graph.values[point].producer else {
            return;
        };
        if !self.points.contains_key(&scale) {
            let name = self.free(&format!("{base}_zero_point"));
            self.copies.push(named(tensor, &name));
            self.points.insert(scale, (point, name));
        }
    }

    /// Names the constants of a `MatMulNBits`, and the node.
    fn blocks(&mut self, node: usize) {
        let proto = self.graph.nodes[node];
        let Some(codes) = self.graph.input(node, 1).filter(|id| !self.is_original(*id)) else {
            return;
        };
        let base = self.base(codes);
        let bits =
            proto.attribute.iter().find(|it| it.name == "bits").and_then(|it| it.i).unwrap_or(4);
        for (input, name) in [
            (1, format!("{base}_Q{bits}")),
            (2, format!("{base}_scales")),
            (3, format!("{base}_zero_points")),
        ] {
            if let Some(id) = self.graph.input(node, input).filter(|id| !self.is_original(*id)) {
                self.rename(id, &name);
            }
        }
        if !proto.name.is_empty() {
            self.name_node(node, &format!("{}_Q{bits}", proto.name));
        }
    }

    /// Names the zero points of all other operators.
    fn others(&mut self) {
        let copied: HashSet<ValueId> = self.points.values().map(|(point, _)| *point).collect();
        for (id, value) in self.graph.values.iter().enumerate() {
            let other = !self.is_original(id) && !copied.contains(&id);
            if let Some(base) = value.name.strip_suffix("_zp").filter(|_| other) {
                self.rename(id, &format!("{base}_zero_point"));
            }
        }
    }

    fn is_original(&self, id: ValueId) -> bool {
        self.original.contains(self.graph.values[id].name)
    }

    /// The name of the value to which a suffix was appended, and perhaps a number.
    fn base(&self, id: ValueId) -> String {
        let name = self.graph.values[id].name;
        if self.original.contains(name) {
            return name.to_owned();
        }
        let numbered = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let plain = numbered.strip_suffix('_').filter(|_| numbered.len() < name.len());
        let found = [Some(name), plain].into_iter().flatten();
        let mut stripped =
            found.flat_map(|name| SUFFIXES.iter().filter_map(|suffix| name.strip_suffix(suffix)));
        stripped.next().unwrap_or(name).to_owned()
    }

    /// Gives a value a new name, unless it has one, or something outside of the nodes reads it.
    fn rename(&mut self, id: ValueId, name: &str) {
        let value = &self.graph.values[id];
        if value.is_read_outside() {
            return;
        }
        if !self.renamed.contains_key(&id) && value.name != name {
            let name = self.free(name);
            self.renamed.insert(id, name);
        }
    }

    /// Gives a node a new name, with a number where another node has it.
    fn name_node(&mut self, node: usize, name: &str) {
        if self.nodes.contains_key(&node) {
            return;
        }
        let numbered = (1..).map(|number| format!("{name}_{number}"));
        let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
        if let Some(free) = candidates.find(|name| !self.taken_nodes.contains(name)) {
            self.taken_nodes.insert(free.clone());
            self.nodes.insert(node, free);
        }
    }

    /// A name that nothing keeps: with a number where another value has it.
    fn free(&mut self, name: &str) -> String {
        let taken = |name: &str, given: &HashSet<String>| {
            let keeps = self.graph.value(name).is_some_and(|id| !self.renamed.contains_key(&id));
            given.contains(name) || keeps || self.inside.contains(name)
        };
        let mut free = name.to_owned();
        let mut number = 0;
        while taken(&free, &self.given) {
            number += 1;
            free = format!("{name}_{number}");
        }
        self.given.insert(free.clone());
        free
    }

    fn edits(self) -> Vec<Edit> {
        let graph = self.graph;
        let by_name: HashMap<&str, &String> =
            self.renamed.iter().map(|(id, name)| (graph.values[*id].name, name)).collect();
        let renamed = |name: &String| by_name.get(name.as_str()).map_or(name, |name| *name).clone();
        let mut edits: Vec<Edit> = self.copies.into_iter().map(Edit::AddInitializer).collect();
        for (id, name) in &self.renamed {
            let value = &graph.values[*id];
            if let Producer::Initializer { tensor, .. } = value.producer {
                edits.push(Edit::RemoveInitializer(value.name.to_owned()));
                edits.push(Edit::AddInitializer(named(tensor, name)));
            } else if value.info.is_some() && !self.given.contains(value.name) {
                edits.push(Edit::RemoveValueInfo(value.name.to_owned()));
            }
        }
        let mut replaced: BTreeMap<ValueId, usize> = BTreeMap::new();
        for (node, proto) in graph.nodes.iter().enumerate() {
            let mut with: NodeProto = (*proto).clone();
            if let Some(name) = self.nodes.get(&node) {
                with.name.clone_from(name);
            }
            with.input = proto.input.iter().map(renamed).collect();
            with.output = proto.output.iter().map(renamed).collect();
            let point = graph.input(node, 1).and_then(|scale| self.points.get(&scale));
            if let Some((point, name)) = point
                && graph.input(node, 2) == Some(*point)
            {
                with.input[2].clone_from(name);
                *replaced.entry(*point).or_default() += 1;
            }
            if (&with.name, &with.input, &with.output) != (&proto.name, &proto.input, &proto.output)
            {
                edits.push(Edit::ReplaceNode { node, with });
            }
        }
        // What nothing reads any more.
        for (id, count) in replaced {
            let value = &graph.values[id];
            if count == value.consumers.len() && !value.is_read_outside() {
                edits.push(Edit::RemoveInitializer(value.name.to_owned()));
            }
        }
        edits
    }
}

/// All names in the subgraphs of a graph.
fn inside<'g>(graph: &'g Graph<'_>) -> HashSet<&'g str> {
    let mut names = HashSet::new();
    let bodies = graph.nodes.iter().flat_map(|node| node.subgraphs());
    bodies.for_each(|body| collect_names(body, &mut names));
    names
}

/// The same tensor by another name.
fn named(tensor: &TensorProto, name: &str) -> TensorProto {
    let mut tensor = tensor.clone();
    name.clone_into(&mut tensor.name);
    tensor
}
