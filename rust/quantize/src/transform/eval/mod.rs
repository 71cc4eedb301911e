//! Evaluates operators with constant inputs, following the ONNX specification.
//!
//! Unknown operators, unsupported types and invalid indices evaluate to `None`, which leaves the
//! node to the runtime.

mod arrange;
mod cast;
mod elements;
mod normalization;
mod numbers;
mod products;
mod reductions;
mod views;

use quantize_rs_onnx::{NodeProto, Tensor};

pub(super) use arrange::split;

use crate::util::axes::axis_of;

use crate::graph::constants::ints;

/// A node and the values of its inputs.
pub(super) struct Call<'c> {
    pub(super) node: &'c NodeProto,
    /// The opset version of the ONNX domain.
    pub(super) opset: i64,
    /// `None` for an omitted input.
    pub(super) inputs: &'c [Option<Tensor>],
    /// The maximum size of the result in bytes.
    pub(super) limit: usize,
}

type Evaluate = fn(&Call<'_>) -> Option<Tensor>;

/// The operators, by name.
const ALL: &[&[(&str, Evaluate)]] =
    &[arrange::ALL, cast::ALL, normalization::ALL, numbers::ALL, products::ALL, reductions::ALL];

/// The function that evaluates an operator; `None` if it is not supported.
pub(super) fn operator(node: &NodeProto) -> Option<Evaluate> {
    if !node.is_onnx() {
        return None;
    }
    let mut rows = ALL.iter().flat_map(|rows| rows.iter());
    rows.find(|(op_type, _)| node.op_type == *op_type).map(|(_, evaluate)| *evaluate)
}

/// The work of an operator whose result may be much smaller than what it computes: its additions
/// and products. The size of the result bounds the work of all others.
pub(super) fn work(node: &NodeProto, inputs: &[Option<Tensor>]) -> usize {
    let elements = |at: usize| inputs.get(at)?.as_ref().map(Tensor::elements);
    match node.op_type.as_str() {
        "MatMul" | "Gemm" => products::work(node, inputs).unwrap_or(usize::MAX),
        reduces if reduces.starts_with("Reduce") => elements(0).unwrap_or(0),
        _ => 0,
    }
}

impl Call<'_> {
    fn input(&self, at: usize) -> Option<&Tensor> {
        self.inputs.get(at)?.as_ref()
    }

    /// Integers that are an attribute or, in newer opsets, an input.
    fn ints(&self, attribute: &str, input: usize) -> Option<Vec<i64>> {
        match self.node.attribute(attribute) {
            Some(found) => Some(found.ints.to_vec()),
            None => ints(self.input(input)?),
        }
    }

    /// Like [`Call::ints`], with a default if they are omitted.
    fn ints_or(
        &self,
        attribute: &str,
        input: usize,
        default: impl FnOnce() -> Vec<i64>,
    ) -> Option<Vec<i64>> {
        let given = self.node.attribute(attribute).is_some() || self.input(input).is_some();
        if given { self.ints(attribute, input) } else { Some(default()) }
    }

    /// The number of elements of a shape, if its size in bytes is within the limit.
    fn fits(&self, shape: &[usize], width: usize) -> Option<usize> {
        fits(shape, width, self.limit)
    }
}

/// The number of elements of a shape, if its size in bytes is within a limit.
fn fits(shape: &[usize], width: usize, limit: usize) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |all, one| all.checked_mul(*one))?;
    (elements.checked_mul(width)? <= limit).then_some(elements)
}
