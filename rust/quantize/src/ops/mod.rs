//! What each operator allows: one [`OpRule`] an operator, in one table.

mod linear;
mod pass;

use quantize_rs_onnx::NodeProto;

use crate::QuantizeError;

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
    /// Added to the result; int32 when the operator runs on integers.
    Bias,
    /// Anything else: shapes, indices.
    Other,
}

/// How an operator runs on quantized activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integer {
    /// It does not, or not yet: only its weights are quantized.
    No,
    /// Runtimes fuse it when its inputs are quantized; its output may stay float.
    FloatOutput,
    /// Runtimes fuse it when its inputs and its output are quantized.
    QuantizedOutput,
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
    /// What it allows at each input; inputs beyond the last are [`Slot::Other`].
    pub inputs: &'static [Slot],
    /// How many inputs it needs.
    pub min_inputs: usize,
    /// How it runs on quantized activations.
    pub integer: Integer,
    /// Whether this node is one that can, given its attributes; checked with `integer`.
    pub allows: fn(&NodeProto) -> bool,
}

/// Every rule, by family.
pub const ALL: &[&[OpRule]] = &[linear::RULES, pass::RULES];

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
    /// Whether it makes new numbers, rather than to move, pick or cut those it is given.
    pub fn computes(&self) -> bool {
        !matches!(self.integer, Integer::SameAsInput { .. } | Integer::Fused)
    }

    /// What the operator allows at this input.
    pub fn slot(&self, input: usize) -> Slot {
        self.inputs.get(input).copied().unwrap_or(Slot::Other)
    }
}

/// Attributes that decisions rest on: operator, name, `AttributeProto.AttributeType`.
const ATTRIBUTES: &[(&str, &str, i32, &str)] = &[
    ("Gemm", "alpha", 1, "a float (1)"),
    ("Gemm", "beta", 1, "a float (1)"),
    ("Gemm", "transA", 2, "an integer (2)"),
    ("Gemm", "transB", 2, "an integer (2)"),
    ("Transpose", "perm", 7, "integers (7)"),
    ("Flatten", "axis", 2, "an integer (2)"),
    ("Reshape", "allowzero", 2, "an integer (2)"),
];

/// Refuses a node that cannot be what it says.
pub(crate) fn check_arity(node: &NodeProto) -> Result<(), QuantizeError> {
    let Some(rule) = rule(node) else { return Ok(()) };
    let inputs = node.input.iter().take_while(|name| !name.is_empty()).count();
    if inputs < rule.min_inputs {
        let what = format!("it has {inputs} inputs, expected at least {}", rule.min_inputs);
        return Err(QuantizeError::node(node, what));
    }
    for (op_type, attribute, kind, what) in ATTRIBUTES {
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

fn always(_: &NodeProto) -> bool {
    true
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
