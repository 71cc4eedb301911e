//! The float values of the original before quantization: possibly transposed, or multiplied by the
//! factors of smoothing.

// Factors are rounded to float32, as those that were used.
#![allow(clippy::cast_possible_truncation)]

use std::collections::HashSet;

use super::factors::{Factor, is_normalization, of_normalization};
use super::stored::{Form, Stored};
use crate::encode::dequantize::Decoded;
use crate::graph::qlinear::qlinear_of;
use crate::graph::uses::{Along, Constant, Use};
use crate::graph::{Graph, Producer, ValueId};
use crate::options::HalfType;

/// Whether a matrix is stored transposed, as its channels and its consumer need it. `None` if
/// nothing is known about its channels.
pub(super) fn turns(stored: &Stored, original: Option<&Constant<'_>>) -> Option<bool> {
    let channels = || {
        original?.uses.iter().find_map(|usage| match usage {
            Use::Weight { channels: Some(Along::Axis(axis)), .. }
            | Use::Inside { channels: Some(Along::Axis(axis)), .. } => Some(*axis),
            _ => None,
        })
    };
    match stored.form {
        // A row for each channel.
        Form::Blocks { .. } | Form::Codes(_) => channels().map(|axis| axis != 0),
        // A column for each channel.
        Form::Plain(_) if stored.multiplied => channels().map(|axis| axis == 0),
        _ => Some(false),
    }
}

/// The float values of the original in the order of the integers.
pub(super) struct Reference {
    pub(super) floats: Vec<f32>,
    /// The rows and columns of the original, if it is transposed here.
    turned: Option<(usize, usize)>,
}

impl Reference {
    /// The same with other elements.
    pub(super) fn with(&self, floats: Vec<f32>) -> Reference {
        Reference { floats, turned: self.turned }
    }

    /// The index in the original of an index here.
    pub(super) fn source(&self, at: usize) -> usize {
        self.turned.map_or(at, |(rows, columns)| (at % rows) * columns + at / rows)
    }
}

/// The float values of the original in each possible order; none if the shape excludes both.
pub(super) fn turned(
    floats: &[f32],
    shape: &[usize],
    decoded: &Decoded,
    turns: Option<bool>,
) -> Vec<Reference> {
    let turned = match *shape {
        [rows, columns] if decoded.shape == [columns, rows] => Some((rows, columns)),
        _ => None,
    };
    let turn = |sides: (usize, usize)| {
        let mut found = Reference { floats: Vec::new(), turned: Some(sides) };
        found.floats = (0..floats.len()).map(|at| floats[found.source(at)]).collect();
        found
    };
    // A constant with another rank was reshaped, with its elements in the same order.
    let same = decoded.shape == shape || decoded.shape.len() != shape.len() || turned.is_none();
    let same = (same && turns != Some(true) || turned.is_none())
        .then(|| Reference { floats: floats.to_vec(), turned: None });
    let turned = turned.filter(|_| turns != Some(false)).map(turn);
    same.into_iter().chain(turned).collect()
}

/// The factors of the channels of the original, and their axis: smoothing divides the preceding
/// value by them. They are as exact as the type that the quantized model computes in.
pub(super) fn smoothing(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &Stored,
    (name, shape): (&str, &[usize]),
    half: Option<HalfType>,
    used: &mut HashSet<String>,
) -> Option<(usize, Vec<Factor>)> {
    let [consumer] = after.values[*stored.reads.first()?].consumers[..] else { return None };
    let mut product = after.nodes[consumer.node];
    if is_normalization(product) && consumer.input == 1 {
        // The scale itself, stored as integers: it is divided by the factors.
        let inverse = of_normalization(before, after, consumer.node, half, used)?;
        return (shape == [inverse.len()]).then_some((0, inverse));
    }
    if product.op_type == "MatMulInteger" {
        // The weight may be stored transposed.
        let original = &before.values[before.value(name)?];
        product = before.nodes[original.consumers.first()?.node];
    }
    let row = qlinear_of(product);
    let operator = row.map_or(product.op_type.as_str(), |row| row.float);
    let weight = row.map_or(Some(1), |row| row.input(1));
    let summed = match operator {
        "MatMul" | "Attention" if shape.len() == 2 => 0,
        "Gemm" => usize::from(product.int("transB", 0) != 0),
        _ => return None,
    };
    let mut value = after.input(consumer.node, 0).filter(|_| Some(consumer.input) == weight)?;
    let producer = loop {
        let Producer::Node { node, .. } = after.values[value].producer else { return None };
        match after.nodes[node].op_type.as_str() {
            "DequantizeLinear" | "DynamicQuantizeLinear" | "QuantizeLinear" => {
                value = after.input(node, 0)?;
            }
            _ => break node,
        }
    };
    let own = |id: &ValueId| before.value(after.values[*id].name).is_none();
    let inverse = match after.nodes[producer] {
        by if by.op_type == "Mul" => {
            let id = after.input(producer, 1).filter(own)?;
            let floats = after.model.tensor(after.constant(id)?).ok()?.to_f32()?;
            floats.into_iter().map(|x| Factor::exactly(x.into())).collect()
        }
        by if is_normalization(by) => of_normalization(before, after, producer, half, used)?,
        _ => return None,
    };
    let fits = shape.get(summed) == Some(&inverse.len());
    fits.then(|| (summed, inverse.into_iter().map(Factor::inverse).collect()))
}

/// By how many steps an element is rounded, to the nearest integer or so that sums are preserved.
const ROUNDED_BY: [f64; 2] = [0.5 + 1e-6, 0.75];

/// The weight times the factor of each channel; channels with an unknown factor are NaN.
pub(super) fn scaled(
    mut floats: Vec<f32>,
    shape: &[usize],
    factors: Option<(usize, Vec<Factor>)>,
    decoded: &Decoded,
) -> Vec<f32> {
    let Some((axis, factors)) = factors else { return floats };
    let columns = shape.get(1).copied().unwrap_or(1).max(1);
    let channel = |at: usize| if axis == 0 { at / columns } else { at % columns };
    // What the elements allow, too, if each was rounded by at most this much.
    let fitting = |steps: f64| {
        let mut ranges: Vec<Option<Factor>> = factors.iter().copied().map(Some).collect();
        let same_order = decoded.shape == shape;
        for (at, (was, is)) in floats.iter().zip(&decoded.floats).enumerate() {
            let scale = f64::from(decoded.params[decoded.layout.group_of(at)].scale);
            let allowed = Factor::between((*was).into(), (*is).into(), steps * scale.abs());
            let range = &mut ranges[channel(at)];
            *range = range.and_then(|range| range.meet(allowed)).filter(|_| same_order);
        }
        ranges
    };
    let allowed = ROUNDED_BY.map(fitting);
    let factor = |channel: usize| {
        let found = allowed.iter().find_map(|ranges| ranges[channel]);
        found.unwrap_or(factors[channel]).middle()
    };
    let factors: Vec<f64> = (0..factors.len()).map(factor).collect();
    for (at, x) in floats.iter_mut().enumerate() {
        *x = (f64::from(*x) * factors[channel(at)]) as f32;
    }
    floats
}
