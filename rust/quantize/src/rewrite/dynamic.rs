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
use super::matmul_common::Rest;
use super::writer::Writer;
use crate::encode::EncodedTensor;
use crate::graph::constants::of_ints;
use crate::graph::uses;
use crate::graph::uses::{Along, Multiplier};
use crate::graph::{ValueId, qattention};
use crate::plan::ValuePlan;

/// Names of a value that is quantized at inference time: integers, scale, zero point.
type AtRunTime = [String; 3];

/// The integers of one weight, in the file.
struct Weight {
    /// Names of integers, scale and zero point.
    names: [String; 3],
    /// The float type of the product.
    dtype: DataType,
    rank: usize,
}

/// Writes integer products, and the nodes that quantize their inputs at inference time.
#[derive(Default)]
pub(super) struct Dynamic {
    /// Values that are quantized at inference time, by subgraph and name. A subgraph quantizes what
    /// it reads by itself.
    at_run_time: HashMap<(Option<usize>, String), AtRunTime>,
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
        let graph = writer.graph;
        let all = constant.uses.iter().filter_map(|usage| usage.multiplier(graph));
        let (rows, readers): (Vec<Multiplier<'_>>, Vec<_>) =
            all.partition(|reader| reader.node.op_type == "Gather");
        let Some(first) = readers.first() else { return };
        if first.node.op_type == "LSTM" {
            return self.lstms.weight(writer, id, how, tensor, first);
        }
        let name = writer.graph.values[id].name;
        let (mut integers, mut scale) = (tensor.quantized.clone(), tensor.scale.clone());
        let mut zero_point = tensor.zero_point.clone();
        if first.node.op_type == "Conv" {
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
        } else if integers.shape.len() == 2 && first.channels == Some(Along::Axis(0)) {
            integers = transposed(&integers);
        }
        // A table that is also a factor of products is stored once.
        let table = (!rows.is_empty()).then(|| writer.tied_table(id, how, tensor));
        let dtype = uses::float_type(writer.graph, id).unwrap_or(DataType::Float);
        let names = [
            table.unwrap_or_else(|| writer.integers(name, "quantized", &integers)),
            writer.constant(name, "scale", &scale),
            writer.zero_point(&zero_point),
        ];
        let weight = Weight { names, dtype, rank: tensor.quantized.shape.len() };
        for reader in &readers {
            match reader.index {
                Some(node) => {
                    let with = self.product(writer, reader, &weight);
                    writer.edits.push(Edit::ReplaceNode { node, with });
                }
                None => writer.replace_inside(reader, |it| self.product(it, reader, &weight)),
            }
        }
        let readers: Vec<usize> = rows.iter().chain(&readers).filter_map(|it| it.index).collect();
        if !constant.stays_float() {
            writer.take_out_read(id, &readers);
        }
    }
}

impl Dynamic {
    /// The integer product of one node. The nodes around it are added to the edits.
    fn product(
        &mut self,
        writer: &mut Writer<'_, '_>,
        reader: &Multiplier<'_>,
        weight: &Weight,
    ) -> NodeProto {
        let proto = reader.node;
        if qattention::is_attention(proto) {
            return self.attention(writer, reader, weight);
        }
        let output = proto.output[0].clone();
        let mut rest = Rest::of(proto, weight.dtype);
        let conv = proto.op_type == "Conv";
        let bias = proto.input.get(2).filter(|name| conv && !name.is_empty());
        let bias = bias.map(|bias| writer.beside_channels(weight.rank, bias));
        rest.addend = bias.as_deref().or(rest.addend);
        let mut made = writer.rest_of_product(proto, &rest);
        if weight.dtype != DataType::Float {
            let float = writer.names.fresh(&output, "float32");
            writer.change_type(float.clone(), made, weight.dtype);
            made = float;
        }
        let at = (reader.body, proto.input[0].clone());
        let [integers, scale, zero_point] =
            self.at_run_time(writer, at, weight.dtype != DataType::Float);
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
        let scales = writer.names.fresh(&output, "scales");
        writer.step("Mul", vec![scale, by_scale], scales.clone());
        let sums = writer.names.fresh(&output, "sums");
        writer.change_type(product, sums.clone(), DataType::Float);
        writer.step("Mul", vec![sums, scales], made);
        with
    }

    /// The `QAttention` of one node.
    fn attention(
        &mut self,
        writer: &mut Writer<'_, '_>,
        reader: &Multiplier<'_>,
        weight: &Weight,
    ) -> NodeProto {
        let proto = reader.node;
        let at = (reader.body, proto.input[0].clone());
        let [integers, scale, zero_point] = self.at_run_time(writer, at, false);
        let [by, by_scale, by_zero_point] = weight.names.clone();
        let input = |input: usize| proto.input.get(input).cloned().unwrap_or_default();
        let [bias, mask, past] = [2, 3, 4].map(input);
        let mut with = proto.clone();
        qattention::QATTENTION.clone_into(&mut with.op_type);
        with.attribute = qattention::attributes(proto);
        with.input =
            vec![integers, by, bias, scale, by_scale, mask, zero_point, by_zero_point, past];
        while with.input.last().is_some_and(String::is_empty) {
            with.input.pop();
        }
        with
    }

    /// Quantizes a value at inference time, once for all products of a graph that read it.
    fn at_run_time(
        &mut self,
        writer: &mut Writer<'_, '_>,
        at: (Option<usize>, String),
        cast: bool,
    ) -> AtRunTime {
        if let Some(names) = self.at_run_time.get(&at) {
            return names.clone();
        }
        let value = at.1.as_str();
        let mut float = value.to_owned();
        if cast {
            float = writer.names.fresh(value, "float32");
            writer.change_type(value.to_owned(), float.clone(), DataType::Float);
        }
        let names = ["quantized", "scale", "zp"].map(|suffix| writer.names.fresh(value, suffix));
        let (op_type, outputs) = ("DynamicQuantizeLinear", names.to_vec());
        writer.edits.push(Edit::AddNode(NodeProto::new("", op_type, vec![float], outputs, vec![])));
        self.at_run_time.insert(at, names.clone());
        names
    }
}

impl Writer<'_, '_> {
    /// Writes the integers of a table whose rows are taken, and returns the name of their
    /// transpose, which runtimes compute when they load the model.
    fn tied_table(&mut self, id: ValueId, how: &ValuePlan, tensor: &EncodedTensor) -> String {
        let name = self.graph.values[id].name;
        let integers = self.integers(name, "quantized", &tensor.quantized);
        self.table(id, how, tensor, &integers);
        let turned = self.names.fresh(name, "transposed");
        self.step("Transpose", vec![integers], turned.clone());
        turned
    }

    /// Reshapes a bias so that it broadcasts to the channels of a convolution's result.
    fn beside_channels(&mut self, rank: usize, bias: &str) -> String {
        let lengths = std::iter::once(-1_i64).chain(std::iter::repeat_n(1, rank.saturating_sub(2)));
        let lengths: Vec<i64> = lengths.collect();
        let shape = self.constant(bias, "shape", &of_ints(vec![lengths.len()], &lengths));
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
