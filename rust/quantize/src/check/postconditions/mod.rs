//! The last look before anything is written: is the model what the plan said?

pub(crate) mod matmul_nbits;

use quantize_rs_math::{Layout, Scales};
use quantize_rs_onnx::{DataType, Model, NodeProto, TensorProto};

use super::conformance;
use crate::encode::{data_type, scale_data_type};
use crate::error::QuantizeErrorKind;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};
use crate::plan::{Plan, Planned, Readers, Role, Source, ValuePlan};
use crate::{Format, InputSpec, QuantizeError, Target, Violation};

/// Checks that every value the plan quantizes is made by a `DequantizeLinear` of the right type and
/// number of scales, and that every input and output of the model is where it was. What the caller should know of
/// what was quantized before.
pub(crate) fn verify(
    before: &Model,
    after: &Model,
    plan: &Plan,
) -> Result<Option<String>, QuantizeError> {
    same_interface(before, after)?;
    let (original, graph) = (Graph::of(before)?, Graph::of(after)?);
    if plan.config.output_format == Format::MatMulNBits
        && let Some((node, what)) = matmul_nbits::fault(&original, &graph)
    {
        return Err(failed(format!("`{node}`: {what}")));
    }
    for (value, how) in plan.quantized() {
        // A bias that several nodes share has several copies under other names, and what some read
        // in float keeps its name for them.
        let by_name = value.role != Role::Input && how.consumers == Readers::All;
        if how.format == Format::FakeQuant {
            faked(&graph, value, how)?;
        }
        if how.format != Format::Qdq {
            continue;
        }
        if matches!(how.consumers, Readers::Rows | Readers::Rearranged | Readers::Tied) {
            taken(&original, &graph, value, how)?;
        }
        if how.consumers == Readers::Weighing {
            weighed(&original, &graph, value, how)?;
        }
        if by_name && !matches!(how.source, Source::Product { .. }) {
            check(&graph, value, how)?;
        }
    }
    match plan.config.target {
        // What is trained on is no runtime's yet.
        Some(target) if plan.config.activations.is_some() && !plan.trains() => {
            conforms(before, after, target)
        }
        _ => Ok(None),
    }
}

/// Checks that callers of the model find what they found.
pub(crate) fn same_interface(before: &Model, after: &Model) -> Result<(), QuantizeError> {
    let names = |infos: &[quantize_rs_onnx::Kept<quantize_rs_onnx::ValueInfoProto>]| {
        infos.iter().map(|info| info.name.clone()).collect::<Vec<_>>()
    };
    let inputs = |model: &Model| -> Vec<String> {
        InputSpec::of(model).into_iter().map(|input| input.name).collect()
    };
    if inputs(before) != inputs(after) {
        return Err(failed("the inputs of the model changed".to_owned()));
    }
    if names(&before.graph().output) != names(&after.graph().output) {
        return Err(failed("the outputs of the model changed".to_owned()));
    }
    Ok(())
}

/// Checks that the target takes what was written. Of a model in which it did not take something before, this cannot be
/// promised: one such place, and how many there are.
fn conforms(
    before: &Model,
    after: &Model,
    target: Target,
) -> Result<Option<String>, QuantizeError> {
    let strict = |model: &Model| -> Result<Vec<Violation>, QuantizeError> {
        let mut found = conformance(model, target)?;
        found.retain(|violation| violation.rule.is_strict());
        Ok(found)
    };
    let (before, after) = (strict(before)?, strict(after)?);
    match after.first() {
        Some(violation) if before.is_empty() => {
            Err(failed(format!("not what {target} takes: {violation}")))
        }
        Some(violation) => {
            let others = match after.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            Ok(Some(format!(
                "the model was quantized before, and not as {target} takes it: {violation}{others}"
            )))
        }
        None => Ok(None),
    }
}

/// Checks that those who read a constant through what takes or rearranges it have its integers.
fn taken(
    before: &Graph<'_>,
    after: &Graph<'_>,
    value: &Planned,
    how: &ValuePlan,
) -> Result<(), QuantizeError> {
    let missing = || failed(format!("nobody reads `{}`", value.name));
    let id = before.value(&value.name).ok_or_else(missing)?;
    let holds = |id: Option<ValueId>| {
        let found = id.and_then(|id| after.constant(id)).and_then(TensorProto::dtype);
        found == Some(data_type(how.stored))
    };
    let rows = || {
        let consumers =
            before.values[id].consumers.iter().map(|consumer| before.nodes[consumer.node]);
        let takes = |consumer: &NodeProto, node: usize| {
            let proto = after.nodes[node];
            proto.op_type == consumer.op_type
                && proto.name == consumer.name
                && holds(after.input(node, 0))
        };
        let mut look_ups = consumers.filter(|consumer| consumer.op_type == "Gather");
        look_ups.all(|consumer| (0..after.nodes.len()).any(|node| takes(consumer, node)))
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
        Readers::Rows => rows(),
        Readers::Rearranged => rearranged(),
        _ => rows() && rearranged(),
    };
    found.then_some(()).ok_or_else(missing)
}

/// Checks that a weight is there in integers beside its floats.
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
        .ok_or_else(|| failed(format!("`{}` is not beside its integers", value.name)))
}

/// Checks that a weight is float before a `QuantizeLinear` of its own, beside constant scales.
fn faked(graph: &Graph<'_>, value: &Planned, how: &ValuePlan) -> Result<(), QuantizeError> {
    let constant = |node: usize, input: usize| {
        graph.input(node, input).and_then(|id| graph.constant(id)).and_then(TensorProto::dtype)
    };
    let quantizes = |node: usize| {
        graph.nodes[node].op_type == "QuantizeLinear"
            && constant(node, 0) == Some(DataType::Float)
            && constant(node, 1) == Some(DataType::Float)
            && constant(node, 2) == Some(data_type(how.stored))
    };
    let back = |node: usize| {
        let integers = graph.input(node, 0).map(|id| graph.values[id].producer);
        graph.nodes[node].op_type == "DequantizeLinear"
            && matches!(integers, Some(Producer::Node { node, .. }) if quantizes(node))
    };
    let made = graph.value(&value.name).map(|id| graph.values[id].producer);
    let found = match (made, how.consumers, how.matrix) {
        (Some(Producer::Node { node, .. }), Readers::All, None) => back(node),
        (None, ..) => false,
        _ => (0..graph.nodes.len()).any(back),
    };
    let missing = || failed(format!("`{}` is not quantized where it is read", value.name));
    found.then_some(()).ok_or_else(missing)
}

fn check(graph: &Graph<'_>, value: &Planned, how: &ValuePlan) -> Result<(), QuantizeError> {
    let wrong = |what: &str| failed(format!("`{}` {what}", value.name));
    let id = graph.value(&value.name).ok_or_else(|| wrong("is gone"))?;
    let made_by = |id: ValueId| match graph.values[id].producer {
        Producer::Node { node, .. } => Some(node),
        _ => None,
    };
    let mut node = made_by(id).ok_or_else(|| wrong("is not made by a node"))?;
    if !how.spec.qtype.is_scaled() {
        return cast(graph, node, how).then_some(()).ok_or_else(|| wrong("is not cast"));
    }
    // What comes back may be of another type, or a matrix.
    for op_type in ["Cast", "Reshape"] {
        if value.role == Role::Weight && graph.nodes[node].op_type == op_type {
            let before = graph.input(node, 0).and_then(made_by);
            node = before.ok_or_else(|| wrong("does not come back from integers"))?;
        }
    }
    if graph.nodes[node].op_type != "DequantizeLinear" {
        return Err(wrong("is not made by DequantizeLinear"));
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

/// The codes of the scales of a node, which come back by a `DequantizeLinear` with one float32.
fn two_levels<'m>(graph: &Graph<'m>, node: usize) -> Option<&'m TensorProto> {
    let scale = graph.input(node, 1)?;
    let Producer::Node { node, .. } = graph.values[scale].producer else { return None };
    let whole = graph.constant(graph.input(node, 1)?)?;
    let found = graph.nodes[node].op_type == "DequantizeLinear"
        && whole.dtype() == Some(DataType::Float)
        && whole.dims.is_empty();
    found.then(|| graph.constant(graph.input(node, 0)?)).flatten()
}

/// Whether a node casts what a weight is stored as.
fn cast(graph: &Graph<'_>, node: usize, how: &ValuePlan) -> bool {
    let stored = graph.input(node, 0).and_then(|id| graph.constant(id));
    graph.nodes[node].op_type == "Cast"
        && stored.and_then(TensorProto::dtype) == Some(data_type(how.stored))
}

fn shape(tensor: &TensorProto) -> Vec<usize> {
    tensor.dims.iter().filter_map(|dim| usize::try_from(*dim).ok()).collect()
}

fn failed(what: String) -> QuantizeError {
    QuantizeError::new(QuantizeErrorKind::Verify(what))
}
