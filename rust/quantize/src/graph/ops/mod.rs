//! What each operator allows: one [`OpRule`] an operator, in one table.
//!
//! The integer kernels named here are those that ONNX Runtime 1.31 runs on a CPU, seen in its
//! optimized graphs.

mod activations;
mod arithmetic;
mod data_movement;
mod einsum;
mod linear;
mod norms;
mod recurrent;

use quantize_rs_math::Range;
use quantize_rs_onnx::NodeProto;

use crate::QuantizeError;
use crate::graph::Graph;

/// What an operator allows at one of its inputs.
#[derive(Clone, Copy, Debug)]
pub enum Slot {
    /// Data that flows through; can be quantized when the operator runs on integers.
    Activation,
    /// A weight when it is constant. `axis` gives the axis of its output channels.
    Weight {
        /// The axis of output channels of a weight of this rank; `None` where there is none.
        axis: fn(&NodeProto, usize) -> Option<usize>,
    },
    /// A weight when it is constant, an activation when it is not.
    Operand {
        /// The axis of output channels of a weight of this rank; `None` where there is none.
        axis: fn(&NodeProto, usize) -> Option<usize>,
    },
    /// The weight of a recurrent operator when it is constant: a matrix a direction, each row of
    /// which is an output channel.
    Rows,
    /// Few numbers that scale channels: quantized only where everything is.
    Scale,
    /// Added to the result; int32 when the operator runs on integers.
    Bias,
    /// Anything else: shapes, indices.
    Other,
}

/// How an operator runs on quantized activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integer {
    /// It does not, or not yet: only its weights are quantized. And why.
    No(&'static str),
    /// It multiplies by weights. Runtimes fuse it when its inputs are quantized; its output may
    /// stay float.
    FloatOutput,
    /// It multiplies by weights. Runtimes fuse it when its inputs and its output are quantized.
    QuantizedOutput {
        /// The integer kernel, where there is one.
        kernel: Option<&'static str>,
    },
    /// It makes new numbers of what flows into it, without weights: its output has a range of its
    /// own.
    Computes {
        /// The integer kernel, where there is one.
        kernel: Option<&'static str>,
    },
    /// It only moves elements of input 0, or picks among them: what goes out has the scale of what
    /// comes in.
    SameAsInput {
        /// Whether what comes in has the range of what goes out, so that it may be quantized for
        /// the sake of what goes out.
        same_range: bool,
    },
    /// An activation function that runtimes fold into the integer operator before it.
    Fused,
}

/// What is known of one operator.
#[derive(Debug)]
pub struct OpRule {
    /// The operator, of ONNX's own domain.
    pub op_type: &'static str,
    /// What it allows at each input.
    pub inputs: &'static [Slot],
    /// What it allows at inputs beyond those.
    pub more: Slot,
    /// How many inputs it needs.
    pub min_inputs: usize,
    /// How a node of it runs on integers, given its attributes and constant inputs.
    pub integer: fn(&Graph<'_>, usize) -> Integer,
    /// What its output can hold, where that does not depend on its input.
    pub range: Option<Range>,
}

/// Every rule, by family.
pub const ALL: &[&[OpRule]] = &[
    linear::RULES,
    arithmetic::RULES,
    activations::RULES,
    data_movement::RULES,
    norms::RULES,
    recurrent::RULES,
];

/// The rule for a node; `None` for operators of other domains and those not known.
///
/// ```
/// use quantize_rs::ops;
/// assert!(ops::ALL.iter().flat_map(|family| family.iter()).any(|rule| rule.op_type == "Conv"));
/// ```
pub fn rule(node: &NodeProto) -> Option<&'static OpRule> {
    if !node.is_onnx() {
        return None;
    }
    ALL.iter().flat_map(|family| family.iter()).find(|rule| rule.op_type == node.op_type)
}

impl OpRule {
    /// What the operator allows at this input.
    pub fn slot(&self, input: usize) -> Slot {
        self.inputs.get(input).copied().unwrap_or(self.more)
    }

    /// Whether the operator multiplies by what it reads here.
    pub fn takes_weight(&self, input: usize) -> bool {
        matches!(self.slot(input), Slot::Weight { .. } | Slot::Operand { .. } | Slot::Rows)
    }

    /// Whether what flows through the node comes in here.
    pub fn takes_activation(&self, input: usize) -> bool {
        matches!(self.slot(input), Slot::Activation | Slot::Operand { .. })
    }
}

impl Integer {
    /// Whether new numbers are made, and not only moved, picked or cut.
    pub fn computes(self) -> bool {
        !matches!(self, Integer::SameAsInput { .. } | Integer::Fused)
    }
}

/// A rule for an operator whose one input flows through.
const fn flows(op_type: &'static str, integer: fn(&Graph<'_>, usize) -> Integer) -> OpRule {
    let inputs = &[Slot::Activation];
    OpRule { op_type, inputs, more: Slot::Other, min_inputs: 1, integer, range: None }
}

/// Makes new numbers, for which there is no integer kernel.
const IN_FLOAT: fn(&Graph<'_>, usize) -> Integer = |_, _| Integer::Computes { kernel: None };

const FLOAT: &str = "its attributes have no integer kernel";

const STRING: (i32, &str) = (3, "a string (3)");
const INTEGER: (i32, &str) = (2, "an integer (2)");
const INTEGERS: (i32, &str) = (7, "integers (7)");
const NUMBER: (i32, &str) = (1, "a float (1)");

/// Attributes that decisions rest on: operator, name, `AttributeProto.AttributeType`.
const ATTRIBUTES: &[(&str, &str, (i32, &str))] = &[
    ("Einsum", "equation", STRING),
    ("Gemm", "alpha", NUMBER),
    ("Gemm", "beta", NUMBER),
    ("Gemm", "transA", INTEGER),
    ("Gemm", "transB", INTEGER),
    ("Transpose", "perm", INTEGERS),
    ("Flatten", "axis", INTEGER),
    ("Reshape", "allowzero", INTEGER),
    ("Pad", "mode", STRING),
    ("Pad", "value", NUMBER),
    ("Resize", "mode", STRING),
    ("Resize", "coordinate_transformation_mode", STRING),
    ("Upsample", "mode", STRING),
];

/// Refuses a node that cannot be what it says.
pub(crate) fn check_arity(node: &NodeProto) -> Result<(), QuantizeError> {
    let Some(rule) = rule(node) else { return Ok(()) };
    let inputs = node.input.iter().take_while(|name| !name.is_empty()).count();
    if inputs < rule.min_inputs {
        let what = format!("it has {inputs} inputs, expected at least {}", rule.min_inputs);
        return Err(QuantizeError::node(node, what));
    }
    for (op_type, attribute, (kind, what)) in ATTRIBUTES {
        let found = node.attribute(attribute).map_or(0, |attribute| attribute.kind);
        if node.op_type == *op_type && found != 0 && found != *kind {
            let what = format!("attribute `{attribute}` is of kind {found}, expected {what}");
            return Err(QuantizeError::node(node, what));
        }
    }
    if node.output.iter().all(String::is_empty) {
        return Err(QuantizeError::node(node, "it has no outputs".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operator_has_two_rules() {
        let mut names: Vec<_> =
            ALL.iter().flat_map(|rules| rules.iter()).map(|rule| rule.op_type).collect();
        names.sort_unstable();
        let rules = names.len();
        names.dedup();
        assert_eq!(names.len(), rules);
    }
}
