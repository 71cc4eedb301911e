//! `QMoE`: a mixture of experts of ONNX Runtime that reads weights in blocks.
//!
//! A weight of shape `[experts, rows, columns]` is encoded as a matrix of all rows. Where a `MoE`
//! does not normalize the factors of its experts, `QMoE` gets them as an input.

use std::collections::HashMap;

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor};

use super::matmul_common::written_zero_point;
use super::writer::{Writer, floats_of};
use crate::encode::EncodedTensor;
use crate::graph::ops::MICROSOFT;
use crate::graph::uses::{Constant, Use};
use crate::graph::{ValueId, moe};
use crate::plan::ValuePlan;

/// A weight that waits for the other one of its node.
struct Part {
    name: String,
    integers: Tensor,
    scale: Tensor,
    zero_point: Option<Tensor>,
    bits: u32,
    block_size: usize,
    /// Experts and rows of each.
    lengths: [usize; 2],
}

/// The weights of each `MoE`, by the index of the node.
#[derive(Default)]
pub(super) struct Experts(HashMap<usize, [Option<Part>; 2]>);

impl Experts {
    /// Writes one of the two weights of a `MoE`. The second one also replaces the node.
    pub(super) fn weight(
        &mut self,
        writer: &mut Writer<'_, '_>,
        id: ValueId,
        (how, tensor): (&ValuePlan, &EncodedTensor),
        constant: &Constant<'_>,
    ) {
        let Granularity::Blocked { block_size, .. } = how.spec.granularity else { return };
        let [Use::Weight { node, input, .. }] = constant.uses[..] else { return };
        let &[experts, rows, _] = &constant.shape[..] else { return };
        let place = moe::PROJECTIONS.iter().position(|projection| projection.weight == input);
        let Some(place) = place else { return };
        let part = Part {
            name: writer.graph.values[id].name.to_owned(),
            integers: tensor.quantized.clone(),
            scale: floats_of(constant.dtype.unwrap_or(DataType::Float), &tensor.scale),
            zero_point: written_zero_point(how, tensor).cloned(),
            bits: how.spec.qtype.bits(),
            block_size,
            lengths: [experts, rows],
        };
        writer.take_out_read(id, &[node]);
        let both = self.0.entry(node).or_default();
        both[place] = Some(part);
        if let [Some(one), Some(other)] = both {
            let with = writer.experts(node, [one, other]);
            writer.edits.push(Edit::ReplaceNode { node, with });
        }
    }
}

impl Writer<'_, '_> {
    /// The `QMoE` for a node.
    fn experts(&mut self, node: usize, parts: [&Part; 2]) -> NodeProto {
        let proto = self.graph.nodes[node];
        let [one, other] = parts;
        let blocked = one.block_size == other.block_size && moe::is_block(one.block_size);
        let mut input = vec![String::new(); moe::FACTORS + 1];
        input[0].clone_from(&proto.input[0]);
        input[moe::ROUTER].clone_from(&proto.input[moe::ROUTER]);
        for (projection, part) in moe::PROJECTIONS.iter().zip(parts) {
            input[projection.integers] = self.rows_of(part, "quantized", &part.integers, true);
            self.weights.insert(input[projection.integers].clone(), part.name.clone());
            input[projection.integers + 1] = self.rows_of(part, "scale", &part.scale, blocked);
            let bias = proto.input.get(projection.weight + 1);
            input[projection.integers + 2] = bias.cloned().unwrap_or_default();
            if let Some(zero_point) = &part.zero_point {
                input[projection.zero_points] = self.rows_of(part, "zp", zero_point, true);
            }
        }
        let mut with = proto.clone();
        moe::QMOE.clone_into(&mut with.op_type);
        let normalizes = moe::normalizes(proto);
        with.attribute.retain(|attribute| {
            let name = &*attribute.name;
            moe::SHARED.contains(&name) || name == moe::NORMALIZES && normalizes
        });
        if !normalizes {
            let factors = self.names.fresh(&proto.output[0], "factors");
            self.step("Softmax", vec![proto.input[moe::ROUTER].clone()], factors.clone());
            input[moe::FACTORS] = factors;
        }
        while input.last().is_some_and(String::is_empty) {
            input.pop();
        }
        with.input = input;
        let mut add = |name: &str, value: i64| {
            with.attribute.push(Raw::new(AttributeProto::int(name, value)));
        };
        add(moe::BITS.0, one.bits.into());
        if blocked {
            add("block_size", i64::try_from(one.block_size).unwrap_or(0));
        }
        // Other runtimes than that of a CPU would expect a layout of their own.
        add("weights_prepacked", 0);
        if let Some(level) = self.plan.config.accuracy_level {
            add("accuracy_level", level.into());
        }
        self.import(MICROSOFT, 1);
        with
    }

    /// Writes a tensor with a row for each row of each expert, and returns its name. Numbers of
    /// `blocks` have an axis of their own.
    fn rows_of(&mut self, part: &Part, suffix: &str, tensor: &Tensor, blocks: bool) -> String {
        let [experts, rows] = part.lengths;
        let elements: usize = tensor.shape.iter().product();
        let mut shape = vec![experts, rows];
        shape.extend(blocks.then(|| elements / (experts * rows).max(1)));
        self.constant(&part.name, suffix, &Tensor { shape, ..tensor.clone() })
    }
}
