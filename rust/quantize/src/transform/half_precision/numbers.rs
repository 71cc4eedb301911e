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
    /// Floats that are whole numbers, such as positions and sizes.
    pub(super) whole: HashSet<&'s str>,
    /// Floats that are small whole numbers, such as those of a mask, which have large sums.
    pub(super) small: HashSet<&'s str>,
    /// Floats that may be larger than the type holds.
    pub(super) large: HashSet<&'s str>,
    /// The largest magnitude of floats that are bounded whatever the inputs of the model are.
    pub(super) bounds: HashMap<&'s str, f32>,
}

impl<'s> Numbers<'s> {
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
            let whole = matches!(reason, KeptReason::WholeNumbers);
            if whole && !ops::is_of_whole_numbers(node) {
                self.whole.extend(made);
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
