//! A mixture of experts with integers, `QMoE`: it has to compute what the `MoE` of the original
//! does.

use quantize_rs_onnx::{NodeProto, Tensor};

use super::Check;
use super::stored::{Form, Found, Stored, base_of, lengths};
use super::wiring::{Step, Walk, equal};
use crate::graph::{Graph, Producer, ValueId, moe};

impl Walk<'_, '_> {
    /// Compares a `QMoE` with the `MoE` that it replaces.
    pub(super) fn experts(&mut self, there: usize, here: usize) {
        self.counterparts.insert(here, there);
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let same = |name: &&str| match (was.attribute(name), is.attribute(name)) {
            (Some(one), Some(other)) => equal(one, other),
            (None, None) => true,
            _ => false,
        };
        if let Some(name) = moe::SHARED.iter().find(|name| !same(name)) {
            let what = format!("its attribute {name} differs from the original");
            self.found.problem(Check::Connectivity, is.named(), what);
        }
        let mut places = vec![(0, 0), (moe::ROUTER, moe::ROUTER)];
        for projection in moe::PROJECTIONS {
            places.push((projection.weight, projection.integers));
            places.push((projection.weight + 1, projection.integers + 2));
        }
        for (input, at) in places {
            match (self.before.input(there, input), self.after.input(here, at)) {
                (None, None) => {}
                (Some(there), Some(value)) => {
                    self.waiting.push(Step::to_node(is, there, value).at_input(here, at));
                }
                (there, _) => {
                    let which = if there.is_some() { "is missing" } else { "is new" };
                    let what = format!("input {at} {which}");
                    self.found.problem(Check::Connectivity, is.named(), what);
                }
            }
        }
        if !self.weighs_alike(there, here) {
            let what = "the factors of its experts are not those of the original";
            self.found.problem(Check::Connectivity, is.named(), what);
        }
    }

    /// Whether the factors of the chosen experts are the same: of all experts, or normalized, as
    /// `QMoE` does by itself.
    fn weighs_alike(&mut self, there: usize, here: usize) -> bool {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let factors = self.after.input(here, moe::FACTORS);
        let Some(factors) = factors else { return moe::normalizes(was) };
        let router = self.before.input(there, moe::ROUTER);
        let factors = router.map_or(factors, |router| self.past_casts(router, factors));
        let Producer::Node { node, .. } = self.after.values[factors].producer else { return false };
        let softmax = self.after.nodes[node];
        let scores = router.zip(self.after.input(node, 0));
        let (Some((there, here)), true) =
            (scores, softmax.op_type == "Softmax" && softmax.attribute.is_empty())
        else {
            return false;
        };
        self.waiting.push(Step::to_node(softmax, there, here).at_input(node, 0));
        !moe::normalizes(was) && !moe::normalizes(is)
    }
}

/// The weights of a `QMoE`.
pub(super) fn stored(after: &Graph<'_>, index: usize, node: &NodeProto) -> Vec<Found> {
    if !moe::is_qmoe(node) {
        return Vec::new();
    }
    let number = |name: &str, default: i64| usize::try_from(node.int(name, default)).ok();
    let weight = |projection: moe::Projection| {
        let integers = after.input(index, projection.integers)?;
        let lengths = lengths(after.constant(integers)?);
        let name = after.values[integers].name;
        let bits = number(moe::BITS.0, moe::BITS.1)?;
        let depth = (lengths.last()? * 8).checked_div(bits)?;
        let block_size = match number("block_size", 0)? {
            0 => depth,
            block_size => block_size,
        };
        let constant = |id: &ValueId| after.constant(*id).is_some();
        let scale = after.input(index, projection.integers + 1).filter(constant);
        if scale.is_none() {
            let why = "its scale is not a constant".to_owned();
            return Some(Err((name.to_owned(), why)));
        }
        Some(Ok(Stored {
            originals: base_of(name, "quantized").into_iter().collect(),
            integers,
            scale,
            whole: None,
            zero_point: after.input(index, projection.zero_points).filter(constant),
            reads: vec![integers],
            multiplied: false,
            form: Form::Experts { bits: u32::try_from(bits).ok()?, block_size, depth },
        }))
    };
    moe::PROJECTIONS.into_iter().filter_map(weight).collect()
}

/// The integers of all experts as one matrix of rows.
pub(super) fn rows_of(integers: &Tensor) -> Option<Tensor> {
    let &[experts, rows, bytes] = &integers.shape[..] else { return None };
    Some(Tensor { shape: vec![experts.checked_mul(rows)?, bytes], ..integers.clone() })
}
