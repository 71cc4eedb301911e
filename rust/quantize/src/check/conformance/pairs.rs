//! The `QuantizeLinear`/`DequantizeLinear` pairs of a graph.

use quantize_rs_math::QType;
use quantize_rs_onnx::{DataType, Tensor};

use crate::graph::elements::{integers, qtype_of};
use crate::graph::ops;
use crate::graph::ops::IntegerSupport;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};

/// Scale, zero point and type of a quantized value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parameters {
    pub(super) dtype: DataType,
    pub(super) scales: Vec<f32>,
    pub(super) zero_points: Vec<i32>,
    /// The integers, if they are constant, or reshaped from a constant.
    pub(super) constant: Option<ValueId>,
}

impl Parameters {
    /// Its quantized type, if it is one.
    pub(super) fn qtype(&self) -> Option<QType> {
        qtype_of(self.dtype)
    }
}

/// The values of a graph that are outputs of `DequantizeLinear` or inputs of `QuantizeLinear`.
pub(super) struct Pairs<'g, 'm> {
    pub(super) graph: &'g Graph<'m>,
    restored: Vec<Option<Parameters>>,
}

impl<'g, 'm> Pairs<'g, 'm> {
    pub(super) fn of(graph: &'g Graph<'m>) -> Pairs<'g, 'm> {
        let mut pairs = Pairs { graph, restored: vec![None; graph.values.len()] };
        for node in 0..graph.nodes.len() {
            if graph.nodes[node].op_type == "DequantizeLinear"
                && let Some(output) = graph.output(node, 0)
            {
                pairs.restored[output] = pairs.parameters(node);
            }
        }
        pairs
    }

    /// The parameters of a `QuantizeLinear` or `DequantizeLinear`; `None` if they are not constant.
    pub(super) fn parameters(&self, node: usize) -> Option<Parameters> {
        let graph = self.graph;
        let tensor = |input: usize| {
            let value = graph.input(node, input)?;
            graph.model.tensor(graph.constant(value)?).ok()
        };
        let constant = uses::rearranged_from(graph, graph.input(node, 0)?);
        let scales = tensor(1)?.to_f32()?;
        let quantizes = graph.nodes[node].op_type == "QuantizeLinear";
        let integers = if quantizes { graph.output(node, 0) } else { graph.input(node, 0) };
        let (dtype, zero_points) = if let Some(zero) = tensor(2) {
            (zero.dtype, zero_points_of(&zero)?)
        } else {
            let dtype = graph.dtype(integers?).unwrap_or(DataType::UInt8);
            (dtype, vec![0; scales.len()])
        };
        Some(Parameters { dtype, scales, zero_points, constant })
    }

    pub(super) fn restored(&self, value: Option<ValueId>) -> Option<&Parameters> {
        self.restored[value?].as_ref()
    }

    /// Whether a value is dequantized from integers that were quantized from floats.
    pub(super) fn was_float(&self, value: ValueId) -> bool {
        let mut value = value;
        let mut back = false;
        while let Producer::Node { node, .. } = self.graph.values[value].producer {
            match self.graph.nodes[node].op_type.as_str() {
                "QuantizeLinear" => return back,
                "DequantizeLinear" if !back => back = true,
                _ if back && ops::moves_elements(self.graph, node) => {}
                _ => return false,
            }
            let Some(before) = self.graph.input(node, 0) else { return false };
            value = before;
        }
        false
    }

    /// How all consumers quantize a value, past the activation function that follows it.
    pub(super) fn quantized(&self, value: ValueId) -> Option<Parameters> {
        let mut value = value;
        loop {
            let consumers = &self.graph.values[value].consumers;
            let first = consumers.first()?.node;
            let functions = consumers.len() == 1
                && ops::integer_support(self.graph, first) == Some(IntegerSupport::Fused);
            if functions {
                value = self.graph.output(first, 0)?;
                continue;
            }
            let quantizes = |node: usize| self.graph.nodes[node].op_type == "QuantizeLinear";
            return consumers
                .iter()
                .all(|consumer| quantizes(consumer.node))
                .then(|| self.parameters(first))?;
        }
    }
}

/// Zero points as integers of at least 8 bits.
fn zero_points_of(tensor: &Tensor) -> Option<Vec<i32>> {
    let qtype = qtype_of(tensor.dtype).filter(|qtype| qtype.bits() >= 8)?;
    if qtype.is_float() && qtype.is_scaled() {
        // Only 0 or not matters, and the sign of 0 does not.
        let magnitudes = tensor.data.iter().map(|byte| byte & i8::MAX.cast_unsigned());
        return Some(magnitudes.map(i32::from).collect());
    }
    integers(tensor)
}
