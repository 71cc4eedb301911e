//! Quantizes the constants of a plan, and computes the scale of every activation.
//!
//! Input: a graph, its plan and its ranges. Output: [`Encoded`]. This module imports the modules up
//! to `plan`.

// This module rounds to narrower types on purpose.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

pub(crate) mod bias;
pub(crate) mod bias_correction;
mod blocked_matrix;
mod cache;
pub(crate) mod codes;
pub(crate) mod dequantize;
pub(crate) mod mark;
mod matmul_nbits;
mod microscaling;
mod rounded;
mod rounding;
pub(crate) mod smooth_quant;
mod weight_task;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use half::f16;
use quantize_rs_math::{
    Algorithm, Layout, MathError, Metrics, Params, QType, Range, SumGroups, WeightMethod,
    block_scales, fit, pack, params, quantize_preserving_sums_into, ranges_checked,
};
use quantize_rs_onnx::{Buffer, DataType, Span, Tensor};
use rayon::prelude::*;

use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::graph::uses;
use crate::graph::uses::Constant;
use crate::options::RoundedFor;
use crate::plan::{Plan, Planned, Source, ValuePlan};
use crate::{QuantizeError, Ranges};
use bias_correction::corrections;

use crate::graph::elements::{Elements, data_type};
pub(crate) use cache::WeightCache;
pub use microscaling::StoredScale;
pub(crate) use microscaling::data_type as scale_data_type;
use weight_task::WeightResult;
pub(crate) use weight_task::WeightTask;

/// The integers, scales and zero points of everything that a plan quantizes.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// The weights, by name.
    pub weights: BTreeMap<String, EncodedTensor>,
    /// The biases, by index of their node. The node may not have had a bias before.
    pub biases: BTreeMap<usize, EncodedTensor>,
    /// Float constants that replace others, by node and input: corrected biases that stay float.
    pub float_bias_overrides: BTreeMap<(usize, usize), Tensor>,
    /// The number of nodes whose bias was corrected.
    pub corrected: usize,
    /// The scale and zero point of activations, by name.
    pub activations: BTreeMap<String, Params>,
    /// Warnings for the caller.
    pub warnings: Vec<String>,
}

/// A quantized constant.
#[derive(Clone, Debug)]
pub struct EncodedTensor {
    /// The integers.
    pub quantized: Tensor,
    /// The scales in float32. If they are stored in another form, their decoded values.
    pub scale: Tensor,
    /// The stored form of 8-bit scales.
    pub stored_scale: Option<StoredScale>,
    /// The zero points, in the type of the integers, or float32 for nodes that require it.
    pub zero_point: Tensor,
    /// The quantization error, if the original floats are known.
    pub metrics: Option<Metrics>,
    /// The algorithm that rounded a weight with the help of samples.
    pub rounded: Option<Algorithm>,
}

/// A weight with a lower SQNR has a distribution that one scale cannot represent. For normally
/// distributed weights and one scale per thousand elements, 4 bits reach 15 to 20 dB and 2 bits
/// about 3 dB.
fn poor_db(bits: u32) -> f64 {
    match bits {
        8.. => 15.0,
        4.. => 6.0,
        _ => 2.0,
    }
}

/// Quantizes the constants of `plan`, and its activations with the scales that `ranges` imply.
///
/// # Errors
/// A weight holds NaN or infinity, or the ranges belong to another model.
pub fn encode(
    graph: &Graph<'_>,
    plan: &Plan,
    ranges: Option<&Ranges>,
) -> Result<Encoded, QuantizeError> {
    encode_cached(graph, plan, ranges, None)
}

/// A warning about rounded weights that are not used, being rounded for other options.
fn rounded_for_others(plan: &Plan, ranges: Option<&Ranges>) -> Option<String> {
    if !plan.config.rounds_with_samples() {
        return None;
    }
    let all = &ranges?.rounded;
    let without = |count: usize, why: String| {
        format!(
            "weights are rounded without samples, {count} of them: the ranges hold them rounded \
             {why}; calibrate again with these options"
        )
    };
    let others = all.values().filter(|found| !plan.config.takes(found.rounded_for.as_ref()));
    let others: Vec<_> = others.collect();
    if let Some(first) = others.first() {
        let with = first.rounded_for.map_or(String::new(), |with| format!("with {with}, and "));
        let why = format!("{with}not with {}", RoundedFor::of(&plan.config));
        return Some(without(others.len(), why));
    }
    let count = rounded_otherwise(plan, ranges?).len();
    let why = "for another type, symmetry or granularity".to_owned();
    (count > 0).then(|| without(count, why))
}

/// The weights that were rounded with samples for another type, symmetry or granularity than they
/// get.
fn rounded_otherwise<'p>(plan: &'p Plan, ranges: &Ranges) -> Vec<&'p str> {
    let differs = |(value, how): &(&Planned, &ValuePlan)| {
        ranges.rounded.get(&value.name).is_some_and(|found| found.spec != how.spec)
    };
    plan.quantized().filter(differs).map(|(value, _)| &*value.name).collect()
}

/// The ranges without weights that were rounded for another type than they get now; `None` if there
/// are none. The nearest codes of more bits are as good.
pub(crate) fn with_fitting_weights(plan: &Plan, ranges: &Ranges) -> Option<Ranges> {
    let others = rounded_otherwise(plan, ranges);
    if others.is_empty() {
        return None;
    }
    let mut fitting = ranges.clone();
    let rounded = Arc::make_mut(&mut fitting.rounded);
    for name in others {
        rounded.remove(name);
    }
    Some(fitting)
}

/// Like [`encode`], with a cache of weights.
pub(crate) fn encode_cached(
    graph: &Graph<'_>,
    plan: &Plan,
    ranges: Option<&Ranges>,
    mut known: Option<&mut WeightCache>,
) -> Result<Encoded, QuantizeError> {
    let _span = Span::stage("encode weights");
    let mut encoded = Encoded { activations: activations(plan, ranges)?, ..Encoded::default() };
    let integer_nodes = plan.integer_nodes();
    let floors = bias::floors(graph, &integer_nodes, &encoded.activations)?;
    let constants: HashMap<&str, Constant<'_>> = plan
        .constants(graph)
        .into_iter()
        .map(|constant| (graph.values[constant.anchor].name, constant))
        .collect();
    let weights: Vec<_> = plan
        .quantized()
        .filter(|(_, how)| how.source == Source::Weights)
        .filter_map(|(value, how)| Some((&value.name, how, constants.get(value.name.as_str())?)))
        .collect();
    encoded.warnings.extend(rounded_for_others(plan, ranges));
    let before = known.as_deref();
    let done: Vec<WeightResult<'_>> = weights
        .into_par_iter()
        .map(|(name, how, constant)| {
            let floors = floors.get(name.as_str()).map_or(&[][..], |floors| floors);
            let task = WeightTask { graph, plan, name, how, constant, floors };
            let _span = Span::part("encode", || name.clone());
            let rounded = ranges.and_then(|ranges| ranges.rounded.get(name.as_str()));
            let rounded = rounded.filter(|rounded| plan.config.takes(rounded.rounded_for.as_ref()));
            task.encoded(before, rounded)
        })
        .collect::<Result<_, QuantizeError>>()?;
    for WeightResult { name, how, tensor, widened, floats } in done {
        if let (Some(known), Some(floats)) = (known.as_deref_mut(), floats) {
            known.learn(name, floats, how, &tensor);
        }
        let bits = how.spec.bits();
        if widened > 0 {
            encoded.warnings.push(format!(
                "weight `{name}`: {widened} scales were raised to fit the bias into int32"
            ));
        }
        // Integers that were rounded with samples make good each other's errors.
        let evidence = ranges.filter(|_| tensor.rounded.is_some()).and_then(|ranges| {
            let rounded = ranges.rounded.get(name.as_str())?;
            Some(("at the output of its layer ", rounded.evidence.output_db()?))
        });
        let found = evidence.or_else(|| Some(("", tensor.metrics.as_ref()?.sqnr_db)));
        if let Some((place, db)) = found.filter(|(_, db)| *db < poor_db(bits)) {
            let more = if bits >= 8 { " or more" } else { "" };
            encoded.warnings.push(format!(
                "weight `{name}`: {db:.1} dB {place}is low for {} bits{more}; if the model depends \
                 on it, leave it float with exclude",
                bits.min(8),
            ));
        }
        encoded.weights.insert(name.clone(), tensor);
    }
    let corrections = match ranges.filter(|_| plan.config.bias_correction) {
        Some(ranges) => corrections(graph, plan, &encoded, ranges),
        None => Vec::new(),
    };
    encoded.corrected = corrections.len();
    bias::biases(graph, plan, &corrections, &mut encoded)?;
    Ok(encoded)
}

/// Computes the scale and zero point of each activation.
fn activations(
    plan: &Plan,
    ranges: Option<&Ranges>,
) -> Result<BTreeMap<String, Params>, QuantizeError> {
    let mut found = BTreeMap::new();
    let mut followers: Vec<(&String, &String)> = Vec::new();
    if let Some(ranges) = ranges {
        ranges.check(plan)?;
    }
    let min_width = plan.config.min_range.unwrap_or(0.0) as f32;
    for (value, how) in plan.quantized() {
        match (&how.source, ranges) {
            (Source::Observed, Some(ranges)) => {
                let range = ranges.values[&value.name].widened_to_width(min_width);
                found.insert(value.name.clone(), params(range, &how.spec));
            }
            (Source::Observed, None) => {
                return Err(QuantizeError::new(QuantizeErrorKind::Verify(format!(
                    "`{}` was not observed",
                    value.name
                ))));
            }
            (Source::Fixed(range), _) => {
                found.insert(value.name.clone(), params(*range, &how.spec));
            }
            (Source::SameAs(source), _) => followers.push((&value.name, source)),
            (Source::Weights | Source::Product { .. }, _) => {}
        }
    }
    // A value with the scale of its input may depend on another one that comes later in the file.
    while !followers.is_empty() {
        let before = followers.len();
        followers.retain(|(name, source)| match found.get(*source).copied() {
            Some(params) => {
                found.insert((*name).clone(), params);
                false
            }
            None => true,
        });
        if followers.len() == before {
            let what =
                format!("`{}` takes its scale from a value that is not quantized", followers[0].0);
            return Err(QuantizeError::new(QuantizeErrorKind::Verify(what)));
        }
    }
    Ok(found)
}

/// The parameters of quantizing a weight.
struct WeightSettings<'a> {
    method: WeightMethod,
    /// The groups of elements whose sums rounding preserves.
    summed: Option<SumGroups>,
    /// The minimum scale of each channel.
    floors: &'a [f32],
    /// The type of the scales.
    scales: DataType,
}

/// The number of scales of a weight that its bias determines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BiasFloors {
    /// The scales that were raised.
    raised: usize,
    /// The scales of all-zero channels, which are arbitrary.
    zeros: usize,
}

/// Quantizes a weight. Also returns how many of its scales its bias determines.
fn weight(
    name: &str,
    how: &ValuePlan,
    shape: &[usize],
    tensor: &Tensor,
    settings: &WeightSettings<'_>,
) -> Result<(EncodedTensor, BiasFloors), QuantizeError> {
    let WeightSettings { method, ref summed, floors, scales } = *settings;
    let wrong = |error: MathError| invalid(name, &error);
    let layout = Layout::of(shape, how.spec.granularity).map_err(wrong)?;
    let elements = Elements::of(tensor).map_err(|what| invalid(name, what))?;
    let data = elements.floats();
    let ranges = ranges_checked(data, &layout).map_err(wrong)?;
    check_finite(name, how.spec.qtype, &ranges)?;
    let all_zero: Vec<bool> = ranges.iter().map(|range| range.absmax() == 0.0).collect();
    let narrow = (!how.spec.scales.are_wide())
        .then(|| block_scales(data, &layout, &ranges, &how.spec, largest(scales)));
    let mut params = match &narrow {
        Some(found) => found.params.clone(),
        None => fit(data, &layout, &ranges, &how.spec, method),
    };
    // Of a table of 98 million elements in blocks of 32, these are 25 MB.
    drop(ranges);
    if how.spec.qtype.is_scaled() && narrow.is_none() {
        scale_zeros(&mut params, &all_zero);
    }
    let highest = floors.iter().copied().fold(0.0, f32::max);
    let per_group = floors.len() == params.len();
    let mut floored = BiasFloors::default();
    for (group, params) in params.iter_mut().enumerate() {
        let floor = if per_group { floors[group] } else { highest };
        // The scale of an all-zero channel is arbitrary, so it is set to suit the bias.
        if floor > 0.0 && (all_zero[group] || params.scale.abs() < floor) {
            floored.raised += usize::from(!all_zero[group]);
            floored.zeros += usize::from(all_zero[group]);
            params.scale = floor.copysign(params.scale);
        }
        if scales == DataType::Float16 && how.spec.qtype.is_scaled() && narrow.is_none() {
            *params = params.in_halves(&how.spec);
        }
    }
    let mut buffer = Buffer::zeroed(how.spec.qtype.packed_len(data.len()));
    let (summed, bytes) = (summed.as_ref(), buffer.as_mut());
    let metrics = quantize_preserving_sums_into(data, &layout, &params, &how.spec, summed, bytes);
    let quantized = Tensor {
        dtype: data_type(how.stored),
        shape: shape.to_vec(),
        data: stored(buffer.into_bytes(), how, data.len()),
    };
    let stored_scale = narrow.map(|found| StoredScale::of(found, &how.spec, &layout));
    let tensor = assemble(quantized, &layout, &params, how.stored, metrics);
    Ok((EncodedTensor { stored_scale, ..tensor }, floored))
}

/// Sets the scale of all-zero groups to the smallest scale of the other groups, or to the smallest
/// possible scale.
///
/// Any scale represents zeros. However, a kernel that subtracts the zero point in float has an
/// error proportional to the scale, and a large scale would affect a weight of small magnitude.
/// ONNX Runtime's fused `MatMulNBits` does so (observed in 1.32).
fn scale_zeros(params: &mut [Params], all_zero: &[bool]) {
    let others = params.iter().zip(all_zero).filter(|(_, zero)| !**zero);
    let quietest = others.map(|(params, _)| params.scale.abs()).reduce(f32::min);
    for (params, _) in params.iter_mut().zip(all_zero).filter(|(_, zero)| **zero) {
        params.scale = quietest.unwrap_or(f32::MIN_POSITIVE);
    }
}

/// The largest dequantized number that a float of this type can hold.
fn largest(dtype: DataType) -> f32 {
    if dtype == DataType::Float16 { f16::MAX.to_f32() } else { f32::MAX }
}

/// The type of the scales of a constant: the type of the constant if runtimes support it, otherwise
/// float32. ONNX Runtime 1.31 has kernels for float16 scales, but not for bfloat16. ONNX does not
/// support float64 scales.
pub(crate) fn scale_type(graph: &Graph<'_>, constant: usize) -> DataType {
    let knows = graph.model.opset("").is_some_and(|opset| opset >= 19);
    match uses::float_type(graph, constant) {
        Some(DataType::Float16) if knows => DataType::Float16,
        _ => DataType::Float,
    }
}

/// Returns an error if a float type without a scale cannot represent the weight, which would
/// saturate.
fn check_finite(name: &str, qtype: QType, ranges: &[Range]) -> Result<(), QuantizeError> {
    let Some(limit) = qtype.largest_unscaled() else { return Ok(()) };
    let largest = ranges.iter().fold(0.0, |all: f32, range| all.max(range.absmax()));
    if largest <= limit {
        return Ok(());
    }
    let what = format!("holds {largest:?}, but the largest number of {qtype} is {limit:?}");
    Err(invalid(name, what))
}

/// The stored bytes: 4-bit values are widened to one byte each if requested.
fn stored(bytes: Bytes, how: &ValuePlan, elements: usize) -> Bytes {
    if how.stored == how.spec.qtype {
        return bytes;
    }
    let wide = pack::unpack(&bytes, how.spec.qtype.bits(), how.spec.qtype.signed(), elements);
    wide.into_iter().map(i8::cast_unsigned).collect()
}

fn assemble(
    quantized: Tensor,
    layout: &Layout,
    params: &[Params],
    stored: QType,
    metrics: Metrics,
) -> EncodedTensor {
    let scales = params.iter().map(|params| params.scale);
    let points = params.iter().map(|params| params.zero_point);
    EncodedTensor {
        quantized,
        scale: Tensor::from_f32_iter(layout.scale_shape(), scales),
        stored_scale: None,
        zero_point: integers(stored, layout.scale_shape(), points),
        metrics: Some(metrics),
        rounded: None,
    }
}

/// Creates a tensor of small integers, packed as its type requires.
pub(crate) fn integers(
    qtype: QType,
    shape: Vec<usize>,
    values: impl IntoIterator<Item = i32, IntoIter: ExactSizeIterator>,
) -> Tensor {
    let values = values.into_iter();
    let data = match qtype.bits() {
        bits @ (2 | 4) => {
            let narrow: Vec<i8> = values.map(|value| value as i8).collect();
            pack::pack(&narrow, bits).into()
        }
        bits => {
            let width = (bits as usize / 8).max(1);
            let mut buffer = Buffer::zeroed(values.len() * width);
            let elements = buffer.as_mut().chunks_exact_mut(width).zip(values);
            elements
                .for_each(|(bytes, value)| bytes.copy_from_slice(&value.to_le_bytes()[..width]));
            buffer.into_bytes()
        }
    };
    Tensor { dtype: data_type(qtype), shape, data }
}

/// The float32 elements of a constant value.
fn floats(graph: &Graph<'_>, value: usize) -> Result<Vec<f32>, QuantizeError> {
    let name = graph.values[value].name;
    let proto = graph.constant(value).ok_or_else(|| invalid(name, "is not constant"))?;
    let values =
        graph.model.tensor(proto)?.to_f32().ok_or_else(|| invalid(name, "is not float32"))?;
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(index) => Err(invalid(name, format!("element {index} is {}", values[index]))),
    }
}

fn invalid(tensor: &str, what: impl std::fmt::Display) -> QuantizeError {
    let advice = "fix the weight, or keep it float with exclude";
    QuantizeError::new(QuantizeErrorKind::InvalidTensor {
        tensor: tensor.to_owned(),
        what: format!("{what}; {advice}"),
    })
}
