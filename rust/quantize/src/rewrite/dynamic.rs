//! `DynamicQuantizeLinear` with `MatMulInteger` and `ConvInteger`: products of integer weights and
//! activations that are quantized at inference time.
//!
//! The integer result is multiplied by both scales, in the order of operators that ONNX Runtime
//! fuses: `Cast`, then `Mul` by the product of the scales.

use std::collections::HashMap;

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor};

use super::FormatWriter;
use super::lstm::Lstms;
use super::matmul_common::{Rest, multipliers};
use super::writer::Writer;
use crate::encode::EncodedTensor;
use crate::graph::ValueId;
use crate::graph::uses;
use crate::graph::uses::{Along, Use};
use crate::plan::ValuePlan;

/// Names of a value that is quantized at inference time: integers, scale, zero point.
type AtRunTime = [String; 3];

/// The integers of one weight, in the file.
struct Weight {
    /// Names of integers, scale and zero point.
    names: [String; 3],
    /// The float type of the product.
    dtype: DataType,
}

/// Writes integer products, and the nodes that quantize their inputs at inference time.
#[derive(Default)]
pub(super) struct Dynamic {
    /// Values that are quantized at inference time, by name.
    at_run_time: HashMap<String, AtRunTime>,
    lstms: Lstms,
}

impl FormatWriter for Dynamic {
    /// Writes a weight, and the integer products that use it.
    fn weight(
        &mut self,
        writer: &mut Writer<'_, '_>,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
    ) {
        let Some(constant) = writer.take_uses(id) else { return };
        let readers = multipliers(&constant);
        let Some(first) = readers.first().map(|node| writer.graph.nodes[*node]) else { return };
        if first.op_type == "LSTM" {
            return self.lstms.weight(writer, id, how, tensor, readers[0]);
        }
        let name = writer.graph.values[id].name;
        let (mut integers, mut scale) = (tensor.quantized.clone(), tensor.scale.clone());
        let mut zero_point = tensor.zero_point.clone();
        if first.op_type == "Conv" {
            // One zero point for all channels, and scales that broadcast to the output's channels.
            let per_channel = how.spec.granularity != Granularity::PerTensor;
            if per_channel {
                scale.shape.resize(integers.shape.len() - 1, 1);
                zero_point = Tensor {
                    shape: vec![],
                    data: zero_point.data.slice(..zero_point.data.len().min(1)),
                    ..zero_point
                };
            }
        } else {
            let channels = constant.uses.iter().find_map(|usage| match usage {
                Use::Weight { channels, .. } => *channels,
                _ => None,
            });
            if integers.shape.len() == 2 && channels == Some(Along::Axis(0)) {
                integers = transposed(&integers);
            }
        }
        let dtype = uses::float_type(writer.graph, id).unwrap_or(DataType::Float);
        let names = [
            writer.constant(name, "quantized", &integers),
            writer.constant(name, "scale", &scale),
            writer.zero_point(&zero_point),
        ];
        let weight = Weight { names, dtype };
        for node in &readers {
            self.product(writer, *node, &weight);
        }
        writer.take_out_read(id, &readers);
    }
}

impl Dynamic {
    fn product(&mut self, writer: &mut Writer<'_, '_>, node: usize, weight: &Weight) {
        let proto = writer.graph.nodes[node];
        let output = proto.output[0].clone();
        let mut rest = Rest::of(proto, weight.dtype);
        let conv = proto.op_type == "Conv";
        let bias = proto.input.get(2).filter(|name| conv && !name.is_empty());
        let bias = bias.map(|bias| writer.beside_channels(node, bias));
        rest.addend = bias.as_deref().or(rest.addend);
        let mut made = writer.rest_of_product(writer.graph.nodes[node], &rest);
        if weight.dtype != DataType::Float {
            let float = writer.names.fresh(&output, "float32");
            writer.change_type(float.clone(), made, weight.dtype);
            made = float;
        }
        let [integers, scale, zero_point] =
            self.at_run_time(writer, &proto.input[0], weight.dtype != DataType::Float);
        let [by, by_scale, by_zero_point] = weight.names.clone();
        let product = writer.names.fresh(&output, "integers");
        let op_type = if conv { "ConvInteger" } else { "MatMulInteger" };
        let mut with = proto.clone();
        op_type.clone_into(&mut with.op_type);
        with.input = vec![integers, by, zero_point, by_zero_point];
        with.output = vec![product.clone()];
        if !conv {
            with.attribute.clear();
        }
        writer.edits.push(Edit::ReplaceNode { node, with });
        let scales = writer.names.fresh(&output, "scales");
        writer.step("Mul", vec![scale, by_scale], scales.clone());
        let sums = writer.names.fresh(&output, "sums");
        writer.change_type(product, sums.clone(), DataType::Float);
        writer.step("Mul", vec![sums, scales], made);
    }

    /// Quantizes a value at inference time, once for all products that read it.
    fn at_run_time(&mut self, writer: &mut Writer<'_, '_>, value: &str, cast: bool) -> AtRunTime {
        if let Some(names) = self.at_run_time.get(value) {
            return names.clone();
        }
        let mut float = value.to_owned();
        if cast {
            float = writer.names.fresh(value, "float32");
            writer.change_type(value.to_owned(), float.clone(), DataType::Float);
        }
        let names = ["quantized", "scale", "zp"].map(|suffix| writer.names.fresh(value, suffix));
        let (op_type, outputs) = ("DynamicQuantizeLinear", names.to_vec());
        writer.edits.push(Edit::AddNode(NodeProto::new("", op_type, vec![float], outputs, vec![])));
        self.at_run_time.insert(value.to_owned(), names.clone());
        names
    }
}

impl Writer<'_, '_> {
    /// Reshapes a bias so that it broadcasts to the channels of a convolution's result.
    fn beside_channels(&mut self, node: usize, bias: &str) -> String {
        let weight = self.graph.input(node, 1).and_then(|id| self.graph.shape(id));
        let rank = weight.map_or(4, |shape| shape.len());
        let lengths = std::iter::once(-1_i64).chain(std::iter::repeat_n(1, rank.saturating_sub(2)));
        let data: Vec<u8> = lengths.flat_map(i64::to_le_bytes).collect();
        let shape =
            Tensor { dtype: DataType::Int64, shape: vec![data.len() / 8], data: data.into() };
        let shape = self.constant(bias, "shape", &shape);
        let beside = self.names.fresh(bias, "channels");
        self.step("Reshape", vec![bias.to_owned(), shape], beside.clone());
        beside
    }

    fn change_type(&mut self, from: String, to: String, dtype: DataType) {
        let number = AttributeProto::int("to", i64::from(dtype.number()));
        let attribute = vec![Raw::new(number)];
        self.edits.push(Edit::AddNode(NodeProto::new("", "Cast", vec![from], vec![to], attribute)));
    }
}

/// The transpose of a matrix of bytes.
pub(super) fn transposed(tensor: &Tensor) -> Tensor {
    /// Rows and columns of a tile, whose bytes stay in the cache.
    const TILE: usize = 64;
    let [rows, columns] = tensor.shape[..] else { return tensor.clone() };
    let mut data = vec![0; tensor.data.len()];
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for row in top..rows.min(top + TILE) {
                for column in left..columns.min(left + TILE) {
                    data[column * rows + row] = tensor.data[row * columns + column];
                }
            }
        }
    }
    Tensor { dtype: tensor.dtype, shape: vec![columns, rows], data: data.into() }
}
