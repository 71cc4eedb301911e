//! Which constants are quantized, and how finely.

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::{DataType, NodeProto};

use super::formats::{self, Form};
use super::select::Selection;
use super::{Because, Decision, Draft, Kept, Readers, Source, ValuePlan, blocks};
use crate::encode::data_type;
use crate::graph::uses;
use crate::graph::uses::{Along, Constant, Use};
use crate::graph::{Graph, Maker};
use crate::options::target::Placement;
use crate::{Config, Format, QuantizeError, WeightType};

pub(super) fn plan(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    selection: &Selection,
    draft: &mut Draft,
) {
    let mut widened = false;
    let in_float = formats::in_float(graph, constants, config);
    for constant in constants {
        if constant.is_weight() {
            draft.weights.insert(constant.anchor);
        }
        if let Some(kept) = kept(graph, constant, config, selection) {
            draft.keep(constant.anchor, kept);
            continue;
        }
        let names = constant.names(graph);
        let own = selection.config_of(config, &names, constant.multipliers(graph));
        let config = &*own;
        let asked = selection.weight_type(&names, constant.multipliers(graph));
        let asked = asked.unwrap_or(config.weights);
        let qtype = asked.qtype();
        let stored = match (qtype, config.native_int4) {
            (QType::Int4, Some(false)) => QType::Int8,
            _ => qtype,
        };
        widened |= stored != qtype;
        let label = constant.multipliers(graph).next().map(NodeProto::label);
        let because = Because::WeightOf(label.unwrap_or_default());
        let form = if in_float.contains(&constant.anchor) {
            Ok(None)
        } else {
            formats::form(graph, constant, config, qtype)
        };
        let plan = match form {
            Err(kept) => {
                draft.keep(constant.anchor, kept);
                continue;
            }
            Ok(Some(form)) => {
                for (value, node) in form.at_run_time {
                    let node = graph.nodes[node].label();
                    draft.keep(value, Kept::AtRunTime { node });
                }
                say_what_stays(graph, constant, config, draft);
                let Form { spec, readers, format, .. } = form;
                let (stored, source) = (spec.qtype, Source::Weights);
                ValuePlan { spec, stored, matrix: None, format, source, readers, because }
            }
            Ok(None) => {
                let (granularity, matrix) = if qtype.is_scaled() {
                    granularity(graph, constant, config, asked)
                } else {
                    (Granularity::PerTensor, None)
                };
                let symmetric = config.symmetric || forces_symmetric(config, qtype, granularity);
                let spec = spec(config, asked, symmetric, granularity);
                let readers = say_what_stays(graph, constant, config, draft);
                let (format, source) = (formats::usual(config), Source::Weights);
                ValuePlan { spec, stored, matrix, format, source, readers, because }
            }
        };
        draft.decisions.insert(constant.anchor, Decision::Quantize(plan));
    }
    formats::plan_lstms(graph, constants, config, draft);
    if widened {
        draft.warnings.push(
            "4-bit weights are stored in a byte each, as asked for with native_int4: the accuracy of \
             4 bits at the size of 8; ask for 8 bits, or for packed 4-bit weights"
                .to_owned(),
        );
    }
}

/// How a weight is quantized. Wider types have steps enough, and kernels that compute with them.
fn spec(config: &Config, asked: WeightType, symmetric: bool, granularity: Granularity) -> QSpec {
    let (qtype, scales) = (asked.qtype(), asked.scales());
    let spec = QSpec::new(qtype, symmetric, granularity);
    let narrow = config.narrow_range.map_or(spec.narrow, |narrow| narrow && symmetric);
    // Who trains on it has no use for a negative scale.
    let may_flip = config.profile().negative_scales && config.output_format != Format::FakeQuant;
    let flips = symmetric && !narrow && qtype.bits() <= 4 && may_flip;
    QSpec { narrow, flips, scales, ..spec }
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
    if !constant.is_weight() {
        if let Some(kept) = left_alone(graph, constant, selection) {
            return Some(kept);
        }
        let kept = constant.uses.iter().find_map(|usage| match usage {
            Use::Bias { .. } => Some(Kept::Bias),
            _ => None,
        });
        // What is no weight is spoken of only where there is something to say.
        return Some(kept.unwrap_or_else(|| no_rule(graph, constant)));
    }
    if !constant.dtype.is_some_and(|dtype| uses::FLOATS.contains(&dtype)) {
        return Some(Kept::NotFloat32 { dtype: constant.dtype });
    }
    if let Some(kept) = selection.excluded(&constant.names(graph), constant.multipliers(graph)) {
        return Some(kept);
    }
    if let Some(pattern) = selection.float(&constant.names(graph), constant.multipliers(graph)) {
        return Some(Kept::Excluded { pattern });
    }
    let asked = selection.weight_type(&constant.names(graph), constant.multipliers(graph));
    let qtype = asked.unwrap_or(config.weights).qtype();
    if constant.dtype == Some(data_type(qtype)) {
        return Some(Kept::Already { qtype });
    }
    let other = constant
        .multipliers(graph)
        .map(|node| &node.op_type)
        .find(|op_type| !selection.allows(op_type));
    if let Some(op_type) = other {
        return Some(Kept::OpType { op_type: op_type.clone() });
    }
    if matches!(value.maker, Maker::Initializer { overridable: true, .. }) {
        return Some(Kept::Overridable);
    }
    // Where everything is quantized, nobody is left who would take it in float.
    let everything =
        config.activations.is_some() && config.profile().placement == Placement::Everything;
    if (constant.weighing.is_empty() || everything)
        && let Some(kept) = read_otherwise(graph, constant)
    {
        return Some(kept);
    }
    if elements == 0 {
        return Some(Kept::Empty);
    }
    (elements < config.min_elements)
        .then_some(Kept::TooSmall { elements, min_elements: config.min_elements })
}

/// For each constant why its numbers are to stay as they are, if they are.
pub(crate) fn reserved(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
) -> Result<Vec<Option<Kept>>, QuantizeError> {
    let selection = Selection::of(graph, constants, config)?;
    let why = |constant: &Constant<'_>| {
        let value = &graph.values[constant.anchor];
        let excluded = selection.excluded(&constant.names(graph), constant.multipliers(graph));
        let overridable = matches!(value.maker, Maker::Initializer { overridable: true, .. });
        excluded
            .or_else(|| overridable.then_some(Kept::Overridable))
            .or_else(|| read_otherwise(graph, constant))
    };
    Ok(constants.iter().map(why).collect())
}

/// Why a weight is needed in float too, if it is.
fn read_otherwise(graph: &Graph<'_>, constant: &Constant<'_>) -> Option<Kept> {
    constant.uses.iter().find_map(|usage| match usage {
        Use::Output => Some(Kept::GraphOutput),
        Use::Captured => Some(Kept::Captured),
        Use::Other { node } | Use::Bias { node } => {
            Some(Kept::AlsoReadBy { node: graph.nodes[*node].label() })
        }
        Use::Weight { .. } | Use::Inside { .. } => None,
    })
}

/// Who reads a weight as it comes back from integers. Where others need it in float it stays beside
/// that, and it is said what that takes.
fn say_what_stays(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    draft: &mut Draft,
) -> Readers {
    let (kept, readers) = match (read_otherwise(graph, constant), before_cast(graph, constant)) {
        (Some(kept), _) => (kept, Readers::Weighing),
        (None, Some(kept)) => (kept, Readers::All),
        (None, None) => return Readers::All,
    };
    if config.output_format == Format::FakeQuant {
        return readers;
    }
    let bits = constant.tensor.dtype().map_or(0, DataType::bits);
    let bytes = constant.shape.iter().product::<usize>().saturating_mul(bits) / 8;
    draft.warnings.push(format!(
        "weight `{}` {kept}: besides its integers its {bytes} bytes of floats stay",
        graph.values[constant.anchor].name
    ));
    readers
}

/// Who reads a weight before the `Cast` that it is quantized after.
fn before_cast(graph: &Graph<'_>, constant: &Constant<'_>) -> Option<Kept> {
    let Maker::Node { node, .. } = graph.values[constant.anchor].maker else { return None };
    uses::casts(graph.nodes[node])?;
    let value = &graph.values[graph.input(node, 0)?];
    let other = value.readers.iter().find(|reader| uses::casts(graph.nodes[reader.node]).is_none());
    match other {
        Some(reader) => Some(Kept::AlsoReadBy { node: graph.nodes[reader.node].label() }),
        None if value.is_output => Some(Kept::GraphOutput),
        None => value.captured.then_some(Kept::Captured),
    }
}

/// Why a constant that is no weight stays as it is by the caller's wish, which goes for it, or all who read it.
fn left_alone(graph: &Graph<'_>, constant: &Constant<'_>, selection: &Selection) -> Option<Kept> {
    let value = &graph.values[constant.anchor];
    let readers = || value.readers.iter().map(|reader| reader.node);
    let all = !value.readers.is_empty()
        && !value.captured
        && readers().all(|node| selection.leaves_node(graph, node));
    let by_name = selection.excluded(&constant.names(graph), std::iter::empty());
    let nodes = readers().map(|node| graph.nodes[node]);
    let kept =
        by_name.or_else(|| selection.excluded(&constant.names(graph), nodes).filter(|_| all));
    kept.filter(|_| graph.dtype(constant.anchor) == Some(DataType::Float))
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

/// In blocks, where these are asked for, or a layout that has them. Else as fine as asked for, where the output channels of the constant are the same for all who read
/// it; else one scale for the whole tensor. And the matrix that it is stored as for that.
fn granularity(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    asked: WeightType,
) -> (Granularity, Option<[usize; 2]>) {
    let mut found = constant.uses.iter().filter_map(|usage| match usage {
        Use::Weight { channels, .. } | Use::Inside { channels, .. } => Some(*channels),
        _ => None,
    });
    let along = found.next().flatten().filter(|along| found.all(|other| other == Some(*along)));
    let block_size = asked.layout().map(|row| row.block_size).or(config.block_size);
    if let Some(block_size) = block_size {
        return blocks::cut(&constant.shape, along, block_size);
    }
    let whole = (Granularity::PerTensor, None);
    let Some(along) = along else { return whole };
    match along {
        Along::Axis(axis) => (along_axis(graph, constant, config, axis), None),
        Along::Rows(rows) => {
            let columns = constant.shape.iter().product::<usize>() / rows.max(1);
            let row = (Granularity::PerAxis { axis: 0 }, Some([rows, columns]));
            if config.per_channel { row } else { whole }
        }
    }
}

fn along_axis(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    config: &Config,
    axis: usize,
) -> Granularity {
    // Kernels for matrix products of more than two axes take one scale for the whole weight.
    let is_batched = |usage: &Use<'_>| matches!(usage, Use::Weight { batched: true, .. });
    let batched = config.activations.is_some() && constant.uses.iter().any(is_batched);
    // A group has the channels of the weight, the int32 bias those of all groups.
    let grouped = config.activations.is_some()
        && config.profile().placement == Placement::Everything
        && constant.multipliers(graph).any(uses::groups_outputs);
    let allowed = match config.profile().per_channel {
        Some(op_types) if config.activations.is_some() => {
            constant.multipliers(graph).all(|node| op_types.contains(&node.op_type.as_str()))
        }
        _ => true,
    };
    if config.per_channel && !batched && !grouped && allowed {
        Granularity::PerAxis { axis }
    } else {
        Granularity::PerTensor
    }
}

/// Weights of integer operators have zero point 0 in every channel: TensorRT takes no other, and a
/// free one buys little.
fn forces_symmetric(config: &Config, qtype: QType, granularity: Granularity) -> bool {
    config.activations.is_some()
        && qtype.bits() == 8
        && (config.profile().symmetric.1 || matches!(granularity, Granularity::PerAxis { .. }))
}

/// The nodes of the main graph that have this constant as a weight.
pub(super) fn weight_readers(constant: &Constant<'_>) -> impl Iterator<Item = usize> {
    constant.uses.iter().filter_map(|usage| match usage {
        Use::Weight { node, .. } => Some(*node),
        _ => None,
    })
}
