//! Operators on integers with all scales as inputs: the check that they read the same values as the
//! operators on floats that they replace.

use quantize_rs_onnx::{AttributeProto, DataType, NodeProto};

use super::Check;
use super::wiring::{Walk, equal};
use crate::encode::dequantize::points;
use crate::graph::elements::qtype_of;
use crate::graph::qattention::is_left_out;
use crate::graph::qlinear::{
    QLinear, ROWS, SOFTMAX_ALONG_ONE_AXIS, Slot, limits, number, qlinear_of,
};
use crate::graph::{Graph, Producer, ValueId};

/// Operators that an operator on integers includes: the range of its result limits the values.
pub(super) const FOLDED: [&str; 2] = ["Relu", "Clip"];

/// Whether an operator on floats has a counterpart with scales as inputs.
pub(super) fn has_twin(op_type: &str) -> bool {
    ROWS.iter().any(|row| row.float == op_type && !row.repeats)
}

impl Walk<'_, '_> {
    /// Compares an operator with scales as inputs with the operator on floats that it replaces.
    pub(super) fn qlinear(&mut self, there: usize, here: usize, twin: &QLinear) {
        self.counterparts.insert(here, there);
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        if !self.same_attributes(there, here, twin) {
            let what = "its attributes are not those that it has in the original";
            self.found.problem(Check::Connectivity, is.named(), what);
        }
        let count =
            (0..).take_while(|input| twin.input(*input).is_some_and(|at| at < is.input.len()));
        for input in 0..count.count().max(was.input.len()) {
            let Some(at) = twin.input(input) else { continue };
            if let Some(slot) = twin.slot(input)
                && let Some(what) = self.wrong_at_run_time(here, slot)
            {
                self.found.problem(Check::Scale, is.named(), what);
            }
            let is_bias = twin.bias() == Some(at);
            // Compared separately, since bias correction may have changed it.
            let bias = self.after.input(here, at).filter(|_| is_bias);
            if bias.is_none_or(|bias| self.after.constant(bias).is_none()) {
                self.compare_input(self.before.input(there, input), here, at);
            }
        }
    }

    /// A problem with the scale or the zero point of what `DynamicQuantizeLinear` quantized.
    fn wrong_at_run_time(&self, here: usize, slot: Slot) -> Option<String> {
        let Slot::Scaled { at, scale, zero_point } = slot else { return None };
        let Producer::Node { node, .. } = self.after.values[self.after.input(here, at)?].producer
        else {
            return None;
        };
        let made = self.after.nodes[node];
        if made.op_type != "DynamicQuantizeLinear" || !made.is_onnx() {
            return None;
        }
        let wrong = [(scale, 1, "scale"), (zero_point, 2, "zero point")].into_iter();
        let mut wrong = wrong.filter(|(input, output, _)| {
            self.after.input(here, *input) != self.after.output(node, *output)
        });
        let (input, _, what) = wrong.next()?;
        Some(format!("it does not read the {what} of what it multiplies at input {input}"))
    }

    /// Whether both have the same attributes, except those that only one has and that are defaults.
    fn same_attributes(&self, there: usize, here: usize, twin: &QLinear) -> bool {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let opset = self.before.model.opset("").unwrap_or(SOFTMAX_ALONG_ONE_AXIS);
        let kernel = self.before.input(there, 1).and_then(|weight| self.before.shape(weight));
        let bias = twin.bias().and_then(|at| self.after.input(here, at));
        let bias = bias.is_some_and(|bias| self.after.constant(bias).is_some());
        let says_nothing = |attribute: &AttributeProto| match (twin.float, &*attribute.name) {
            // A factor of the bias is included in the bias.
            ("Gemm", "beta") if bias => true,
            ("Softmax", "opset") => attribute
                .i
                .is_some_and(|i| (i < SOFTMAX_ALONG_ONE_AXIS) == (opset < SOFTMAX_ALONG_ONE_AXIS)),
            ("Softmax", "axis") => {
                attribute.i == Some(if opset < SOFTMAX_ALONG_ONE_AXIS { 1 } else { -1 })
            }
            ("Conv", "kernel_shape") => kernel.as_ref().is_some_and(|kernel| {
                let lengths = attribute.ints.iter().map(|length| usize::try_from(*length).ok());
                kernel.iter().skip(2).copied().eq(lengths)
            }),
            ("Attention", _) => is_left_out(attribute) || attribute.i == Some(0),
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

    /// Checks that the padding value of integers is their zero point, where the original pads with
    /// 0.
    pub(super) fn padding(&mut self, there: usize, here: usize, value: ValueId) {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let original = match self.before.input(there, 2) {
            Some(id) => number(self.before, id),
            None => Some(was.float("value", 0.0)),
        };
        let output = self.after.output(here, 0);
        let zero_point = output.and_then(|id| zero_point_of(self.after, id));
        let (Some(original), Some(zero_point)) = (original, zero_point) else {
            return self.found.skip(is.named(), "its padding value is computed at run time");
        };
        if original != 0.0 || integers_of(self.after, value) != Some(zero_point) {
            let name = self.after.values[value].name;
            let what = format!("it pads with `{name}`, which is not the zero point of its input");
            self.found.problem(Check::Connectivity, is.named(), what);
        }
    }

    /// Checks that the output of an operator on integers, or of a `QuantizeLinear`, stays within
    /// the range of a `Relu` or `Clip` of the original that has no other counterpart. `scale` is
    /// the input with the scale of the output.
    pub(super) fn folded(&mut self, there: usize, here: usize, scale: Option<usize>) {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let Some((min, max)) = limits(self.before, there) else {
            return self.found.skip(was.named(), "its limits are computed at run time");
        };
        let Some((scale, least, most)) = reaches(self.after, here, scale) else {
            return self.found.skip(is.named(), "its scale is computed at run time");
        };
        let slack = f64::from(scale.abs()) * 0.501;
        if least < f64::from(min) - slack || most > f64::from(max) + slack {
            let what = format!(
                "{} of the original limits its output to {min} to {max}; there is no such node, \
                 and the result reaches from {least} to {most}",
                was.label()
            );
            self.found.problem(Check::Scale, is.named(), what);
        }
    }
}

/// Whether a node pads integers.
pub(super) fn pads_integers(after: &Graph<'_>, node: usize) -> bool {
    let proto = after.nodes[node];
    let dtype = || after.input(node, 2).and_then(|value| after.dtype(value));
    proto.is_onnx()
        && proto.op_type == "Pad"
        && matches!(dtype(), Some(DataType::Int8 | DataType::UInt8))
}

/// The zero point with which a value is read, past nodes that move integers; 0 if it is omitted.
fn zero_point_of(after: &Graph<'_>, mut id: ValueId) -> Option<Vec<i32>> {
    let elements = |zero_point: Option<ValueId>| match zero_point {
        Some(id) => integers_of(after, id),
        None => Some(vec![0]),
    };
    // No chain is longer than the graph.
    for _ in 0..=after.nodes.len() {
        let consumer = after.values[id].consumers.first()?;
        let node = after.nodes[consumer.node];
        if node.is_onnx() && node.op_type == "DequantizeLinear" {
            return elements(after.input(consumer.node, 2));
        }
        let Some(row) = qlinear_of(node) else {
            id = after.output(consumer.node, 0)?;
            continue;
        };
        let slots = (0..node.input.len()).map_while(|input| row.slot(input));
        let mut of_value = slots.filter(|slot| slot.at() == consumer.input);
        return match of_value.next()? {
            Slot::Scaled { zero_point, .. } => elements(after.input(consumer.node, zero_point)),
            Slot::Bias(_) | Slot::Plain(_) => None,
        };
    }
    None
}

/// The elements of a constant of integers.
fn integers_of(graph: &Graph<'_>, id: ValueId) -> Option<Vec<i32>> {
    let tensor = graph.model.tensor(graph.constant(id)?).ok()?;
    points(&tensor, tensor.elements())
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

/// The scale of the output of an operator on integers, and its smallest and largest value. The
/// scale is this input, and the zero point the next one.
fn reaches(after: &Graph<'_>, node: usize, scale: Option<usize>) -> Option<(f32, f64, f64)> {
    let at = scale?;
    let scale = number(after, after.input(node, at)?)?;
    let (dtype, zero_point) = match after.input(node, at + 1) {
        Some(id) => {
            let tensor = after.model.tensor(after.constant(id)?).ok()?;
            (tensor.dtype, *points(&tensor, 1)?.first()?)
        }
        None => (after.dtype(after.output(node, 0)?)?, 0),
    };
    let qtype = qtype_of(dtype)?;
    let value = |code: i32| f64::from(scale) * (f64::from(code) - f64::from(zero_point));
    Some((scale, value(qtype.min()), value(qtype.max())))
}
