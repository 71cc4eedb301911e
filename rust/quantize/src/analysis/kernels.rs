//! The matrix multiplications that a runtime computes on integers after its optimizations.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The operators that a runtime ran for one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernels {
    /// Operators that multiply matrices (convolution, matrix multiplication, recurrent layers,
    /// attention) and compute on stored or computed integers.
    pub on_integers: usize,
    /// Such operators that compute on floats.
    pub on_floats: usize,
    /// The number of runs of each operator type.
    pub by_op_type: BTreeMap<String, usize>,
}

/// Operators that multiply matrices, including those of ONNX Runtime, and whether they compute on
/// integers.
const PRODUCTS: &[(&str, bool)] = &[
    ("ConvInteger", true),
    ("DynamicQuantizeLSTM", true),
    ("DynamicQuantizeMatMul", true),
    ("MatMulInteger", true),
    ("MatMulIntegerToFloat", true),
    ("MatMulNBits", true),
    ("MatMulBnb4", false),
    ("QAttention", true),
    ("QGemm", true),
    ("QLinearConv", true),
    ("QLinearMatMul", true),
    ("QMoE", true),
    ("Attention", false),
    ("Conv", false),
    ("ConvTranspose", false),
    ("Einsum", false),
    ("FusedConv", false),
    ("FusedGemm", false),
    ("FusedMatMul", false),
    ("FusedMatMulActivation", false),
    ("GRU", false),
    ("Gemm", false),
    ("GroupQueryAttention", false),
    ("LSTM", false),
    ("MatMul", false),
    ("MoE", false),
    ("MultiHeadAttention", false),
    ("NhwcFusedConv", false),
    ("RNN", false),
    ("TransposeMatMul", false),
];

impl Kernels {
    /// Classifies the operators that ran.
    pub fn of(by_op_type: BTreeMap<String, usize>) -> Kernels {
        let count = |integers: bool| {
            let products = PRODUCTS.iter().filter(|(_, does)| *does == integers);
            products.filter_map(|(op_type, _)| by_op_type.get(*op_type)).sum()
        };
        Kernels { on_integers: count(true), on_floats: count(false), by_op_type }
    }

    /// The fraction of matrix multiplications on integers; `None` if there were none.
    #[allow(clippy::cast_precision_loss)] // as many as a model has nodes
    pub fn share(&self) -> Option<f64> {
        let all = self.on_integers + self.on_floats;
        (all > 0).then(|| self.on_integers as f64 / all as f64)
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.on_integers + self.on_floats;
        write!(f, "{} of {all} matrix multiplications run on integers", self.on_integers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matrix_multiplications_count() {
        let ran = [("QLinearConv", 3), ("Conv", 1), ("Relu", 9), ("QuantizeLinear", 2)];
        let ran = ran.map(|(op_type, count)| (op_type.to_owned(), count));
        let kernels = Kernels::of(BTreeMap::from(ran));
        assert_eq!((kernels.on_integers, kernels.on_floats, kernels.share()), (3, 1, Some(0.75)));
        assert_eq!(Kernels::default().share(), None);
    }

    #[test]
    fn every_operator_is_listed_once() {
        let mut names: Vec<&str> = PRODUCTS.iter().map(|(op_type, _)| *op_type).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PRODUCTS.len());
    }
}
