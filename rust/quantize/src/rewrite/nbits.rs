//! `MatMulNBits` and `GatherBlockQuantized`: operators of ONNX Runtime that read weights in blocks.
//!
//! A weight `W` becomes `W_quantized`, `W_scale` and, where it is not symmetric, `W_zp`, and the node
//! that read it one that reads these. What a `Gemm` does beside the product is left to `Mul` and
//! `Add`, but for a plain bias, which `MatMulNBits` adds itself.

use std::collections::HashSet;

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, Kept, NodeProto, Tensor};

use super::qdq::Writer;
use crate::encode::EncodedTensor;
use crate::graph::ValueId;
use crate::plan::{MICROSOFT, ValuePlan};
use crate::uses::Use;

/// The integers of one weight, in the file.
struct Blocks {
    /// Names of integers, scales and zero points, the latter empty where they are in the middle.
    names: [String; 3],
    bits: u32,
    block_size: usize,
    /// Columns of the product, and elements of each.
    width: usize,
    depth: usize,
}

impl Writer<'_, '_> {
    /// Writes a weight in blocks, and lets its readers read it so.
    pub(super) fn nbits(&mut self, id: ValueId, how: &ValuePlan, tensor: &EncodedTensor) {
        let Granularity::Blocked { axis, block_size } = how.spec.granularity else { return };
        let Some(constant) = self.uses.remove(&id) else { return };
        let readers: Vec<usize> = constant
            .uses
            .iter()
            .filter_map(|usage| match usage {
                Use::Weight { node, .. } => Some(*node),
                _ => None,
            })
            .collect();
        let name = self.graph.values[id].name;
        let [width, _, blob] = tensor.quantized.shape[..] else { return };
        let depth = constant.shape[axis];
        let gathers = |node: &usize| self.graph.nodes[*node].op_type == "Gather";
        let (rows, products): (Vec<usize>, Vec<usize>) = readers.iter().copied().partition(gathers);
        let row_len = (depth * how.spec.qtype.bits() as usize).div_ceil(8);
        let flat = flat(&tensor.quantized, row_len);
        // A table that is multiplied by as well is kept once: the look-up reads it in another shape.
        let whole = row_len == tensor.quantized.shape[1] * blob;
        let shared = !rows.is_empty() && !products.is_empty() && whole;
        let integers = if products.is_empty() {
            self.constant(name, "quantized", &flat)
        } else {
            self.constant(name, "quantized", &tensor.quantized)
        };
        let scale = self.constant(name, "scale", &tensor.scale);
        let zero_point = if how.spec.symmetric {
            String::new()
        } else {
            self.constant(name, "zp", &tensor.zero_point)
        };
        let bits = how.spec.qtype.bits();
        let names = [integers, scale, zero_point];
        let mut blocks = Blocks { names, bits, block_size, width, depth };
        for node in products {
            self.product(node, &blocks);
        }
        if !rows.is_empty() {
            if shared {
                let whole = std::mem::take(&mut blocks.names[0]);
                blocks.names[0] = self.reshaped(name, whole, &flat);
            } else if blocks_of_products(&readers, &rows) {
                blocks.names[0] = self.constant(name, "rows", &flat);
            }
            for node in rows {
                self.rows(node, &blocks);
            }
        }
        self.take_out_read(id, &readers);
        self.import(MICROSOFT, 1);
    }

    /// The product of one node.
    fn product(&mut self, node: usize, blocks: &Blocks) {
        let proto = self.graph.nodes[node];
        let (alpha, beta) = (proto.float("alpha", 1.0), proto.float("beta", 1.0));
        let addend = graph_input(proto, 2).filter(|_| proto.op_type == "Gemm" && is_not(beta, 0.0));
        let factor = (proto.op_type == "Gemm" && is_not(alpha, 1.0)).then_some(alpha);
        let [integers, scale, zero_point] = blocks.names.clone();
        let mut input = vec![proto.input[0].clone(), integers, scale, zero_point];
        let plain = addend.filter(|_| !is_not(beta, 1.0) && factor.is_none());
        let plain = plain.filter(|name| {
            let shape = self.graph.value(name).and_then(|bias| {
                self.graph.constant(bias)?;
                self.graph.shape(bias)
            });
            shape == Some(vec![Some(blocks.width)])
        });
        if let Some(bias) = plain {
            input.extend([String::new(), bias.to_owned()]);
        }
        while input.last().is_some_and(String::is_empty) {
            input.pop();
        }
        let output = proto.output[0].clone();
        // Steps that follow, the last of which makes what the node made.
        let mut steps: Vec<(&str, String)> = Vec::new();
        if let Some(factor) = factor {
            steps.push(("Mul", self.scalar(&output, "alpha", factor)));
        }
        if let Some(addend) = addend.filter(|_| plain.is_none()) {
            let mut addend = addend.to_owned();
            if is_not(beta, 1.0) {
                let beta = self.scalar(&output, "beta", beta);
                let scaled = self.names.fresh(&output, "addend");
                self.step("Mul", vec![addend, beta], scaled.clone());
                addend = scaled;
            }
            steps.push(("Add", addend));
        }
        let mut made =
            if steps.is_empty() { output.clone() } else { self.names.fresh(&output, "product") };
        let mut attributes = vec![
            ("K", blocks.depth),
            ("N", blocks.width),
            ("bits", blocks.bits as usize),
            ("block_size", blocks.block_size),
        ];
        if let Some(level) = self.plan.config.accuracy_level {
            attributes.push(("accuracy_level", usize::from(level)));
        }
        self.replace(node, "MatMulNBits", input, made.clone(), &attributes);
        let count = steps.len();
        for (index, (op_type, operand)) in steps.into_iter().enumerate() {
            let next = if index + 1 == count {
                output.clone()
            } else {
                self.names.fresh(&output, "scaled")
            };
            self.step(op_type, vec![made, operand], next.clone());
            made = next;
        }
    }

    /// The look-up of one node.
    fn rows(&mut self, node: usize, blocks: &Blocks) {
        let proto = self.graph.nodes[node];
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
        self.replace(node, "GatherBlockQuantized", input, output, &attributes);
    }

    /// The same bytes in the shape of another tensor.
    fn reshaped(&mut self, base: &str, integers: String, like: &Tensor) -> String {
        let lengths: Vec<u8> = like
            .shape
            .iter()
            .flat_map(|length| i64::try_from(*length).unwrap_or(i64::MAX).to_le_bytes())
            .collect();
        let shape =
            Tensor { dtype: DataType::Int64, shape: vec![like.shape.len()], data: lengths.into() };
        let shape = self.constant(base, "rows_shape", &shape);
        let rows = self.names.fresh(base, "rows");
        self.step("Reshape", vec![integers, shape], rows.clone());
        rows
    }

    /// Lets a node compute something else of other values, under its name and at its place.
    fn replace(
        &mut self,
        node: usize,
        op_type: &str,
        input: Vec<String>,
        output: String,
        attributes: &[(&str, usize)],
    ) {
        let mut with = self.graph.nodes[node].clone();
        op_type.clone_into(&mut with.op_type);
        MICROSOFT.clone_into(&mut with.domain);
        with.input = input;
        with.output = vec![output];
        let integer = |(name, value): &(&str, usize)| {
            Kept::new(AttributeProto::int(name, i64::try_from(*value).unwrap_or(i64::MAX)))
        };
        with.attribute = attributes.iter().map(integer).collect();
        self.edits.push(Edit::ReplaceNode { node, with });
    }

    /// A node of ONNX's own operators without attributes.
    fn step(&mut self, op_type: &str, input: Vec<String>, output: String) {
        self.edits.push(Edit::AddNode(NodeProto::new("", op_type, input, vec![output], vec![])));
    }

    fn scalar(&mut self, base: &str, suffix: &str, value: f32) -> String {
        self.constant(base, suffix, &Tensor::from_f32(vec![], &[value]))
    }

    /// Imports a domain where it is not.
    fn import(&mut self, domain: &str, version: i64) {
        if self.graph.model.opset(domain).is_none() && self.imported.insert(domain.to_owned()) {
            let domain = domain.to_owned();
            self.edits.push(Edit::SetOpset { domain, version });
        }
    }

    /// Takes a constant out that nobody reads any more, and what rearranged it on the way to
    /// `readers`.
    fn take_out_read(&mut self, id: ValueId, readers: &[usize]) {
        let mut done: HashSet<usize> = readers.iter().copied().collect();
        let mut waiting = vec![id];
        while let Some(value) = waiting.pop() {
            for reader in &self.graph.values[value].readers {
                if !done.insert(reader.node) {
                    continue;
                }
                self.edits.push(Edit::RemoveNode(reader.node));
                waiting.extend(self.graph.output(reader.node, 0));
                let others = self.graph.nodes[reader.node].input.iter().skip(1);
                let others: Vec<ValueId> =
                    others.filter_map(|name| self.graph.value(name)).collect();
                for other in others {
                    let found = &self.graph.values[other];
                    let alone = found.readers.len() == 1 && !found.captured && !found.is_output;
                    if alone && self.graph.constant(other).is_some() {
                        self.take_out(other);
                    }
                }
            }
        }
        self.take_out(id);
    }
}

/// Whether others than those that take rows read it.
fn blocks_of_products(readers: &[usize], rows: &[usize]) -> bool {
    readers.len() > rows.len()
}

/// Rows of `row_len` bytes, without what pads the last block.
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

fn graph_input(node: &NodeProto, input: usize) -> Option<&str> {
    node.input.get(input).map(String::as_str).filter(|name| !name.is_empty())
}

#[allow(clippy::float_cmp)] // what the file says, not a result
fn is_not(value: f32, other: f32) -> bool {
    value != other
}
