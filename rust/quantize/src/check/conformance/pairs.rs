//! The `QuantizeLinear`/`DequantizeLinear` pairs of a graph.

use quantize_rs_math::QType;
use quantize_rs_onnx::DataType;

use crate::graph::elements::qtype_of;
use crate::graph::ops;
use crate::graph::ops::IntegerSupport;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};

/// Scale, zero point and type of a quantized value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parameters {
    pub(super) dtype: DataType,
    pub(super) scales: Vec<f32>,
    pub(super) zero_points: Vec<i64>,
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
        let (dtype, zero_points) = match (tensor(2), constant) {
            (Some(zero), _) => (zero.dtype, integers(zero.dtype, &zero.data)?),
            (None, Some(value)) => (graph.dtype(value)?, vec![0; scales.len()]),
            (None, None) => (DataType::UInt8, vec![0; scales.len()]),
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

/// Zero points as numbers.
fn integers(dtype: DataType, data: &[u8]) -> Option<Vec<i64>> {
    Some(match dtype {
        DataType::Int8 => data.iter().map(|byte| i64::from(byte.cast_signed())).collect(),
        DataType::UInt8 => data.iter().map(|byte| i64::from(*byte)).collect(),
        // Only 0 or not matters, and the sign of 0 does not.
        DataType::Float8E4M3FN | DataType::Float8E5M2 => {
            data.iter().map(|byte| i64::from(byte & i8::MAX.cast_unsigned())).collect()
        }
        DataType::Int16 => {
            data.as_chunks::<2>().0.iter().map(|b| i64::from(i16::from_le_bytes(*b))).collect()
        }
        DataType::UInt16 => {
            data.as_chunks::<2>().0.iter().map(|b| i64::from(u16::from_le_bytes(*b))).collect()
        }
        DataType::Int32 => {
            data.as_chunks::<4>().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect()
        }
        _ => return None,
    })
}
