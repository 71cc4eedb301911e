//! Converts float16 and bfloat16 computations to float32. Runtimes fuse integer operators only with
//! float32, and CPUs compute these types in float32 anyway.
//!
//! Inputs and outputs of the model keep their types. Weights keep their stored type and get a
//! `Cast`.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{
    AttributeProto, DataType, Edit, NodeProto, Raw, Tensor, TensorProto, ValueInfoProto,
};

use super::Changes;
use super::precision_guards;
use crate::QuantizeError;
use crate::graph::constants::fixed;
use crate::graph::elements::{HALVES, to_f32};
use crate::graph::kv_cache::cached_attention;
use crate::graph::names::Names;
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::{Graph, Producer, Value, ValueId};

/// Operators of ONNX Runtime that compute in float32 as well, and hold no weights in blocks.
const MICROSOFT_OPS: [&str; 9] = [
    "BiasGelu",
    "FastGelu",
    "Gelu",
    "GroupQueryAttention",
    "MultiHeadAttention",
    "QuickGelu",
    "RotaryEmbedding",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
];

/// Attributes that specify an output type.
const TYPES: [&str; 3] = ["dtype", "output_dtype", "output_datatype"];

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    // A cast of a whole cache would cost more than attention itself, with every token.
    let cached: HashSet<usize> =
        cached_attention(graph).into_iter().map(|cached| cached.node).collect();
    let widens = |node: usize| !cached.contains(&node) && computes(graph, node);
    let widened: Vec<bool> = (0..graph.nodes.len()).map(widens).collect();
    let mut widening = Widening {
        graph,
        widened,
        far: precision_guards::far(graph),
        weights: HashSet::new(),
        names: Names::of(graph),
        wide: HashMap::new(),
        half: HashMap::new(),
        changes: Changes::default(),
    };
    if (0..graph.values.len()).any(|value| widening.concerns(value)) {
        let constants = uses::constants(graph).into_iter().filter(uses::Constant::is_weight);
        widening.weights = constants.map(|constant| constant.anchor).collect();
        widening.values();
        widening.nodes();
    }
    Ok(widening.changes)
}

/// Whether a value has a type that is converted.
fn is_half(graph: &Graph<'_>, value: ValueId) -> bool {
    graph.dtype(value).is_some_and(|dtype| HALVES.contains(&dtype))
}

/// Whether a node computes in 16-bit floats and can compute in float32 instead, which all
/// operators of ONNX support, and some of ONNX Runtime. The types of all its inputs and outputs
/// must be known.
fn computes(graph: &Graph<'_>, index: usize) -> bool {
    let node = graph.nodes[index];
    let values = || node.input.iter().chain(&node.output).filter(|name| !name.is_empty());
    // An overridable initializer behind a `Cast` would look like a computed value and be quantized.
    let is_known = |id: ValueId| graph.dtype(id).is_some() && !graph.values[id].is_overridable();
    let known = |name: &String| graph.value(name).is_some_and(is_known);
    let half = |name: &String| graph.value(name).is_some_and(|id| is_half(graph, id));
    let of_runtime =
        || node.domain == ops::MICROSOFT && MICROSOFT_OPS.contains(&node.op_type.as_str());
    (node.is_onnx() || of_runtime())
        && !matches!(node.op_type.as_str(), "BitCast" | "Cast" | "Constant")
        && node.subgraphs().next().is_none()
        && values().any(half)
        && values().all(known)
}

/// The state of the pass.
struct Widening<'g, 'm> {
    graph: &'g Graph<'m>,
    /// Whether each node will compute in float32.
    widened: Vec<bool>,
    /// Values whose meaning would change in 16 bits.
    far: Vec<bool>,
    /// Constants that are weights.
    weights: HashSet<ValueId>,
    names: Names<'g>,
    /// The names of the float32 versions of values.
    wide: HashMap<ValueId, String>,
    /// The names of the 16-bit versions of values.
    half: HashMap<ValueId, String>,
    changes: Changes,
}

impl Widening<'_, '_> {
    /// Whether the producer of a value is converted.
    fn made_wide(&self, value: ValueId) -> bool {
        let producer = self.graph.values[value].producer;
        matches!(producer, Producer::Node { node, .. } if self.widened[node])
    }

    /// Whether a node uses the float32 version of a value: converted nodes, and casts of values
    /// that exist in float32 before they are rounded.
    fn reads_wide(&self, node: usize, value: ValueId) -> bool {
        let before = || self.made_wide(value) || self.rounded(value).is_some();
        self.widened[node] || to_float32(self.graph, node) && before()
    }

    /// Whether a 16-bit value is produced or used in float32.
    fn concerns(&self, value: ValueId) -> bool {
        let mut consumers = self.graph.values[value].consumers.iter();
        is_half(self.graph, value)
            && (self.made_wide(value)
                || consumers.any(|consumer| self.reads_wide(consumer.node, value)))
    }

    /// Creates the required versions of each value.
    fn values(&mut self) {
        for value in 0..self.graph.values.len() {
            if self.concerns(value) {
                self.value(value);
            }
        }
    }

    /// Creates the required versions of a value.
    fn value(&mut self, value: ValueId) {
        let graph = self.graph;
        let found = &graph.values[value];
        let known = found.is_read_outside() || is_given(found);
        let half_read =
            known || found.consumers.iter().any(|consumer| !self.reads_wide(consumer.node, value));
        if let Some((cast, source)) = self.rounded(value) {
            if !half_read {
                let label = graph.nodes[cast].label();
                self.changes.did.push(format!("removed {label}: its output is used in float32"));
                self.changes.edits.push(Edit::RemoveNode(cast));
            }
            self.wide.insert(value, source);
            return;
        }
        let other = self.other(value);
        if let Some(cast) = self.widened_before(value).filter(|_| other.is_none()) {
            self.wide.insert(value, cast);
            return;
        }
        let (mut half, mut wide) = (found.name.to_owned(), found.name.to_owned());
        let dtype = graph.dtype(value).unwrap_or(DataType::Float16);
        // Callers and subgraphs refer to it by name.
        if known {
            wide = self.names.fresh(found.name, DataType::Float.name());
        } else {
            half = self.names.fresh(found.name, dtype.name());
        }
        if let Some(info) = found.info.and_then(|info| in_float32(info, &wide)) {
            self.changes.edits.push(Edit::SetValueInfo(info));
        }
        if self.made_wide(value) {
            if half_read {
                self.cast(&wide, &half, dtype);
            }
        } else if let Some(tensor) = other {
            self.constant(value, &tensor, (&wide, &half), half_read);
        } else {
            self.cast(&half, &wide, DataType::Float);
            self.rename(value, &half);
        }
        self.wide.insert(value, wide);
        self.half.insert(value, half);
    }

    /// The `Cast` from float32 that produces this value, and its input. The input is used instead
    /// if the rounding only changes the last digits.
    fn rounded(&self, value: ValueId) -> Option<(usize, String)> {
        let graph = self.graph;
        let Producer::Node { node, .. } = graph.values[value].producer else { return None };
        let source = graph.input(node, 0).filter(|_| is_cast(graph, node))?;
        let mut consumers = graph.values[value].consumers.iter().map(|consumer| consumer.node);
        let among =
            consumers.any(|consumer| self.widened[consumer] || self.back_to_a_product(consumer));
        let is_float = graph.dtype(source) == Some(DataType::Float);
        let last_digits =
            !self.far[source] && !precision_guards::is_distinguished(graph, value, source);
        (is_float && among && last_digits).then(|| (node, graph.values[source].name.to_owned()))
    }

    /// Whether a node casts to float32 for a matrix multiplication.
    fn back_to_a_product(&self, cast: usize) -> bool {
        let graph = self.graph;
        let made = graph.output(cast, 0).filter(|_| to_float32(graph, cast));
        let mut consumers = made.into_iter().flat_map(|made| &graph.values[made].consumers);
        consumers.any(|consumer| {
            ops::rule(graph.nodes[consumer.node]).is_some_and(|rule| rule.takes_weight(1))
        })
    }

    /// The existing float32 version of a value in the model.
    fn widened_before(&self, value: ValueId) -> Option<String> {
        let consumers = self.graph.values[value].consumers.iter().map(|consumer| consumer.node);
        let mut casts = consumers.filter(|node| to_float32(self.graph, *node));
        let made = self.graph.output(casts.next()?, 0).filter(|_| !self.made_wide(value))?;
        Some(self.graph.values[made].name.to_owned())
    }

    /// A constant that is not a weight, or that is too small for its type to matter.
    fn other(&self, value: ValueId) -> Option<Tensor> {
        let shape = self.graph.constant(value).and_then(|_| self.graph.shape(value))?;
        let lengths = shape.iter().filter(|length| **length != Some(1));
        let weight = lengths.count() > 1 && self.weights.contains(&value);
        if weight { None } else { fixed(self.graph, value) }
    }

    /// Adds a constant in float32, and keeps the original where it is needed.
    fn constant(
        &mut self,
        value: ValueId,
        tensor: &Tensor,
        (wide, half): (&str, &str),
        half_read: bool,
    ) {
        let floats = TensorProto::new(wide, &widened(tensor));
        let found = &self.graph.values[value];
        let edits = &mut self.changes.edits;
        match found.producer {
            Producer::Initializer { .. } if wide == found.name => {
                edits.push(Edit::ReplaceInitializer(floats));
                if half_read {
                    edits.push(Edit::AddInitializer(TensorProto::new(half, tensor)));
                }
            }
            Producer::Node { node, .. } if !half_read => {
                edits.push(Edit::AddInitializer(floats));
                edits.push(Edit::RemoveNode(node));
            }
            _ => {
                edits.push(Edit::AddInitializer(floats));
                self.rename(value, half);
            }
        }
    }

    /// Makes a value that is not converted available under this name.
    fn rename(&mut self, value: ValueId, name: &str) {
        let found = &self.graph.values[value];
        if name == found.name {
            return;
        }
        let edits = &mut self.changes.edits;
        match found.producer {
            Producer::Initializer { tensor, .. } => {
                let mut tensor = tensor.clone();
                name.clone_into(&mut tensor.name);
                edits.push(Edit::RemoveInitializer(found.name.to_owned()));
                edits.push(Edit::AddInitializer(tensor));
            }
            Producer::Node { node, output } => {
                edits.push(Edit::RenameOutput { node, output, value: name.to_owned() });
            }
            Producer::Input | Producer::Sparse => {}
        }
    }

    fn cast(&mut self, from: &str, to: &str, dtype: DataType) {
        let name = self.names.fresh(to, "cast");
        let types = vec![Raw::new(AttributeProto::int("to", i64::from(dtype.number())))];
        let (reads, makes) = (vec![from.to_owned()], vec![to.to_owned()]);
        let cast = NodeProto::new(name, "Cast", reads, makes, types);
        self.changes.edits.push(Edit::AddNode(cast));
    }

    /// Updates the inputs, outputs and types of all nodes.
    fn nodes(&mut self) {
        let graph = self.graph;
        let mut replaced = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            let mut with = (*node).clone();
            for name in &mut with.input {
                let Some(value) = graph.value(name) else { continue };
                let wide = self.reads_wide(index, value);
                let forms = if wide { &self.wide } else { &self.half };
                if let Some(form) = forms.get(&value) {
                    name.clone_from(form);
                }
            }
            if self.widened[index] {
                self.changes.did.push(format!("{} now computes in float32", node.label()));
                for name in &mut with.output {
                    if let Some(form) = graph.value(name).and_then(|id| self.wide.get(&id)) {
                        name.clone_from(form);
                    }
                }
                for attribute in &mut with.attribute {
                    widen(graph, attribute.edit());
                }
            }
            if self.widened[index] || with.input != node.input {
                replaced.push(Edit::ReplaceNode { node: index, with });
            }
        }
        // Outputs are renamed after the nodes were replaced.
        replaced.append(&mut self.changes.edits);
        self.changes.edits = replaced;
    }
}

/// Whether a value comes from outside the graph, or may.
fn is_given(value: &Value<'_>) -> bool {
    matches!(value.producer, Producer::Input | Producer::Sparse) || value.is_overridable()
}

fn is_cast(graph: &Graph<'_>, node: usize) -> bool {
    let node = graph.nodes[node];
    node.op_type == "Cast" && node.is_onnx()
}

fn to_float32(graph: &Graph<'_>, node: usize) -> bool {
    uses::casts_to_float32(graph.nodes[node])
}

/// A constant in float32.
fn widened(tensor: &Tensor) -> Tensor {
    match to_f32(tensor) {
        Some(values) => Tensor::from_f32_vec(tensor.shape.clone(), values),
        None => tensor.clone(),
    }
}

/// Updates the types and the tensor in an attribute.
fn widen(graph: &Graph<'_>, attribute: &mut AttributeProto) {
    let half = |number: i64| HALVES.iter().any(|half| i64::from(half.number()) == number);
    if TYPES.contains(&attribute.name.as_str()) && attribute.i.is_some_and(half) {
        attribute.i = Some(i64::from(DataType::Float.number()));
    }
    if let Some(tensor) = attribute.t.as_deref()
        && tensor.dtype().is_some_and(|dtype| HALVES.contains(&dtype))
        && let Ok(elements) = graph.model.tensor(tensor)
    {
        let wide = TensorProto::new(tensor.name.clone(), &widened(&elements));
        attribute.t = Some(Raw::new(wide));
    }
}

/// The value info of a value with its type replaced by float32.
fn in_float32(info: &ValueInfoProto, name: &str) -> Option<ValueInfoProto> {
    let mut info = info.clone();
    name.clone_into(&mut info.name);
    let tensor = info.value_type.as_mut()?.edit().tensor.as_mut()?.edit();
    tensor.elem_type = DataType::Float.number();
    Some(info)
}
