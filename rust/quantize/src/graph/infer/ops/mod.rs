//! The shape inference rules: one rule per operator for the types and shapes of its outputs.

// All rules have the same signature, including those that cannot fail.
#![allow(clippy::unnecessary_wraps)]

mod conv_pool;
mod elementwise;
mod generators;
mod indexing;
mod linear;
mod microsoft;
mod normalize;
mod quantized;
mod recurrent;
mod reduce;
mod shape_ops;
mod spatial;

use std::collections::HashMap;
use std::sync::LazyLock;

use quantize_rs_onnx::{DataType, NodeProto, canonical_domain};

pub(super) use generators::axes as axes_of_shape;

use super::call::Call;
use super::fact::{Fact, Shape};
use crate::graph::ops::MICROSOFT;

/// The type of an output.
#[derive(Clone, Copy)]
enum Type {
    /// The type of an input.
    Input(usize),
    /// The type shared by all inputs; one known input is enough.
    Any,
    /// A constant type.
    Is(DataType),
    /// The result of a function.
    By(fn(&Call<'_, '_>) -> Option<DataType>),
}

/// The shapes of the outputs.
#[derive(Clone, Copy)]
enum Shapes {
    /// The shape of the only output, or of the first if the others are unknown.
    One(fn(&Call<'_, '_>) -> Option<Shape>),
    /// The shapes of all outputs.
    All(fn(&Call<'_, '_>) -> Vec<Option<Shape>>),
}

/// The inference rule of one operator.
pub(super) struct ShapeRule {
    op_type: &'static str,
    /// The types of the outputs; the last one also applies to all further outputs.
    types: &'static [Type],
    shapes: Shapes,
}

const fn one(
    op_type: &'static str,
    types: &'static [Type],
    shape: fn(&Call<'_, '_>) -> Option<Shape>,
) -> ShapeRule {
    ShapeRule { op_type, types, shapes: Shapes::One(shape) }
}

const fn all(
    op_type: &'static str,
    types: &'static [Type],
    shapes: fn(&Call<'_, '_>) -> Vec<Option<Shape>>,
) -> ShapeRule {
    ShapeRule { op_type, types, shapes: Shapes::All(shapes) }
}

const SAME: &[Type] = &[Type::Input(0)];
const ANY: &[Type] = &[Type::Any];
const BOOL: &[Type] = &[Type::Is(DataType::Bool)];
const INT64: &[Type] = &[Type::Is(DataType::Int64)];
const FLOAT: &[Type] = &[Type::Is(DataType::Float)];

/// The operators of the ONNX domain, grouped by family.
const ONNX: &[&[ShapeRule]] = &[
    shape_ops::ALL,
    generators::ALL,
    elementwise::ALL,
    linear::ALL,
    normalize::ALL,
    indexing::ALL,
    quantized::ALL,
    recurrent::ALL,
    reduce::ALL,
    spatial::ALL,
    conv_pool::ALL,
];

type RulesByName = HashMap<&'static str, &'static ShapeRule>;

fn by_name(families: &'static [&'static [ShapeRule]]) -> RulesByName {
    families.iter().flat_map(|rows| rows.iter()).map(|row| (row.op_type, row)).collect()
}

/// The rule of an operator; `None` if it is unknown.
pub(super) fn rule(node: &NodeProto) -> Option<&'static ShapeRule> {
    static ONNX_RULES: LazyLock<RulesByName> = LazyLock::new(|| by_name(ONNX));
    static MICROSOFT_RULES: LazyLock<RulesByName> = LazyLock::new(|| by_name(&[microsoft::ALL]));
    let rows = match canonical_domain(&node.domain) {
        "" => &ONNX_RULES,
        MICROSOFT => &MICROSOFT_RULES,
        _ => return None,
    };
    rows.get(node.op_type.as_str()).copied()
}

impl ShapeRule {
    /// Infers the outputs of a node.
    pub(super) fn made(&self, call: &Call<'_, '_>) -> Vec<Fact> {
        let mut shapes = match self.shapes {
            Shapes::One(shape) => vec![shape(call)],
            Shapes::All(shapes) => shapes(call),
        };
        shapes.resize(call.node.output.len(), None);
        let types = self.types.iter().chain(std::iter::repeat_n(
            &self.types[self.types.len() - 1],
            shapes.len().saturating_sub(self.types.len()),
        ));
        let facts = shapes.into_iter().zip(types);
        facts.map(|(shape, own)| Fact { dtype: own.of(call), shape, ..Fact::default() }).collect()
    }
}

impl Type {
    fn of(self, call: &Call<'_, '_>) -> Option<DataType> {
        match self {
            Type::Input(input) => call.dtype(input),
            Type::Any => (0..call.inputs.len()).find_map(|input| call.dtype(input)),
            Type::Is(dtype) => Some(dtype),
            Type::By(rule) => rule(call),
        }
    }
}

/// The shape of the first input.
fn as_first(call: &Call<'_, '_>) -> Option<Shape> {
    call.shape(0).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operator_has_two_rules() {
        let rows = ONNX.iter().map(|rows| rows.len()).sum::<usize>();
        assert_eq!(by_name(ONNX).len(), rows);
        assert_eq!(by_name(&[microsoft::ALL]).len(), microsoft::ALL.len());
    }
}
