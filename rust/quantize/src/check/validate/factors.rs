//! The factors of smoothing, as far as the constants of a normalization determine them: exactly
//! where these are floats, and within half a step where they are integers.

use std::collections::HashSet;

use quantize_rs_onnx::NodeProto;

use crate::encode::dequantize::points;
use crate::graph::{Graph, Producer, ValueId};
use crate::options::HalfType;

/// The range of a factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factor {
    least: f64,
    most: f64,
}

impl Factor {
    const UNKNOWN: Factor = Factor { least: f64::NEG_INFINITY, most: f64::INFINITY };

    pub(super) fn exactly(factor: f64) -> Factor {
        Factor { least: factor, most: factor }
    }

    /// What a number was multiplied by to become this one, give or take `error`.
    pub(super) fn between(was: f64, is: f64, error: f64) -> Factor {
        let (one, other) = ((is - error) / was, (is + error) / was);
        if one.is_finite() && other.is_finite() {
            Factor { least: one.min(other), most: one.max(other) }
        } else {
            Factor::UNKNOWN
        }
    }

    /// What both allow.
    pub(super) fn meet(self, other: Factor) -> Option<Factor> {
        let (least, most) = (self.least.max(other.least), self.most.min(other.most));
        (least <= most).then_some(Factor { least, most })
    }

    pub(super) fn inverse(self) -> Factor {
        let Factor { least, most } = self;
        if least == most {
            Factor::exactly(least.recip())
        } else if least > 0.0 || most < 0.0 {
            Factor { least: most.recip(), most: least.recip() }
        } else {
            Factor::UNKNOWN
        }
    }

    /// The middle of the range; NaN if nothing is known.
    pub(super) fn middle(self) -> f64 {
        let Factor { least, most } = self;
        if least.is_finite() && most.is_finite() { least.midpoint(most) } else { f64::NAN }
    }
}

/// Whether smoothing may divide the result of a node by changing its constants.
pub(super) fn is_normalization(node: &NodeProto) -> bool {
    matches!(&*node.op_type, "LayerNormalization" | "RMSNormalization")
}

/// What the scale and the bias of a normalization were multiplied by, for each channel; `None` if
/// they are those of the original. The names of the constants are added to `used`.
pub(super) fn of_normalization(
    before: &Graph<'_>,
    after: &Graph<'_>,
    node: usize,
    half: Option<HalfType>,
    used: &mut HashSet<String>,
) -> Option<Vec<Factor>> {
    let mut factors: Vec<Factor> = Vec::new();
    for id in (1..3).filter_map(|input| after.input(node, input)) {
        let name = after.values[id].name;
        let there = before.model.tensor(before.constant(before.value(name)?)?).ok()?.to_f32()?;
        let here = numbers(after, id)?;
        let pairs = || there.iter().zip(&here).map(|(was, (is, error))| (*was, *is, *error));
        let is_same = |(was, is, error): (f32, f64, f64)| {
            let rounded = half.is_some_and(|half| f64::from(half.rounded(was)) == is);
            rounded || (is - f64::from(was)).abs() <= error * (1.0 + 1e-3)
        };
        if factors.is_empty() && pairs().all(is_same) {
            return None;
        }
        used.insert(name.to_owned());
        let of = |(was, is, error)| Factor::between(f64::from(was), is, error);
        factors.resize(here.len(), Factor::UNKNOWN);
        for (factor, found) in factors.iter_mut().zip(pairs().map(of)) {
            let is_exact = factor.least == factor.most;
            *factor = if is_exact { *factor } else { found.meet(*factor).unwrap_or(found) };
        }
    }
    Some(factors)
}

/// The elements of a constant, and half of the step of each if they are stored as integers.
fn numbers(graph: &Graph<'_>, id: ValueId) -> Option<Vec<(f64, f64)>> {
    let tensor = |id: ValueId| graph.model.tensor(graph.constant(id)?).ok();
    if let Some(floats) = tensor(id) {
        return Some(floats.to_f32()?.into_iter().map(|x| (f64::from(x), 0.0)).collect());
    }
    let Producer::Node { node, .. } = graph.values[id].producer else { return None };
    if graph.nodes[node].op_type != "DequantizeLinear" {
        return None;
    }
    let integers = tensor(graph.input(node, 0)?)?;
    let codes = points(&integers, integers.elements())?;
    let scales = tensor(graph.input(node, 1)?)?.to_f32()?;
    let zero_points = match graph.input(node, 2) {
        Some(zero_point) => points(&tensor(zero_point)?, codes.len())?,
        None => vec![0; codes.len()],
    };
    let number = |(at, (code, zero_point)): (usize, (i32, i32))| {
        let scale = f64::from(if scales.len() == 1 { scales[0] } else { *scales.get(at)? });
        Some(((f64::from(code) - f64::from(zero_point)) * scale, scale.abs() / 2.0))
    };
    codes.into_iter().zip(zero_points).enumerate().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_what_all_constants_allow() {
        let bias = Factor::between(2.0, 1.0, 0.1);
        assert_eq!(bias, Factor { least: 0.45, most: 0.55 });
        let scale = Factor::between(-1.0, -0.56, 0.03);
        let both = bias.meet(scale).unwrap();
        assert!((both.least - 0.53).abs() < 1e-9 && (both.most - 0.55).abs() < 1e-9);
        assert!((both.middle() - 0.54).abs() < 1e-9);
        assert_eq!(bias.meet(Factor::exactly(3.0)), None);
        assert!(Factor::between(0.0, 0.0, 0.0).middle().is_nan());
        assert!(Factor { least: -1.0, most: 1.0 }.inverse().middle().is_nan());
    }
}
