//! Finds quantized values: what a `DequantizeLinear` reads, and what a `QuantizeLinear` writes.

use quantize_rs_onnx::{DataType, NodeProto, Tensor};

use crate::encode::dequantize::points;
use crate::graph::elements::{qtype_of, to_f32};
use crate::graph::{Consumer, Graph, Producer, ValueId};

/// Integers with their scale and zero point.
#[derive(Clone, Debug)]
pub(super) struct Codes<'m> {
    /// The value with the integers.
    pub(super) name: &'m str,
    /// The constant with the scales.
    pub(super) scale: &'m str,
    /// The constant with the zero points; `None` for 0.
    pub(super) zero_point: Option<&'m str>,
    pub(super) scales: Vec<f32>,
    pub(super) zero_points: Vec<i32>,
    pub(super) dtype: DataType,
    /// Whether scale and zero point have no axes.
    pub(super) is_scalar: bool,
    /// The axis of the scales; `None` for a single scale.
    pub(super) axis: Option<i64>,
    /// The `DequantizeLinear` or `QuantizeLinear`.
    pub(super) node: usize,
}

impl Codes<'_> {
    /// Whether there is a single scale.
    pub(super) fn is_per_tensor(&self) -> bool {
        self.scales.len() == 1
    }

    /// Whether larger integers stand for larger numbers.
    pub(super) fn is_positive(&self) -> bool {
        self.scales.iter().all(|scale| scale.is_finite() && *scale > 0.0)
    }

    /// Whether they have 8 bits.
    pub(super) fn is_8_bit(&self) -> bool {
        matches!(self.dtype, DataType::Int8 | DataType::UInt8)
    }

    /// Whether both have one scale and zero point, and these are equal.
    #[allow(clippy::float_cmp)] // constants of the file, not computed numbers
    pub(super) fn equals(&self, other: &Codes<'_>) -> bool {
        self.is_per_tensor()
            && self.dtype == other.dtype
            && self.scales == other.scales
            && self.zero_points == other.zero_points
    }

    /// The integer of a number, as `QuantizeLinear` computes it.
    fn code(&self, number: f32) -> Option<i32> {
        let (qtype, scale) = (qtype_of(self.dtype)?, *self.scales.first()?);
        let zero_point = *self.zero_points.first()?;
        let steps = (number / scale).round_ties_even();
        if steps.is_nan() {
            return None;
        }
        #[allow(clippy::cast_possible_truncation)] // saturates, and is clamped
        let code = (steps as i32).saturating_add(zero_point);
        Some(code.clamp(qtype.min(), qtype.max()))
    }

    /// Whether numbers below `least` and above `most` have the integers of these limits, which are
    /// the ends of the type.
    pub(super) fn saturate_at(&self, least: f32, most: f32) -> bool {
        qtype_of(self.dtype).is_some_and(|qtype| {
            self.code(least) == Some(qtype.min()) && self.code(most) == Some(qtype.max())
        })
    }
}

/// The integers of a value that a `DequantizeLinear` writes.
pub(super) fn dequantized<'m>(graph: &Graph<'m>, id: ValueId) -> Option<Codes<'m>> {
    let Producer::Node { node, .. } = graph.values[id].producer else { return None };
    let proto = graph.nodes[node];
    if !proto.is_onnx() || proto.op_type != "DequantizeLinear" {
        return None;
    }
    let integers = graph.input(node, 0)?;
    codes(graph, node, graph.values[integers].name, || graph.dtype(integers))
}

/// The integers that a `QuantizeLinear` writes, if nothing else reads its input.
pub(super) fn quantized<'m>(graph: &Graph<'m>, id: ValueId) -> Option<Codes<'m>> {
    let Consumer { node, input: 0 } = graph.only_consumer(id)? else { return None };
    let proto = graph.nodes[node];
    if !proto.is_onnx() || proto.op_type != "QuantizeLinear" {
        return None;
    }
    let output = graph.output(node, 0)?;
    let dtype = || graph.dtype(output).or(Some(DataType::UInt8));
    codes(graph, node, graph.values[output].name, dtype).filter(Codes::is_per_tensor)
}

fn codes<'m>(
    graph: &Graph<'m>,
    node: usize,
    name: &'m str,
    dtype: impl FnOnce() -> Option<DataType>,
) -> Option<Codes<'m>> {
    let proto: &NodeProto = graph.nodes[node];
    if proto.int("block_size", 0) != 0 {
        return None;
    }
    let constant = |input: usize| {
        let id = graph.input(node, input)?;
        let tensor: Tensor = graph.model.tensor(graph.constant(id)?).ok()?;
        Some((graph.values[id].name, tensor))
    };
    let (scale, tensor) = constant(1)?;
    if tensor.dtype != DataType::Float {
        return None;
    }
    let scales = to_f32(&tensor)?;
    let mut is_scalar = tensor.shape.is_empty();
    let (zero_point, zero_points, dtype) = match graph.input(node, 2) {
        Some(_) => {
            let (name, tensor) = constant(2)?;
            is_scalar &= tensor.shape.is_empty();
            (Some(name), points(&tensor, scales.len())?, tensor.dtype)
        }
        None => (None, vec![0; scales.len()], dtype()?),
    };
    let axis = (scales.len() != 1).then(|| proto.int("axis", 1));
    if scales.is_empty() {
        return None;
    }
    Some(Codes { name, scale, zero_point, scales, zero_points, dtype, is_scalar, axis, node })
}
