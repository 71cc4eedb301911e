//! The values that others were quantized, smoothed or cast from.

use std::collections::HashMap;

use quantize_rs_onnx::DataType;

use super::super::stored::base_of;
use super::Walk;
use crate::graph::{Graph, Producer, ValueId};
use crate::options::HalfType;

/// The values of the quantized model without a counterpart of their name of which a value with one
/// is a copy: cast, or quantized and dequantized. Each with the name of that value.
pub(super) fn copied<'m>(
    before: &Graph<'m>,
    after: &Graph<'m>,
    half: Option<HalfType>,
) -> HashMap<ValueId, &'m str> {
    let copy =
        |graph: &Graph<'m>, value| rounded(graph, value).or_else(|| cast(graph, value, half));
    let mut copied = HashMap::new();
    for (id, value) in after.values.iter().enumerate() {
        let there = before.value(value.name);
        if there.is_none_or(|there| copy(before, there).is_some()) {
            continue;
        }
        let mut source = id;
        while let Some(next) = copy(after, source)
            && before.value(after.values[next].name).is_none()
        {
            copied.insert(next, value.name);
            source = next;
        }
    }
    copied
}

impl<'m> Walk<'_, 'm> {
    /// A value before it is cast to 16 bits or back, around what stays as it was: subgraphs, and
    /// operators of ONNX Runtime.
    pub(in crate::check::validate) fn past_casts(
        &self,
        there: ValueId,
        mut here: ValueId,
    ) -> ValueId {
        if cast(self.before, there, self.half).is_some() {
            return here;
        }
        while let Some(source) = cast(self.after, here, self.half) {
            here = self.before_smoothing(source);
        }
        here
    }

    /// The value of the original that a value of the quantized model has the name of, or is the
    /// source of, see [`copied`].
    pub(in crate::check::validate) fn counterpart(&self, here: ValueId) -> Option<&'m str> {
        let name = self.after.values[here].name;
        let own = self.before.value(name).map(|_| name);
        own.or_else(|| self.copied.get(&here).copied())
    }

    /// The result that stands for a value of the original, before what is read of it was quantized,
    /// smoothed or cast.
    pub(super) fn result(&self, there: ValueId, here: ValueId) -> ValueId {
        let name = self.before.values[there].name;
        let mut value = here;
        while self.counterpart(value) != Some(name) {
            let source = self.source(value).or_else(|| cast(self.after, value, self.half));
            let Some(source) = source else { return self.past_casts(there, here) };
            value = source;
        }
        value
    }

    /// A value before it was smoothed, quantized and dequantized.
    pub(super) fn before_smoothing(&self, mut value: ValueId) -> ValueId {
        while let Some(source) = self.source(value) {
            value = source;
        }
        value
    }

    /// The `QuantizeLinear` that a value was quantized by before it was dequantized.
    pub(super) fn quantizes(&self, mut value: ValueId) -> Option<usize> {
        while let Some(source) = rounded(self.after, value) {
            let Producer::Node { node, .. } = self.after.values[value].producer else { break };
            if self.after.nodes[node].op_type == "QuantizeLinear" {
                return Some(node);
            }
            value = source;
        }
        None
    }

    /// The value that a value is quantized, dequantized or smoothed from.
    fn source(&self, value: ValueId) -> Option<ValueId> {
        if let Some(source) = rounded(self.after, value) {
            return Some(source);
        }
        let Producer::Node { node, .. } = self.after.values[value].producer else { return None };
        let new = |name: &str, suffix: &str| {
            base_of(name, suffix).is_some() && self.before.value(name).is_none()
        };
        // A value that is smoothed and then quantized has the name `_smooth_float`.
        let by = || self.after.input(node, 1).map(|by| self.after.values[by].name);
        let smoothed = self.after.nodes[node].op_type == "Mul"
            && (new(self.after.values[value].name, "smooth")
                || by().is_some_and(|by| new(by, "smoothing")));
        self.after.input(node, 0).filter(|_| smoothed)
    }
}

/// A value before it was quantized and dequantized.
pub(in crate::check::validate) fn before_quantization(
    graph: &Graph<'_>,
    mut value: ValueId,
) -> ValueId {
    while let Some(source) = rounded(graph, value) {
        value = source;
    }
    value
}

/// The value that a value is quantized or dequantized from.
fn rounded(graph: &Graph<'_>, value: ValueId) -> Option<ValueId> {
    let Producer::Node { node, .. } = graph.values[value].producer else { return None };
    let proto = graph.nodes[node];
    // The other outputs of `DynamicQuantizeLinear` are its scale and its zero point.
    let passes = match proto.op_type.as_str() {
        "QuantizeLinear" | "DequantizeLinear" => true,
        "DynamicQuantizeLinear" => graph.output(node, 0) == Some(value),
        _ => false,
    };
    graph.input(node, 0).filter(|_| passes && proto.is_onnx())
}

/// The value that a value is cast from, between float32 and the type that a model computes in.
fn cast(graph: &Graph<'_>, value: ValueId, half: Option<HalfType>) -> Option<ValueId> {
    let half = half?;
    // The type of what an operator of ONNX Runtime makes may not be known.
    let float = |value: ValueId| {
        let dtype = graph.dtype(value);
        dtype.is_none_or(|dtype| dtype == DataType::Float || dtype == half.data_type())
    };
    let Producer::Node { node, .. } = graph.values[value].producer else { return None };
    let source = graph.input(node, 0).filter(|_| graph.nodes[node].op_type == "Cast")?;
    Some(source).filter(|source| float(*source) && float(value))
}
