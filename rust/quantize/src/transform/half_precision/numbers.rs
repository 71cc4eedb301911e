//! What is known of the numbers that nodes compute: whole ones, large ones, bounds.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{DataType, NodeProto};

use super::KeptReason;
use super::constants::{Magnitudes, elements};
use super::decide::Choice;
use super::operators as ops;
use super::scope::Scope;
use crate::graph::elements::to_f32;

/// What is known of the floats of a graph, as far as its nodes were looked at.
#[derive(Default)]
pub(super) struct Numbers<'s> {
    /// Floats that are whole numbers, such as positions and sizes, and what is computed from them
    /// alone and becomes whole again.
    pub(super) whole: HashSet<&'s str>,
    /// Floats that nodes round, cast to integers or compare, and those that they are computed from.
    rounded: HashSet<&'s str>,
    /// Floats that are small whole numbers, such as those of a mask, which have large sums.
    pub(super) small: HashSet<&'s str>,
    /// Floats that may be larger than the type holds.
    pub(super) large: HashSet<&'s str>,
    /// The largest magnitude of floats that are bounded whatever the inputs of the model are.
    pub(super) bounds: HashMap<&'s str, f32>,
}

impl<'s> Numbers<'s> {
    /// What is known before any node was looked at.
    pub(super) fn of(scope: &Scope<'s>) -> Numbers<'s> {
        let mut rounded = HashSet::new();
        for index in scope.order.iter().rev() {
            let node: &'s NodeProto = &scope.graph.node[*index];
            let of_elements =
                ops::is_elementwise(node) || ops::moves(node) || ops::is_of_whole_numbers(node);
            let mut made = node.output.iter().map(String::as_str);
            if rounds(scope, node) || of_elements && made.any(|name| rounded.contains(name)) {
                let read = node.input.iter().map(String::as_str);
                rounded.extend(read.filter(|name| scope.is_float(name)));
            }
        }
        Numbers { rounded, ..Numbers::default() }
    }

    /// Learns what bounds the result of a node.
    pub(super) fn learn_bound(&mut self, scope: &Scope<'_>, node: &'s NodeProto) {
        let bound = self.bound(scope, node);
        self.bounds.extend(node.output.first().map(String::as_str).zip(bound));
    }

    /// The largest magnitude of the result of a node, if it is bounded.
    fn bound(&self, scope: &Scope<'_>, node: &NodeProto) -> Option<f32> {
        let of = |input: usize| {
            let name = node.input.get(input)?;
            let constant = || Some(Magnitudes::of(&elements(scope, name)?)?.largest);
            self.bounds.get(name.as_str()).copied().or_else(constant)
        };
        if node.op_type != "Pow" {
            return ops::bound(node, of);
        }
        let exponents = to_f32(&scope.constant(node.input.get(1)?)?)?;
        let base = of(0)?.max(1.0);
        let positive = exponents.iter().all(|exponent| *exponent >= 0.0);
        positive.then(|| exponents.iter().map(|it| base.powf(*it)).fold(1.0, f32::max))
    }

    /// Learns from the choice for a node which of the floats that it computes are whole, and which
    /// may be large. Samples would show the latter.
    pub(super) fn learn(
        &mut self,
        scope: &Scope<'_>,
        node: &NodeProto,
        choice: &Choice,
        made: &[&'s str],
        has_samples: bool,
    ) {
        if let Choice::Float(reason) = choice {
            if matches!(reason, KeptReason::WholeNumbers) {
                // The logarithm of a distance is no feature if it becomes the number of a bucket.
                let small = ops::is_of_whole_numbers(node);
                let stays = |name: &&&str| !small || self.rounded.contains(**name);
                self.whole.extend(made.iter().filter(stays));
            }
            let large = matches!(
                reason,
                KeptReason::MayOverflow | KeptReason::LargeConstant { .. } | KeptReason::ReadsLarge
            );
            if large && !has_samples && !ops::shrinks(node) {
                self.large.extend(made);
            }
        }
        let first = node.input.first().map(String::as_str);
        match first.filter(|_| node.op_type == "Cast" && node.is_onnx()).map(|it| scope.dtype(it)) {
            Some(Some(DataType::Bool | DataType::Int8 | DataType::UInt8)) => {
                self.small.extend(made);
            }
            Some(Some(dtype)) if !dtype.is_float() => self.whole.extend(made),
            _ => {}
        }
        if ops::moves(node) && first.is_some_and(|name| self.small.contains(name)) {
            self.small.extend(made);
        }
    }
}

/// Whether a node makes integers or flags of floats, or rounds them: a small error may make another
/// number.
fn rounds(scope: &Scope<'_>, node: &NodeProto) -> bool {
    let to_integers = || {
        let to = node.output.first().and_then(|name| scope.dtype(name));
        to.is_some_and(|to| !to.is_float())
    };
    node.is_onnx()
        && match node.op_type.as_str() {
            "Ceil" | "Floor" | "Round" => true,
            "Cast" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => {
                to_integers()
            }
            _ => false,
        }
}
