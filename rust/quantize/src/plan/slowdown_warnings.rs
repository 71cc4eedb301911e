//! What ONNX Runtime runs slower with weights of integers than in float: who wants speed is told.

use quantize_rs_onnx::NodeProto;

use super::{Draft, Readers, Source};
use crate::graph::uses::{Constant, Use};
use crate::graph::{Graph, ValueId};
use crate::options::target::Placement;
use crate::{Config, Format};

/// Elements of the weights from which on it shows how long they take to come back.
const LARGE: usize = 1 << 16;

/// Steps that do not make up for it: an LSTM of 512 units that reads 256 values takes 3.1 of its time
/// in float for one step, 1.9 for 4, 1.27 for 16 and .98 for 64 (ONNX Runtime 1.32, one thread).
const FEW_STEPS: usize = 16;

/// Of all weights, the part that may be slow without a word, as heads are that are kept in float.
const SMALL_PART: usize = 20;

/// Names that are listed.
const SHOWN: usize = 3;

/// What those should know who want products computed on integers.
pub(super) fn than_float(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    draft: &Draft,
) -> Vec<String> {
    if config.profile().placement != Placement::Between {
        return Vec::new();
    }
    if !config.computes_on_integers() {
        return blocks_by_floats(graph, constants, config, draft).into_iter().collect();
    }
    let found = [
        convolutions(graph, draft),
        brought_back(graph, constants, draft),
        sequences(graph, draft),
    ];
    found.into_iter().flatten().collect()
}

/// Weights of matrix products that compute in float: a product of few rows takes less time than its
/// weights take to come back. A model of graphs inside nodes, 1 and 32 rows: 3 times as long as in float, an
/// `Einsum` of 64 rows 2.6 times (ONNX Runtime 1.32, one thread).
fn brought_back(graph: &Graph<'_>, constants: &[Constant<'_>], draft: &Draft) -> Option<String> {
    let multiplies = |op_type: &str| matches!(op_type, "Einsum" | "Gemm" | "MatMul");
    let slow = |constant: &Constant<'_>| {
        let name = graph.values[constant.anchor].name;
        constant.uses.iter().any(|usage| match *usage {
            Use::Inside { node, .. } => multiplies(&node.op_type),
            Use::Weight { node, .. } => {
                let proto = graph.nodes[node];
                let reads = proto.input.iter().any(|input| input == name);
                let float = multiplies(&proto.op_type) && !draft.on_integers.contains(&node);
                float && reads && !becomes_blocks(constant, draft, proto, name)
            }
            _ => false,
        })
    };
    let stored = constants.iter().filter(|constant| {
        draft.quantized(constant.anchor).is_some_and(|plan| plan.source == Source::Weights)
    });
    let elements = |constant: &Constant<'_>| constant.shape.iter().product::<usize>();
    let (mut all, mut of_slow, mut names) = (0, 0, Vec::new());
    for constant in stored {
        all += elements(constant);
        let plan = draft.quantized(constant.anchor)?;
        let whole = plan.format == Format::Qdq && matches!(plan.readers, Readers::All);
        if whole && slow(constant) {
            of_slow += elements(constant);
            names.push(format!("`{}`", graph.values[constant.anchor].name));
        }
    }
    (of_slow >= LARGE && of_slow > all / SMALL_PART).then(|| {
        format!(
            "{}: brought back from integers in every run, for products that compute in float and \
             may take less time than that: leave them float with exclude where speed matters",
            some(names)
        )
    })
}

/// `MatMulNBits` of 2 or 8 bits is fast where it brings activations to 8 bits alone. A product of 1 and 64
/// rows of 512 values takes, of its time in float, 43 and 3.6 with 2 bits, 18 and 2.1 with 8, 1.3 and 1.1
/// with 4; and with `accuracy_level` 4 .7 and 1.7, .55 and .84, .55 and .94 (ONNX Runtime 1.32, one thread,
/// AVX-512 VNNI).
fn blocks_by_floats(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    draft: &Draft,
) -> Option<String> {
    const ACTIVATIONS_OF_8_BITS: u8 = 4;
    let slow = |constant: &&Constant<'_>| {
        let blocks = draft
            .quantized(constant.anchor)
            .is_some_and(|plan| plan.format == Format::MatMulNBits && plan.spec.qtype.bits() != 4);
        let large = constant.shape.iter().product::<usize>() >= LARGE;
        blocks && large && constant.multipliers(graph).any(|node| node.op_type != "Gather")
    };
    let of_slow = constants.iter().filter(slow);
    let names: Vec<_> =
        of_slow.map(|constant| format!("`{}`", graph.values[constant.anchor].name)).collect();
    (config.accuracy_level != Some(ACTIVATIONS_OF_8_BITS) && !names.is_empty()).then(|| {
        format!(
            "{}: ONNX Runtime multiplies floats by blocks of 2 or 8 bits many times slower than by \
             floats: take accuracy_level={ACTIVATIONS_OF_8_BITS}, with which activations are brought \
             to 8 bits, or blocks of 4 bits",
            some(names)
        )
    })
}

/// Whether ONNX Runtime makes `MatMulNBits` of a node and its weight: that reads integers, and takes .4 to
/// 1.04 of the time in float for 1 and 64 rows of 512 values (1.32, one thread).
fn becomes_blocks(constant: &Constant<'_>, draft: &Draft, node: &NodeProto, weight: &str) -> bool {
    let narrow = draft.quantized(constant.anchor).is_some_and(|plan| {
        let qtype = plan.spec.qtype;
        !qtype.is_float() && qtype.is_scaled() && qtype.bits() <= 8
    });
    let right = node.input.get(1).is_some_and(|input| input == weight);
    let plain = node.op_type == "MatMul" || node.op_type == "Gemm" && node.int("transB", 0) == 0;
    narrow && right && plain && constant.shape.len() == 2
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
             calibrate, with samples, or leave them float with exclude=[\"Conv\"]"
        )
    })
}

/// What runs along a sequence in few steps, whose weights are brought back in every run all the same.
fn sequences(graph: &Graph<'_>, draft: &Draft) -> Option<String> {
    let few = |index: &usize| few_steps(graph, draft, *index) == Some(true);
    let nodes: Vec<usize> = (0..graph.nodes.len()).filter(few).collect();
    let lstm = nodes.iter().any(|index| graph.nodes[*index].op_type == "LSTM");
    let labels = nodes.iter().map(|index| graph.nodes[*index].label()).collect();
    let dynamic =
        if lstm { ", or quantize with output_format=\"dynamic\" and dynamic_lstm" } else { "" };
    (!nodes.is_empty()).then(|| {
        format!(
            "{}: computed in float, and weights brought back from integers in every run, which takes \
             longer than steps as few as these: leave them float with exclude where speed \
             matters{dynamic}",
            some(labels)
        )
    })
}

/// Whether a node goes few steps along a sequence with weights that are large; `None` where it goes
/// along none, or of how many nobody knows.
fn few_steps(graph: &Graph<'_>, draft: &Draft, index: usize) -> Option<bool> {
    let node = graph.nodes[index];
    if !matches!(&*node.op_type, "LSTM" | "GRU" | "RNN") || !node.is_onnx() {
        return None;
    }
    let whole =
        |weight: &ValueId| draft.quantized(*weight).is_some_and(|plan| plan.format == Format::Qdq);
    let elements: usize = [1, 2]
        .into_iter()
        .filter_map(|input| graph.input(index, input).filter(whole))
        .filter_map(|weight| graph.shape(weight)?.into_iter().product::<Option<usize>>())
        .sum();
    let axis = usize::from(node.int("layout", 0) == 1);
    let steps = (*graph.shape(graph.input(index, 0)?)?.get(axis)?)?;
    Some(steps <= FEW_STEPS && elements >= LARGE)
}

/// The first of these, and how many more there are.
fn some(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &and
}
