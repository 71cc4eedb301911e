//! Compares integers with the weights of the original, as exactly as their scale allows.

// Steps of scales, whose digits matter little.
#![allow(clippy::cast_precision_loss)]

mod nearest;
pub(super) mod pruned;
mod report;
mod sampled;
mod scales;
mod shifts;

use std::collections::{HashMap, HashSet};

use quantize_rs_math::{SumGroups, metrics};
use quantize_rs_onnx::NodeProto;

use super::reference::{scaled, smoothing, turned, turns};
use super::stored::{Form, Stored};
use super::wiring::bias_input;
use super::{Check, StoredWeight, Validation, biases, rounding};
use crate::QuantizeError;
use crate::encode::dequantize::Decoded;
use crate::encode::mark;
use crate::graph::elements::to_f32;
use crate::graph::uses;
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};
use crate::options::HalfType;
use crate::transform::half_precision::is_clipped;

/// What the comparison of weights found that other checks need.
#[derive(Default)]
pub(super) struct WeightComparison {
    /// For each node that multiplies by a weight: the accumulated error of the elements of each
    /// output channel.
    pub(super) shifts: HashMap<usize, Vec<f64>>,
    /// Constants of normalizations that smoothing changed.
    pub(super) smoothing: HashSet<String>,
    /// The number of weights without an original.
    pub(super) without_original: usize,
}

pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &[Stored],
    half: Option<HalfType>,
    found: &mut Validation,
) -> Result<WeightComparison, QuantizeError> {
    let mut compared = WeightComparison::default();
    let full = biases::full(after, found)?;
    let uses: HashMap<ValueId, Constant<'_>> =
        uses::constants(before).into_iter().map(|constant| (constant.anchor, constant)).collect();
    for stored in stored.iter().filter(|stored| !is_addend(after, stored)) {
        let integers = after.values[stored.integers].name;
        let original = stored.originals.iter().find_map(|name| {
            let id = before.value(name)?;
            Some((name, before.constant_behind(id)?))
        });
        let Some((name, proto)) = original else {
            let why = match stored.originals.last() {
                Some(name) => format!("the original has no constant `{name}`"),
                None => "its name does not say which weight it is".to_owned(),
            };
            found.skip_weight(integers, why);
            compared.without_original += 1;
            continue;
        };
        let tensor = before.model.tensor(proto)?;
        let Some(floats) = to_f32(&tensor) else {
            found.skip_weight(integers, format!("`{name}` of the original is {}", tensor.dtype));
            continue;
        };
        let Some(decoded) = stored.decode(after, half, found)? else { continue };
        if floats.len() != decoded.floats.len() {
            let what = format!("shape {:?}, the original has {:?}", decoded.shape, tensor.shape);
            found.problem(Check::Weights, integers, what);
            continue;
        }
        let of = (name.as_str(), &tensor.shape[..]);
        let factors = smoothing(before, after, stored, of, half, &mut compared.smoothing);
        let constant = before.value(name).and_then(|id| uses.get(&id));
        let summed = constant.and_then(|constant| rounding::summed(before, constant, &decoded));
        let sampled = rounded_with_samples(after, stored, &decoded)?;
        if sampled == Some(false) {
            let what = "these are not the integers and scales that were rounded with samples, as \
                        the checksum in its comment shows";
            found.problem(Check::Weights, integers, what.to_owned());
        }
        let sampled = sampled == Some(true);
        let floats = match half.filter(|_| stored.form == Form::Cast) {
            Some(half) => clipped(floats, &decoded.floats, half),
            None => floats,
        };
        let (decoded, full) = (&decoded, &full);
        let smoothed = factors.is_some();
        let comparison =
            Comparison { after, name, stored, decoded, summed, sampled, smoothed, half, full };
        let scaled = scaled(floats, &tensor.shape, factors);
        let turns = turns(stored, constant);
        let turned = turned(&scaled, &tensor.shape, decoded, turns);
        let errors = turned.iter().map(|reference| comparison.errors(reference));
        let Some((reference, errors)) =
            turned.iter().zip(errors).min_by_key(|(_, errors)| errors.wrong.len() + errors.count)
        else {
            let what = format!("shape {:?}, expected that of {:?}", decoded.shape, tensor.shape);
            found.problem(Check::Weights, integers, what);
            continue;
        };
        comparison.vanished(&reference.floats, found);
        match comparison.pruned(reference, &errors) {
            Some(what) => found.problem(Check::Weights, integers, what),
            None => comparison.report(&reference.floats, &errors, found),
        }
        comparison.shifts(&reference.floats, &mut compared.shifts);
        let error = metrics(&reference.floats, &decoded.floats);
        let dtype = match stored.form {
            Form::Codes(spec) => spec.codebook.name().to_owned(),
            Form::Blocks { .. } | Form::Experts { .. } => decoded.qtype.name().to_owned(),
            _ => after
                .constant(stored.integers)
                .and_then(quantize_rs_onnx::TensorProto::dtype)
                .map_or_else(|| decoded.qtype.name().to_owned(), |dtype| dtype.name().to_owned()),
        };
        found.weights.push(StoredWeight {
            name: name.clone(),
            integers: integers.to_owned(),
            dtype,
            shape: tensor.shape,
            scales: if stored.scale.is_some() { decoded.params.len() } else { 0 },
            smoothed,
            error,
            max_steps: errors.max_steps,
        });
    }
    Ok(compared)
}

/// The elements of the original, with those of masks clipped as in the file.
fn clipped(was: Vec<f32>, is: &[f32], half: HalfType) -> Vec<f32> {
    let pairs = was.into_iter().zip(is);
    pairs.map(|(was, is)| if is_clipped(was, *is, half) { *is } else { was }).collect()
}

/// Whether it is what an Add or a Sub adds, which bias correction may have changed.
fn is_addend(after: &Graph<'_>, stored: &Stored) -> bool {
    let mut consumers = stored.consumers(after);
    let vector = after.constant(stored.integers).is_some_and(|tensor| tensor.dims.len() <= 1);
    let sums = |node: &NodeProto| matches!(&*node.op_type, "Add" | "Sub");
    vector
        && consumers.any(|consumer| {
            let node = after.nodes[consumer.node];
            sums(node) && bias_input(node, consumer.input)
        })
}

/// Whether a comment says that the weight was rounded with the help of samples, and if so, whether
/// its checksum is right.
fn rounded_with_samples(
    after: &Graph<'_>,
    stored: &Stored,
    decoded: &Decoded,
) -> Result<Option<bool>, QuantizeError> {
    let Some(proto) = after.constant(stored.integers).filter(|it| !it.doc_string.is_empty()) else {
        return Ok(None);
    };
    let scales: Vec<f32> = decoded.params.iter().map(|params| params.scale).collect();
    Ok(mark::verify(&proto.doc_string, &after.model.tensor(proto)?.data, &scales))
}

/// A weight and its stored form.
struct Comparison<'a> {
    after: &'a Graph<'a>,
    name: &'a str,
    stored: &'a Stored,
    decoded: &'a Decoded,
    /// The elements of the original whose sums may have been preserved.
    summed: Option<SumGroups>,
    /// Whether it was rounded with the help of samples: an integer then makes good the errors of
    /// others, and is not the nearest.
    sampled: bool,
    /// Whether the original was multiplied by the factors of smoothing.
    smoothed: bool,
    /// The 16-bit type that the model computes in.
    half: Option<HalfType>,
    /// For each node that multiplies, the elements of its bias that are at the limit of int32.
    full: &'a HashMap<usize, Vec<bool>>,
}
