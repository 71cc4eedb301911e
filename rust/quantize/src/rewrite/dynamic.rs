//! `DynamicQuantizeLinear` with `MatMulInteger` and `ConvInteger`: integers multiplied by integers, of
//! which one side is found when the model runs.
//!
//! The integer result times both scales is what the node made, in the order of operators that ONNX
//! Runtime fuses: `Cast`, then `Mul` by the product of the scales.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, Kept, NodeProto, Tensor};

use super::matmul_common::{Rest, multipliers};
use super::qdq::Writer;
use crate::encode::EncodedTensor;
use crate::graph::ValueId;
use crate::graph::uses;
use crate::graph::uses::{Along, Use};
use crate::plan::ValuePlan;

/// Names of what a value became when the model runs: integers, scale, zero point.
pub(super) type AtRunTime = [String; 3];

/// The integers of one weight, in the file.
struct Weight {
    /// Names of integers, scale and zero point.
    names: [String; 3],
    /// The float type of the product.
    dtype: DataType,
}

impl Writer<'_, '_> {
    /// Writes a weight of integer products, and the products.
    pub(super) fn dynamic(&mut self, id: ValueId, how: &ValuePlan, tensor: &EncodedTensor) {
        let Some(constant) = self.uses.remove(&id) else { return };
        let consumers = multipliers(&constant);
        let Some(first) = consumers.first().map(|node| self.graph.nodes[*node]) else { return };
        if first.op_type == "LSTM" {
            return self.lstm(id, how, tensor, consumers[0]);
        }
        let name = self.graph.values[id].name;
        let (mut integers, mut scale) = (tensor.quantized.clone(), tensor.scale.clone());
        let mut zero_point = tensor.zero_point.clone();
        if first.op_type == "Conv" {
            // One zero point for all, and scales that meet the channels of what is made.
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
        let dtype = uses::float_type(self.graph, id).unwrap_or(DataType::Float);
        let names = [
            self.constant(name, "quantized", &integers),
            self.constant(name, "scale", &scale),
            self.zero_point(&zero_point),
        ];
        let weight = Weight { names, dtype };
        for node in &consumers {
            self.integer_product(*node, &weight);
        }
        self.take_out_read(id, &consumers);
    }

    fn integer_product(&mut self, node: usize, weight: &Weight) {
        let proto = self.graph.nodes[node];
        let output = proto.output[0].clone();
        let mut rest = Rest::of(proto, weight.dtype);
        let conv = proto.op_type == "Conv";
        let bias = proto.input.get(2).filter(|name| conv && !name.is_empty());
        let bias = bias.map(|bias| self.beside_channels(node, bias));
        rest.addend = bias.as_deref().or(rest.addend);
        let mut made = self.rest_of_product(self.graph.nodes[node], &rest);
        if weight.dtype != DataType::Float {
            let float = self.names.fresh(&output, "float32");
            self.change_type(float.clone(), made, weight.dtype);
            made = float;
        }
        let [integers, scale, zero_point] =
            self.at_run_time(&proto.input[0], weight.dtype != DataType::Float);
        let [by, by_scale, by_zero_point] = weight.names.clone();
        let product = self.names.fresh(&output, "integers");
        let op_type = if conv { "ConvInteger" } else { "MatMulInteger" };
        let mut with = proto.clone();
        op_type.clone_into(&mut with.op_type);
        with.input = vec![integers, by, zero_point, by_zero_point];
        with.output = vec![product.clone()];
        if !conv {
            with.attribute.clear();
        }
        self.edits.push(Edit::ReplaceNode { node, with });
        let scales = self.names.fresh(&output, "scales");
        self.step("Mul", vec![scale, by_scale], scales.clone());
        let sums = self.names.fresh(&output, "sums");
        self.change_type(product, sums.clone(), DataType::Float);
        self.step("Mul", vec![sums, scales], made);
    }

    /// What a value becomes when the model runs: once for all who multiply it.
    fn at_run_time(&mut self, value: &str, cast: bool) -> AtRunTime {
        if let Some(names) = self.at_run_time.get(value) {
            return names.clone();
        }
        let mut float = value.to_owned();
        if cast {
            float = self.names.fresh(value, "float32");
            self.change_type(value.to_owned(), float.clone(), DataType::Float);
        }
        let names = ["quantized", "scale", "zp"].map(|suffix| self.names.fresh(value, suffix));
        let (op_type, outputs) = ("DynamicQuantizeLinear", names.to_vec());
        self.edits.push(Edit::AddNode(NodeProto::new("", op_type, vec![float], outputs, vec![])));
        self.at_run_time.insert(value.to_owned(), names.clone());
        names
    }

    /// A vector with an axis for each of a convolution's result, its own that of the channels.
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
        let attribute = vec![Kept::new(number)];
        self.edits.push(Edit::AddNode(NodeProto::new("", "Cast", vec![from], vec![to], attribute)));
    }
}

/// A matrix of bytes with rows for columns.
pub(super) fn transposed(tensor: &Tensor) -> Tensor {
    /// Rows and columns that are turned together: their bytes stay in the cache.
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
