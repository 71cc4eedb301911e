//! Describes what each operator supports: one [`OpRule`] per operator, in one table.
//!
//! The integer kernels named here are those that ONNX Runtime 1.31 uses on CPUs, as observed in its
//! optimized graphs.

mod activations;
pub(crate) mod arithmetic;
mod data_movement;
mod einsum;
mod linear;
mod microsoft;
mod norms;
mod recurrent;

use quantize_rs_math::Range;
use quantize_rs_onnx::NodeProto;

use crate::QuantizeError;
use crate::graph::Graph;

/// The role of one input of an operator.
#[derive(Clone, Copy, Debug)]
pub enum Slot {
    /// An activation. Can be quantized if the operator supports integers.
    Activation,
    /// A weight if it is constant. `axis` returns the axis of its output channels.
    Weight {
        /// The axis of output channels of a weight of this rank; `None` if there is none.
        axis: fn(&NodeProto, usize) -> Option<usize>,
    },
    /// A weight if it is constant, otherwise an activation.
    Operand {
        /// The axis of output channels of a weight of this rank; `None` if there is none.
        axis: fn(&NodeProto, usize) -> Option<usize>,
    },
    /// The weight of a recurrent operator or of experts if it is constant: one matrix per direction
    /// or expert, in which each row is an output channel.
    Rows,
    /// A small tensor that scales channels. Quantized only with
    /// [`Placement::AllOps`](crate::Placement::AllOps).
    Scale,
    /// A bias that is added to the result. It is int32 when the operator runs on integers.
    Bias,
    /// Any other input, for example a shape or indices.
    Other,
}

/// How an operator can run on quantized activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerSupport {
    /// The operator runs in float; only its weights are quantized. Holds the reason.
    No(&'static str),
    /// The operator multiplies by weights. Runtimes fuse it if its inputs are quantized; its output
    /// may stay float.
    FloatOutput,
    /// As `FloatOutput`, but runtimes do not fuse it: an output format has to write the operator on
    /// integers, whose bias stays float.
    OperatorAlone,
    /// The operator multiplies by weights. Runtimes fuse it if its inputs and its output are
    /// quantized.
    QuantizedOutput {
        /// The name of the integer kernel, if there is one.
        kernel: Option<&'static str>,
    },
    /// The operator computes new values from its inputs, without weights. Its output needs its own
    /// range.
    Computes {
        /// The name of the integer kernel, if there is one.
        kernel: Option<&'static str>,
    },
    /// The operator only moves or selects elements of input 0. Its output has the scale of its
    /// input.
    SameAsInput {
        /// Whether input and output have the same range. If so, the input may be quantized for the
        /// sake of the output.
        same_range: bool,
    },
    /// An activation function that runtimes fuse into the preceding integer operator.
    Fused,
}

/// The description of one operator.
#[derive(Debug)]
pub struct OpRule {
    /// The operator type.
    pub op_type: &'static str,
    /// The role of each input.
    pub inputs: &'static [Slot],
    /// The role of all further inputs.
    pub more: Slot,
    /// The minimum number of inputs.
    pub min_inputs: usize,
    /// How a given node can run on integers, depending on its attributes and constant inputs.
    pub integer: fn(&Graph<'_>, usize) -> IntegerSupport,
    /// The range of the output, if it does not depend on the input.
    pub range: Option<Range>,
}

/// The domain of ONNX Runtime's own operators.
pub(crate) const MICROSOFT: &str = "com.microsoft";

/// Whether the model has a function of the name of one of ONNX Runtime's own operators.
pub(crate) fn is_function(graph: &Graph<'_>, op_type: &str) -> bool {
    let mut functions = graph.model.proto().functions.iter();
    functions.any(|function| function.domain == MICROSOFT && function.name == op_type)
}

/// All rules of ONNX's own operators, grouped by family.
pub const ALL: &[&[OpRule]] = &[
    linear::RULES,
    arithmetic::RULES,
    activations::RULES,
    data_movement::RULES,
    norms::RULES,
    recurrent::RULES,
];

/// Returns the rule of a node; `None` for unknown operators.
///
/// ```
/// use quantize_rs::ops;
/// assert!(ops::ALL.iter().flat_map(|family| family.iter()).any(|rule| rule.op_type == "Conv"));
/// ```
pub fn rule(node: &NodeProto) -> Option<&'static OpRule> {
    let families = match node.domain.as_str() {
        MICROSOFT => &[microsoft::RULES],
        _ if node.is_onnx() => ALL,
        _ => return None,
    };
    families.iter().flat_map(|family| family.iter()).find(|rule| rule.op_type == node.op_type)
}

/// Whether a node is a `Conv` or `ConvTranspose` of ONNX.
pub(crate) fn is_convolution(node: &NodeProto) -> bool {
    node.is_onnx() && matches!(node.op_type.as_str(), "Conv" | "ConvTranspose")
}

/// Whether a node is an `LSTM`, `GRU` or `RNN` of ONNX.
pub(crate) fn is_recurrent(node: &NodeProto) -> bool {
    node.is_onnx() && recurrent::RULES.iter().any(|rule| rule.op_type == node.op_type)
}

/// How a node can run on integers; `None` for unknown operators.
pub(crate) fn integer_support(graph: &Graph<'_>, node: usize) -> Option<IntegerSupport> {
    Some((rule(graph.nodes[node])?.integer)(graph, node))
}

/// Whether a node only moves or selects elements of input 0.
pub(crate) fn moves_elements(graph: &Graph<'_>, node: usize) -> bool {
    matches!(integer_support(graph, node), Some(IntegerSupport::SameAsInput { .. }))
}

/// The types of all operators that have a rule.
pub(crate) fn op_types() -> impl Iterator<Item = &'static str> {
    let families = ALL.iter().chain(&[microsoft::RULES]);
    families.flat_map(|family| family.iter()).map(|rule| rule.op_type)
}

impl OpRule {
    /// The role of an input.
    pub fn slot(&self, input: usize) -> Slot {
        self.inputs.get(input).copied().unwrap_or(self.more)
    }

    /// Whether the operator can take a weight at this input.
    pub fn takes_weight(&self, input: usize) -> bool {
        matches!(self.slot(input), Slot::Weight { .. } | Slot::Operand { .. } | Slot::Rows)
    }

    /// Whether the operator can take an activation at this input.
    pub fn takes_activation(&self, input: usize) -> bool {
        matches!(self.slot(input), Slot::Activation | Slot::Operand { .. })
    }
}

impl IntegerSupport {
    /// Whether the operator computes new values instead of moving, selecting or clipping its input.
    pub fn computes(self) -> bool {
        !matches!(self, IntegerSupport::SameAsInput { .. } | IntegerSupport::Fused)
    }
}

/// A rule for an operator whose only activation is input 0.
const fn flows(op_type: &'static str, integer: fn(&Graph<'_>, usize) -> IntegerSupport) -> OpRule {
    let inputs = &[Slot::Activation];
    OpRule { op_type, inputs, more: Slot::Other, min_inputs: 1, integer, range: None }
}

/// Computes new values without an integer kernel.
const IN_FLOAT: fn(&Graph<'_>, usize) -> IntegerSupport =
    |_, _| IntegerSupport::Computes { kernel: None };

const FLOAT: &str = "its attributes have no integer kernel";

const STRING: (i32, &str) = (3, "a string (3)");
const INTEGER: (i32, &str) = (2, "an integer (2)");
const INTEGERS: (i32, &str) = (7, "integers (7)");
const NUMBER: (i32, &str) = (1, "a float (1)");

/// The attributes that decisions depend on: operator type, name, `AttributeProto.AttributeType`.
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

/// Returns an error if a node violates the specification of its operator.
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
