//! Which products a runtime computes on integers, once it has optimized a model.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The operators that a runtime ran for one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernels {
    /// Products (convolutions, matrix products, recurrent layers, attention) that computed on stored
    /// or computed integers.
    pub on_integers: usize,
    /// Those that computed on floats.
    pub on_floats: usize,
    /// How often each operator ran, whatever it computes.
    pub by_op_type: BTreeMap<String, usize>,
}

/// Operators that multiply and sum, those of ONNX Runtime's own included, and whether they do it
/// with integers.
const PRODUCTS: &[(&str, bool)] = &[
    ("ConvInteger", true),
    ("DynamicQuantizeLSTM", true),
    ("DynamicQuantizeMatMul", true),
    ("MatMulInteger", true),
    ("MatMulIntegerToFloat", true),
    ("MatMulNBits", true),
    ("QAttention", true),
    ("QGemm", true),
    ("QLinearConv", true),
    ("QLinearMatMul", true),
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
    ("MultiHeadAttention", false),
    ("NhwcFusedConv", false),
    ("RNN", false),
    ("TransposeMatMul", false),
];

impl Kernels {
    /// Sorts the operators that ran, of which each ran so often.
    pub fn of(by_op_type: BTreeMap<String, usize>) -> Kernels {
        let count = |integers: bool| {
            let products = PRODUCTS.iter().filter(|(_, does)| *does == integers);
            products.filter_map(|(op_type, _)| by_op_type.get(*op_type)).sum()
        };
        Kernels { on_integers: count(true), on_floats: count(false), by_op_type }
    }

    /// The part of the products that computed on integers; `None` where there was none at all.
    #[allow(clippy::cast_precision_loss)] // as many as a model has nodes
    pub fn share(&self) -> Option<f64> {
        let all = self.on_integers + self.on_floats;
        (all > 0).then(|| self.on_integers as f64 / all as f64)
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.on_integers + self.on_floats;
        write!(f, "{} of {all} products run on integers", self.on_integers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_products_count() {
        let ran = [("QLinearConv", 3), ("Conv", 1), ("Relu", 9), ("QuantizeLinear", 2)];
        let ran = ran.map(|(op_type, count)| (op_type.to_owned(), count));
        let kernels = Kernels::of(BTreeMap::from(ran));
        assert_eq!((kernels.on_integers, kernels.on_floats, kernels.share()), (3, 1, Some(0.75)));
        assert_eq!(Kernels::default().share(), None);
    }

    #[test]
    fn every_product_is_there_once() {
        let mut names: Vec<&str> = PRODUCTS.iter().map(|(op_type, _)| *op_type).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PRODUCTS.len());
    }
}
