//! The context of a node during conversion: the facts about its inputs, and the nodes and constants
//! to add.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{
    AttributeProto, DataType, GraphProto, Model, NodeProto, Raw, Tensor, TensorProto,
    ValueInfoProto,
};

use crate::graph::constants::of_ints;
use crate::graph::infer::{Dim, Fact, Facts};
use crate::graph::names::Names;
use crate::graph::{constant_of, shape_of};

/// The facts about the values of a graph and its enclosing graphs.
pub(super) struct Scope<'a> {
    model: &'a Model,
    infos: HashMap<&'a str, &'a ValueInfoProto>,
    constants: HashMap<&'a str, &'a TensorProto>,
    producers: HashMap<&'a str, &'a NodeProto>,
    /// The inferred facts about the values.
    facts: Option<&'a Facts<'a>>,
    outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    /// The scope of a graph, which may be a subgraph.
    pub(super) fn of(
        model: &'a Model,
        graph: &'a GraphProto,
        facts: Option<&'a Facts<'a>>,
        outer: Option<&'a Scope<'a>>,
    ) -> Scope<'a> {
        let mut scope = Scope::of_nodes(model, &graph.node);
        let infos = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
        scope.infos.extend(infos.map(|info| (info.name.as_str(), &**info)));
        let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        let may_override = model.proto().ir_version >= 4;
        let fixed =
            |tensor: &&Raw<TensorProto>| !may_override || !inputs.contains(tensor.name.as_str());
        let tensors = graph.initializer.iter().filter(fixed);
        scope.constants.extend(tensors.map(|tensor| (tensor.name.as_str(), &**tensor)));
        (scope.facts, scope.outer) = (facts, outer);
        scope
    }

    /// Of a function, whose values have no types.
    pub(super) fn of_nodes(model: &'a Model, nodes: &'a [Raw<NodeProto>]) -> Scope<'a> {
        let constants = nodes
            .iter()
            .filter_map(|node| Some((node.output.first()?.as_str(), constant_of(node)?)))
            .collect();
        let made = nodes.iter().filter_map(|node| Some((node.output.first()?.as_str(), &**node)));
        let infos = HashMap::new();
        Scope { model, infos, constants, producers: made.collect(), facts: None, outer: None }
    }

    fn constant(&self, value: &str) -> Option<&'a TensorProto> {
        match self.constants.get(value) {
            Some(tensor) => Some(tensor),
            None if self.infos.contains_key(value) => None,
            None => self.outer?.constant(value),
        }
    }

    fn info(&self, value: &str) -> Option<&'a ValueInfoProto> {
        self.infos.get(value).copied().or_else(|| self.outer?.info(value))
    }

    fn fact(&self, value: &str) -> Option<&'a Fact> {
        let own = self.facts.and_then(|facts| facts.get(value)).map(|fact| &**fact);
        own.or_else(|| self.outer?.fact(value))
    }
}

/// The maximum number of producers that are followed to find the rank or type of a value.
const MAX_PRODUCERS: usize = 64;

/// Operators whose first output has the rank and type of their first input.
#[rustfmt::skip]
const AS_FIRST: [&str; 41] = [
    "Abs", "AveragePool", "BatchNormalization", "Ceil", "Clip", "Concat", "Conv", "ConvTranspose",
    "DepthToSpace", "Dropout", "Elu", "Exp", "Floor", "GlobalAveragePool", "GlobalMaxPool",
    "HardSigmoid", "Hardmax", "Identity", "InstanceNormalization", "LRN", "LeakyRelu", "Log",
    "LogSoftmax", "LpNormalization", "MaxPool", "Neg", "PRelu", "Pad", "Reciprocal", "Relu",
    "Resize", "Selu", "Sigmoid", "Slice", "Softmax", "Softplus", "Softsign", "Sqrt", "Tanh",
    "Transpose", "Upsample",
];

/// Operators with this property before opset 7.
const BROADCAST_TO_FIRST: [&str; 5] = ["Add", "Div", "Mul", "Pow", "Sub"];

/// State shared by all nodes of a model.
pub(super) struct ModelContext<'a> {
    /// Generates names for new values.
    pub(super) names: Names<'a>,
    /// The only float type in the model; `None` if it has several.
    pub(super) only_float: Option<DataType>,
    /// The names of the values that are used.
    pub(super) read: HashSet<&'a str>,
}

/// New constants of a graph or function, without duplicates.
#[derive(Default)]
pub(super) struct Constants {
    pub(super) tensors: Vec<TensorProto>,
    by_content: HashMap<(DataType, Vec<usize>, Vec<u8>), String>,
}

/// The context of a node during conversion.
pub(super) struct NodeContext<'p, 'm> {
    /// The opset version of the current step.
    pub(super) version: i64,
    /// The target opset version.
    pub(super) to: i64,
    /// The original operator type; empty for nodes that an adapter added.
    pub(super) was: &'p str,
    /// Nodes to insert before the node, in the current opset version.
    pub(super) before: Vec<NodeProto>,
    /// Nodes to insert after the node, in the current opset version.
    pub(super) after: Vec<NodeProto>,
    pub(super) scope: &'p Scope<'p>,
    pub(super) common: &'p mut ModelContext<'m>,
    pub(super) constants: &'p mut Constants,
    /// Unused values that were removed.
    pub(super) gone: &'p mut Vec<String>,
}

impl NodeContext<'_, '_> {
    /// A name for a new value derived from `value`.
    pub(super) fn fresh(&mut self, value: &str, what: &str) -> String {
        self.common.names.fresh(value, what)
    }

    /// Whether a value is used.
    pub(super) fn is_read(&self, value: &str) -> bool {
        self.common.read.contains(value)
    }

    /// The name of a constant with these elements. A new constant is named after `value`.
    pub(super) fn tensor(&mut self, value: &str, what: &str, tensor: &Tensor) -> String {
        let content = (tensor.dtype, tensor.shape.clone(), tensor.data.to_vec());
        if let Some(name) = self.constants.by_content.get(&content) {
            return name.clone();
        }
        let name = self.fresh(value, what);
        self.constants.tensors.push(TensorProto::new(name.clone(), tensor));
        self.constants.by_content.insert(content, name.clone());
        name
    }

    /// The name of a constant int64 vector.
    pub(super) fn ints(&mut self, value: &str, what: &str, values: &[i64]) -> String {
        self.tensor(value, what, &of_ints(vec![values.len()], values))
    }

    /// The name of a constant int64 scalar.
    pub(super) fn int(&mut self, value: &str, what: &str, number: i64) -> String {
        self.tensor(value, what, &of_ints(Vec::new(), &[number]))
    }

    /// The name of a constant float32 vector.
    pub(super) fn floats(&mut self, value: &str, what: &str, values: &[f32]) -> String {
        self.tensor(value, what, &Tensor::from_f32(vec![values.len()], values))
    }

    /// The name of a constant float scalar of this type.
    pub(super) fn float(
        &mut self,
        value: &str,
        what: &str,
        number: f32,
        dtype: DataType,
    ) -> Result<String, String> {
        let data: Vec<u8> = match dtype {
            DataType::Float => number.to_le_bytes().to_vec(),
            DataType::Double => f64::from(number).to_le_bytes().to_vec(),
            DataType::Float16 => half::f16::from_f32(number).to_le_bytes().to_vec(),
            DataType::BFloat16 => half::bf16::from_f32(number).to_le_bytes().to_vec(),
            other => return Err(format!("`{value}` is {other}, expected a float")),
        };
        Ok(self.tensor(value, what, &Tensor { dtype, shape: Vec::new(), data: data.into() }))
    }

    /// The elements of a constant value.
    pub(super) fn constant(&self, value: &str) -> Option<Tensor> {
        self.scope.model.tensor(self.scope.constant(value)?).ok()
    }

    /// The shape of a value, if it is known. Dynamic dimensions are `None`.
    pub(super) fn shape(&self, value: &str) -> Option<Vec<Option<usize>>> {
        match self.scope.constant(value) {
            Some(tensor) => {
                Some(tensor.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect())
            }
            None => match self.scope.fact(value) {
                Some(fact) => {
                    let length = |dim: &Dim| usize::try_from(dim.fixed()?).ok();
                    Some(fact.shape.as_ref()?.iter().map(length).collect())
                }
                None => shape_of(self.scope.info(value)?),
            },
        }
    }

    /// The element type of a value, if it is known.
    pub(super) fn dtype(&self, value: &str) -> Option<DataType> {
        match self.scope.constant(value) {
            Some(tensor) => tensor.dtype(),
            None => match self.scope.fact(value) {
                Some(fact) => fact.dtype,
                None => DataType::from_number(self.scope.info(value)?.tensor_type()?.elem_type),
            },
        }
    }

    /// The rank of a value: declared, inferred, or derived from its producers.
    pub(super) fn rank(&self, value: &str) -> Option<usize> {
        self.back(value, |context, value| {
            if let Some(shape) = context.shape(value) {
                return Some(shape.len());
            }
            let producer = context.scope.producers.get(value)?;
            let convolves = producer.is_onnx() && producer.op_type.starts_with("Conv");
            Some(context.shape(input(producer, 1).filter(|_| convolves)?)?.len())
        })
    }

    /// A fact about a value, found by following producers that preserve rank and type.
    fn back<T>(&self, value: &str, known: impl Fn(&Self, &str) -> Option<T>) -> Option<T> {
        let mut value = value;
        for _ in 0..MAX_PRODUCERS {
            if let Some(found) = known(self, value) {
                return Some(found);
            }
            let producer = self.scope.producers.get(value).filter(|producer| producer.is_onnx())?;
            let op_type = producer.op_type.as_str();
            let broadcasts = self.version <= 7 && BROADCAST_TO_FIRST.contains(&op_type);
            value = input(producer, 0).filter(|_| broadcasts || AS_FIRST.contains(&op_type))?;
        }
        None
    }

    /// The type of a value that the operator requires to be a float.
    pub(super) fn float_dtype(&self, value: &str) -> Result<DataType, String> {
        let found = self.back(value, |context, value| {
            let cast = || {
                let producer = context
                    .scope
                    .producers
                    .get(value)
                    .filter(|producer| producer.op_type == "Cast")?;
                DataType::from_number(i32::try_from(producer.int("to", 0)).ok()?)
            };
            context.dtype(value).or_else(cast)
        });
        found.or(self.common.only_float).ok_or_else(|| {
            format!("the element type of `{value}` is unknown; infer the shapes of the model first")
        })
    }
}

/// An attribute of a node. Fails if it refers to an attribute of the function, whose value is
/// unknown.
fn own<'n>(node: &'n NodeProto, name: &str) -> Result<Option<&'n AttributeProto>, String> {
    match node.attribute(name) {
        Some(AttributeProto { ref_attr_name: Some(outer), .. }) => Err(format!(
            "its attribute `{name}` refers to `{outer}` of the function, which each caller sets"
        )),
        other => Ok(other),
    }
}

/// An integer attribute, or its default.
pub(super) fn int(node: &NodeProto, name: &str, default: i64) -> Result<i64, String> {
    Ok(own(node, name)?.and_then(|attribute| attribute.i).unwrap_or(default))
}

/// A float attribute, if present.
pub(super) fn float(node: &NodeProto, name: &str) -> Result<Option<f32>, String> {
    Ok(own(node, name)?.and_then(|attribute| attribute.f))
}

/// An integer list attribute, if present.
pub(super) fn ints<'n>(node: &'n NodeProto, name: &str) -> Result<Option<&'n [i64]>, String> {
    Ok(own(node, name)?.map(|attribute| &*attribute.ints))
}

/// An integer attribute, if present.
pub(super) fn maybe_int(node: &NodeProto, name: &str) -> Result<Option<i64>, String> {
    Ok(own(node, name)?.and_then(|attribute| attribute.i))
}

/// A float list attribute, if present.
pub(super) fn floats<'n>(node: &'n NodeProto, name: &str) -> Result<Option<&'n [f32]>, String> {
    Ok(own(node, name)?.map(|attribute| &*attribute.floats))
}

/// A string attribute, or its default.
pub(super) fn string(node: &NodeProto, name: &str, default: &str) -> Result<String, String> {
    let found = own(node, name)?.and_then(|attribute| attribute.s.as_ref());
    Ok(found.map_or(default.to_owned(), |s| String::from_utf8_lossy(s).into_owned()))
}

/// Removes an attribute. Returns whether it was present.
pub(super) fn remove(node: &mut NodeProto, name: &str) -> bool {
    let before = node.attribute.len();
    node.attribute.retain(|attribute| attribute.name != name);
    node.attribute.len() < before
}

/// Replaces the attribute of the same name, or appends the attribute.
pub(super) fn set(node: &mut NodeProto, attribute: AttributeProto) {
    match node.attribute.iter_mut().find(|own| own.name == attribute.name) {
        Some(own) => *own = Raw::new(attribute),
        None => node.attribute.push(Raw::new(attribute)),
    }
}

/// Sets an input. Missing inputs before it are omitted.
pub(super) fn set_input(node: &mut NodeProto, input: usize, value: String) {
    while node.input.len() <= input {
        node.input.push(String::new());
    }
    if let Some(context) = node.input.get_mut(input) {
        *context = value;
    }
}

/// The name of an input, if present.
pub(super) fn input(node: &NodeProto, index: usize) -> Option<&str> {
    node.input.get(index).map(String::as_str).filter(|name| !name.is_empty())
}

/// The name from which the names of new values are derived.
pub(super) fn base(node: &NodeProto) -> String {
    let made = node.output.iter().find(|name| !name.is_empty());
    made.unwrap_or(&node.op_type).clone()
}
