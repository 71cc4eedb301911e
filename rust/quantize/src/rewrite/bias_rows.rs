//! Keeps ONNX Runtime from fusing a `MatMul` between values of int8 with the bias added after it.
//!
//! From three axes on, the fused `Gemm` gets a `Reshape` on each side, of which ONNX Runtime
//! quantizes the outputs. From opset 21 on, it writes the type int8 as an attribute. On x86 it
//! converts int8 to uint8, and then cannot load the model that it wrote (observed in 1.32). It
//! fuses vectors alone, so the bias becomes a matrix of one row: the sum is the same.

use std::collections::{BTreeMap, HashSet};

use quantize_rs_onnx::{DataType, Edit, Model, TensorProto};

use crate::QuantizeError;
use crate::graph::names::Names;
use crate::graph::{Graph, Producer, ValueId};
use crate::plan::writes_type;

/// The model with such biases as matrices of one row.
///
/// # Errors
/// The result is not a valid model, which would be a bug.
pub(crate) fn with_bias_rows(model: &Model) -> Result<Model, QuantizeError> {
    let mut result = model.clone();
    if !writes_type(model) || !quantizes_to_int8(model) {
        return Ok(result);
    }
    let graph = Graph::of(model)?;
    let mut sums: BTreeMap<ValueId, Vec<(usize, usize)>> = BTreeMap::new();
    for (sum, input) in (0..graph.nodes.len()).filter_map(|node| fused(&graph, node)) {
        if let Some(bias) = graph.input(sum, input) {
            sums.entry(bias).or_default().push((sum, input));
        }
    }
    let (mut names, mut edits) = (Names::of(&graph), Vec::new());
    for (bias, sums) in sums {
        let Some(vector) = vector(&graph, bias) else { continue };
        let value = &graph.values[bias];
        let mut row = vector.clone();
        row.name = names.fresh(value.name, "row");
        row.dims.insert(0, 1);
        let is_read_elsewhere = value.consumers.len() > sums.len() || value.is_read_outside();
        for (node, input) in sums {
            edits.push(Edit::SetInput { node, input, value: row.name.clone() });
        }
        edits.push(Edit::AddInitializer(row));
        if !is_read_elsewhere {
            edits.push(match value.producer {
                Producer::Node { node, .. } => Edit::RemoveNode(node),
                _ => Edit::RemoveInitializer(value.name.to_owned()),
            });
        }
    }
    if !edits.is_empty() {
        result.apply(edits)?;
    }
    Ok(result)
}

fn quantizes_to_int8(model: &Model) -> bool {
    let constants = model.graph().initializer.iter();
    let int8 = constants.filter(|tensor| tensor.dtype() == Some(DataType::Int8));
    let int8: HashSet<&str> = int8.map(|tensor| tensor.name.as_str()).collect();
    model.graph().node.iter().any(|node| {
        let zero_point = node.input.get(2);
        node.op_type == "QuantizeLinear" && zero_point.is_some_and(|it| int8.contains(it.as_str()))
    })
}

/// The `Add` after a `MatMul` with which ONNX Runtime would fuse it, and the input that is added.
fn fused(graph: &Graph<'_>, node: usize) -> Option<(usize, usize)> {
    let is = |node: usize, op_type: &str| {
        graph.nodes[node].is_onnx() && graph.nodes[node].op_type == op_type
    };
    let (left, right) = (graph.input(node, 0)?, graph.input(node, 1)?);
    let shape = graph.shape(left).filter(|_| is(node, "MatMul"))?;
    let product = graph.output(node, 0)?;
    let sum = graph.only_consumer(product)?.node;
    let fuses = is(sum, "Add") && shape.len() > 2 && shape.iter().all(Option::is_some);
    let int8 = |id: Option<ValueId>| id.is_some_and(|id| graph.dtype(id) == Some(DataType::Int8));
    let from_int8 = match graph.values[left].producer {
        Producer::Node { node, .. } => is(node, "DequantizeLinear") && int8(graph.input(node, 0)),
        _ => false,
    };
    let mut readers = graph.values[graph.output(sum, 0)?].consumers.iter();
    let to_int8 = readers
        .any(|reader| is(reader.node, "QuantizeLinear") && int8(graph.output(reader.node, 0)));
    let fuses = fuses && graph.shape(right)?.len() == 2 && (from_int8 || to_int8);
    fuses.then_some((sum, usize::from(graph.input(sum, 0) == Some(product))))
}

/// A constant vector.
fn vector<'m>(graph: &Graph<'m>, value: ValueId) -> Option<&'m TensorProto> {
    graph.fixed_constant(value).filter(|tensor| tensor.dims.len() == 1)
}
