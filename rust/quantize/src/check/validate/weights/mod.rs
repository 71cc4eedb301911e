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
use quantize_rs_onnx::{DataType, NodeProto, TensorProto};

use self::nearest::ElementErrors;
use super::reference::{Reference, scaled, smoothing, turned, turns};
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

/// Compares every stored weight with the original.
pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &[Stored],
    half: Option<HalfType>,
    found: &mut Validation,
) -> Result<WeightComparison, QuantizeError> {
    let mut compared = WeightComparison::default();
    let full = biases::full(after, found)?;
    let uses =
        uses::constants(before).into_iter().map(|constant| (constant.anchor, constant)).collect();
    let models = Models { before, after, half, uses, full };
    for stored in stored.iter().filter(|stored| !is_addend(after, stored)) {
        models.compare(stored, &mut compared, found)?;
    }
    Ok(compared)
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

/// The two models, and what is known of their constants.
struct Models<'a, 'm> {
    before: &'a Graph<'m>,
    after: &'a Graph<'m>,
    /// The 16-bit type that the quantized model computes in.
    half: Option<HalfType>,
    /// The constants of the original.
    uses: HashMap<ValueId, Constant<'m>>,
    /// For each node that multiplies, the elements of its bias that are at the limit of int32.
    full: HashMap<usize, Vec<bool>>,
}

impl Models<'_, '_> {
    /// Compares a stored weight with the original.
    fn compare(
        &self,
        stored: &Stored,
        compared: &mut WeightComparison,
        found: &mut Validation,
    ) -> Result<(), QuantizeError> {
        let (before, after, half) = (self.before, self.after, self.half);
        let integers = after.values[stored.integers].name;
        let Some((name, proto)) = self.original(stored) else {
            found.skip_weight(integers, no_original(stored));
            compared.without_original += 1;
            return Ok(());
        };
        let tensor = before.model.tensor(proto)?;
        let Some(floats) = to_f32(&tensor) else {
            found.skip_weight(integers, format!("`{name}` of the original is {}", tensor.dtype));
            return Ok(());
        };
        let Some(decoded) = &stored.decode(after, half, found)? else { return Ok(()) };
        if floats.len() != decoded.floats.len() {
            let what = format!("shape {:?}, the original has {:?}", decoded.shape, tensor.shape);
            found.problem(Check::Weights, integers, what);
            return Ok(());
        }
        let of = (name, &tensor.shape[..]);
        let factors = smoothing(before, after, stored, of, half, &mut compared.smoothing);
        let constant = before.value(name).and_then(|id| self.uses.get(&id));
        let comparison = Comparison {
            after,
            name,
            stored,
            decoded,
            summed: constant.and_then(|constant| rounding::summed(before, constant, decoded)),
            sampled: self.is_sampled(stored, decoded, found)?,
            smoothed: factors.is_some(),
            half,
            full: &self.full,
        };
        let scaled = scaled(comparison.clipped(floats), &tensor.shape, factors, decoded);
        let orders = turned(&scaled, &tensor.shape, decoded, turns(stored, constant));
        let Some((reference, errors)) = comparison.closest(&orders) else {
            let what = format!("shape {:?}, expected that of {:?}", decoded.shape, tensor.shape);
            found.problem(Check::Weights, integers, what);
            return Ok(());
        };
        comparison.vanished(&reference.floats, found);
        match comparison.pruned(reference, &errors) {
            Some(what) => found.problem(Check::Weights, integers, what),
            None => comparison.report(&reference.floats, &errors, found),
        }
        comparison.shifts(&reference.floats, &mut compared.shifts);
        found.weights.push(comparison.row(reference, &errors, tensor.shape));
        Ok(())
    }

    /// The constant of the original, and its name.
    fn original<'s>(&self, stored: &'s Stored) -> Option<(&'s str, &TensorProto)> {
        stored.originals.iter().find_map(|name| {
            let id = self.before.value(name)?;
            Some((name.as_str(), self.before.constant_behind(id)?))
        })
    }

    /// Whether a comment says that the weight was rounded with the help of samples. A wrong
    /// checksum in it is a problem.
    fn is_sampled(
        &self,
        stored: &Stored,
        decoded: &Decoded,
        found: &mut Validation,
    ) -> Result<bool, QuantizeError> {
        let proto = self.after.constant(stored.integers);
        let Some(proto) = proto.filter(|proto| !proto.doc_string.is_empty()) else {
            return Ok(false);
        };
        let scales: Vec<f32> = decoded.params.iter().map(|params| params.scale).collect();
        let data = self.after.model.tensor(proto)?.data;
        let verified = mark::verify(&proto.doc_string, &data, &scales);
        if verified == Some(false) {
            let what = "these are not the integers and scales that were rounded with samples, as \
                        the checksum in its comment shows";
            found.problem(Check::Weights, self.after.values[stored.integers].name, what);
        }
        Ok(verified == Some(true))
    }
}

/// Why a weight has no original.
fn no_original(stored: &Stored) -> String {
    match stored.originals.last() {
        Some(name) => format!("the original has no constant `{name}`"),
        None => "its name does not say which weight it is".to_owned(),
    }
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

impl Comparison<'_> {
    /// The elements of the original, with those of masks clipped as in the file.
    fn clipped(&self, floats: Vec<f32>) -> Vec<f32> {
        let Some(half) = self.half.filter(|_| self.stored.form == Form::Cast) else {
            return floats;
        };
        let elements = floats.into_iter().zip(&self.decoded.floats);
        elements.map(|(was, is)| if is_clipped(was, *is, half) { *is } else { was }).collect()
    }

    /// The order of the original with the fewest wrong elements.
    fn closest<'r>(&self, orders: &'r [Reference]) -> Option<(&'r Reference, ElementErrors)> {
        let compared = orders.iter().map(|reference| (reference, self.errors(reference)));
        compared.min_by_key(|(_, errors)| errors.wrong.len() + errors.count)
    }

    /// The row of the result. `shape` is that of the original.
    fn row(
        &self,
        reference: &Reference,
        errors: &ElementErrors,
        shape: Vec<usize>,
    ) -> StoredWeight {
        let qtype = self.decoded.qtype.name();
        let integers = self.after.constant(self.stored.integers);
        let dtype = match self.stored.form {
            Form::Codes(spec) => spec.codebook.name(),
            Form::Blocks { .. } | Form::Experts { .. } => qtype,
            _ => integers.and_then(TensorProto::dtype).map_or(qtype, DataType::name),
        };
        StoredWeight {
            name: self.name.to_owned(),
            integers: self.after.values[self.stored.integers].name.to_owned(),
            dtype: dtype.to_owned(),
            shape,
            scales: if self.stored.scale.is_some() { self.decoded.params.len() } else { 0 },
            smoothed: self.smoothed,
            error: metrics(&reference.floats, &self.decoded.floats),
            max_steps: errors.max_steps,
        }
    }
}
