//! Replaces weights that the model quantizes itself with the quantized integers. Quantization-aware
//! training exports such weights as float tensors followed by a `QuantizeLinear` with constant
//! scales.

use std::collections::BTreeMap;

use quantize_rs_math::{FloatSource, Granularity, Layout, Params, QSpec, quantize};
use quantize_rs_onnx::{DataType, Edit, NodeProto, Tensor, TensorProto};

use super::Changes;
use crate::QuantizeError;
use crate::graph::elements::{integers, qtype_of};
use crate::graph::granularity::granularity;
use crate::graph::{Graph, Producer, ValueId};

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut changes = Changes::default();
    let mut read: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (node, proto) in graph.nodes.iter().enumerate() {
        let Some(integers) = stored(graph, node, proto) else { continue };
        let output = &proto.output[0];
        changes.did.push(format!("{} became constant", proto.label()));
        changes.edits.push(Edit::RemoveNode(node));
        changes.edits.push(Edit::AddInitializer(TensorProto::new(output, &integers)));
        if let Some(weight) = graph.input(node, 0) {
            *read.entry(weight).or_default() += 1;
        }
    }
    for (weight, times) in read {
        let value = &graph.values[weight];
        if value.consumers.len() == times && !value.is_read_outside() {
            changes.edits.push(match value.producer {
                Producer::Node { node, .. } => Edit::RemoveNode(node),
                _ => Edit::RemoveInitializer(value.name.to_owned()),
            });
        }
    }
    Ok(changes)
}

/// Evaluates a `QuantizeLinear` of a constant; `None` for other nodes and unsupported cases.
fn stored(graph: &Graph<'_>, node: usize, proto: &NodeProto) -> Option<Tensor> {
    let output = graph.output(node, 0)?;
    let constant = |input: usize| {
        let mut id = graph.input(node, input)?;
        // Exporters write equal scales and zero points once, and read them through `Identity`.
        while input > 0
            && let Producer::Node { node, .. } = graph.values[id].producer
            && graph.nodes[node].op_type == "Identity"
        {
            id = graph.input(node, 0)?;
        }
        graph.model.tensor(graph.fixed_constant(id)?).ok()
    };
    if proto.op_type != "QuantizeLinear" || !proto.is_onnx() || graph.values[output].is_output {
        return None;
    }
    let (weight, scale) = (constant(0)?, constant(1)?);
    let given = proto.input.get(2).is_some_and(|name| !name.is_empty());
    let zero_point = if given { Some(constant(2)?) } else { None };
    let said = DataType::from_number(i32::try_from(proto.int("output_dtype", 0)).ok()?);
    let dtype = match (&zero_point, said) {
        (Some(zero_point), _) => zero_point.dtype,
        (None, Some(dtype)) => dtype,
        (None, None) => DataType::UInt8,
    };
    let qtype = qtype_of(dtype)?;
    // float64 inputs and 8-bit float outputs have different rounding rules.
    let is_supported = !qtype.is_float() && qtype.bits() <= 16;
    if weight.dtype != DataType::Float || !is_supported || proto.attribute("precision").is_some() {
        return None;
    }
    let scales = scale.to_f32()?;
    let granularity = granularity(proto, weight.shape.len(), &scale.shape)?;
    let layout = Layout::of(&weight.shape, granularity).ok()?;
    if granularity != Granularity::PerTensor && layout.scale_shape() != scale.shape {
        return None;
    }
    let points = match zero_point {
        Some(tensor) if tensor.shape == scale.shape => integers(&tensor)?,
        Some(_) => return None,
        None => vec![0; scales.len()],
    };
    let params: Vec<Params> = scales
        .iter()
        .zip(points)
        .map(|(scale, zero_point)| Params { scale: *scale, zero_point })
        .collect();
    let sound = scales.iter().all(|scale| scale.is_normal());
    let values = weight.to_f32().filter(|values| sound && values.iter().all(|x| x.is_finite()))?;
    layout.check(values.len(), params.len()).ok()?;
    // `QuantizeLinear` uses the full range of the type.
    let spec = QSpec::new(qtype, false, layout.granularity());
    let data = quantize(FloatSource::Slice(&values), &layout, &params, &spec);
    Some(Tensor { dtype, shape: weight.shape, data: data.into() })
}
