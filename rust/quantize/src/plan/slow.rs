//! What ONNX Runtime runs slower with weights of integers than in float: who wants speed is told.

use super::Draft;
use crate::graph::{Graph, ValueId};
use crate::target::Placement;
use crate::{Config, Format};

/// Elements of the weights from which on it shows how long they take to come back.
const LARGE: usize = 1 << 16;

/// Steps that do not make up for it: an LSTM of 512 units that reads 256 values takes 3.1 of its time
/// in float for one step, 1.9 for 4, 1.27 for 16 and .98 for 64 (ONNX Runtime 1.32, one thread).
const FEW_STEPS: usize = 16;

/// What those should know who want products computed on integers.
pub(super) fn than_float(graph: &Graph<'_>, config: &Config, draft: &Draft) -> Vec<String> {
    let runtime = config.profile().placement == Placement::Between;
    if !config.computes_on_integers() || !runtime {
        return Vec::new();
    }
    let sequences = (0..graph.nodes.len()).filter_map(|node| few_steps(graph, draft, node));
    convolutions(graph, draft).into_iter().chain(sequences).collect()
}

/// `ConvInteger` is no fast kernel: networks of convolutions take 2.7 to 13 times as long with it as in
/// float, and .3 to 1.3 times calibrated (19 of them, ONNX Runtime 1.32, one thread, AVX-512 VNNI).
fn convolutions(graph: &Graph<'_>, draft: &Draft) -> Option<String> {
    let integer = |node: &usize| {
        let weight = graph.input(*node, 1).and_then(|weight| draft.quantized(weight));
        let proto = graph.nodes[*node];
        proto.is_onnx()
            && proto.op_type == "Conv"
            && weight.is_some_and(|plan| plan.format == Format::Dynamic)
    };
    let count = (0..graph.nodes.len()).filter(integer).count();
    let those = if count == 1 {
        "1 convolution is".to_owned()
    } else {
        format!("{count} convolutions are")
    };
    (count > 0).then(|| {
        format!(
            "{those} computed by ConvInteger, which ONNX Runtime runs several times slower than floats: \
             calibrate, with samples, or leave them float with excluded_layers=[\"Conv\"]"
        )
    })
}

/// The weights of what runs along a sequence are brought back in every run, however few steps it has.
fn few_steps(graph: &Graph<'_>, draft: &Draft, index: usize) -> Option<String> {
    let node = graph.nodes[index];
    if !matches!(&*node.op_type, "LSTM" | "GRU" | "RNN") || !node.is_onnx() {
        return None;
    }
    let brought_back =
        |weight: &ValueId| draft.quantized(*weight).is_some_and(|plan| plan.format == Format::Qdq);
    let elements: usize = [1, 2]
        .into_iter()
        .filter_map(|input| graph.input(index, input).filter(brought_back))
        .filter_map(|weight| graph.shape(weight)?.into_iter().product::<Option<usize>>())
        .sum();
    let axis = usize::from(node.int("layout", 0) == 1);
    let steps = *graph.shape(graph.input(index, 0)?)?.get(axis)?;
    let steps = steps.filter(|steps| *steps <= FEW_STEPS && elements >= LARGE)?;
    let plural = if steps == 1 { "" } else { "s" };
    let dynamic = match &*node.op_type {
        "LSTM" => ", or quantize with output_format=\"dynamic\" and dynamic_lstm",
        _ => "",
    };
    Some(format!(
        "{} computes in float, and its weights are brought back from integers in every run of \
         {steps} step{plural}, which takes longer than the steps do: leave them float with \
         excluded_layers where speed matters{dynamic}",
        node.label(),
    ))
}
