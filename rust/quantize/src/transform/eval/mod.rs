//! What operators make of constants, by the words of the ONNX specification.
//!
//! An operator that has no row here, a type it does not know, an index out of range: `None`, and the
//! node stays for the runtime.

mod arrange;
mod cast;
mod elements;
mod numbers;
mod views;

use quantize_rs_onnx::{NodeProto, Tensor};

use crate::graph::constants::ints;

/// A node with what it reads.
pub(super) struct Call<'c> {
    pub(super) node: &'c NodeProto,
    /// Version of ONNX's own operators.
    pub(super) opset: i64,
    /// `None` for an input that is left out.
    pub(super) inputs: &'c [Option<Tensor>],
    /// Bytes that the result may take.
    pub(super) limit: usize,
}

type Evaluate = fn(&Call<'_>) -> Option<Tensor>;

/// Operators by name.
const ALL: &[&[(&str, Evaluate)]] = &[arrange::ALL, cast::ALL, numbers::ALL];

/// How an operator is evaluated, if it is.
pub(super) fn operator(node: &NodeProto) -> Option<Evaluate> {
    if !node.is_onnx() {
        return None;
    }
    let mut rows = ALL.iter().flat_map(|rows| rows.iter());
    rows.find(|(op_type, _)| node.op_type == *op_type).map(|(_, evaluate)| *evaluate)
}

impl Call<'_> {
    fn input(&self, at: usize) -> Option<&Tensor> {
        self.inputs.get(at)?.as_ref()
    }

    /// Whole numbers that are an attribute or, in later versions, an input.
    fn ints(&self, attribute: &str, input: usize) -> Option<Vec<i64>> {
        match self.node.attribute(attribute) {
            Some(found) => Some(found.ints.clone()),
            None => ints(self.input(input)?),
        }
    }

    /// As [`Call::ints`], for what may be left out.
    fn ints_or(
        &self,
        attribute: &str,
        input: usize,
        default: impl FnOnce() -> Vec<i64>,
    ) -> Option<Vec<i64>> {
        let given = self.node.attribute(attribute).is_some() || self.input(input).is_some();
        if given { self.ints(attribute, input) } else { Some(default()) }
    }

    /// Whether elements of this many bytes fit in what the result may take.
    fn fits(&self, shape: &[usize], width: usize) -> Option<usize> {
        let elements = shape.iter().try_fold(1usize, |all, one| all.checked_mul(*one))?;
        (elements.checked_mul(width)? <= self.limit).then_some(elements)
    }
}

/// A position along an axis of `rank` axes, counted from either end.
fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then(|| usize::try_from(axis).ok()).flatten()
}
