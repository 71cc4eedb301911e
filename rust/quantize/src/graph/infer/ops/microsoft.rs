//! ONNX Runtime's operators of the domain `com.microsoft` that are common in models.

use quantize_rs_onnx::DataType;

use super::linear::{matmul, product};
use super::quantized::{DEQUANTIZED, QUANTIZED};
use super::{ANY, Call, FLOAT, SAME, Shape, ShapeRule, Type, all, as_first, one};
use crate::graph::infer::dim::Dim;

pub(super) const ALL: &[ShapeRule] = &[
    one("BiasGelu", SAME, as_first),
    one("FastGelu", SAME, as_first),
    one("Gelu", SAME, as_first),
    one("MoE", SAME, as_first),
    one("QMoE", SAME, as_first),
    one("QuickGelu", SAME, as_first),
    one("RotaryEmbedding", SAME, as_first),
    one("QuantizeLinear", QUANTIZED, as_first),
    one("DequantizeLinear", DEQUANTIZED, as_first),
    one("QLinearLeakyRelu", SAME, as_first),
    one("QLinearSigmoid", SAME, as_first),
    one("QLinearSoftmax", SAME, as_first),
    one("QLinearAdd", SAME, |call| call.broadcast(call.shape(0)?, call.shape(3)?)),
    one("QLinearMul", SAME, |call| call.broadcast(call.shape(0)?, call.shape(3)?)),
    one("DynamicQuantizeMatMul", FLOAT, |call| matmul(call, 0, 1)),
    one("MatMulIntegerToFloat", FLOAT, |call| matmul(call, 0, 1)),
    one("FusedMatMul", ANY, fused_matmul),
    one("MatMulNBits", SAME, n_bits),
    one("MatMulBnb4", SAME, n_bits),
    one("GatherBlockQuantized", &[Type::Input(2)], |call| {
        // Several elements may share a byte, so the last axis may be longer than stored.
        let shape = super::indexing::gather(call, 0)?;
        let packed = call.dtype(0) == Some(DataType::UInt8);
        if packed { Some(call.unknowns(shape.len())) } else { Some(shape) }
    }),
    all("DynamicQuantizeLSTM", SAME, super::recurrent::recurrent),
    all("SkipLayerNormalization", SAME, skip_norm),
    all("SkipSimplifiedLayerNormalization", SAME, skip_norm),
    one("MultiHeadAttention", SAME, attention),
    one("Attention", SAME, attention),
    one("QAttention", FLOAT, attention),
    // The caches of keys and values keep their type, which may be another one.
    one(
        "GroupQueryAttention",
        &[Type::Input(0), Type::By(|call| call.dtype(3)), Type::By(|call| call.dtype(4))],
        attention,
    ),
];

fn skip_norm(call: &Call<'_, '_>) -> Vec<Option<Shape>> {
    vec![as_first(call), None, None, as_first(call)]
}

/// The sequence length is that of the queries. The width of the values is specified in several
/// ways.
fn attention(call: &Call<'_, '_>) -> Option<Shape> {
    let mut shape = as_first(call)?;
    let [_, _, width] = &mut shape[..] else { return None };
    *width = call.unknown();
    Some(shape)
}

fn fused_matmul(call: &Call<'_, '_>) -> Option<Shape> {
    let turned = |input: usize, name: &str| {
        let mut shape = call.shape(input)?.clone();
        let rank = shape.len();
        if call.int(name, 0) != 0 && rank > 1 {
            shape.swap(rank - 1, rank - 2);
        }
        Some(shape)
    };
    if call.int("transBatchA", 0) != 0 || call.int("transBatchB", 0) != 0 {
        return None;
    }
    product(call, &turned(0, "transA")?, &turned(1, "transB")?)
}

fn n_bits(call: &Call<'_, '_>) -> Option<Shape> {
    let mut shape = as_first(call)?;
    *shape.last_mut()? = Dim::Fixed(call.attribute("N")?.i?);
    Some(shape)
}
