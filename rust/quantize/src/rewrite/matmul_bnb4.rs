//! `MatMulBnb4`: an operator of ONNX Runtime that reads weights as codes of 4 bits.
//!
//! A weight `W` becomes `W_quantized` and `W_scale`, and the nodes that read `W` are replaced by
//! nodes that read these. The factors and the addend of a `Gemm` become `Mul` and `Add` nodes.

use quantize_rs_math::CodebookSpec;
use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw};

use super::FormatWriter;
use super::matmul_common::{Rest, another, multipliers};
use super::writer::Writer;
use crate::encode::{EncodedTensor, codes};
use crate::graph::ValueId;
use crate::graph::ops::MICROSOFT;
use crate::plan::ValuePlan;

/// The codes of one weight, in the file.
struct Codes {
    /// Names of codes and scales.
    names: [String; 2],
    layout: CodebookSpec,
}

/// Writes weights as codes, and the operators that read them.
pub(super) struct MatMulBnb4;

impl FormatWriter for MatMulBnb4 {
    /// Writes a weight, and replaces the nodes that read it.
    fn weight(
        &mut self,
        writer: &mut Writer<'_, '_>,
        id: ValueId,
        how: &ValuePlan,
        tensor: &EncodedTensor,
    ) {
        let Some(constant) = writer.take_uses(id) else { return };
        let readers = multipliers(&constant);
        let name = writer.graph.values[id].name;
        let Some(layout) = codes::layout(how, &constant.shape) else { return };
        let names = [
            writer.integers(name, "quantized", &tensor.quantized),
            writer.constant(name, "scale", &tensor.scale),
        ];
        let codes = Codes { names, layout };
        for node in readers.iter().copied() {
            let with = writer.coded_product(writer.graph.nodes[node], &codes);
            writer.edits.push(Edit::ReplaceNode { node, with });
        }
        let all = constant.uses.iter().filter_map(|usage| usage.multiplier(writer.graph));
        for reader in all.filter(|reader| reader.index.is_none()).collect::<Vec<_>>() {
            writer.replace_inside(&reader, |writer| writer.coded_product(reader.node, &codes));
        }
        if !constant.stays_float() {
            writer.take_out_read(id, &readers);
        }
        writer.import(MICROSOFT, 1);
    }
}

impl Writer<'_, '_> {
    /// The product of one node. What the node computes in addition is added to the edits.
    fn coded_product(&mut self, proto: &NodeProto, codes: &Codes) -> NodeProto {
        let [values, scale] = codes.names.clone();
        let input = vec![proto.input[0].clone(), values, scale];
        let rest = Rest::of(proto, DataType::Float);
        let CodebookSpec { depth, width, block_size, codebook, .. } = codes.layout;
        let attributes = [("K", depth), ("N", width), ("block_size", block_size)];
        let made = self.rest_of_product(proto, &rest);
        let mut with = another(proto, (MICROSOFT, "MatMulBnb4"), input, made, &attributes);
        let number = AttributeProto::int("quant_type", codebook.number());
        with.attribute.push(Raw::new(number));
        with
    }
}
