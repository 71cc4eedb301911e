//! Whether biases are what they were, but for what calibration takes back of the shift that
//! quantized weights cause: no more than that shift can be.

// Bounds, whose digits matter little.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use std::collections::HashMap;

use quantize_rs_math::{Params, QSpec};
use quantize_rs_onnx::TensorProto;

use super::stored::{points, qtype_of};
use super::weights::Seen;
use super::wiring::{Pairs, bias_input, root};
use super::{Check, Validation};
use crate::graph::{Graph, Maker, ValueId};
use crate::{Granularity, QuantizeError, encode};

/// How far the product of two scales may be from what was written, in float32.
const SLACK: f64 = 1e-6;

pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    seen: &Seen,
    pairs: &Pairs,
    found: &mut Validation,
) -> Result<(), QuantizeError> {
    let work = Work { before, after, shifts: &seen.shifts };
    let mut nodes: Vec<(usize, usize)> =
        pairs.iter().map(|(here, there)| (*here, *there)).collect();
    nodes.sort_unstable();
    for (here, there) in nodes {
        let node = after.nodes[here];
        for input in 0..node.input.len() {
            if bias_input(node, input) && node.is_onnx() {
                work.bias(here, there, input, found)?;
            }
        }
    }
    Ok(())
}

struct Work<'a, 'm> {
    before: &'a Graph<'m>,
    after: &'a Graph<'m>,
    /// How far the weights of a node are from the original, a number for each output channel.
    shifts: &'a HashMap<usize, Vec<f64>>,
}

/// A bias as the file stands for it.
struct Bias {
    /// The constant that holds it.
    name: String,
    floats: Vec<f32>,
    /// The scales that it comes back with: none where it is float.
    scales: Vec<f32>,
    /// The constant that holds these.
    scale: Option<String>,
}

impl Work<'_, '_> {
    fn bias(
        &self,
        here: usize,
        there: usize,
        input: usize,
        found: &mut Validation,
    ) -> Result<(), QuantizeError> {
        let Some(id) = self.after.input(here, input) else { return Ok(()) };
        let Some(bias) = self.decode(id, found)? else { return Ok(()) };
        let original = match self.before.input(there, input) {
            None => vec![0.0; bias.floats.len()],
            Some(id) => {
                let proto = self.before.constant_behind(id);
                let Some(proto) = proto else { return Ok(()) };
                let Some(floats) = encode::to_f32(&self.before.model.tensor(proto)?) else {
                    return Ok(());
                };
                floats
            }
        };
        let product = self.product(here, input);
        if let (Some(product), Some(scale)) = (product, &bias.scale) {
            self.scales(product, &bias, scale, found);
        }
        let count = bias.floats.len().max(original.len());
        let at = |values: &[f32], at: usize| match values {
            [one] => Some(f64::from(*one)),
            values => values.get(at).map(|x| f64::from(*x)),
        };
        let bound = product.and_then(|product| self.bound(product));
        let mut corrected = false;
        for index in 0..count {
            let (Some(is), Some(was)) = (at(&bias.floats, index), at(&original, index)) else {
                let (is, was) = (bias.floats.len(), original.len());
                let what = format!("{is} elements, the bias of the original has {was}");
                found.problem(Check::Weights, bias.name, what);
                return Ok(());
            };
            let rounding = at(&bias.scales, index).unwrap_or(0.0).abs() / 2.0;
            let distance = (is - was).abs();
            let exact = rounding * (1.0 + 1e-3) + was.abs() * SLACK;
            // Of two infinite ones the distance is NaN.
            if distance <= exact || is.to_bits() == was.to_bits() {
                continue;
            }
            let most = bound.as_ref().and_then(|bound| match bound[..] {
                [one] => Some(one),
                _ => bound.get(index).copied(),
            });
            if most.is_none_or(|most| distance > exact + most * 1.01) {
                let why = match most {
                    Some(most) => format!("what its weights shift is {most:.3e} at most"),
                    None => format!("half a step is {rounding:.3e}"),
                };
                let what = format!("element {index} is {is}, the original {was}, and {why}");
                found.problem(Check::Weights, bias.name, what);
                return Ok(());
            }
            corrected = true;
        }
        if corrected {
            let why = "calibration corrected it: it was only seen to differ by no more than the \
                       error of the weights can make up for";
            found.skip(bias.name, why);
        }
        Ok(())
    }

    /// A constant that is added, brought back from integers where it is kept in them.
    fn decode(&self, id: ValueId, found: &mut Validation) -> Result<Option<Bias>, QuantizeError> {
        let float = |proto: &TensorProto| -> Result<_, QuantizeError> {
            Ok(encode::to_f32(&self.after.model.tensor(proto)?))
        };
        if let Some(proto) = self.after.constant_behind(id) {
            let name = self.after.values[id].name.to_owned();
            let floats = float(proto)?;
            return Ok(floats.map(|floats| Bias { name, floats, scales: vec![], scale: None }));
        }
        let Maker::Node { node, .. } = self.after.values[id].maker else { return Ok(None) };
        let integers = self.after.input(node, 0);
        let proto = integers.and_then(|id| self.after.constant(id));
        let (Some(integers), Some(proto)) = (integers, proto) else { return Ok(None) };
        if self.after.nodes[node].op_type != "DequantizeLinear" {
            return Ok(None);
        }
        let scale = self.after.input(node, 1).filter(|id| self.after.constant(*id).is_some());
        let (Some(scale), Some(qtype)) = (scale, qtype_of(proto)) else { return Ok(None) };
        let name = self.after.values[integers].name.to_owned();
        let tensor = self.after.model.tensor(proto)?;
        let scales =
            self.after.constant(scale).map(float).transpose()?.flatten().unwrap_or_default();
        let zero_point = self.after.input(node, 2).and_then(|id| self.after.constant(id));
        let zero_points = match zero_point {
            Some(proto) => points(&self.after.model.tensor(proto)?, scales.len()),
            None => Some(vec![0; scales.len()]),
        };
        let codes = points(&tensor, tensor.elements());
        let (Some(codes), Some(zero_points)) = (codes, zero_points) else { return Ok(None) };
        let scale = self.after.values[scale].name.to_owned();
        if scales.len() != 1 && scales.len() != codes.len() {
            let what = format!("{} scales for {} integers in `{name}`", scales.len(), codes.len());
            found.problem(Check::Scale, scale, what);
            return Ok(None);
        }
        let one = |at: usize| if scales.len() == 1 { 0 } else { at };
        let back = |(at, code): (usize, &i32)| {
            let steps = f64::from(*code) - f64::from(zero_points[one(at)]);
            (steps * f64::from(scales[one(at)])) as f32
        };
        let floats = codes.iter().enumerate().map(back).collect();
        // The scale of a bias in int32 is no choice.
        let scale = (qtype.bits() == 32).then_some(scale);
        Ok(Some(Bias { name, floats, scales, scale }))
    }

    /// The node whose result a bias is added to.
    fn product(&self, node: usize, input: usize) -> Option<usize> {
        if self.after.nodes[node].op_type != "Add" {
            return Some(node);
        }
        let other = root(self.after, self.after.input(node, 1 - input.min(1))?);
        match self.after.values[other].maker {
            Maker::Node { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The scales that an input of a node comes back with, and the largest magnitude that it can
    /// have then.
    fn comes_back(&self, node: usize, input: usize) -> Option<(Vec<f32>, f64)> {
        let mut id = self.after.input(node, input)?;
        let node = loop {
            let Maker::Node { node, .. } = self.after.values[id].maker else { return None };
            match self.after.nodes[node].op_type.as_str() {
                "DequantizeLinear" => break node,
                "Reshape" | "Cast" => id = self.after.input(node, 0)?,
                _ => return None,
            }
        };
        let constant = |input: usize| {
            let proto = self.after.constant(self.after.input(node, input)?)?;
            Some((proto, self.after.model.tensor(proto).ok()?))
        };
        let scales = encode::to_f32(&constant(1)?.1)?;
        let Some((proto, zero)) = constant(2) else { return Some((scales, f64::INFINITY)) };
        let zero_point = *points(&zero, 1)?.first()?;
        let spec = QSpec::new(qtype_of(proto)?, false, Granularity::PerTensor);
        let params = Params { scale: *scales.first()?, zero_point };
        Some((scales, f64::from(params.representable(&spec).absmax())))
    }

    /// How much a bias can make up for: the error of the weights times the largest input.
    fn bound(&self, product: usize) -> Option<Vec<f64>> {
        let (_, largest) = self.comes_back(product, 0)?;
        let shifts = self.shifts.get(&product)?;
        Some(shifts.iter().map(|shift| shift * largest).collect())
    }

    /// The scale of a bias is the product of those of the input and the weight of its node.
    fn scales(&self, product: usize, bias: &Bias, name: &str, found: &mut Validation) {
        let (Some((input, _)), Some((weight, _))) =
            (self.comes_back(product, 0), self.comes_back(product, 1))
        else {
            return;
        };
        let ([input], true) = (&input[..], weight.len() == bias.scales.len()) else { return };
        for (at, (scale, weight)) in bias.scales.iter().zip(&weight).enumerate() {
            let expected = f64::from(*input) * f64::from(*weight);
            if (f64::from(*scale) - expected).abs() > expected.abs() * SLACK {
                let what = format!(
                    "scale {at} is {scale}, expected {expected:e}: the scale of the input, {input}, \
                     times that of the weight, {weight}"
                );
                found.problem(Check::Scale, name, what);
                return;
            }
        }
    }
}
