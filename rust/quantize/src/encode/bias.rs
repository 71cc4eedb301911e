//! Quantizes biases to int32, with the scale of the product that they are added to.

// This module rounds to narrower types on purpose.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use quantize_rs_math::{Granularity, Layout, Params, QSpec, QType, quantize_bias};
use quantize_rs_onnx::{DataType, Tensor};

use super::bias_correction::{Correction, Place};
use super::{Encoded, EncodedTensor, WeightSettings, assemble, floats, invalid, weight};
use crate::graph::{Graph, ValueId};
use crate::options::target::Bias;
use crate::plan::{Decision, IntegerNode, Plan, Planned};
use crate::{QuantizeError, Ranges};

/// Quantizes the bias of each integer node, after applying `corrections`.
pub(super) fn biases(
    graph: &Graph<'_>,
    plan: &Plan,
    corrections: &[Correction],
    encoded: &mut Encoded,
) -> Result<(), QuantizeError> {
    let mut corrections: BTreeMap<usize, &Correction> =
        corrections.iter().map(|correction| (correction.node, correction)).collect();
    for node in plan.integer_nodes() {
        let correction = corrections.remove(&node.node);
        // The bias of a MatMul is added by the following node.
        let own = |correction: &&Correction| match correction.place {
            Place::Bias => true,
            Place::Addend { constant, .. } => node.bias == Some(constant),
        };
        let added = correction.filter(own);
        let there = node.bias.or_else(|| graph.input(node.node, 2));
        let values = match (there, added) {
            (None, Some(correction)) => correction.added.clone(),
            (Some(bias), None) if node.bias.is_some() => floats(graph, bias)?,
            (Some(bias), Some(correction)) => sum(&floats(graph, bias)?, &correction.added),
            (_, None) => Vec::new(),
        };
        let quantized = node.bias.is_some() || plan.config.bias() == Bias::Int32;
        if !values.is_empty() && quantized {
            if let Some(bias) = bias(graph, &node, encoded, &values)? {
                encoded.biases.insert(node.node, bias);
            }
        } else if !values.is_empty() {
            let bias = Tensor::from_f32(vec![values.len()], &values);
            encoded.float_bias_overrides.insert((node.node, 2), bias);
        }
        if let Some(correction) = correction.filter(|_| added.is_none()) {
            addend(graph, plan, correction, encoded)?;
        }
    }
    // Nodes that compute in float have float biases.
    corrections.into_values().try_for_each(|it| addend(graph, plan, it, encoded))
}

/// Corrects biases that are added in float, or that have their own scale.
fn addend(
    graph: &Graph<'_>,
    plan: &Plan,
    correction: &Correction,
    encoded: &mut Encoded,
) -> Result<(), QuantizeError> {
    let Correction { node, added, place } = correction;
    let (node, input, constant) = match *place {
        Place::Addend { node, input, constant, .. } => (node, input, Some(constant)),
        Place::Bias => (*node, 2, graph.input(*node, 2)),
    };
    let negated = matches!(place, Place::Addend { subtracted: true, .. });
    let added: Vec<f32> = added.iter().map(|shift| if negated { -shift } else { *shift }).collect();
    let values = match constant {
        Some(constant) => sum(&floats(graph, constant)?, &added),
        None => added,
    };
    let tensor = Tensor::from_f32(vec![values.len()], &values);
    // When all operators are quantized, constants that an Add adds are quantized, too. If an
    // integer node also has the constant as its bias, the node takes precedence.
    let sums = matches!(place, Place::Addend { .. });
    let planned = constant.filter(|_| sums).and_then(|constant| plan.values.get(constant));
    if let Some(Planned { name, decision: Decision::Quantize(how), .. }) = planned {
        let method = plan.config.weight_method(&how.spec, false);
        let settings =
            WeightSettings { method, summed: None, floors: &[], scales: DataType::Float };
        let (tensor, _) = weight(name, how, &tensor.shape, &tensor, &settings)?;
        encoded.weights.insert(name.clone(), tensor);
    } else {
        encoded.float_bias_overrides.insert((node, input), tensor);
    }
    Ok(())
}

/// Adds elementwise; a single element is broadcast.
fn sum(values: &[f32], added: &[f32]) -> Vec<f32> {
    match (values, added) {
        ([value], _) => added.iter().map(|added| value + added).collect(),
        (_, [added]) => values.iter().map(|value| value + added).collect(),
        _ => values.iter().zip(added).map(|(value, added)| value + added).collect(),
    }
}

/// The limit for a bias. Half of the int32 range remains for the accumulated products that it is
/// added to, which holds 33,000 products of uint8 and symmetric int8.
pub(crate) const LARGEST: f64 = 1_073_741_824.0;

/// The minimum scale of each channel of the weights of a plan: see [`floors`].
pub(crate) fn weight_floors(
    graph: &Graph<'_>,
    plan: &Plan,
    ranges: Option<&Ranges>,
) -> Result<HashMap<String, Vec<f32>>, QuantizeError> {
    floors(graph, &plan.integer_nodes(), &super::activations(plan, ranges)?)
}

/// The minimum scale of each channel of each weight. With the scale `input × weight`, the bias then
/// fits int32 together with the products, and does not underflow.
///
/// Biases that stay float count as well, and so does what an `Add` adds to a `MatMul`: ONNX Runtime
/// fuses the two to a `Gemm`, and quantizes float biases itself, without checking for overflow.
pub(super) fn floors(
    graph: &Graph<'_>,
    integer_nodes: &[IntegerNode],
    activations: &BTreeMap<String, Params>,
) -> Result<HashMap<String, Vec<f32>>, QuantizeError> {
    let mut floors: HashMap<String, Vec<f32>> = HashMap::new();
    for node in integer_nodes {
        let left_float = || graph.input(node.node, 2).filter(|id| graph.constant(*id).is_some());
        let own = node.bias.or_else(left_float);
        let bias = own.or_else(|| addend_of(graph, node.node));
        let (Some(bias), Some(input)) = (bias, activations.get(graph.values[node.input].name))
        else {
            continue;
        };
        let input_scale = f64::from(input.scale);
        let needed = |bias: f32| {
            let fits = f64::from(bias.abs()) / (LARGEST * input_scale);
            let normal = f64::from(f32::MIN_POSITIVE) / input_scale;
            // Rounded up, since a slightly smaller scale would saturate.
            (fits.max(normal) as f32).next_up()
        };
        let values = match floats(graph, bias) {
            Err(_) if node.bias.is_none() => continue,
            found => found?,
        };
        let needed = values.into_iter().map(needed).collect::<Vec<_>>();
        if needed.iter().any(|floor| !floor.is_finite()) {
            if own.is_none() {
                continue;
            }
            let what = "is too large for int32 with any scale of the node's weight";
            return Err(invalid(graph.values[bias].name, what));
        }
        let name = graph.values[node.weight].name.to_owned();
        match floors.entry(name) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(needed);
            }
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                let of = |all: &[f32], at: usize| *all.get(at).or(all.last()).unwrap_or(&0.0);
                let count = known.len().max(needed.len());
                *known = (0..count).map(|at| of(known, at).max(of(&needed, at))).collect();
            }
        }
    }
    Ok(floors)
}

/// The constant vector that an `Add` adds to the output of a `MatMul`, if nothing else reads it.
fn addend_of(graph: &Graph<'_>, node: usize) -> Option<ValueId> {
    let is = |node: usize, op_type: &str| {
        let node = graph.nodes[node];
        node.is_onnx() && node.op_type == op_type
    };
    let consumer = graph.only_consumer(graph.output(node, 0).filter(|_| is(node, "MatMul"))?)?;
    let added = graph.input(consumer.node, 1 - consumer.input.min(1))?;
    let fused = is(consumer.node, "Add");
    graph.constant(added).filter(|tensor| fused && tensor.dims.len() == 1).map(|_| added)
}

/// Quantizes a bias to int32 with the scale of the node's input × weight.
pub(super) fn bias(
    graph: &Graph<'_>,
    node: &IntegerNode,
    encoded: &Encoded,
    values: &[f32],
) -> Result<Option<EncodedTensor>, QuantizeError> {
    let (Some(input), Some(weight)) = (
        encoded.activations.get(graph.values[node.input].name),
        encoded.weights.get(graph.values[node.weight].name),
    ) else {
        return Ok(None);
    };
    let name = graph.values[node.bias.unwrap_or(node.weight)].name;
    let granularity = match weight.scale.shape.as_slice() {
        [] => Granularity::PerTensor,
        _ => Granularity::PerAxis { axis: 0 },
    };
    let layout = Layout::of(&[values.len()], granularity).map_err(|error| invalid(name, &error))?;
    let weight_scales = weight.scale.to_f32().unwrap_or_default();
    let scales: Vec<f32> = weight_scales.iter().map(|scale| input.scale * scale).collect();
    let integers = match scales[..] {
        [scale] => quantize_bias(values, &vec![scale; values.len()]),
        _ => quantize_bias(values, &scales),
    };
    let spec = QSpec::new(QType::Int32, true, granularity);
    let params: Vec<Params> = scales
        .iter()
        .map(|scale| Params { scale: *scale, zero_point: spec.zero_point_midpoint() })
        .collect();
    let data: Bytes = integers.iter().flat_map(|value| value.to_le_bytes()).collect();
    let decoded: Vec<f32> = integers
        .iter()
        .enumerate()
        .map(|(index, value)| *value as f32 * scales[index.min(scales.len() - 1)])
        .collect();
    let metrics = quantize_rs_math::metrics(values, &decoded);
    let quantized = Tensor { dtype: DataType::Int32, shape: vec![values.len()], data };
    Ok(Some(assemble(quantized, &layout, &params, QType::Int32, metrics)))
}
