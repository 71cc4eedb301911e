//! Describes the contents of a model without reading its weights.

use std::collections::BTreeMap;

use quantize_rs_onnx::{
    DataType, GraphProto, Model, NodeProto, Raw, ValueInfoProto, canonical_domain,
};
use serde::Serialize;

use crate::graph::quantized_ops::quantized_op;
use crate::graph::{recurrent_batch, shape_of};

/// A summary of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelInfo {
    /// The name of the main graph.
    pub name: String,
    /// The version of the model itself, set by its producer.
    pub version: i64,
    /// The version of the ONNX file format.
    pub ir_version: i64,
    /// The opset version of the ONNX domain; 0 if the model does not import it.
    pub opset_version: i64,
    /// The opset versions by domain.
    pub opsets: BTreeMap<String, i64>,
    /// The tool that produced the file.
    pub producer: String,
    /// The number of nodes in the main graph.
    pub num_nodes: usize,
    /// The number of nodes in the main graph by operator type.
    pub operators: BTreeMap<String, usize>,
    /// The inputs that the caller must provide.
    pub inputs: Vec<InputSpec>,
    /// The outputs.
    pub outputs: Vec<InputSpec>,
    /// The number of constant tensors in the main graph.
    pub initializers: usize,
    /// The number of elements in all constant tensors.
    pub parameters: u64,
    /// The size of the constant tensors in bytes, by element type.
    pub weight_bytes: BTreeMap<String, u64>,
    /// The size in bytes of the file and its external data.
    pub bytes: u64,
    /// Whether the model is already quantized: it has an operator that only occurs in such models,
    /// in the main graph, a subgraph or a function.
    pub quantized: bool,
}

impl ModelInfo {
    /// Summarizes a model.
    pub fn of(model: &Model) -> ModelInfo {
        let (proto, graph) = (model.proto(), model.graph());
        let mut operators = BTreeMap::new();
        for node in &graph.node {
            let name = match canonical_domain(&node.domain) {
                "" => node.op_type.clone(),
                domain => format!("{domain}::{}", node.op_type),
            };
            *operators.entry(name).or_insert(0) += 1;
        }
        let mut weight_bytes = BTreeMap::new();
        let mut parameters = 0u64;
        for tensor in &graph.initializer {
            let elements: u64 = tensor.dims.iter().map(|dim| dim.unsigned_abs()).product();
            parameters += elements;
            if let Some(dtype) = tensor.dtype() {
                let bytes = elements.saturating_mul(dtype.bits() as u64).div_ceil(8);
                *weight_bytes.entry(dtype.name().to_owned()).or_insert(0) += bytes;
            }
        }
        let domain = |domain: &str| if domain.is_empty() { "ai.onnx" } else { domain }.to_owned();
        ModelInfo {
            name: graph.name.clone().unwrap_or_default(),
            version: proto.model_version.unwrap_or(0),
            ir_version: proto.ir_version,
            opset_version: model.opset("").unwrap_or(0),
            opsets: proto
                .opset_import
                .iter()
                .map(|opset| (domain(&opset.domain), opset.version))
                .collect(),
            producer: proto.producer_name.clone().unwrap_or_default(),
            num_nodes: graph.node.len(),
            quantized: is_quantized(&graph.node)
                || proto.functions.iter().any(|function| is_quantized(&function.node)),
            operators,
            inputs: inputs(graph),
            outputs: graph.output.iter().map(|output| spec(output)).collect(),
            initializers: graph.initializer.len(),
            parameters,
            weight_bytes,
            bytes: model.byte_len(),
        }
    }
}

/// Whether one of the nodes, or of those of their subgraphs, only occurs in quantized models.
fn is_quantized(nodes: &[Raw<NodeProto>]) -> bool {
    nodes.iter().any(|node| {
        quantized_op(node).is_some() || node.subgraphs().any(|body| is_quantized(&body.node))
    })
}

/// An input or output of a model, as it is declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InputSpec {
    /// Its name.
    pub name: String,
    /// Its element type; `None` if it is not declared, or if the value is not a tensor.
    pub dtype: Option<DataType>,
    /// Its shape, with `None` for a dynamic dimension; `None` if the rank is unknown.
    pub shape: Option<Vec<Option<usize>>>,
}

impl InputSpec {
    /// The inputs that a caller must provide. Their shapes are those that are declared, and lengths
    /// that recurrent operators fix by the shape of their initial states.
    pub fn of(model: &Model) -> Vec<InputSpec> {
        let mut inputs = inputs(model.graph());
        recurrent_batch::fill_in(model, &mut inputs);
        inputs
    }
}

/// The inputs that a caller must provide: those without an initializer.
pub(crate) fn inputs(graph: &GraphProto) -> Vec<InputSpec> {
    let constant: std::collections::HashSet<&str> =
        graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    graph
        .input
        .iter()
        .filter(|input| !constant.contains(input.name.as_str()))
        .map(|input| spec(input))
        .collect()
}

fn spec(info: &ValueInfoProto) -> InputSpec {
    InputSpec {
        name: info.name.clone(),
        dtype: info.tensor_type().and_then(|tensor| DataType::from_number(tensor.elem_type)),
        shape: shape_of(info),
    }
}
