//! The float values of the original before quantization: possibly transposed, or multiplied by the
//! factors of smoothing.

// Factors are rounded to float32, as those that were used.
#![allow(clippy::cast_possible_truncation)]

use std::collections::HashSet;

use super::stored::{Form, Stored};
use crate::encode::dequantize::Decoded;
use crate::graph::qlinear::qlinear_of;
use crate::graph::uses::{Along, Constant, Use};
use crate::graph::{Graph, Producer, ValueId};
use crate::options::HalfType;
use crate::transform::half_precision::rounds_to;

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
) -> Option<(usize, Vec<f64>)> {
    let [consumer] = after.values[*stored.reads.first()?].consumers[..] else { return None };
    let mut product = after.nodes[consumer.node];
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
    let tensor = |graph: &Graph<'_>, id: ValueId| graph.model.tensor(graph.constant(id)?).ok();
    let floats = |graph: &Graph<'_>, id: ValueId| tensor(graph, id)?.to_f32();
    let own = |id: &ValueId| before.value(after.values[*id].name).is_none();
    let inverse: Vec<f64> = match after.nodes[producer].op_type.as_str() {
        "Mul" => {
            let id = after.input(producer, 1).filter(own)?;
            floats(after, id)?.into_iter().map(f64::from).collect()
        }
        "LayerNormalization" | "RMSNormalization" => {
            let mut inverse: Vec<f64> = Vec::new();
            for id in (1..3).filter_map(|input| after.input(producer, input)) {
                let name = after.values[id].name;
                let (there, here) = (tensor(before, before.value(name)?)?, tensor(after, id)?);
                let rounded = half.is_some_and(|half| rounds_to(&there, &here, half));
                let (there, here) = (there.to_f32()?, here.to_f32()?);
                if (rounded || there == here) && inverse.is_empty() {
                    return None;
                }
                used.insert(name.to_owned());
                inverse.resize(here.len(), f64::NAN);
                for ((inverse, there), here) in inverse.iter_mut().zip(there).zip(here) {
                    if !inverse.is_finite() {
                        *inverse = f64::from(here) / f64::from(there);
                    }
                }
            }
            inverse
        }
        _ => return None,
    };
    let fits = shape.get(summed) == Some(&inverse.len());
    fits.then(|| (summed, inverse.into_iter().map(f64::recip).collect()))
}

/// The weight times the factor of each channel; channels with an unknown factor are NaN.
pub(super) fn scaled(
    mut floats: Vec<f32>,
    shape: &[usize],
    factors: Option<(usize, Vec<f64>)>,
) -> Vec<f32> {
    let Some((axis, factors)) = factors else { return floats };
    let columns = shape.get(1).copied().unwrap_or(1).max(1);
    for (at, x) in floats.iter_mut().enumerate() {
        let factor = factors[if axis == 0 { at / columns } else { at % columns }];
        *x = (f64::from(*x) * factor) as f32;
    }
    floats
}
