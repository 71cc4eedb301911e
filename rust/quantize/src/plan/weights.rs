//! Decides which constants are quantized, with which type and granularity.

use std::borrow::Cow;
use std::collections::BTreeSet;

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::{DataType, NodeProto};

use super::decisions::{Decisions, Outcome};
use super::formats::{self, Form};
use super::quantizable_constants::has_uneven_factors;
use super::rules::Context;
use super::select::Selection;
use super::{
    Consumers, KeepReason, QuantizeReason, Source, ValuePlan, blocks, ort_int8_workarounds,
    wider_weights,
};
use crate::graph::elements::data_type;
use crate::graph::ops::is_convolution;
use crate::graph::uses;
use crate::graph::uses::{Along, Constant, Use};
use crate::graph::{Graph, Producer};
use crate::options::target::Placement;
use crate::{Config, Format, QuantizeError, WeightType};

/// Quantizes a weight, or gives the reason why a constant keeps its type.
pub(super) fn decide(context: &Context<'_, '_>, _: &Decisions, constant: &Constant<'_>) -> Outcome {
    let Context { graph, config, selection, .. } = *context;
    let anchor = constant.anchor;
    if let Some(kept) = kept(graph, constant, config, selection) {
        return Outcome::keep(anchor, kept);
    }
    let own = selection.config_of(config, &constant.names(graph), constant.multipliers(graph));
    let config = &*own;
    let requested = requested(context, constant);
    let qtype = requested.qtype();
    let label = constant.multipliers(graph).next().map(NodeProto::label);
    let label = label.unwrap_or_default();
    let because = match wider(context, constant) {
        Some((_, why)) => QuantizeReason::WiderWeightOf(label, why),
        None => QuantizeReason::WeightOf(label),
    };
    let form = if context.float_weights.contains(&anchor) {
        Ok(None)
    } else {
        formats::form(graph, constant, config, qtype)
    };
    if let (Ok(None), Some(kept)) = (&form, partial_bytes(graph, constant, config, qtype)) {
        return Outcome::keep(anchor, kept);
    }
    if let (Ok(None), Some(kept)) = (&form, gains_nothing(graph, constant, config, selection)) {
        return Outcome::keep(anchor, kept);
    }
    match form {
        Err(kept) => Outcome::keep(anchor, kept),
        Ok(Some(Form { spec, consumers, format, matrix, at_run_time })) => {
            let at_run_time = at_run_time
                .into_iter()
                .map(|(value, node)| Outcome::keep(value, KeepReason::AtRunTime { node }));
            let (used_bits, codebook) = (requested.used_bits(), requested.codebook());
            let spec = QSpec { used_bits, codebook, ..spec };
            if let Some(why) = formats::experts::lacks_zero_points(&spec, matrix) {
                return Outcome::keep(anchor, KeepReason::NoForm { format, why: why.to_owned() });
            }
            let (stored, source) = (spec.qtype, Source::Weights);
            let (readers, warning) = consumers_of(graph, constant, config);
            let consumers = if constant.stays_float() { readers } else { consumers };
            let plan = ValuePlan { spec, stored, matrix, format, source, consumers, because };
            let outcome: Outcome = at_run_time.collect();
            outcome.and(Outcome::warn(warning)).and(Outcome::quantize(anchor, plan))
        }
        Ok(None) => {
            let own = without_needless_blocks(context, constant, config, requested);
            let config = &*own;
            let (granularity, matrix) = if qtype.is_scaled() {
                granularity(graph, constant, config, requested)
            } else {
                (Granularity::PerTensor, None)
            };
            let symmetric = config.symmetric_weights(qtype, granularity)
                || forces_symmetric(config, qtype, granularity);
            let spec = spec(config, requested, symmetric, granularity);
            let (consumers, warning) = consumers_of(graph, constant, config);
            let (format, source) = (formats::usual(config), Source::Weights);
            let stored = if in_bytes(config, qtype) { QType::Int8 } else { qtype };
            let plan = ValuePlan { spec, stored, matrix, format, source, consumers, because };
            Outcome::warn(warning).and(Outcome::quantize(anchor, plan))
        }
    }
}

/// The configuration of a weight without the blocks that weights of fewer bits get: 8 bits are
/// accurate without, and nothing that convolves or looks up rows reads blocks as they are. What
/// replaces onnxruntime's results keeps the blocks that were asked for.
fn without_needless_blocks<'c>(
    context: &Context<'_, '_>,
    constant: &Constant<'_>,
    config: &'c Config,
    requested: WeightType,
) -> Cow<'c, Config> {
    let Context { graph, selection, .. } = *context;
    let names = constant.names(graph);
    let has_more_bits = requested.bits() >= 8 && config.weights.bits() < 8;
    let reads = |node: &NodeProto| is_convolution(node) || node.op_type == "Gather";
    if config.block_size.is_some()
        && !config.onnxruntime_names
        && has_more_bits
        && constant.multipliers(graph).all(reads)
        && !selection.sets_granularity(&names, constant.multipliers(graph))
    {
        return Cow::Owned(Config { block_size: None, ..config.clone() });
    }
    Cow::Borrowed(config)
}

/// The type requested for a weight.
fn requested(context: &Context<'_, '_>, constant: &Constant<'_>) -> WeightType {
    let (graph, selection) = (context.graph, context.selection);
    let names = constant.names(graph);
    let own = selection.weight_type(&names, constant.multipliers(graph));
    let wider = || wider(context, constant).map(|(found, _)| found);
    own.or_else(wider).unwrap_or(context.config.weights)
}

/// The type with 8 bits of a weight that gets more bits than others, unless an option names its
/// type, and the reason.
fn wider(context: &Context<'_, '_>, constant: &Constant<'_>) -> Option<(WeightType, &'static str)> {
    let (graph, selection) = (context.graph, context.selection);
    let why = context.wider_weights.get(&constant.anchor)?;
    let own = selection.weight_type(&constant.names(graph), constant.multipliers(graph));
    wider_weights::eight_bits(context.config.weights).filter(|_| own.is_none()).map(|it| (it, *why))
}

/// The reason why a matrix with 2-bit elements stays float: ONNX Runtime 1.32 fuses the product to
/// `MatMulNBits`, and reads rows that end within a byte wrongly.
fn partial_bytes(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    qtype: QType,
) -> Option<KeepReason> {
    let per_byte = (8 / qtype.bits().max(1)) as usize;
    let columns = *constant.shape.last()?;
    let fused = |usage: &Use<'_>| {
        let Use::Weight { node, .. } = usage else { return false };
        let node = graph.nodes[*node];
        let transposed = node.attribute("transB").and_then(|found| found.i) == Some(1);
        node.is_onnx() && matches!(node.op_type.as_str(), "MatMul" | "Gemm") && !transposed
    };
    let is_affected = qtype == QType::Int2 || qtype == QType::UInt2;
    (is_affected && columns % per_byte != 0 && constant.uses.iter().any(fused)).then(|| {
        KeepReason::NoForm {
            format: formats::usual(config),
            why: format!(
                "ONNX Runtime reads 2-bit rows of {columns} elements wrongly, which is no whole \
                 number of bytes; output_format=\"matmul_nbits\" or 4 bits work"
            ),
        }
    })
}

/// The reason why a weight stays float that would only be stored: its floats have to stay in the
/// file, so that its integers would make the file larger, and what reads them computes in float. An
/// option that names its type or leaves one of its nodes in float has precedence.
fn gains_nothing(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    selection: &Selection,
) -> Option<KeepReason> {
    let is_only_stored = config.activations.is_none()
        && config.output_format != Format::FakeQuant
        && !config.onnxruntime_names
        && !constant.stays_float()
        && selection.weight_type(&constant.names(graph), constant.multipliers(graph)).is_none();
    let needed = || read_otherwise(graph, constant).or_else(|| before_cast(graph, constant));
    is_only_stored.then(needed).flatten()
}

/// Whether 4-bit weights of this type are stored in one byte each.
fn in_bytes(config: &Config, qtype: QType) -> bool {
    qtype == QType::Int4 && config.native_int4 == Some(false)
}

/// Warns that weights take more bits than they use.
pub(super) fn warn_widened(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let used = decisions.all_quantized().map(|(_, plan)| plan.spec);
    let partial: BTreeSet<(u32, u32)> = used
        .map(|spec| (spec.bits(), spec.qtype.bits()))
        .filter(|(used, stored)| used < stored)
        .collect();
    let partial = partial.into_iter().map(|(used, stored)| {
        format!(
            "weights of {used} bits are stored in {stored} bits each, as no type of ONNX has \
             {used}: {stored} bits are as small and more accurate"
        )
    });
    let partial: Outcome = partial.map(|text| Outcome::warn([text])).collect();
    partial.and(warn_in_bytes(context))
}

/// Warns that 4-bit weights take a byte each.
fn warn_in_bytes(context: &Context<'_, '_>) -> Outcome {
    let Context { graph, config, selection, .. } = *context;
    let widened = |constant: &Constant<'_>| {
        in_bytes(config, requested(context, constant).qtype())
            && kept(graph, constant, config, selection).is_none()
    };
    Outcome::warn(context.constants.iter().any(widened).then(|| {
        "4-bit weights are stored in a byte each, as asked for with native_int4: the accuracy of \
         4 bits at the size of 8; ask for 8 bits, or for packed 4-bit weights"
            .to_owned()
    }))
}

/// Warns that weights of integer operators are symmetric although the options ask for zero points.
pub(super) fn warn_symmetric(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let config = context.config;
    let dynamic = config.output_format == Format::Dynamic;
    let forced = |constant: &Constant<'_>| {
        let Some(plan) = decisions.quantized(constant.anchor) else { return false };
        let QSpec { qtype, granularity, symmetric, .. } = plan.spec;
        let names = constant.names(context.graph);
        let readers = constant.multipliers(context.graph);
        let own = context.selection.config_of(config, &names, readers);
        let of_kernels = dynamic && symmetric && qtype.bits() == 8 && !qtype.is_float();
        own.symmetric == Some(false)
            && plan.source == Source::Weights
            && (of_kernels || forces_symmetric(config, qtype, granularity))
    };
    let warning = if dynamic {
        "in the format dynamic, zero points of convolutions with one scale per channel, of tables \
         and of LSTMs are the middle of the type: symmetric=False has no effect on them"
    } else {
        "zero points of weights with one scale per channel are the middle of the type where \
         activations are quantized too: symmetric=False has no effect on them; with \
         per_channel=False it has"
    };
    Outcome::warn(context.constants.iter().any(forced).then(|| warning.to_owned()))
}

/// How a weight is quantized. A negative scale does not improve types of 8 bits and more, which
/// integer kernels use.
fn spec(
    config: &Config,
    requested: WeightType,
    symmetric: bool,
    granularity: Granularity,
) -> QSpec {
    let (qtype, scales) = (requested.qtype(), requested.scales());
    let spec = QSpec::new(qtype, symmetric, granularity);
    let narrow = config.narrow_range.map_or(spec.narrow, |narrow| narrow && symmetric);
    // Training cannot use a negative scale.
    let may_flip = config.profile().negative_scales && config.output_format != Format::FakeQuant;
    let flips = symmetric && !narrow && requested.bits() <= 4 && may_flip;
    let used_bits = requested.used_bits();
    QSpec { narrow, allows_negative_scale: flips, scales, used_bits, ..spec }
}

/// The reason why a constant keeps its type, if there is one.
fn kept(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    selection: &Selection,
) -> Option<KeepReason> {
    let value = &graph.values[constant.anchor];
    let elements: usize = constant.shape.iter().product();
    if !constant.is_weight() {
        if let Some(kept) = left_alone(graph, constant, selection) {
            return Some(kept);
        }
        let kept = constant.uses.iter().find_map(|usage| match usage {
            Use::Bias { .. } => Some(KeepReason::Bias),
            _ => None,
        });
        let uneven = config.activations.is_some()
            && kept.is_none()
            && has_uneven_factors(graph, constant.anchor);
        let uneven = uneven.then_some(KeepReason::UnevenFactors);
        return Some(kept.or(uneven).unwrap_or_else(|| no_rule(graph, constant)));
    }
    if !constant.dtype.is_some_and(DataType::is_float) {
        return Some(KeepReason::NotFloat32 { dtype: constant.dtype });
    }
    // Where some of the nodes that multiply by it are left in float, the others decide.
    if constant.multipliers(graph).next().is_none() {
        let mut left = constant.uses.iter().filter_map(|usage| match usage {
            Use::Float { node, .. } => selection.left_by(&constant.names(graph), node),
            _ => None,
        });
        return left.next();
    }
    if let Some(pattern) = selection.float(&constant.names(graph), constant.multipliers(graph)) {
        return Some(KeepReason::Excluded { pattern });
    }
    let own = selection.weight_type(&constant.names(graph), constant.multipliers(graph));
    let qtype = own.unwrap_or(config.weights).qtype();
    if constant.dtype == Some(data_type(qtype)) {
        return Some(KeepReason::Already { qtype });
    }
    if value.is_overridable() {
        return Some(KeepReason::Overridable);
    }
    // If every operator is quantized, no consumer reads it in float.
    let everything =
        config.activations.is_some() && config.profile().placement == Placement::AllOps;
    let own = !constant.weighing.is_empty() || constant.weighs_inside(graph);
    let asked = |usage: &Use<'_>| usage.multiplier(graph).is_some() || is_left(usage);
    if (!own || everything && !constant.uses.iter().all(asked))
        && let Some(kept) = read_otherwise(graph, constant)
    {
        return Some(kept);
    }
    if elements == 0 {
        return Some(KeepReason::Empty);
    }
    (elements < config.min_elements)
        .then_some(KeepReason::TooSmall { elements, min_elements: config.min_elements })
}

/// The constants whose elements must not change, each with the reason.
pub(crate) fn reserved(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
) -> Result<Vec<Option<KeepReason>>, QuantizeError> {
    let selection = Selection::of(graph, constants, config)?;
    let why = |constant: &Constant<'_>| {
        let value = &graph.values[constant.anchor];
        let excluded = selection.excluded(&constant.names(graph), constant.multipliers(graph));
        excluded
            .or_else(|| value.is_overridable().then_some(KeepReason::Overridable))
            .or_else(|| read_otherwise(graph, constant))
    };
    Ok(constants.iter().map(why).collect())
}

/// The reason why a weight is needed in float too, if it is.
fn read_otherwise(graph: &Graph<'_>, constant: &Constant<'_>) -> Option<KeepReason> {
    constant.uses.iter().find_map(|usage| match usage {
        Use::Output => Some(KeepReason::GraphOutput),
        Use::Captured => Some(KeepReason::Captured),
        Use::Other { node } | Use::Bias { node } => {
            Some(KeepReason::AlsoReadBy { node: graph.nodes[*node].label() })
        }
        Use::Float { node, .. } => Some(KeepReason::AlsoReadBy { node: node.label() }),
        Use::Weight { .. } | Use::Inside { .. } => None,
    })
}

/// Whether the options leave a node in float that multiplies by a weight.
fn is_left(usage: &Use<'_>) -> bool {
    matches!(usage, Use::Float { .. })
}

/// The nodes that read the dequantized weight. If other nodes need the weight in float, the float
/// weight stays in the file, and a warning gives its size.
fn consumers_of(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
) -> (Consumers, Option<String>) {
    let (kept, consumers) = match (read_otherwise(graph, constant), before_cast(graph, constant)) {
        (Some(kept), _) => (kept, Consumers::AsWeight),
        (None, Some(kept)) => (kept, Consumers::All),
        (None, None) => return (Consumers::All, None),
    };
    if config.output_format == Format::FakeQuant {
        return (consumers, None);
    }
    let bits = constant.tensor.dtype().map_or(0, DataType::bits);
    let bytes = constant.shape.iter().product::<usize>().saturating_mul(bits) / 8;
    let warning = format!(
        "weight `{}` {kept}: besides its integers its {bytes} bytes of floats stay",
        graph.values[constant.anchor].name
    );
    (consumers, Some(warning))
}

/// The consumer of a weight before the `Cast` after which it is quantized.
fn before_cast(graph: &Graph<'_>, constant: &Constant<'_>) -> Option<KeepReason> {
    let Producer::Node { node, .. } = graph.values[constant.anchor].producer else { return None };
    uses::casts(graph.nodes[node])?;
    let value = &graph.values[graph.input(node, 0)?];
    let other =
        value.consumers.iter().find(|consumer| uses::casts(graph.nodes[consumer.node]).is_none());
    match other {
        Some(reader) => Some(KeepReason::AlsoReadBy { node: graph.nodes[reader.node].label() }),
        None if value.is_output => Some(KeepReason::GraphOutput),
        None => value.used_in_subgraph.then_some(KeepReason::Captured),
    }
}

/// The reason why a constant that is no weight is excluded: by its name, or with all of its
/// consumers.
fn left_alone(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    selection: &Selection,
) -> Option<KeepReason> {
    let value = &graph.values[constant.anchor];
    let consumers = || value.consumers.iter().map(|reader| reader.node);
    let all = !value.consumers.is_empty()
        && !value.used_in_subgraph
        && consumers().all(|node| selection.leaves_node(graph, node));
    let by_name = selection.excluded(&constant.names(graph), std::iter::empty());
    let nodes = consumers().map(|node| graph.nodes[node]);
    let kept =
        by_name.or_else(|| selection.excluded(&constant.names(graph), nodes).filter(|_| all));
    kept.filter(|_| graph.dtype(constant.anchor) == Some(DataType::Float))
}

fn no_rule(graph: &Graph<'_>, constant: &Constant<'_>) -> KeepReason {
    match constant.tensor.dtype() {
        Some(DataType::Float) => {}
        dtype => return KeepReason::NotFloat32 { dtype },
    }
    let value = &graph.values[constant.anchor];
    let reader = value.consumers.first();
    match reader {
        None if value.used_in_subgraph => return KeepReason::Captured,
        None if value.is_output => return KeepReason::GraphOutput,
        _ => {}
    }
    KeepReason::NoRule { op_type: reader.map(|reader| graph.nodes[reader.node].op_type.clone()) }
}

/// The granularity of a weight, and the shape of the matrix that it is stored as, if any. Weights
/// of 2 bits that ONNX Runtime would transpose or multiply on integers have blocks, and filters of
/// convolutions are matrices.
fn granularity(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    requested: WeightType,
) -> (Granularity, Option<[usize; 2]>) {
    let (found, matrix) = requested_granularity(graph, constant, config, requested);
    let qtype = requested.qtype();
    let is_two_bits = matches!(qtype, QType::Int2 | QType::UInt2);
    if !is_two_bits || matrix.is_some() || formats::usual(config) != Format::Qdq {
        return (found, matrix);
    }
    let fuses = |op_types: &[&str]| {
        config.activations.is_some()
            && ort_int8_workarounds::is_read_by(graph, constant.anchor, op_types)
    };
    if fuses(&["Conv"]) {
        return (found, Some(blocks::matrix_of(&constant.shape)));
    }
    if ort_int8_workarounds::is_read_by(graph, constant.anchor, &["Transpose"])
        || fuses(&["Gemm", "MatMul"])
    {
        return (blocks::whole(&constant.shape, found), None);
    }
    (found, None)
}

/// Blocks, if a block size or a layout with blocks is requested. Otherwise, one scale per channel
/// if that is requested and all consumers have the output channels along the same axis. Otherwise,
/// one scale for the whole tensor. With the shape of the matrix, as [`granularity`] returns it.
fn requested_granularity(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    requested: WeightType,
) -> (Granularity, Option<[usize; 2]>) {
    let mut found = constant.uses.iter().filter_map(|usage| match usage {
        Use::Weight { channels, .. } | Use::Inside { channels, .. } => Some(*channels),
        _ => None,
    });
    let along = found.next().flatten().filter(|along| found.all(|other| other == Some(*along)));
    let block_size = requested.layout().map(|row| row.block_size).or(config.block_size);
    if let Some(block_size) = block_size {
        return blocks::cut(&constant.shape, along, block_size);
    }
    let whole = (Granularity::PerTensor, None);
    let Some(along) = along else { return whole };
    match along {
        Along::Axis(axis) => (along_axis(graph, constant, config, requested, axis), None),
        Along::Rows(rows) => {
            let columns = constant.shape.iter().product::<usize>() / rows.max(1);
            let row = (Granularity::PerAxis { axis: 0 }, Some([rows, columns]));
            if config.scales_per_channel() { row } else { whole }
        }
    }
}

fn along_axis(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    requested: WeightType,
    axis: usize,
) -> Granularity {
    // Kernels for products of uint8 support only one zero point of the first input.
    let first = config.activations.is_some()
        && requested.qtype() == QType::UInt8
        && constant.uses.iter().any(|usage| match usage {
            Use::Weight { node, input: 0, .. } => graph.nodes[*node].op_type == "MatMul",
            _ => false,
        });
    // Kernels for MatMul with more than two axes support only one scale for the whole weight.
    let is_batched = |usage: &Use<'_>| matches!(usage, Use::Weight { batched: true, .. });
    let batched = config.activations.is_some() && constant.uses.iter().any(is_batched);
    // The weight has the channels of one group, the int32 bias those of all groups.
    let grouped = config.activations.is_some()
        && config.profile().placement == Placement::AllOps
        && constant.multipliers(graph).any(uses::groups_outputs);
    let allowed = match config.profile().per_channel {
        Some(op_types) if config.activations.is_some() => {
            constant.multipliers(graph).all(|node| op_types.contains(&node.op_type.as_str()))
        }
        _ => true,
    };
    if config.scales_per_channel() && !batched && !grouped && !first && allowed {
        Granularity::PerAxis { axis }
    } else {
        Granularity::PerTensor
    }
}

/// Whether the zero point must be 0, as for weights of integer operators with a scale per channel:
/// TensorRT supports no other, and another improves accuracy little.
fn forces_symmetric(config: &Config, qtype: QType, granularity: Granularity) -> bool {
    config.activations.is_some()
        && qtype.bits() == 8
        && (config.profile().symmetric.1 || matches!(granularity, Granularity::PerAxis { .. }))
}

/// The nodes of the main graph that have this constant as a weight, be it in float.
pub(super) fn weight_readers(constant: &Constant<'_>) -> impl Iterator<Item = usize> {
    constant.uses.iter().filter_map(|usage| match usage {
        Use::Weight { node, .. } => Some(*node),
        Use::Float { index, .. } => *index,
        _ => None,
    })
}
