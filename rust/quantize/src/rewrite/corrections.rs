//! Biases of bias correction: for nodes without a bias, and for biases that stay float.

use std::collections::HashMap;

use quantize_rs_math::Granularity;
use quantize_rs_onnx::Edit;

use super::writer::Writer;
use crate::encode::Encoded;
use crate::graph::ValueId;

/// Writes new biases for nodes without one, and replaces float biases by corrected constants.
pub(super) fn write(writer: &mut Writer<'_, '_>, encoded: &Encoded) {
    let graph = writer.graph;
    for (node, tensor) in &encoded.biases {
        let (None, Some(weight)) = (graph.input(*node, 2), graph.input(*node, 1)) else { continue };
        if writer.summed.contains(node) {
            continue;
        }
        let base = graph.values[weight].name;
        let value = writer.names.fresh(base, "bias");
        let granularity = match tensor.scale.shape[..] {
            [] => Granularity::PerTensor,
            _ => Granularity::PerAxis { axis: 0 },
        };
        writer.dequantize_constant(&value.clone(), value.clone(), granularity, tensor, None);
        writer.edits.push(Edit::SetInput { node: *node, input: 2, value });
    }
    let mut replaced: HashMap<ValueId, usize> = HashMap::new();
    for ((node, input), tensor) in &encoded.float_bias_overrides {
        let there = graph.input(*node, *input);
        let base =
            there.or_else(|| graph.input(*node, 1)).map_or("", |value| graph.values[value].name);
        let value = writer.constant(base, "corrected", tensor);
        writer.edits.push(Edit::SetInput { node: *node, input: *input, value });
        if let Some(there) = there {
            *replaced.entry(there).or_insert(0) += 1;
        }
    }
    for (value, times) in replaced {
        let there = &graph.values[value];
        if there.consumers.len() == times && !there.is_read_outside() {
            writer.take_out(value);
        }
    }
}
