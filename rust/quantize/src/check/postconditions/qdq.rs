//! Checks of the `qdq` format: values are outputs of `DequantizeLinear`, with integers where
//! planned.

use quantize_rs_math::{Layout, Scales};
use quantize_rs_onnx::{DataType, NodeProto, TensorProto};

use super::{Models, failed, shape};
use crate::QuantizeError;
use crate::encode::scale_data_type;
use crate::graph::elements::data_type;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};
use crate::plan::{Consumers, Planned, Role, Source, ValuePlan};

/// Checks that a value is the output of a `DequantizeLinear` with the right type and number of
/// scales.
pub(super) fn value(
    Models { before, after }: &Models<'_, '_>,
    value: &Planned,
    how: &ValuePlan,
) -> Result<(), QuantizeError> {
    if matches!(
        how.consumers,
        Consumers::GatheredRows | Consumers::AfterReshape | Consumers::TiedEmbedding
    ) {
        taken(before, after, value, how)?;
    }
    if how.consumers == Consumers::AsWeight {
        weighed(before, after, value, how)?;
    }
    // A bias that several nodes share is copied under other names; a constant that some nodes read
    // in float keeps its name for them.
    let by_name = value.role != Role::Input && how.consumers == Consumers::All;
    if by_name && !matches!(how.source, Source::Product { .. }) {
        check(after, value, how)?;
    }
    Ok(())
}

/// Checks that consumers of a constant through Gather or reshaping nodes get its integers.
fn taken(
    before: &Graph<'_>,
    after: &Graph<'_>,
    value: &Planned,
    how: &ValuePlan,
) -> Result<(), QuantizeError> {
    let missing = || failed(format!("no node reads `{}`", value.name));
    let id = before.value(&value.name).ok_or_else(missing)?;
    let holds = |id: Option<ValueId>| {
        let found = id.and_then(|id| after.constant(id)).and_then(TensorProto::dtype);
        found == Some(data_type(how.stored))
    };
    let rows = || {
        let readers = before.values[id].consumers.iter().map(|reader| before.nodes[reader.node]);
        let takes = |reader: &NodeProto, node: usize| {
            let proto = after.nodes[node];
            proto.op_type == reader.op_type
                && proto.name == reader.name
                && holds(after.input(node, 0))
        };
        let mut gathers = readers.filter(|reader| reader.op_type == "Gather");
        gathers.all(|reader| (0..after.nodes.len()).any(|node| takes(reader, node)))
    };
    let rearranged = || {
        let last = uses::rearranging(before, id).last().and_then(|node| before.output(*node, 0));
        let name = before.values[last.unwrap_or(id)].name;
        match after.value(name).map(|end| after.values[end].producer) {
            Some(Producer::Node { node, .. })
                if after.nodes[node].op_type == "DequantizeLinear" =>
            {
                let integers = after.input(node, 0);
                holds(integers.and_then(|integers| uses::rearranged_from(after, integers)))
            }
            _ => false,
        }
    };
    let found = match how.consumers {
        Consumers::GatheredRows => rows(),
        Consumers::AfterReshape => rearranged(),
        _ => rows() && rearranged(),
    };
    found.then_some(()).ok_or_else(missing)
}

/// Checks that a weight is stored as integers beside its floats.
fn weighed(
    before: &Graph<'_>,
    after: &Graph<'_>,
    value: &Planned,
    how: &ValuePlan,
) -> Result<(), QuantizeError> {
    let stays = before.value(&value.name).is_some() && after.value(&value.name).is_some();
    let holds = |node: usize| {
        let integers = after.input(node, 0).and_then(|id| after.constant(id));
        after.nodes[node].op_type == "DequantizeLinear"
            && integers.and_then(TensorProto::dtype) == Some(data_type(how.stored))
            || !how.spec.qtype.is_scaled() && cast(after, node, how)
    };
    let found = stays && (0..after.nodes.len()).any(holds);
    found
        .then_some(())
        .ok_or_else(|| failed(format!("`{}` is not stored beside its integers", value.name)))
}

fn check(graph: &Graph<'_>, value: &Planned, how: &ValuePlan) -> Result<(), QuantizeError> {
    let wrong = |what: &str| failed(format!("`{}` {what}", value.name));
    let id = graph.value(&value.name).ok_or_else(|| wrong("is gone"))?;
    let made_by = |id: ValueId| match graph.values[id].producer {
        Producer::Node { node, .. } => Some(node),
        _ => None,
    };
    let mut node = made_by(id).ok_or_else(|| wrong("is not the output of a node"))?;
    if !how.spec.qtype.is_scaled() {
        return cast(graph, node, how).then_some(()).ok_or_else(|| wrong("is not cast"));
    }
    // The dequantized value may be cast or reshaped.
    for op_type in ["Cast", "Reshape"] {
        if value.role == Role::Weight && graph.nodes[node].op_type == op_type {
            let before = graph.input(node, 0).and_then(made_by);
            node = before.ok_or_else(|| wrong("is not dequantized from integers"))?;
        }
    }
    if graph.nodes[node].op_type != "DequantizeLinear" {
        return Err(wrong("is not the output of DequantizeLinear"));
    }
    let constant = |input| graph.input(node, input).and_then(|id| graph.constant(id));
    let scale = match how.spec.scales {
        Scales::Float8E4M3FN => two_levels(graph, node),
        Scales::Float | Scales::Float8E8M0 => constant(1),
    };
    let Some(scale) = scale else { return Err(wrong("has no scale")) };
    let zero_point = constant(2);
    if zero_point.is_none() && (graph.nodes[node].input.len() > 2 || constant(0).is_none()) {
        return Err(wrong("has no zero point"));
    }
    let halves = value.role == Role::Weight && value.dtype == Some(DataType::Float16);
    let floats = scale.dtype() == Some(scale_data_type(how.spec.scales))
        || halves && how.spec.scales.are_wide() && scale.dtype() == Some(DataType::Float16);
    if !floats || zero_point.is_some_and(|found| found.dtype() != Some(data_type(how.stored))) {
        return Err(wrong("has a scale or zero point of the wrong type"));
    }
    let expected = match constant(0) {
        Some(quantized) if quantized.dtype() != Some(data_type(how.stored)) => {
            return Err(wrong("has integers of the wrong type"));
        }
        Some(quantized) => Layout::of(&shape(quantized), how.spec.granularity)
            .map_err(|error| failed(error.to_string()))?
            .scale_shape(),
        None => vec![],
    };
    if shape(scale) != expected || zero_point.is_some_and(|found| shape(found) != expected) {
        return Err(wrong("has the wrong number of scales or zero points"));
    }
    Ok(())
}

/// The codes of the scales of a node, which are dequantized with one float32.
fn two_levels<'m>(graph: &Graph<'m>, node: usize) -> Option<&'m TensorProto> {
    let scale = graph.input(node, 1)?;
    let Producer::Node { node, .. } = graph.values[scale].producer else { return None };
    let whole = graph.constant(graph.input(node, 1)?)?;
    let found = graph.nodes[node].op_type == "DequantizeLinear"
        && whole.dtype() == Some(DataType::Float)
        && whole.dims.is_empty();
    found.then(|| graph.constant(graph.input(node, 0)?)).flatten()
}

/// Whether a node casts the stored weight.
fn cast(graph: &Graph<'_>, node: usize, how: &ValuePlan) -> bool {
    let stored = graph.input(node, 0).and_then(|id| graph.constant(id));
    graph.nodes[node].op_type == "Cast"
        && stored.and_then(TensorProto::dtype) == Some(data_type(how.stored))
}
