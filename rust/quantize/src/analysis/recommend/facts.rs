//! The facts of a model that decide how to quantize it: its weights, its work, its dynamic
//! dimensions.

// Shares, whose digits matter little.
#![allow(clippy::cast_precision_loss)]

use std::collections::{BTreeMap, HashSet};

use quantize_rs_onnx::{DataType, Model, NodeProto};
use serde::Serialize;

use crate::graph::info::inputs;
use crate::graph::quantized_ops::quantized_op;
use crate::graph::uses;
use crate::graph::uses::{Constant, Use};
use crate::graph::{Graph, Producer};
use crate::{ModelInfo, PreprocessedModel, QuantizeError};

/// The facts of a model that decide how to quantize it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// The size of the model in bytes, including external data.
    pub bytes: u64,
    /// The size of float weights that operators multiply by or gather from, in bytes.
    pub weight_bytes: u64,
    /// The size of weights that are stored as integers already, in bytes.
    pub integer_bytes: u64,
    /// The version of the default opset.
    pub opset: i64,
    /// The type of most float weights.
    pub dtype: Option<String>,
    /// Weights by the operators that read them, the most work first.
    pub families: Vec<Share>,
    /// The largest weight.
    pub largest: Option<Largest>,
    /// The number of multiplications of two activations: attention has two.
    pub activation_products: usize,
    /// Dynamic dimensions of the inputs, except the first: `input_ids: sequence`.
    pub varying: Vec<String>,
    /// Inputs that take values of an earlier run: the keys and values of a decoder.
    pub caches: Vec<String>,
    /// The number of tokens of a model that looks tokens up in a table and outputs a score for
    /// each.
    pub vocabulary: Option<usize>,
    /// The number of inputs that have to be fed.
    pub inputs: usize,
}

/// A family of operators that use weights alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// `Conv`, `ConvTranspose`.
    Convolution,
    /// `LSTM`, `GRU`, `RNN`.
    Recurrent,
    /// `MatMul`, `Gemm`, `Einsum`.
    Product,
    /// `Gather`: embeddings.
    Table,
}

/// The weights of one family.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The family.
    pub family: Family,
    /// The number of operators of each type.
    pub operators: BTreeMap<String, usize>,
    /// Their size in bytes.
    pub bytes: u64,
    /// Their fraction of the size of all float weights.
    pub weights: f64,
    /// Their fraction of all multiplications by float weights, for one sample.
    pub work: f64,
}

/// The largest weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Largest {
    /// Its name.
    pub name: String,
    /// The operator that reads it.
    pub op_type: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub bytes: u64,
}

/// The assumed length of a dynamic dimension, except the batch, which is 1.
const VARIES: f64 = 64.0;

impl Facts {
    /// Collects the facts of a model, after the passes that run before planning.
    pub(super) fn of(model: &Model) -> Result<Facts, QuantizeError> {
        let prepared = PreprocessedModel::of(model, crate::Config::default())?;
        let graph = Graph::of(&prepared.model)?;
        let info = ModelInfo::of(model);
        let mut facts = Facts {
            bytes: info.bytes,
            opset: info.opset_version,
            activation_products: activation_products(&graph),
            inputs: inputs(model.graph()).len(),
            ..Facts::default()
        };
        facts.weigh(&graph);
        facts.varying = varying(model);
        facts.caches = caches(model);
        facts.vocabulary = vocabulary(&graph);
        Ok(facts)
    }

    /// The weights of a family, if there are any.
    pub fn share(&self, family: Family) -> Option<&Share> {
        self.families.iter().find(|share| share.family == family)
    }

    fn weigh(&mut self, graph: &Graph<'_>) {
        let mut families: BTreeMap<Family, Share> = BTreeMap::new();
        let mut dtypes: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut bytes_of_all, mut work_of_all) = (0, 0.0);
        let mut counted: HashSet<*const NodeProto> = HashSet::new();
        for constant in uses::constants(graph) {
            let bytes = bytes_of(&constant);
            if is_integer(graph, &constant) {
                self.integer_bytes += bytes;
                continue;
            }
            let Some(dtype) = constant.dtype.filter(|dtype| dtype.is_float()) else { continue };
            let mut consumers = constant.multipliers(graph).filter(|node| family(node).is_some());
            let Some(first) = consumers.next() else { continue };
            // If a matrix multiplication reads it, too, that counts.
            let consumer =
                consumers.fold(
                    first,
                    |one, other| {
                        if family(one) == Some(Family::Table) { other } else { one }
                    },
                );
            let Some(family) = family(consumer) else { continue };
            let work = work(graph, &constant);
            let share = families.entry(family).or_insert_with(|| Share {
                family,
                operators: BTreeMap::new(),
                bytes: 0,
                weights: 0.0,
                work: 0.0,
            });
            // An LSTM reads two weights.
            for node in constant.multipliers(graph).filter(|node| counted.insert(&raw const **node))
            {
                *share.operators.entry(node.op_type.clone()).or_default() += 1;
            }
            share.bytes += bytes;
            share.work += work;
            bytes_of_all += bytes;
            work_of_all += work;
            *dtypes.entry(dtype.name()).or_default() += bytes;
            if self.largest.as_ref().is_none_or(|largest| largest.bytes < bytes) {
                let name = graph.values[constant.anchor].name.to_owned();
                let op_type = consumer.op_type.clone();
                self.largest =
                    Some(Largest { name, op_type, shape: constant.shape.clone(), bytes });
            }
        }
        self.weight_bytes = bytes_of_all;
        self.dtype =
            dtypes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(dtype, _)| dtype.to_owned());
        self.families = families.into_values().collect();
        for share in &mut self.families {
            share.weights = share.bytes as f64 / bytes_of_all.max(1) as f64;
            // Gather does not multiply; it counts only if there is no other work.
            share.work = if work_of_all > 0.0 { share.work / work_of_all } else { share.weights };
        }
        self.families.sort_by(|one, other| other.work.total_cmp(&one.work));
    }
}

/// The family of a node; `None` for other operators.
fn family(node: &NodeProto) -> Option<Family> {
    Some(match node.op_type.as_str() {
        "Conv" | "ConvTranspose" => Family::Convolution,
        "LSTM" | "GRU" | "RNN" => Family::Recurrent,
        "MatMul" | "Gemm" | "Einsum" => Family::Product,
        "Gather" => Family::Table,
        _ => return None,
    })
}

/// Whether a node dequantizes it, or multiplies by it as integers.
fn is_integer(graph: &Graph<'_>, constant: &Constant<'_>) -> bool {
    let narrow = constant.tensor.dtype().is_some_and(|dtype| dtype.bits() <= 16);
    let float = constant.dtype.is_some_and(DataType::is_float);
    narrow
        && !float
        && graph.values[constant.anchor]
            .consumers
            .iter()
            .any(|at| quantized_op(graph.nodes[at.node]).is_some())
}

fn bytes_of(constant: &Constant<'_>) -> u64 {
    let elements: u64 = constant.shape.iter().map(|length| *length as u64).product();
    let bits = constant.tensor.dtype().map_or(32, DataType::bits) as u64;
    elements.saturating_mul(bits).div_ceil(8)
}

/// The number of multiplications by this weight for one sample.
fn work(graph: &Graph<'_>, constant: &Constant<'_>) -> f64 {
    let elements: f64 = constant.shape.iter().map(|length| *length as f64).product();
    let times = constant.uses.iter().map(|usage| match usage {
        Use::Weight { node, .. } => positions(graph, *node),
        // The number of iterations of a subgraph is not known.
        Use::Inside { .. } => 1.0,
        _ => 0.0,
    });
    elements * times.sum::<f64>()
}

/// The number of positions of one sample at which a node multiplies by its weight.
fn positions(graph: &Graph<'_>, node: usize) -> f64 {
    let proto = graph.nodes[node];
    let shape = |value: Option<usize>| value.and_then(|value| graph.shape(value));
    let lengths = |shape: &[Option<usize>]| -> f64 {
        shape.iter().map(|length| length.map_or(VARIES, |length| length as f64)).product()
    };
    match family(proto) {
        Some(Family::Convolution) => {
            // Each position of the output or, for a transposed convolution, of the input.
            let value =
                if proto.op_type == "Conv" { graph.output(node, 0) } else { graph.input(node, 0) };
            let rank = shape(graph.input(node, 1)).map_or(4, |shape| shape.len());
            match shape(value) {
                Some(shape) => lengths(shape.get(2..).unwrap_or_default()),
                None => VARIES.powi(i32::try_from(rank).unwrap_or(4) - 2),
            }
        }
        Some(Family::Recurrent) => match shape(graph.input(node, 0)) {
            Some(shape) => {
                let batch_first = usize::try_from(node_layout(proto)).unwrap_or(0);
                lengths(shape.get(batch_first..=batch_first).unwrap_or_default())
            }
            None => VARIES,
        },
        Some(Family::Product) => match shape(graph.output(node, 0)) {
            // All axes except the batch and the columns.
            Some(shape) if shape.len() > 2 => lengths(&shape[1..shape.len() - 1]),
            _ => 1.0,
        },
        _ => 0.0,
    }
}

/// The sequence axis of the input of a recurrent operator.
fn node_layout(node: &NodeProto) -> i64 {
    node.int("layout", 0).clamp(0, 1)
}

/// The number of multiplications of two values that are computed at run time.
fn activation_products(graph: &Graph<'_>) -> usize {
    let made = |value: Option<usize>| {
        value.is_some_and(|value| {
            let producer = &graph.values[value].producer;
            matches!(producer, Producer::Node { .. }) && graph.constant_behind(value).is_none()
        })
    };
    let both = |(index, node): (usize, &&NodeProto)| {
        let product = node.op_type == "MatMul" && node.is_onnx();
        product && made(graph.input(index, 0)) && made(graph.input(index, 1))
            || matches!(node.op_type.as_str(), "Attention" | "MultiHeadAttention")
            || node.op_type == "GroupQueryAttention"
    };
    // A weight that is reshaped or dequantized is the output of a node, too.
    let weights = uses::constants(graph);
    let weighing: Vec<usize> = weights
        .iter()
        .flat_map(|constant| &constant.uses)
        .filter_map(|usage| match usage {
            Use::Weight { node, .. } => Some(*node),
            _ => None,
        })
        .collect();
    let nodes = graph.nodes.iter().enumerate();
    nodes.filter(|(index, _)| !weighing.contains(index)).filter(|at| both(*at)).count()
}

/// The dynamic dimensions of inputs, except the first, which is the batch.
fn varying(model: &Model) -> Vec<String> {
    let mut found = Vec::new();
    for input in inputs(model.graph()) {
        let info = model.graph().input.iter().find(|info| info.name == input.name);
        let shape = info.and_then(|info| info.tensor_type()?.shape.as_ref());
        for (axis, dim) in shape.map_or(&[][..], |shape| &shape.dim).iter().enumerate().skip(1) {
            if dim.value.is_none() {
                let axis = dim.param.clone().unwrap_or_else(|| format!("axis {axis}"));
                found.push(format!("{}: {axis}", input.name));
            }
        }
    }
    found
}

/// Inputs with the names that exporters use for cached keys and values.
fn caches(model: &Model) -> Vec<String> {
    let names = inputs(model.graph()).into_iter().map(|input| input.name);
    let cache = |name: &String| {
        let name = name.to_lowercase();
        name.contains("past") || name.contains("cache") || name.contains(".key")
    };
    names.filter(cache).collect()
}

/// The number of tokens, if the model looks them up in a table and outputs a score for each.
fn vocabulary(graph: &Graph<'_>) -> Option<usize> {
    let rows: Vec<usize> = uses::constants(graph)
        .iter()
        .filter(|constant| constant.shape.len() == 2)
        .filter(|constant| constant.multipliers(graph).any(|node| node.op_type == "Gather"))
        .map(|constant| constant.shape[0])
        .collect();
    let outputs = graph.model.graph().output.iter();
    outputs
        .filter_map(|output| graph.shape(graph.value(&output.name)?))
        .filter(|shape| shape.len() == 3)
        .find_map(|shape| shape[2].filter(|width| rows.contains(width)))
}
