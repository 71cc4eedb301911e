//! `MatMulNBits` and `GatherBlockQuantized`: operators of ONNX Runtime that read weights in blocks.
//!
//! A weight `W` becomes `W_quantized`, `W_scale` and, if its zero point is not the middle of the
//! stored type, `W_zp`. The nodes that read `W` are replaced by nodes that read these. The factors
//! and the addend of a `Gemm` become `Mul` and `Add` nodes, except a plain bias, which
//! `MatMulNBits` adds itself.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{DataType, Edit, NodeProto, Tensor};

use super::FormatWriter;
use super::experts::Experts;
use super::matmul_common::{Rest, another, multipliers, written_zero_point};
use super::writer::{Writer, floats_of};
use crate::encode::EncodedTensor;
use crate::graph::ValueId;
use crate::graph::constants::of_ints;
use crate::graph::moe::is_moe;
use crate::graph::ops::MICROSOFT;
use crate::plan::ValuePlan;

/// The integers of one weight, in the file.
struct Blocks {
    /// Names of integers, scales and zero points. The last is empty for symmetric weights.
    names: [String; 3],
    bits: u32,
    block_size: usize,
    /// The number of columns of the product, and of elements of each.
    width: usize,
    depth: usize,
    /// The float type of the weight, its scales and the activations.
    dtype: DataType,
}

/// Writes weights in blocks, and the operators that read them.
#[derive(Default)]
pub(super) struct MatMulNBits {
    experts: Experts,
}

impl FormatWriter for MatMulNBits {
    /// Writes a weight in blocks, and replaces the nodes that read it.
    fn weight(
        &mut self,
        writer: &mut Writer<'_, '_>,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
    ) {
        let Granularity::Blocked { axis, block_size } = how.spec.granularity else { return };
        let Some(constant) = writer.take_uses(id) else { return };
        if constant.multipliers(writer.graph).any(is_moe) {
            return self.experts.weight(writer, id, (how, tensor), &constant);
        }
        let readers = multipliers(&constant);
        let name = writer.graph.values[id].name;
        let [width, _, blob] = tensor.quantized.shape[..] else { return };
        let depth = constant.shape[axis];
        let gathers = |node: &usize| writer.graph.nodes[*node].op_type == "Gather";
        let (rows, products): (Vec<usize>, Vec<usize>) = readers.iter().copied().partition(gathers);
        let inside = constant.uses.iter().filter_map(|usage| usage.multiplier(writer.graph));
        let inside = inside.filter(|reader| reader.index.is_none());
        let (rows_inside, products_inside): (Vec<_>, Vec<_>) =
            inside.partition(|reader| reader.node.op_type == "Gather");
        let has_products = !products.is_empty() || !products_inside.is_empty();
        let has_rows = !rows.is_empty() || !rows_inside.is_empty();
        let row_len = (depth * how.spec.qtype.bits() as usize).div_ceil(8);
        let flat = flat(&tensor.quantized, row_len);
        // A table that is also a factor of products is stored once. `GatherBlockQuantized` reads it
        // through a `Reshape`.
        let whole = row_len == tensor.quantized.shape[1] * blob;
        let shared = has_rows && has_products && whole;
        let integers = if has_products {
            writer.integers(name, "quantized", &tensor.quantized)
        } else {
            writer.integers(name, "quantized", &flat)
        };
        let dtype = constant.dtype.unwrap_or(DataType::Float);
        let scale = floats_of(dtype, &tensor.scale);
        let scale = writer.constant(name, "scale", &scale);
        let zero_point = match written_zero_point(how, tensor) {
            Some(zero_point) => writer.constant(name, "zp", zero_point),
            None => String::new(),
        };
        let bits = how.spec.qtype.bits();
        let names = [integers, scale, zero_point];
        let mut blocks = Blocks { names, bits, block_size, width, depth, dtype };
        for node in products {
            let product = writer.product(writer.graph.nodes[node], &blocks);
            writer.edits.push(Edit::ReplaceNode { node, with: product });
        }
        for reader in products_inside {
            writer.replace_inside(&reader, |writer| writer.product(reader.node, &blocks));
        }
        if has_rows && has_products {
            blocks.names[0] = if shared {
                let whole = std::mem::take(&mut blocks.names[0]);
                writer.reshaped(name, whole, &flat)
            } else {
                writer.integers(name, "rows", &flat)
            };
        }
        for node in rows {
            let with = rows_of(writer.graph.nodes[node], &blocks);
            writer.edits.push(Edit::ReplaceNode { node, with });
        }
        for reader in rows_inside {
            writer.replace_inside(&reader, |_| rows_of(reader.node, &blocks));
        }
        if !constant.stays_float() {
            writer.take_out_read(id, &readers);
        }
        writer.import(MICROSOFT, 1);
    }
}

impl Writer<'_, '_> {
    /// The product of one node. What the node computes in addition is added to the edits.
    fn product(&mut self, proto: &NodeProto, blocks: &Blocks) -> NodeProto {
        let [integers, scale, zero_point] = blocks.names.clone();
        let mut input = vec![proto.input[0].clone(), integers, scale, zero_point];
        let mut rest = Rest::of(proto, blocks.dtype);
        let plain = rest.addend.filter(|name| {
            let shape = self.graph.value(name).and_then(|bias| {
                self.graph.constant(bias)?;
                self.graph.shape(bias)
            });
            rest.plain() && shape == Some(vec![Some(blocks.width)])
        });
        if let Some(bias) = plain {
            input.extend([String::new(), bias.to_owned()]);
            rest.addend = None;
        }
        while input.last().is_some_and(String::is_empty) {
            input.pop();
        }
        let mut attributes = vec![
            ("K", blocks.depth),
            ("N", blocks.width),
            ("bits", blocks.bits as usize),
            ("block_size", blocks.block_size),
        ];
        if let Some(level) = self.plan.config.accuracy_level {
            attributes.push(("accuracy_level", usize::from(level)));
        }
        let made = self.rest_of_product(proto, &rest);
        another(proto, (MICROSOFT, "MatMulNBits"), input, made, &attributes)
    }

    /// The same bytes in the shape of another tensor.
    fn reshaped(&mut self, base: &str, integers: String, like: &Tensor) -> String {
        let lengths = like.shape.iter().map(|length| i64::try_from(*length).unwrap_or(i64::MAX));
        let lengths: Vec<i64> = lengths.collect();
        let shape = self.constant(base, "rows_shape", &of_ints(vec![lengths.len()], &lengths));
        let rows = self.names.fresh(base, "rows");
        self.step("Reshape", vec![integers, shape], rows.clone());
        rows
    }
}

/// The `GatherBlockQuantized` of a `Gather`.
fn rows_of(proto: &NodeProto, blocks: &Blocks) -> NodeProto {
    let [integers, scale, zero_point] = blocks.names.clone();
    let mut input = vec![integers, proto.input[1].clone(), scale];
    input.extend(Some(zero_point).filter(|name| !name.is_empty()));
    let attributes = [
        ("bits", blocks.bits as usize),
        ("block_size", blocks.block_size),
        ("gather_axis", 0),
        ("quantize_axis", 1),
    ];
    let output = proto.output[0].clone();
    another(proto, (MICROSOFT, "GatherBlockQuantized"), input, output, &attributes)
}

/// Rows of `row_len` bytes, without the padding of the last block.
fn flat(blobs: &Tensor, row_len: usize) -> Tensor {
    let width = blobs.shape[0];
    let padded = blobs.data.len() / width.max(1);
    let data = if padded == row_len {
        blobs.data.clone()
    } else {
        let rows = blobs.data.chunks_exact(padded.max(1));
        rows.flat_map(|row| &row[..row_len.min(row.len())]).copied().collect()
    };
    Tensor { dtype: blobs.dtype, shape: vec![width, row_len], data }
}
