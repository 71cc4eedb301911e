//! The operators of quantized models: those that quantize, dequantize, or read integers with their
//! scales. Those with all scales as inputs are in [`qlinear`](super::qlinear).
//!
//! The operators of ONNX Runtime are those of its docs/ContribOperators.md (release 1.32).

use quantize_rs_onnx::{NodeProto, canonical_domain};

use super::ops::MICROSOFT;
use super::qlinear::{self, QLinear};

/// An operator that only occurs in quantized models.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedOp {
    /// Its domain; empty for that of ONNX.
    domain: &'static str,
    /// Its name.
    pub(crate) op_type: &'static str,
    /// What it multiplies matrices in; `None` if it does not.
    pub(crate) multiplies: Option<Arithmetic>,
    /// How it stores a weight; `None` if a `DequantizeLinear` or similar reads it.
    pub(crate) weight: Option<WeightForm>,
    /// The operators on floats that an output format replaces by it.
    pub(crate) replaces: &'static [&'static str],
}

/// The numbers that an operator multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Integers,
    Floats,
}

/// How an operator stores its weights.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WeightForm {
    /// As integers with their zero point; the scale is applied after the multiplication.
    Integers,
    /// As integers with all scales as inputs.
    WithScales(&'static QLinear),
    /// As integers in blocks.
    Blocks(Blocks),
    /// As integers in blocks, with one matrix for each expert.
    Experts(Blocks),
    /// As codes for the numbers of a table.
    Codes,
    /// As both transposed matrices of a recurrent operator.
    Recurrent,
}

/// The inputs with integers in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// Each input with integers, and that with their scales.
    pub(crate) weights: &'static [(usize, usize)],
    /// The input with the zero points of the first.
    pub(crate) zero_points: usize,
    /// The attribute with the number of bits.
    pub(crate) bits: &'static str,
}

const fn row(domain: &'static str, op_type: &'static str) -> QuantizedOp {
    QuantizedOp { domain, op_type, multiplies: None, weight: None, replaces: &[] }
}

const fn product(domain: &'static str, op_type: &'static str) -> QuantizedOp {
    QuantizedOp { multiplies: Some(Arithmetic::Integers), ..row(domain, op_type) }
}

const fn blocks(weights: &'static [(usize, usize)], zero_points: usize) -> Blocks {
    Blocks { weights, zero_points, bits: "bits" }
}

/// All of them but those of [`qlinear::ROWS`].
const ROWS: &[QuantizedOp] = &[
    row("", "QuantizeLinear"),
    row("", "DequantizeLinear"),
    row("", "DynamicQuantizeLinear"),
    QuantizedOp {
        weight: Some(WeightForm::Integers),
        replaces: &["MatMul", "Gemm"],
        ..product("", "MatMulInteger")
    },
    QuantizedOp {
        weight: Some(WeightForm::Integers),
        replaces: &["Conv"],
        ..product("", "ConvInteger")
    },
    QuantizedOp {
        weight: Some(WeightForm::Blocks(blocks(&[(1, 2)], 3))),
        replaces: &["MatMul", "Gemm"],
        ..product(MICROSOFT, "MatMulNBits")
    },
    QuantizedOp {
        multiplies: Some(Arithmetic::Floats),
        weight: Some(WeightForm::Codes),
        replaces: &["MatMul", "Gemm"],
        ..row(MICROSOFT, "MatMulBnb4")
    },
    QuantizedOp {
        weight: Some(WeightForm::Blocks(blocks(&[(0, 2)], 3))),
        replaces: &["Gather"],
        ..row(MICROSOFT, "GatherBlockQuantized")
    },
    QuantizedOp {
        weight: Some(WeightForm::Recurrent),
        replaces: &["LSTM"],
        ..product(MICROSOFT, "DynamicQuantizeLSTM")
    },
    QuantizedOp {
        weight: Some(WeightForm::Experts(Blocks {
            bits: "expert_weight_bits",
            ..blocks(&[(2, 3), (5, 6), (8, 9)], 11)
        })),
        ..product(MICROSOFT, "QMoE")
    },
    // Operators that are read, and not written.
    row(MICROSOFT, "QuantizeLinear"),
    row(MICROSOFT, "DequantizeLinear"),
    row(MICROSOFT, "QuantizeBFP"),
    row(MICROSOFT, "DequantizeBFP"),
    row(MICROSOFT, "QuantizeWithOrder"),
    row(MICROSOFT, "DequantizeWithOrder"),
    product(MICROSOFT, "DynamicQuantizeMatMul"),
    product(MICROSOFT, "MatMulInteger16"),
    QuantizedOp { multiplies: Some(Arithmetic::Floats), ..row(MICROSOFT, "MatMulFpQ4") },
    row(MICROSOFT, "MulInteger"),
    row(MICROSOFT, "QEmbedLayerNormalization"),
    product(MICROSOFT, "QLinearConv"),
    row(MICROSOFT, "QLinearReduceMean"),
    product(MICROSOFT, "QOrderedAttention"),
    row(MICROSOFT, "QOrderedGelu"),
    row(MICROSOFT, "QOrderedLayerNormalization"),
    product(MICROSOFT, "QOrderedLongformerAttention"),
    product(MICROSOFT, "QOrderedMatMul"),
];

/// All operators that only occur in quantized models.
pub(crate) fn all() -> impl Iterator<Item = QuantizedOp> {
    ROWS.iter().copied().chain(qlinear::ROWS.iter().map(|row| QuantizedOp {
        domain: row.domain,
        op_type: row.op_type,
        multiplies: row.multiplies().then_some(Arithmetic::Integers),
        weight: Some(WeightForm::WithScales(row)),
        replaces: &[],
    }))
}

fn find(domain: &str, op_type: &str) -> Option<QuantizedOp> {
    let domain = canonical_domain(domain);
    all().find(|row| row.op_type == op_type && row.domain == domain)
}

/// The row of a node; `None` for an operator on floats.
pub(crate) fn quantized_op(node: &NodeProto) -> Option<QuantizedOp> {
    find(&node.domain, &node.op_type)
}

/// Whether an operator of ONNX or of ONNX Runtime only occurs in quantized models.
pub fn is_quantized_op(domain: &str, op_type: &str) -> bool {
    find(domain, op_type).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_has_one_row() {
        let mut names: Vec<_> = all().map(|row| (row.domain, row.op_type)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn operators_count_in_their_domain_alone() {
        assert!(is_quantized_op("ai.onnx", "QLinearMatMul"));
        assert!(is_quantized_op("", "QLinearConv"));
        assert!(is_quantized_op(MICROSOFT, "QGemm"));
        assert!(is_quantized_op(MICROSOFT, "MatMulBnb4"));
        assert!(!is_quantized_op("", "MatMulBnb4"));
        assert!(!is_quantized_op("com.acme", "QLinearConv"));
        assert!(!is_quantized_op("", "MatMul"));
    }

    #[test]
    fn products_are_those_that_multiply_matrices() {
        let of = |name: &str| all().find(|row| row.op_type == name).unwrap().multiplies;
        for name in ["QLinearMatMul", "QGemm", "QAttention", "MatMulIntegerToFloat", "QMoE"] {
            assert_eq!(of(name), Some(Arithmetic::Integers), "{name}");
        }
        assert_eq!(of("MatMulBnb4"), Some(Arithmetic::Floats));
        for name in ["QLinearAdd", "QLinearConcat", "GatherBlockQuantized", "QuantizeLinear"] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
