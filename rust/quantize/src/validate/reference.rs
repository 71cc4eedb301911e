//! What became of the floats of the original before they were stored: turned, or multiplied by what
//! smoothing divides values by.

// Factors are rounded to float32 like those that were multiplied by.
#![allow(clippy::cast_possible_truncation)]

use std::collections::HashSet;

use super::stored::{Decoded, Form, Stored};
use crate::graph::{Graph, Maker, ValueId};

/// The floats of the original in the order of the integers, in each way that could be meant.
pub(super) fn turned(
    floats: &[f32],
    shape: &[usize],
    decoded: &Decoded,
    form: Form,
) -> Vec<Vec<f32>> {
    let turn = || {
        let &[rows, columns] = shape else { return None };
        (decoded.shape == [columns, rows]).then(|| {
            (0..floats.len()).map(|at| floats[(at % rows) * columns + at / rows]).collect()
        })
    };
    let same = decoded.shape == shape || decoded.shape.len() != shape.len() || turn().is_none();
    let may_turn = !same || form != Form::Plain(decoded.layout.granularity()) || square(shape);
    let same = same.then(|| floats.to_vec());
    same.into_iter().chain(turn().filter(|_| may_turn)).collect()
}

fn square(shape: &[usize]) -> bool {
    matches!(shape, &[rows, columns] if rows == columns)
}

/// What channels of the original were multiplied by, and along which axis: the other side of what
/// the value before the product is divided by.
pub(super) fn smoothing(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &Stored,
    shape: &[usize],
    used: &mut HashSet<String>,
) -> Option<(usize, Vec<f64>)> {
    let [reader] = after.values[stored.read].readers[..] else { return None };
    let product = after.nodes[reader.node];
    let summed = match product.op_type.as_str() {
        "MatMul" if shape.len() == 2 => 0,
        "Gemm" => usize::from(product.int("transB", 0) != 0),
        _ => return None,
    };
    let mut value = after.input(reader.node, 0).filter(|_| reader.input == 1)?;
    let maker = loop {
        let Maker::Node { node, .. } = after.values[value].maker else { return None };
        match after.nodes[node].op_type.as_str() {
            "DequantizeLinear" | "QuantizeLinear" => value = after.input(node, 0)?,
            _ => break node,
        }
    };
    let floats = |graph: &Graph<'_>, id: ValueId| -> Option<Vec<f32>> {
        graph.model.tensor(graph.constant(id)?).ok()?.to_f32()
    };
    let own = |id: &ValueId| before.value(after.values[*id].name).is_none();
    let inverse: Vec<f64> = match after.nodes[maker].op_type.as_str() {
        "Mul" => {
            let id = after.input(maker, 1).filter(own)?;
            floats(after, id)?.into_iter().map(f64::from).collect()
        }
        "LayerNormalization" | "RMSNormalization" => {
            let mut inverse: Vec<f64> = Vec::new();
            for id in (1..3).filter_map(|input| after.input(maker, input)) {
                let name = after.values[id].name;
                let there = before.value(name).and_then(|id| floats(before, id))?;
                let here = floats(after, id)?;
                if there == here && inverse.is_empty() {
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

/// The weight times the factor of each channel; channels whose factor cannot be known are NaN.
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
