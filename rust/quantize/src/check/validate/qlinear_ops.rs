//! Operators on integers with all scales as inputs: the operators on floats that they replace, and
//! the check that both read the same values.

use quantize_rs_math::QType;
use quantize_rs_onnx::{AttributeProto, NodeProto};

use super::Check;
use super::wiring::{Step, Walk, equal};
use crate::encode::dequantize::points;
use crate::graph::elements::{data_type, to_f32};
use crate::graph::{Graph, ValueId};
use crate::plan::MICROSOFT;

/// An operator on integers, as runtimes and their tools write it, with its operator on floats.
pub(super) struct Twin {
    /// Its name.
    op_type: &'static str,
    /// Its domain.
    domain: &'static str,
    /// The operator on floats.
    pub(super) float: &'static str,
    /// The inputs of the operator on floats, in their order; each except a bias is followed by its
    /// scale and its zero point.
    pub(super) inputs: &'static [usize],
    /// Whether the last of them repeats, as the inputs of a `Concat` do.
    more: bool,
    /// The input with the scale of its output, which the zero point follows.
    output: usize,
}

const fn twin(
    (domain, op_type): (&'static str, &'static str),
    float: &'static str,
    inputs: &'static [usize],
    output: usize,
) -> Twin {
    Twin { op_type, domain, float, inputs, more: false, output }
}

/// All operators on integers with scales as inputs.
const TWINS: &[Twin] = &[
    twin(("", "QLinearConv"), "Conv", &[0, 3, 8], 6),
    twin(("", "QLinearMatMul"), "MatMul", &[0, 3], 6),
    twin((MICROSOFT, "QGemm"), "Gemm", &[0, 3, 6], 7),
    twin((MICROSOFT, "QLinearAdd"), "Add", &[0, 3], 6),
    twin((MICROSOFT, "QLinearMul"), "Mul", &[0, 3], 6),
    twin((MICROSOFT, "QLinearSigmoid"), "Sigmoid", &[0], 3),
    twin((MICROSOFT, "QLinearLeakyRelu"), "LeakyRelu", &[0], 3),
    twin((MICROSOFT, "QLinearSoftmax"), "Softmax", &[0], 3),
    twin((MICROSOFT, "QLinearAveragePool"), "AveragePool", &[0], 3),
    twin((MICROSOFT, "QLinearGlobalAveragePool"), "GlobalAveragePool", &[0], 3),
    Twin { more: true, ..twin((MICROSOFT, "QLinearConcat"), "Concat", &[2], 0) },
];

/// Operators that an operator on integers includes: the range of its result limits the values.
pub(super) const FOLDED: [&str; 2] = ["Relu", "Clip"];

/// The opset since which `Softmax` works along one axis, by default the last.
const ALONG_ONE_AXIS: i64 = 13;

/// The row of an operator on integers.
pub(super) fn twin_of(node: &NodeProto) -> Option<&'static Twin> {
    let same = |twin: &&Twin| {
        let domain = if node.is_onnx() { "" } else { &node.domain };
        twin.op_type == node.op_type && twin.domain == domain
    };
    TWINS.iter().find(same)
}

/// Whether an operator on floats has a counterpart with scales as inputs.
pub(super) fn has_twin(op_type: &str) -> bool {
    TWINS.iter().any(|twin| twin.float == op_type && !twin.more)
}

impl Twin {
    /// The input that holds an input of the operator on floats.
    pub(super) fn input(&self, input: usize) -> Option<usize> {
        let last = self.inputs.len().saturating_sub(1);
        match self.inputs.get(input) {
            Some(at) => Some(*at),
            None if self.more => Some(self.inputs[last] + (input - last) * 3),
            None => None,
        }
    }

    /// The input that holds the bias.
    pub(super) fn bias(&self) -> Option<usize> {
        self.inputs.get(2).copied()
    }
}

impl Walk<'_, '_> {
    /// Compares an operator with scales as inputs with the operator on floats that it replaces.
    pub(super) fn twins(&mut self, there: usize, here: usize, twin: &Twin) {
        self.pairs.insert(here, there);
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        if !self.same_attributes(there, here, twin) {
            let what = "its attributes are not those that it has in the original";
            self.found.problem(Check::Connectivity, is.named(), what);
        }
        let count =
            (0..).take_while(|input| twin.input(*input).is_some_and(|at| at < is.input.len()));
        for input in 0..count.count().max(was.input.len()) {
            let Some(at) = twin.input(input) else { continue };
            let (name, from) = (is.named().to_owned(), is.label());
            let is_bias = twin.bias() == Some(at);
            match (self.before.input(there, input), self.after.input(here, at)) {
                (None, None) => {}
                // Compared separately, since bias correction may have changed it.
                (_, Some(bias)) if is_bias && self.after.constant(bias).is_some() => {}
                (Some(there), Some(here_value)) => {
                    let consumer = Some((here, at));
                    self.waiting.push(Step { there, here: here_value, name, from, consumer });
                }
                (Some(a), None) => {
                    let read = self.before.values[a].name;
                    let what = format!("input {at} is missing, the original reads `{read}`");
                    self.found.problem(Check::Connectivity, name, what);
                }
                (None, Some(b)) => {
                    let read = self.after.values[b].name;
                    let what = format!("it reads `{read}` at input {at}, the original nothing");
                    self.found.problem(Check::Connectivity, name, what);
                }
            }
        }
    }

    /// Whether both have the same attributes, except those that only one has and that are defaults.
    fn same_attributes(&self, there: usize, here: usize, twin: &Twin) -> bool {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let opset = self.before.model.opset("").unwrap_or(ALONG_ONE_AXIS);
        let kernel = self.before.input(there, 1).and_then(|weight| self.before.shape(weight));
        let bias = twin.bias().and_then(|at| self.after.input(here, at));
        let bias = bias.is_some_and(|bias| self.after.constant(bias).is_some());
        let says_nothing = |attribute: &AttributeProto| match (twin.float, &*attribute.name) {
            // A factor of the bias is included in the bias.
            ("Gemm", "beta") if bias => true,
            ("Softmax", "opset") => {
                attribute.i.is_some_and(|i| (i < ALONG_ONE_AXIS) == (opset < ALONG_ONE_AXIS))
            }
            ("Softmax", "axis") => attribute.i == Some(if opset < ALONG_ONE_AXIS { 1 } else { -1 }),
            ("Conv", "kernel_shape") => kernel.as_ref().is_some_and(|kernel| {
                let lengths = attribute.ints.iter().map(|length| usize::try_from(*length).ok());
                kernel.iter().skip(2).copied().eq(lengths)
            }),
            _ => is_usual(twin.float, attribute),
        };
        let said = |one: &NodeProto, other: &NodeProto| {
            one.attribute.iter().all(|attribute| match other.attribute(&attribute.name) {
                Some(there) => equal(attribute, there),
                None => says_nothing(attribute),
            })
        };
        said(was, is) && said(is, was)
    }

    /// Whether the output of an operator on integers stays within the range of a `Relu` or `Clip`
    /// of the original that has no other counterpart.
    pub(super) fn folded(&mut self, there: usize, here: usize, twin: &Twin) {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let Some((min, max)) = limits(self.before, there) else {
            return self.found.skip(was.named(), "its limits are computed at run time");
        };
        let Some((scale, least, most)) = reaches(self.after, here, twin) else {
            return self.found.skip(is.named(), "its scale is computed at run time");
        };
        let slack = f64::from(scale.abs()) * 0.501;
        if least < min - slack || most > max + slack {
            let what = format!(
                "{} of the original limits its output to {min} to {max}; there is no such node, \
                 and the result reaches from {least} to {most}",
                was.label()
            );
            self.found.problem(Check::Scale, is.named(), what);
        }
    }
}

/// Whether an attribute has its default value.
#[allow(clippy::float_cmp)] // attributes of the file, not computed numbers
fn is_usual(op_type: &str, attribute: &AttributeProto) -> bool {
    match (op_type, &*attribute.name) {
        ("Gemm", "alpha" | "beta") => attribute.f == Some(1.0),
        ("LeakyRelu", "alpha") => attribute.f == Some(0.01),
        (_, "transA" | "transB" | "ceil_mode" | "count_include_pad" | "channels_last") => {
            attribute.i == Some(0)
        }
        (_, "group") => attribute.i == Some(1),
        (_, "auto_pad") => attribute.s.as_deref() == Some(b"NOTSET"),
        (_, "dilations" | "strides") => attribute.ints.iter().all(|x| *x == 1),
        (_, "pads") => attribute.ints.iter().all(|x| *x == 0),
        _ => false,
    }
}

/// The limits of a `Relu` or `Clip`; `None` if they are computed.
fn limits(before: &Graph<'_>, node: usize) -> Option<(f64, f64)> {
    let proto = before.nodes[node];
    if proto.op_type == "Relu" {
        return Some((0.0, f64::INFINITY));
    }
    let limit = |input: usize, name: &str, none: f32| {
        let Some(id) = before.input(node, input) else { return Some(proto.float(name, none)) };
        number(before, id)
    };
    let (min, max) = (limit(1, "min", f32::NEG_INFINITY)?, limit(2, "max", f32::INFINITY)?);
    Some((f64::from(min), f64::from(max)))
}

/// The scale of the output of an operator on integers, and its smallest and largest value.
fn reaches(after: &Graph<'_>, node: usize, twin: &Twin) -> Option<(f32, f64, f64)> {
    let scale = number(after, after.input(node, twin.output)?)?;
    let (dtype, zero_point) = match after.input(node, twin.output + 1) {
        Some(id) => {
            let tensor = after.model.tensor(after.constant(id)?).ok()?;
            (tensor.dtype, *points(&tensor, 1)?.first()?)
        }
        None => (after.dtype(after.output(node, 0)?)?, 0),
    };
    let qtype = QType::ALL.iter().copied().find(|qtype| data_type(*qtype) == dtype)?;
    let value = |code: i32| f64::from(scale) * (f64::from(code) - f64::from(zero_point));
    Some((scale, value(qtype.min()), value(qtype.max())))
}

/// The single number of a constant.
pub(super) fn number(graph: &Graph<'_>, id: ValueId) -> Option<f32> {
    let tensor = graph.model.tensor(graph.constant_behind(id)?).ok()?;
    match to_f32(&tensor)?[..] {
        [number] => Some(number),
        _ => None,
    }
}
