//! The matrix multiplications that a runtime computes on integers after its optimizations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quantize_rs_onnx::{GraphProto, Model, NodeProto};
use serde::{Deserialize, Serialize};

use crate::graph::quantized_ops::{self, Arithmetic};

/// The operators that a runtime ran for one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernels {
    /// The runtime that ran them.
    #[serde(default)]
    pub engine: String,
    /// Operators that multiply matrices (convolution, matrix multiplication, recurrent layers,
    /// attention) and compute on stored or computed integers.
    pub on_integers: usize,
    /// Such operators that compute on floats.
    pub on_floats: usize,
    /// The number of runs of each operator type.
    pub by_op_type: BTreeMap<String, usize>,
}

/// Operators that multiply matrices of floats, including those of ONNX Runtime.
const ON_FLOATS: &[&str] = &[
    "Attention",
    "Conv",
    "ConvTranspose",
    "Einsum",
    "FusedConv",
    "FusedGemm",
    "FusedMatMul",
    "FusedMatMulActivation",
    "GRU",
    "Gemm",
    "GroupQueryAttention",
    "LSTM",
    "MatMul",
    "MoE",
    "MultiHeadAttention",
    "NhwcFusedConv",
    "RNN",
    "TransposeMatMul",
];

/// The operators that multiply matrices of these numbers. A runtime names them without their
/// domain, so that two may have one name.
fn products(arithmetic: Arithmetic) -> BTreeSet<&'static str> {
    let quantized = quantized_ops::all().filter(|row| row.multiplies == Some(arithmetic));
    let floats = ON_FLOATS.iter().copied().filter(|_| arithmetic == Arithmetic::Floats);
    quantized.map(|row| row.op_type).chain(floats).collect()
}

/// The operator that multiplies by blocks of weights. It quantizes its input at accuracy level 4;
/// otherwise it dequantizes the weights, block by block. Those that ONNX Runtime puts in place of
/// other nodes have level 4, unless an option of the session says another.
const NBITS: &str = "MatMulNBits";

/// The level at which it multiplies integers.
const INTEGER_LEVEL: i64 = 4;

/// The number of `MatMulNBits` in a graph, and in its subgraphs, that multiply floats.
fn float_blocks(graph: &GraphProto) -> usize {
    let of_node = |node: &NodeProto| {
        let floats = node.op_type == NBITS && node.int("accuracy_level", 0) != INTEGER_LEVEL;
        usize::from(floats) + node.subgraphs().map(float_blocks).sum::<usize>()
    };
    graph.node.iter().map(|node| of_node(node)).sum()
}

impl Kernels {
    /// Classifies the operators that a runtime ran.
    pub fn of(engine: &str, by_op_type: BTreeMap<String, usize>) -> Kernels {
        let count = |arithmetic: Arithmetic| {
            products(arithmetic).into_iter().filter_map(|op_type| by_op_type.get(op_type)).sum()
        };
        let (on_integers, on_floats) = (count(Arithmetic::Integers), count(Arithmetic::Floats));
        Kernels { engine: engine.to_owned(), on_integers, on_floats, by_op_type }
    }

    /// As [`of`](Kernels::of), for the run of a model, whose `MatMulNBits` say what they multiply.
    pub(crate) fn of_model(
        model: &Model,
        engine: &str,
        by_op_type: BTreeMap<String, usize>,
    ) -> Kernels {
        let mut kernels = Kernels::of(engine, by_op_type);
        let ran = kernels.by_op_type.get(NBITS).copied().unwrap_or(0);
        let floats = float_blocks(model.graph()).min(ran);
        kernels.on_integers -= floats;
        kernels.on_floats += floats;
        kernels
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
        write!(f, "{} of {all} matrix multiplications run on integers", self.on_integers)?;
        if self.engine.is_empty() { Ok(()) } else { write!(f, " ({})", self.engine) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matrix_multiplications_count() {
        let ran = [("QLinearConv", 3), ("Conv", 1), ("Relu", 9), ("QuantizeLinear", 2)];
        let ran = ran.map(|(op_type, count)| (op_type.to_owned(), count));
        let kernels = Kernels::of("onnxruntime", BTreeMap::from(ran));
        assert_eq!((kernels.on_integers, kernels.on_floats, kernels.share()), (3, 1, Some(0.75)));
        assert_eq!(Kernels::default().share(), None);
    }

    #[test]
    fn no_operator_multiplies_both() {
        let (integers, floats) = (products(Arithmetic::Integers), products(Arithmetic::Floats));
        assert!(integers.contains("QAttention") && integers.contains("MatMulNBits"));
        assert!(floats.contains("MatMulBnb4") && floats.contains("Conv"));
        assert!(integers.is_disjoint(&floats));
    }
}
