//! Warnings about nodes that ONNX Runtime runs slower with quantized weights than in float.

use quantize_rs_onnx::NodeProto;

use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Consumers, Source};
use crate::graph::ops;
use crate::graph::uses::{Constant, Multiplier, Use};
use crate::graph::{Graph, ValueId, moe};
use crate::options::target::Placement;
use crate::{Config, Format, Target};

/// The number of elements from which on dequantizing a weight takes noticeable time.
const MIN_SLOW_ELEMENTS: usize = 1 << 16;

/// The number of elements of tables from which on dequantizing them takes a millisecond.
const MIN_SLOW_TABLE: usize = 1 << 20;

/// A filter with fewer multiplications for each output than this is slower on integers than in
/// float in WebAssembly: 3×3 depthwise filters take 2.5 to 9 times as long, 1×1 filters of 16, 64
/// and 256 channels 4.7, 1.9 and 0.87 times, 3×3 filters of 16 and 64 channels 1.3 and 0.66 times
/// (ONNX Runtime Web 1.24, Node 20, one thread of a Xeon).
const MIN_WEB_TAPS: usize = 200;

/// The number of steps of a sequence up to which a recurrent node is slower than in float: an LSTM
/// of 512 units with 256 inputs takes 3.1 times as long as in float for 1 step, 1.9 for 4, 1.27 for
/// 16 and 0.98 for 64 (ONNX Runtime 1.32, one thread).
const MAX_SLOW_STEPS: usize = 16;

/// The fraction of all weight elements, one in this many, that may be slow without a warning.
const SLOW_SHARE: usize = 20;

/// The maximum number of names in a warning.
const MAX_NAMES: usize = 3;

/// Warns about nodes that run slower than in float, unless the options request that.
pub(super) fn than_float(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let Context { graph, constants, config, .. } = *context;
    if config.profile().placement != Placement::WeightedAndInterior {
        return Outcome::default();
    }
    if !config.computes_on_integers() {
        let found = [
            blocks_by_floats(graph, constants, config, decisions),
            dequantized(graph, constants, decisions, Some(config)),
            tables(graph, constants, config, decisions),
            dequantized_convolutions(graph, constants, config, decisions),
            shared(graph, constants, decisions),
            sequences(graph, decisions),
            experts(graph, constants, decisions),
        ];
        return Outcome::warn(found.into_iter().flatten());
    }
    let found = [
        convolutions(graph, constants, decisions),
        dequantized(graph, constants, decisions, None),
        sequences(graph, decisions),
        in_browsers(config, decisions),
        small_filters_in_browsers(graph, config, decisions),
        experts(graph, constants, decisions),
    ];
    Outcome::warn(found.into_iter().flatten())
}

/// Weights of matrix multiplications that compute in float: for few rows, the multiplication takes
/// less time than dequantizing the weights. A model with subgraphs takes 3 times as long as in
/// float for 1 and 32 rows, an `Einsum` of 64 rows 2.6 times; four `Gemm` of 384 x 384 with a bias
/// 10.4 and 3.7 times, with transB 1.6 times (ONNX Runtime 1.32, one thread).
fn dequantized(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    decisions: &Decisions,
    alone: Option<&Config>,
) -> Option<String> {
    let faster = alone.and_then(faster);
    let way_out = faster.map_or(String::new(), |faster| format!(", or use {faster}"));
    let multiplies = |op_type: &str| matches!(op_type, "Einsum" | "Gemm" | "MatMul");
    let slow = |constant: &Constant<'_>| {
        let name = graph.values[constant.anchor].name;
        constant.uses.iter().any(|usage| match *usage {
            Use::Inside { node, .. } => multiplies(&node.op_type),
            Use::Weight { node, .. } => {
                let proto = graph.nodes[node];
                let reads = proto.input.iter().any(|input| input == name);
                let float = multiplies(&proto.op_type) && !decisions.on_integers.contains(&node);
                // One that reads it rearranged never becomes `MatMulNBits`.
                float && !(reads && becomes_blocks(constant, decisions, proto, name))
            }
            _ => false,
        })
    };
    let stored = constants.iter().filter(|constant| dequantizes(decisions, constant));
    let elements = |constant: &Constant<'_>| constant.shape.iter().product::<usize>();
    let (mut all, mut of_slow, mut names) = (0, 0, Vec::new());
    for constant in stored {
        all += elements(constant);
        let plan = decisions.quantized(constant.anchor)?;
        let whole = plan.format == Format::Qdq && matches!(plan.consumers, Consumers::All);
        if whole && slow(constant) && !(alone.is_some() && is_shared(graph, constant)) {
            of_slow += elements(constant);
            names.push(format!("`{}`", graph.values[constant.anchor].name));
        }
    }
    (of_slow >= MIN_SLOW_ELEMENTS && of_slow > all / SLOW_SHARE).then(|| {
        format!(
            "{}: dequantized at every inference, for operators that compute in float and may take \
             less time than that: leave them float with exclude where speed matters{way_out}",
            some(names)
        )
    })
}

/// Tables of rows that are looked up, if they are most of the weights: the whole table is
/// dequantized for a few rows. A model whose table has 58,224 x 128 of 7.9 million elements takes 3
/// to 8 times as long as in float, as `matmul_nbits` 1.0 and as `dynamic` 1.2 times (ONNX Runtime
/// 1.32, one thread).
fn tables(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    decisions: &Decisions,
) -> Option<String> {
    let elements = |constant: &Constant<'_>| constant.shape.iter().product::<usize>();
    let stored = || constants.iter().filter(|constant| dequantizes(decisions, constant));
    let is_table = |constant: &&Constant<'_>| {
        let whole = decisions
            .quantized(constant.anchor)
            .is_some_and(|plan| plan.format == Format::Qdq && plan.consumers == Consumers::All);
        let mut readers = constant.multipliers(graph).peekable();
        whole && readers.peek().is_some() && readers.all(|node| node.op_type == "Gather")
    };
    let tables: Vec<&Constant<'_>> = stored().filter(is_table).collect();
    let looked_up: usize = tables.iter().map(|constant| elements(constant)).sum();
    let all: usize = stored().map(elements).sum();
    let names = tables.iter().map(|constant| format!("`{}`", graph.values[constant.anchor].name));
    (looked_up >= MIN_SLOW_TABLE && 3 * looked_up > 2 * all).then(|| {
        let other = faster(config).map_or(String::new(), |faster| format!("use {faster}, or "));
        format!(
            "{}: dequantized whole at every inference, for the few rows that are looked up, which \
             may take several times as long as the float model: {other}leave it float with exclude",
            some(names.collect()),
        )
    })
}

/// The formats that weights of this many bits can have instead, and that are faster.
fn faster(config: &Config) -> Option<&'static str> {
    match config.weights.bits() {
        ..8 => Some("output_format=\"matmul_nbits\""),
        8 => Some("output_format=\"dynamic\" or \"matmul_nbits\""),
        _ => None,
    }
}

/// Operators on integers in a browser, which WebGPU does not list.
fn in_browsers(config: &Config, decisions: &Decisions) -> Option<String> {
    let dynamic = || decisions.all_quantized().any(|(_, plan)| plan.format == Format::Dynamic);
    let integers = !decisions.on_integers.is_empty() || dynamic();
    (config.target == Some(Target::Web) && integers).then(|| {
        "operators on integers run in WebAssembly, and WebGPU has none: for WebGPU quantize \
         weights alone, with output_format=\"matmul_nbits\", or convert the model to float16"
            .to_owned()
    })
}

/// Convolutions on integers in WebAssembly whose filters are small, if they are most of them.
fn small_filters_in_browsers(
    graph: &Graph<'_>,
    config: &Config,
    decisions: &Decisions,
) -> Option<String> {
    let convolves = |node: &&usize| graph.nodes[**node].op_type == "Conv";
    let nodes: Vec<usize> = decisions.on_integers.iter().filter(convolves).copied().collect();
    let small = |node: &&usize| {
        let shape = graph.input(**node, 1).and_then(|weight| graph.shape(weight));
        let taps = shape.and_then(|shape| shape.iter().skip(1).copied().product::<Option<usize>>());
        taps.is_some_and(|taps| taps < MIN_WEB_TAPS)
    };
    let count = nodes.iter().filter(small).count();
    (config.target == Some(Target::Web) && count * 2 > nodes.len()).then(|| {
        format!(
            "{count} of {} convolutions have small filters (depthwise, or with few channels), \
             which WebAssembly computes slower on integers than in float: quantize weights alone \
             where speed matters",
            nodes.len()
        )
    })
}

/// Weights of experts that `QMoE` could read: a `DequantizeLinear` computes those of all experts,
/// although few are chosen.
fn experts(graph: &Graph<'_>, constants: &[Constant<'_>], decisions: &Decisions) -> Option<String> {
    let slow = |constant: &&Constant<'_>| {
        let large = constant.shape.iter().product::<usize>() >= MIN_SLOW_ELEMENTS;
        let plan = decisions.quantized(constant.anchor);
        large
            && plan.is_some_and(|plan| plan.format == Format::Qdq)
            && constant
                .multipliers(graph)
                .any(|node| moe::is_moe(node) && moe::fits(graph, node).is_ok())
    };
    let names: Vec<String> = constants
        .iter()
        .filter(slow)
        .map(|constant| format!("`{}`", graph.values[constant.anchor].name))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: the weights of all experts are dequantized at every inference: \
             output_format=\"matmul_nbits\" writes QMoE, which reads those that are chosen",
            some(names)
        )
    })
}

/// `MatMulNBits` with 2 or 8 bits is fast only if it quantizes activations to 8 bits.
///
/// Time of a product of 1 and 64 rows of 512 values, relative to float: 43 and 3.6 with 2 bits, 18
/// and 2.1 with 8, 1.3 and 1.1 with 4. With `accuracy_level` 4: 0.7 and 1.7, 0.55 and 0.84, 0.55
/// and 0.94 (ONNX Runtime 1.32, one thread, AVX-512 VNNI).
fn blocks_by_floats(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    decisions: &Decisions,
) -> Option<String> {
    const ACTIVATIONS_OF_8_BITS: u8 = 4;
    let slow = |constant: &&Constant<'_>| {
        let blocks = decisions
            .quantized(constant.anchor)
            .is_some_and(|plan| plan.format == Format::MatMulNBits && plan.spec.qtype.bits() != 4);
        let large = constant.shape.iter().product::<usize>() >= MIN_SLOW_ELEMENTS;
        let multiplies = |node: &NodeProto| node.op_type != "Gather" && !moe::is_moe(node);
        blocks && large && constant.multipliers(graph).any(multiplies)
    };
    let of_slow = constants.iter().filter(slow);
    let names: Vec<_> =
        of_slow.map(|constant| format!("`{}`", graph.values[constant.anchor].name)).collect();
    (config.accuracy_level != Some(ACTIVATIONS_OF_8_BITS) && !names.is_empty()).then(|| {
        format!(
            "{}: ONNX Runtime multiplies floats by blocks of 2 or 8 bits many times slower than by \
             floats: use accuracy_level={ACTIVATIONS_OF_8_BITS}, which quantizes activations to 8 \
             bits, or blocks of 4 bits",
            some(names)
        )
    })
}

/// Weights that a matrix multiplication and other nodes read, or that it reads rearranged: ONNX
/// Runtime 1.32 replaces none of these by `MatMulNBits`, even if each has a `DequantizeLinear` of
/// its own. 16 products by 2 weights of 512 x 512 take 28 times as long as in float for 1 row, and
/// 5.8 times for 32 (one thread, AVX-512 without VNNI); as `matmul_nbits` with 4 bits .96 and 1.4
/// times, as `dynamic` .46 and .35. A table of 8,000 x 128 that is looked up and multiplied by
/// takes 6 times as long in a Gemm, and 30 times behind a Transpose.
fn shared(graph: &Graph<'_>, constants: &[Constant<'_>], decisions: &Decisions) -> Option<String> {
    let slow = constants.iter().filter(|constant| {
        let whole = decisions
            .quantized(constant.anchor)
            .is_some_and(|plan| plan.format == Format::Qdq && plan.consumers == Consumers::All);
        let large = constant.shape.iter().product::<usize>() >= MIN_SLOW_ELEMENTS;
        whole && large && is_shared(graph, constant)
    });
    let names: Vec<String> =
        slow.map(|constant| format!("`{}`", graph.values[constant.anchor].name)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: several nodes read it, or one that multiplies by it reads it rearranged, so that \
             ONNX Runtime dequantizes it at every inference, many times slower than in float: use \
             output_format=\"matmul_nbits\" or \"dynamic\", or leave it float with exclude",
            some(names)
        )
    })
}

fn is_shared(graph: &Graph<'_>, constant: &Constant<'_>) -> bool {
    let products = constant.uses.iter().filter_map(|usage| usage.multiplier(graph));
    let products: Vec<_> =
        products.filter(|found| matches!(&*found.node.op_type, "Gemm" | "MatMul")).collect();
    let name = graph.values[constant.anchor].name;
    let is_rearranged = |found: &Multiplier<'_>| found.node.input[found.input] != name;
    !products.is_empty()
        && (constant.multipliers(graph).count() > 1 || products.iter().any(is_rearranged))
}

/// Whether a weight has to be dequantized. Runtimes convert 16-bit floats when they load a model.
fn dequantizes(decisions: &Decisions, constant: &Constant<'_>) -> bool {
    decisions
        .quantized(constant.anchor)
        .is_some_and(|plan| plan.source == Source::Weights && plan.spec.qtype.is_scaled())
}

/// Weights of convolutions whose activations stay float: ONNX Runtime dequantizes them at every
/// inference.
fn dequantized_convolutions(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    decisions: &Decisions,
) -> Option<String> {
    let stored = constants.iter().filter(|constant| dequantizes(decisions, constant));
    let elements = |constant: &Constant<'_>| constant.shape.iter().product::<usize>();
    let (mut all, mut of_slow, mut count) = (0, 0, 0);
    for constant in stored {
        all += elements(constant);
        if constant.multipliers(graph).any(ops::is_convolution) {
            of_slow += elements(constant);
            count += 1;
        }
    }
    let is_slow = of_slow >= MIN_SLOW_ELEMENTS && of_slow > all / SLOW_SHARE;
    (is_slow && config.output_format == Format::Qdq).then(|| {
        let weights =
            if count == 1 { "weight of a convolution is" } else { "weights of convolutions are" };
        let with = if config.weights.bits() < 8 { "8 bits and " } else { "" };
        format!(
            "{count} {weights} dequantized at every inference: the model is smaller, but not \
             faster than in float; calibrate, with {with}samples, to compute on integers"
        )
    })
}

/// Whether ONNX Runtime replaces a node and its weight by `MatMulNBits`, which reads integers and
/// takes 0.4 to 1.04 of the time in float for 1 and 64 rows of 512 values (1.32, one thread).
fn becomes_blocks(
    constant: &Constant<'_>,
    decisions: &Decisions,
    node: &NodeProto,
    weight: &str,
) -> bool {
    let narrow = decisions.quantized(constant.anchor).is_some_and(|plan| {
        let qtype = plan.spec.qtype;
        !qtype.is_float() && qtype.is_scaled() && qtype.bits() <= 8
    });
    let right = node.input.get(1).is_some_and(|input| input == weight);
    // With a bias, a Gemm stays one.
    let bare = || node.input.get(2).is_none_or(String::is_empty) && node.int("transB", 0) == 0;
    let fits = node.op_type == "MatMul" || node.op_type == "Gemm" && bare();
    narrow && right && fits && constant.shape.len() == 2
}

/// `ConvInteger` has no fast kernel: convolutional networks take 2.7 to 13 times as long with it as
/// in float, and 0.3 to 1.3 times when calibrated (19 of them, ONNX Runtime 1.32, one thread,
/// AVX-512 VNNI).
fn convolutions(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    decisions: &Decisions,
) -> Option<String> {
    let on_integers = |constant: &&Constant<'_>| {
        decisions.quantized(constant.anchor).is_some_and(|plan| plan.format == Format::Dynamic)
    };
    let nodes =
        constants.iter().filter(on_integers).flat_map(|constant| constant.multipliers(graph));
    let count = nodes.filter(|node| node.op_type == "Conv").count();
    let those = if count == 1 {
        "1 convolution is".to_owned()
    } else {
        format!("{count} convolutions are")
    };
    (count > 0).then(|| {
        format!(
            "{those} computed by ConvInteger, which ONNX Runtime runs several times slower than \
             floats: calibrate, with samples, or leave them float with exclude=[\"Conv\"]"
        )
    })
}

/// Recurrent nodes with few steps, whose weights are dequantized at every inference.
fn sequences(graph: &Graph<'_>, decisions: &Decisions) -> Option<String> {
    let few = |index: &usize| few_steps(graph, decisions, *index) == Some(true);
    let nodes: Vec<usize> = (0..graph.nodes.len()).filter(few).collect();
    let lstm = nodes.iter().any(|index| graph.nodes[*index].op_type == "LSTM");
    let labels = nodes.iter().map(|index| graph.nodes[*index].label()).collect();
    let dynamic =
        if lstm { ", or quantize with output_format=\"dynamic\" and dynamic_lstm" } else { "" };
    (!nodes.is_empty()).then(|| {
        format!(
            "{}: computed in float with weights dequantized at every inference, which takes longer \
             than so few steps: leave them float with exclude where speed matters{dynamic}",
            some(labels)
        )
    })
}

/// Whether a recurrent node with large weights has few steps; `None` for other nodes, and if the
/// number of steps is unknown.
fn few_steps(graph: &Graph<'_>, decisions: &Decisions, index: usize) -> Option<bool> {
    let node = graph.nodes[index];
    if !ops::is_recurrent(node) {
        return None;
    }
    let whole = |weight: &ValueId| {
        decisions.quantized(*weight).is_some_and(|plan| plan.format == Format::Qdq)
    };
    let elements: usize = [1, 2]
        .into_iter()
        .filter_map(|input| graph.input(index, input).filter(whole))
        .filter_map(|weight| graph.shape(weight)?.into_iter().product::<Option<usize>>())
        .sum();
    let axis = usize::from(node.int("layout", 0) == 1);
    let steps = (*graph.shape(graph.input(index, 0)?)?.get(axis)?)?;
    Some(steps <= MAX_SLOW_STEPS && elements >= MIN_SLOW_ELEMENTS)
}

/// The first names of a list, and how many more there are.
fn some(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    names.truncate(MAX_NAMES);
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &and
}
