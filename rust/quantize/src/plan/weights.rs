//! Which constants are quantized, and how finely.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::{DataType, NodeProto};

use super::select::Selection;
use super::{Because, Decision, Draft, Kept, Readers, Source, ValuePlan};
use crate::Config;
use crate::graph::{Graph, Maker};
use crate::target::Placement;
use crate::uses::{Constant, Use};

pub(super) fn plan(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    selection: &Selection,
    draft: &mut Draft,
) {
    let mut widened = false;
    for constant in constants {
        if weight_readers(constant).next().is_some() {
            draft.weights.insert(constant.anchor);
        }
        if let Some(kept) = kept(graph, constant, config, selection) {
            draft.keep(constant.anchor, kept);
            continue;
        }
        let name = graph.values[constant.anchor].name;
        let qtype =
            selection.qtype(graph, name, weight_readers(constant)).unwrap_or(config.weights);
        let stored = match (qtype, config.native_int4) {
            (QType::Int4, Some(false)) => QType::Int8,
            _ => qtype,
        };
        widened |= stored != qtype;
        let granularity = granularity(graph, constant, config);
        let symmetric = config.symmetric || forces_symmetric(config, qtype, granularity);
        let because = Because::WeightOf(first_reader(graph, constant));
        let plan = ValuePlan {
            spec: spec(config, qtype, symmetric, granularity),
            stored,
            source: Source::Weights,
            readers: Readers::All,
            because,
        };
        draft.decisions.insert(constant.anchor, Decision::Quantize(plan));
    }
    if widened {
        draft.warnings.push(
            "4-bit weights are stored in a byte each, as asked for with native_int4: the accuracy of \
             4 bits at the size of 8; ask for 8 bits, or for packed 4-bit weights"
                .to_owned(),
        );
    }
}

/// How a weight is quantized. Wider types have steps enough, and kernels that compute with them.
fn spec(config: &Config, qtype: QType, symmetric: bool, granularity: Granularity) -> QSpec {
    let spec = QSpec::new(qtype, symmetric, granularity);
    let narrow = config.narrow_range.map_or(spec.narrow, |narrow| narrow && symmetric);
    let flips = symmetric && !narrow && qtype.bits() <= 4 && config.profile().negative_scales;
    QSpec { narrow, flips, ..spec }
}

/// Why a constant keeps its type, if it does.
fn kept(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    selection: &Selection,
) -> Option<Kept> {
    let value = &graph.values[constant.anchor];
    let elements: usize = constant.shape.iter().product();
    if weight_readers(constant).next().is_none() {
        if let Some(pattern) = left_alone(graph, constant, selection) {
            return Some(Kept::Excluded { pattern });
        }
        let kept = constant.uses.iter().find_map(|usage| match usage {
            Use::Bias { .. } => Some(Kept::Bias),
            _ => None,
        });
        // What is no weight is spoken of only where there is something to say.
        return Some(kept.unwrap_or_else(|| no_rule(graph, constant)));
    }
    if constant.tensor.dtype() != Some(DataType::Float) && graph.constant(constant.anchor).is_some()
    {
        return Some(Kept::NotFloat32 { dtype: constant.tensor.dtype() });
    }
    if let Some(pattern) = selection.excluded(graph, value.name, weight_readers(constant)) {
        return Some(Kept::Excluded { pattern });
    }
    let other = weight_readers(constant)
        .map(|node| &graph.nodes[node].op_type)
        .find(|op_type| !selection.allows(op_type));
    if let Some(op_type) = other {
        return Some(Kept::OpType { op_type: op_type.clone() });
    }
    if matches!(value.maker, Maker::Initializer { overridable: true, .. }) {
        return Some(Kept::Overridable);
    }
    for usage in &constant.uses {
        match usage {
            Use::Output => return Some(Kept::GraphOutput),
            Use::Captured => return Some(Kept::Captured),
            Use::Other { node } | Use::Bias { node } => {
                return Some(Kept::AlsoReadBy { node: graph.nodes[*node].label() });
            }
            Use::Weight { .. } => {}
        }
    }
    if elements == 0 {
        return Some(Kept::Empty);
    }
    (elements < config.min_elements)
        .then_some(Kept::TooSmall { elements, min_elements: config.min_elements })
}

/// The pattern that excludes a constant that is no weight, or all who read it.
fn left_alone(graph: &Graph<'_>, constant: &Constant<'_>, selection: &Selection) -> Option<String> {
    let value = &graph.values[constant.anchor];
    let readers = || value.readers.iter().map(|reader| reader.node);
    let all = !value.readers.is_empty()
        && !value.captured
        && readers().all(|node| selection.excludes_node(graph, node));
    let by_name = selection.excluded(graph, value.name, std::iter::empty());
    let pattern =
        by_name.or_else(|| selection.excluded(graph, value.name, readers()).filter(|_| all));
    pattern.filter(|_| graph.dtype(constant.anchor) == Some(DataType::Float))
}

fn no_rule(graph: &Graph<'_>, constant: &Constant<'_>) -> Kept {
    match constant.tensor.dtype() {
        Some(DataType::Float) => {}
        dtype => return Kept::NotFloat32 { dtype },
    }
    let value = &graph.values[constant.anchor];
    let reader = value.readers.first();
    match reader {
        None if value.captured => return Kept::Captured,
        None if value.is_output => return Kept::GraphOutput,
        _ => {}
    }
    Kept::NoRule { op_type: reader.map(|reader| graph.nodes[reader.node].op_type.clone()) }
}

/// As fine as asked for, where one axis of the constant is the axis of output channels for all
/// who read it; else one scale for the whole tensor.
fn granularity(graph: &Graph<'_>, constant: &Constant<'_>, config: &Config) -> Granularity {
    let mut found = constant.uses.iter().filter_map(|usage| match usage {
        Use::Weight { axis, rank, .. } => Some((*axis, *rank)),
        _ => None,
    });
    let Some((Some(axis), rank)) = found.next() else { return Granularity::PerTensor };
    if found.any(|(other, _)| other != Some(axis)) {
        return Granularity::PerTensor;
    }
    if let Some(block_size) = config.block_size
        && constant.shape.len() == 2
    {
        return Granularity::Blocked { axis: 1 - axis, block_size };
    }
    // Kernels for matrix products of more than two axes take one scale for the whole weight.
    let batched = config.activations.is_some() && rank > 2 && axis + 1 == rank;
    // A group has the channels of the weight, the int32 bias those of all groups.
    let grouped = config.activations.is_some()
        && config.profile().placement == Placement::Everything
        && weight_readers(constant).any(|node| groups_outputs(graph.nodes[node]));
    let allowed = match config.profile().per_channel {
        Some(op_types) if config.activations.is_some() => weight_readers(constant)
            .all(|node| op_types.contains(&graph.nodes[node].op_type.as_str())),
        _ => true,
    };
    if (config.per_channel || config.block_size.is_some()) && !batched && !grouped && allowed {
        Granularity::PerAxis { axis }
    } else {
        Granularity::PerTensor
    }
}

/// Whether the axis of output channels is the same for each of several groups.
pub(super) fn groups_outputs(node: &NodeProto) -> bool {
    node.op_type == "ConvTranspose" && node.int("group", 1) != 1
}

/// Weights of integer operators have zero point 0 in every channel: TensorRT takes no other, and a
/// free one buys little.
fn forces_symmetric(config: &Config, qtype: QType, granularity: Granularity) -> bool {
    config.activations.is_some()
        && qtype.bits() == 8
        && (config.profile().symmetric.1 || matches!(granularity, Granularity::PerAxis { .. }))
}

fn first_reader(graph: &Graph<'_>, constant: &Constant<'_>) -> String {
    weight_readers(constant).next().map(|node| graph.nodes[node].label()).unwrap_or_default()
}

/// The nodes that have this constant as a weight.
pub(super) fn weight_readers(constant: &Constant<'_>) -> impl Iterator<Item = usize> {
    constant.uses.iter().filter_map(|usage| match usage {
        Use::Weight { node, .. } => Some(*node),
        _ => None,
    })
}
