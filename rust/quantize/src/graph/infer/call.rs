//! A node together with the facts about its inputs.

use crate::util::axes::axis_of;
use std::sync::Arc;

use quantize_rs_onnx::{AttributeProto, DataType, NodeProto};

use super::dim::Dim;
use super::engine::{InferenceState, Scope};
use super::fact::{Fact, Shape};

/// A node together with the facts about its inputs.
pub(super) struct Call<'c, 'm> {
    pub(super) node: &'m NodeProto,
    /// `None` for an input that is omitted or about which nothing is known.
    pub(super) inputs: Vec<Option<Arc<Fact>>>,
    pub(super) scope: &'c Scope<'c, 'm>,
    pub(super) state: &'c InferenceState<'m>,
}

/// Integers that a node specifies as an attribute or, in newer opsets, as an input.
pub(super) enum Given {
    /// The attribute and the input are omitted.
    Nothing,
    /// They are not constant.
    Unknown,
    /// The integers.
    Ints(Vec<i64>),
}

impl<'m> Call<'_, 'm> {
    /// The opset version of the ONNX domain.
    pub(super) fn opset(&self) -> i64 {
        self.scope.within.opset
    }

    pub(super) fn fact(&self, input: usize) -> Option<&Fact> {
        self.inputs.get(input)?.as_deref()
    }

    /// Whether an input is present, known or not.
    pub(super) fn has(&self, input: usize) -> bool {
        self.node.input.get(input).is_some_and(|name| !name.is_empty())
    }

    pub(super) fn shape(&self, input: usize) -> Option<&Shape> {
        self.fact(input)?.shape.as_ref()
    }

    pub(super) fn rank(&self, input: usize) -> Option<usize> {
        self.fact(input)?.rank()
    }

    pub(super) fn dtype(&self, input: usize) -> Option<DataType> {
        self.fact(input)?.dtype
    }

    /// The elements of a small integer vector.
    pub(super) fn elements(&self, input: usize) -> Option<&[Option<Dim>]> {
        self.fact(input)?.elements.as_deref()
    }

    /// The elements of a small constant integer vector.
    pub(super) fn fixed(&self, input: usize) -> Option<Vec<i64>> {
        self.elements(input)?.iter().map(|element| (*element)?.fixed()).collect()
    }

    /// The elements of a small constant float32 vector.
    pub(super) fn floats(&self, input: usize) -> Option<&[f32]> {
        self.fact(input)?.floats.as_deref()
    }

    /// An attribute. In a function, references are resolved to the attributes of the caller.
    pub(super) fn attribute(&self, name: &str) -> Option<&'m AttributeProto> {
        self.scope.within.attribute(self.node.attribute(name)?)
    }

    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).and_then(|attribute| attribute.i).unwrap_or(default)
    }

    pub(super) fn ints(&self, name: &str) -> Option<&'m [i64]> {
        self.attribute(name).map(|attribute| &*attribute.ints)
    }

    pub(super) fn string(&self, name: &str) -> Option<&'m str> {
        std::str::from_utf8(self.attribute(name)?.s.as_deref()?).ok()
    }

    /// Integers that are an attribute or, in newer opsets, an input.
    pub(super) fn given(&self, attribute: &str, input: usize) -> Given {
        match self.ints(attribute) {
            Some(ints) => Given::Ints(ints.to_vec()),
            None if !self.has(input) => Given::Nothing,
            None => self.fixed(input).map_or(Given::Unknown, Given::Ints),
        }
    }

    /// The element type that an attribute specifies.
    pub(super) fn dtype_named(&self, attribute: &str) -> Option<DataType> {
        DataType::from_number(i32::try_from(self.attribute(attribute)?.i?).ok()?)
    }

    /// A new dimension about which nothing is known.
    pub(super) fn unknown(&self) -> Dim {
        self.state.dims.borrow_mut().unnamed(false)
    }

    /// `axes` new dimensions about which nothing is known.
    pub(super) fn unknowns(&self, axes: usize) -> Shape {
        (0..axes).map(|_| self.unknown()).collect()
    }

    /// `a + b`; unknown if it cannot be expressed.
    pub(super) fn plus(&self, a: Dim, b: Dim) -> Dim {
        let dim = self.state.dims.borrow_mut().add_times(a, b, 1);
        self.or_unknown(dim)
    }

    /// `a · b`; unknown if it cannot be expressed.
    pub(super) fn times(&self, a: Dim, b: Dim) -> Dim {
        let dim = self.state.dims.borrow_mut().times(a, b);
        self.or_unknown(dim)
    }

    /// `a / by`, rounded down; unknown if it cannot be expressed.
    pub(super) fn floor_over(&self, a: Dim, by: i64) -> Dim {
        let dim = self.state.dims.borrow_mut().floor_over(a, by);
        self.or_unknown(dim)
    }

    /// `a / b` for exact division; unknown if it cannot be expressed.
    pub(super) fn over(&self, a: Dim, b: Dim) -> Dim {
        let dim = self.state.dims.borrow_mut().exactly_over(a, b);
        self.or_unknown(dim)
    }

    /// `a + b`, of any sign; `None` if it cannot be expressed.
    pub(super) fn sum(&self, a: Dim, b: Dim) -> Option<Dim> {
        self.state.dims.borrow_mut().add_times(a, b, 1)
    }

    /// `a - b`, of any sign; `None` if it cannot be expressed.
    pub(super) fn difference(&self, a: Dim, b: Dim) -> Option<Dim> {
        self.state.dims.borrow_mut().add_times(a, b, -1)
    }

    /// `a / by`, rounded down, of any sign; `None` if it cannot be expressed.
    pub(super) fn floor(&self, a: Dim, by: i64) -> Option<Dim> {
        self.state.dims.borrow_mut().floor_over(a, by)
    }

    /// The product of all dimensions; unknown if it cannot be expressed.
    pub(super) fn product(&self, lengths: &[Dim]) -> Dim {
        if lengths.contains(&Dim::Fixed(0)) {
            return Dim::Fixed(0);
        }
        lengths.iter().fold(Dim::Fixed(1), |all, length| self.times(all, *length))
    }

    /// Dimensions are never negative. A result that would be is unknown, since such a run fails.
    fn or_unknown(&self, dim: Option<Dim>) -> Dim {
        match dim {
            Some(Dim::Fixed(length)) if length < 0 => self.unknown(),
            Some(dim) => dim,
            None => self.unknown(),
        }
    }

    /// Resolves an axis of the value at `input` that may be negative.
    pub(super) fn axis(&self, axis: i64, input: usize) -> Option<usize> {
        axis_of(axis, self.rank(input)?)
    }

    /// The broadcast shape of two shapes.
    pub(super) fn broadcast(&self, a: &[Dim], b: &[Dim]) -> Option<Shape> {
        let (long, short) = if a.len() < b.len() { (b, a) } else { (a, b) };
        let mut shape = long.to_vec();
        let new = long.len() - short.len();
        for (length, other) in shape[new..].iter_mut().zip(short) {
            *length = match (*length, *other) {
                (one, other) if one == other => one,
                (Dim::Fixed(1), other) => other,
                (one, Dim::Fixed(1)) => one,
                (Dim::Fixed(_), Dim::Fixed(_)) => return None,
                // The other dimension is 1 or equal.
                (fixed @ Dim::Fixed(_), _) | (_, fixed @ Dim::Fixed(_)) => fixed,
                _ => self.unknown(),
            };
        }
        Some(shape)
    }

    /// The broadcast shape of a range of inputs.
    pub(super) fn broadcast_all(&self, inputs: std::ops::Range<usize>) -> Option<Shape> {
        inputs
            .filter(|input| self.has(*input))
            .try_fold(Shape::new(), |shape, input| self.broadcast(&shape, self.shape(input)?))
    }
}
