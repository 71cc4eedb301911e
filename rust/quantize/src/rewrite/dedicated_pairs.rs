//! Gives every operator that reads a quantized activation its own `QuantizeLinear` and
//! `DequantizeLinear`.

use quantize_rs_onnx::{Edit, Model};

use crate::QuantizeError;
use crate::graph::names::Names;
use crate::graph::{Graph, Producer};

/// The model with a pair for each consumer of a quantized activation. The first pair stays with the
/// first consumer, or with the outputs of the model and the subgraphs that read its result.
///
/// # Errors
/// The result is not a valid model, which would be a bug.
pub(crate) fn with_dedicated_pairs(model: &Model) -> Result<Model, QuantizeError> {
    let graph = Graph::of(model)?;
    let (mut names, mut edits) = (Names::of(&graph), Vec::new());
    for (index, dequantizes) in graph.nodes.iter().enumerate() {
        let Some((quantizes, result)) = pair(&graph, index) else { continue };
        let value = &graph.values[result];
        let kept = usize::from(!value.is_read_outside());
        for consumer in value.consumers.iter().skip(kept) {
            let codes = names.short(&dequantizes.input[0], "dedicated");
            let floats = names.short(value.name, "dedicated");
            for (node, input, output) in
                [(graph.nodes[quantizes], None, &codes), (*dequantizes, Some(&codes), &floats)]
            {
                let mut copy = node.clone();
                copy.name = match copy.name.as_str() {
                    "" => String::new(),
                    name => names.short(name, "dedicated"),
                };
                if let Some(input) = input {
                    copy.input[0].clone_from(input);
                }
                copy.output[0].clone_from(output);
                edits.push(Edit::AddNode(copy));
            }
            let (node, input) = (consumer.node, consumer.input);
            edits.push(Edit::SetInput { node, input, value: floats });
        }
    }
    let mut result = model.clone();
    if !edits.is_empty() {
        result.apply(edits)?;
    }
    Ok(result)
}

/// The `QuantizeLinear` before a `DequantizeLinear`, and the result of the latter.
fn pair(graph: &Graph<'_>, dequantizes: usize) -> Option<(usize, usize)> {
    let is = |node: usize, op_type: &str| {
        graph.nodes[node].is_onnx() && graph.nodes[node].op_type == op_type
    };
    let codes = graph.input(dequantizes, 0).filter(|_| is(dequantizes, "DequantizeLinear"))?;
    let Producer::Node { node: quantizes, .. } = graph.values[codes].producer else { return None };
    let result = graph.output(dequantizes, 0)?;
    is(quantizes, "QuantizeLinear").then_some((quantizes, result))
}
