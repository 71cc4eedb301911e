//! All operators of the ONNX domain, and how each opset version changed them.
//!
//! Source: `onnx.defs.get_all_schemas_with_history()` of ONNX 1.23; `tests/python/test_opset.py`
//! fails when a version is missing here.

use quantize_rs_onnx::NodeProto;

use super::context::NodeContext;
use super::{activation, legacy, norm, resize, sampling, shapes, types};

/// Converts a node from the previous opset version to this one. Returns whether the node changed,
/// or the reason why the conversion is impossible.
pub(super) type Adapter = fn(&mut NodeProto, &mut NodeContext<'_, '_>) -> Result<bool, String>;

/// How an opset version changed an operator.
#[derive(Clone, Copy)]
pub(super) enum Change {
    /// Compatibly: more types, or attributes and inputs whose defaults keep the previous behavior.
    Same,
    /// Incompatibly; an adapter converts nodes.
    By(Adapter),
    /// Incompatibly; older nodes have no equivalent. Holds the reason.
    No(&'static str),
}

/// An operator.
pub(super) struct Operator {
    name: &'static str,
    /// The opset version that introduced it.
    since: i64,
    /// The opset versions that changed it, in order.
    steps: &'static [(i64, Change)],
}

/// The next conversion step of a node.
pub(super) enum Next {
    /// The node has reached the target version.
    Done,
    /// This opset version changed the operator.
    Step(i64, Change),
    /// The operator does not exist in this opset version.
    Unknown,
}

/// The first opset version after `at`, up to `to`, that changed the operator.
pub(super) fn next(op_type: &str, at: i64, to: i64) -> Next {
    let found = OPERATORS.binary_search_by(|operator| operator.name.cmp(op_type));
    let Some(operator) = found.ok().and_then(|index| OPERATORS.get(index)) else {
        return Next::Unknown;
    };
    if operator.since > at {
        return Next::Unknown;
    }
    match operator.steps.iter().find(|(version, _)| *version > at) {
        Some((version, change)) if *version <= to => Next::Step(*version, *change),
        _ => Next::Done,
    }
}

/// The types of all operators of ONNX, in every opset version.
///
/// ```
/// assert!(quantize_rs::onnx_op_types().any(|op_type| op_type == "Shape"));
/// ```
pub fn onnx_op_types() -> impl Iterator<Item = &'static str> {
    OPERATORS.iter().map(|operator| operator.name)
}

const fn row(name: &'static str, since: i64, steps: &'static [(i64, Change)]) -> Operator {
    Operator { name, since, steps }
}

const fn same(version: i64) -> (i64, Change) {
    (version, Change::Same)
}

const fn by(version: i64, adapter: Adapter) -> (i64, Change) {
    (version, Change::By(adapter))
}

const fn no(version: i64, why: &'static str) -> (i64, Change) {
    (version, Change::No(why))
}

const REPEATS: &str = "it repeats a single axis, and newer opsets define Tile differently";
const BATCHES: &str =
    "it scans each sample of a batch separately, which newer opsets do not support";

/// Sorted by name.
const OPERATORS: &[Operator] = &[
    row("Abs", 1, &[by(6, legacy::in_place), same(13)]),
    row("Acos", 7, &[same(22)]),
    row("Acosh", 9, &[same(22)]),
    row("Add", 1, &[by(6, legacy::in_place), by(7, legacy::broadcast), same(13), same(14)]),
    row("AffineGrid", 20, &[]),
    row("And", 1, &[by(7, legacy::broadcast)]),
    row("ArgMax", 1, &[same(11), same(12), same(13)]),
    row("ArgMin", 1, &[same(11), same(12), same(13)]),
    row("Asin", 7, &[same(22)]),
    row("Asinh", 9, &[same(22)]),
    row("Atan", 7, &[same(22)]),
    row("Atanh", 9, &[same(22)]),
    row("Attention", 23, &[same(24), same(25)]),
    row("AveragePool", 1, &[same(7), same(10), same(11), same(19), same(22)]),
    row(
        "BatchNormalization",
        1,
        &[
            by(6, legacy::in_place),
            by(7, legacy::test_mode),
            by(9, norm::spatial),
            by(14, norm::training),
            same(15),
        ],
    ),
    row("Bernoulli", 15, &[same(22)]),
    row("BitCast", 26, &[]),
    row("BitShift", 11, &[same(28)]),
    row("BitwiseAnd", 18, &[]),
    row("BitwiseNot", 18, &[]),
    row("BitwiseOr", 18, &[]),
    row("BitwiseXor", 18, &[]),
    row("BlackmanWindow", 17, &[]),
    row(
        "Cast",
        1,
        &[
            by(6, legacy::cast),
            same(9),
            same(13),
            same(19),
            same(21),
            same(23),
            same(24),
            same(25),
            same(28),
        ],
    ),
    row("CastLike", 15, &[same(19), same(21), same(23), same(24), same(25)]),
    row("CausalConvWithState", 27, &[]),
    row("Ceil", 1, &[by(6, legacy::in_place), same(13)]),
    row("Celu", 12, &[same(28)]),
    row("CenterCropPad", 18, &[]),
    row("Clip", 1, &[by(6, legacy::in_place), by(11, activation::clip), same(12), same(13)]),
    row("Col2Im", 18, &[]),
    row("Compress", 9, &[same(11), same(28)]),
    row("Concat", 1, &[by(4, legacy::concat), same(11), same(13)]),
    row("ConcatFromSequence", 11, &[]),
    row(
        "Constant",
        1,
        &[same(9), same(11), same(12), same(13), same(19), same(21), same(23), same(24), same(25)],
    ),
    row("ConstantOfShape", 9, &[same(20), same(21), same(23), same(24), same(25)]),
    row("Conv", 1, &[same(11), same(22)]),
    row("ConvInteger", 10, &[]),
    row("ConvTranspose", 1, &[same(11), same(22)]),
    row("Cos", 7, &[same(22)]),
    row("Cosh", 9, &[same(22)]),
    row("CumProd", 26, &[]),
    row("CumSum", 11, &[same(14)]),
    row("DFT", 17, &[by(20, shapes::dft)]),
    row("DeformConv", 19, &[same(22)]),
    row("DepthToSpace", 1, &[same(11), same(13), same(28)]),
    row(
        "DequantizeLinear",
        10,
        &[same(13), same(19), same(21), same(23), same(24), same(25), same(28)],
    ),
    row("Det", 11, &[same(22)]),
    row("Div", 1, &[by(6, legacy::in_place), by(7, legacy::broadcast), same(13), same(14)]),
    row(
        "Dropout",
        1,
        &[
            by(6, legacy::in_place),
            by(7, legacy::test_mode),
            by(10, activation::dropout_mask),
            by(12, activation::dropout),
            same(13),
            same(22),
        ],
    ),
    row("DynamicQuantizeLinear", 11, &[]),
    row("Einsum", 12, &[same(28)]),
    row("Elu", 1, &[by(6, legacy::in_place), same(22)]),
    row("Equal", 1, &[by(7, legacy::broadcast), same(11), same(13), same(19)]),
    row("Erf", 9, &[by(13, types::no_integers)]),
    row("Exp", 1, &[by(6, legacy::in_place), same(13)]),
    row("Expand", 8, &[same(13)]),
    row("EyeLike", 9, &[same(22)]),
    row("Flatten", 1, &[same(9), same(11), same(13), same(21), same(23), same(24), same(25)]),
    row("Floor", 1, &[by(6, legacy::in_place), same(13)]),
    row("GRU", 1, &[same(3), by(7, legacy::whole_sequence), same(14), same(22)]),
    row("Gather", 1, &[same(11), same(13)]),
    row("GatherElements", 11, &[same(13)]),
    row("GatherND", 11, &[same(12), same(13)]),
    row("Gelu", 20, &[]),
    row("Gemm", 1, &[same(6), by(7, legacy::gemm), same(9), same(11), same(13)]),
    row("GlobalAveragePool", 1, &[same(22)]),
    row("GlobalLpPool", 1, &[by(2, legacy::power), same(22)]),
    row("GlobalMaxPool", 1, &[same(22)]),
    row("Greater", 1, &[by(7, legacy::broadcast), same(9), same(13)]),
    row("GreaterOrEqual", 12, &[same(16)]),
    row("GridSample", 16, &[by(20, sampling::grid_sample), same(22)]),
    row("GroupNormalization", 18, &[by(21, norm::group)]),
    row("HammingWindow", 17, &[]),
    row("HannWindow", 17, &[]),
    row("HardSigmoid", 1, &[by(6, legacy::in_place), same(22)]),
    row("HardSwish", 14, &[same(22)]),
    row("Hardmax", 1, &[same(11), by(13, activation::coerced)]),
    row(
        "Identity",
        1,
        &[same(13), same(14), same(16), same(19), same(21), same(23), same(24), same(25)],
    ),
    row("If", 1, &[same(11), same(13), same(16), same(19), same(21), same(23), same(24), same(25)]),
    row("ImageDecoder", 20, &[]),
    row("InstanceNormalization", 1, &[by(6, legacy::in_place), same(22)]),
    row("IsInf", 10, &[same(20)]),
    row("IsNaN", 9, &[same(13), same(20)]),
    row("LRN", 1, &[same(13)]),
    row("LSTM", 1, &[by(7, legacy::whole_sequence), same(14), same(22)]),
    // Before opset 17 it is that of ONNX Runtime, which has it in the domain of ONNX.
    row("LayerNormalization", 1, &[same(17)]),
    row("LeakyRelu", 1, &[by(6, legacy::in_place), same(16)]),
    row("Less", 1, &[by(7, legacy::broadcast), same(9), same(13)]),
    row("LessOrEqual", 12, &[same(16)]),
    row("LinearAttention", 27, &[]),
    row("Log", 1, &[by(6, legacy::in_place), same(13)]),
    row("LogSoftmax", 1, &[same(11), by(13, activation::coerced)]),
    row(
        "Loop",
        1,
        &[same(11), same(13), same(16), same(19), same(21), same(23), same(24), same(25)],
    ),
    row("LpNormalization", 1, &[same(22)]),
    row("LpPool", 1, &[by(2, legacy::power), same(11), same(18), same(22)]),
    row("MatMul", 1, &[same(9), same(13)]),
    row("MatMulInteger", 10, &[]),
    row("Max", 1, &[by(6, legacy::in_place), same(8), same(12), same(13)]),
    row("MaxPool", 1, &[same(8), same(10), same(11), same(12), same(22)]),
    row("MaxRoiPool", 1, &[same(22)]),
    row("MaxUnpool", 9, &[same(11), same(22)]),
    row("Mean", 1, &[by(6, legacy::in_place), same(8), same(13)]),
    row("MeanVarianceNormalization", 9, &[same(13)]),
    row("MelWeightMatrix", 17, &[]),
    row("Min", 1, &[by(6, legacy::in_place), same(8), same(12), same(13)]),
    row("Mish", 18, &[same(22)]),
    row("Mod", 10, &[same(13), same(28)]),
    row("Mul", 1, &[by(6, legacy::in_place), by(7, legacy::broadcast), same(13), same(14)]),
    row("Multinomial", 7, &[same(22)]),
    row("Neg", 1, &[by(6, legacy::in_place), same(13)]),
    row("NegativeLogLikelihoodLoss", 12, &[same(13), same(22)]),
    row("NonMaxSuppression", 10, &[same(11)]),
    row("NonZero", 9, &[same(13)]),
    row("Not", 1, &[]),
    row("OneHot", 9, &[same(11), same(28)]),
    row("Optional", 15, &[same(28)]),
    row("OptionalGetElement", 15, &[same(18), same(28)]),
    row("OptionalHasElement", 15, &[same(18), same(28)]),
    row("Or", 1, &[by(7, legacy::broadcast)]),
    row("PRelu", 1, &[by(6, legacy::in_place), by(7, legacy::slope), same(9), same(16)]),
    row(
        "Pad",
        1,
        &[
            by(2, legacy::pad),
            by(11, shapes::pad),
            same(13),
            same(18),
            same(19),
            same(21),
            same(23),
            same(24),
            same(25),
        ],
    ),
    row("Pow", 1, &[by(7, legacy::broadcast), same(12), same(13), same(15)]),
    row("QLinearConv", 10, &[]),
    row("QLinearMatMul", 10, &[same(21)]),
    row(
        "QuantizeLinear",
        10,
        &[same(13), same(19), same(21), same(23), same(24), same(25), same(28)],
    ),
    row("RMSNormalization", 23, &[]),
    row("RNN", 1, &[by(7, legacy::whole_sequence), same(14), same(22)]),
    row("RandomNormal", 1, &[same(22)]),
    row("RandomNormalLike", 1, &[same(22)]),
    row("RandomUniform", 1, &[same(22)]),
    row("RandomUniformLike", 1, &[same(22)]),
    row("Range", 11, &[same(27)]),
    row("Reciprocal", 1, &[by(6, legacy::in_place), same(13)]),
    row("ReduceL1", 1, &[same(11), same(13), by(18, shapes::axes_to_input)]),
    row("ReduceL2", 1, &[same(11), same(13), by(18, shapes::axes_to_input)]),
    row(
        "ReduceLogSum",
        1,
        &[same(11), same(13), by(18, shapes::axes_to_input), by(28, types::no_integers)],
    ),
    row(
        "ReduceLogSumExp",
        1,
        &[same(11), same(13), by(18, shapes::axes_to_input), by(28, types::no_integers)],
    ),
    row("ReduceMax", 1, &[same(11), same(12), same(13), by(18, shapes::axes_to_input), same(20)]),
    row("ReduceMean", 1, &[same(11), same(13), by(18, shapes::axes_to_input)]),
    row("ReduceMin", 1, &[same(11), same(12), same(13), by(18, shapes::axes_to_input), same(20)]),
    row("ReduceProd", 1, &[same(11), same(13), by(18, shapes::axes_to_input)]),
    row("ReduceSum", 1, &[same(11), by(13, shapes::axes_to_input)]),
    row("ReduceSumSquare", 1, &[same(11), same(13), by(18, shapes::axes_to_input)]),
    row("RegexFullMatch", 20, &[]),
    row("Relu", 1, &[by(6, legacy::in_place), same(13), same(14)]),
    row(
        "Reshape",
        1,
        &[
            by(5, legacy::reshape),
            same(13),
            same(14),
            same(19),
            same(21),
            same(23),
            same(24),
            same(25),
        ],
    ),
    row("Resize", 10, &[by(11, resize::resize_11), by(13, resize::resize_13), same(18), same(19)]),
    row("ReverseSequence", 10, &[same(28)]),
    row("RoiAlign", 10, &[by(16, sampling::roi_align), same(22)]),
    row("RotaryEmbedding", 23, &[]),
    row("Round", 11, &[same(22)]),
    row("STFT", 17, &[]),
    row(
        "Scan",
        8,
        &[no(9, BATCHES), same(11), same(16), same(19), same(21), same(23), same(24), same(25)],
    ),
    row("Scatter", 9, &[by(11, shapes::scatter)]),
    row("ScatterElements", 11, &[same(13), same(16), same(18)]),
    row("ScatterND", 11, &[same(13), same(16), same(18)]),
    row("Selu", 1, &[by(6, legacy::selu), same(22)]),
    row("SequenceAt", 11, &[]),
    row("SequenceConstruct", 11, &[]),
    row("SequenceEmpty", 11, &[]),
    row("SequenceErase", 11, &[]),
    row("SequenceInsert", 11, &[]),
    row("SequenceLength", 11, &[]),
    row("SequenceMap", 17, &[]),
    row("Shape", 1, &[same(13), same(15), same(19), same(21), same(23), same(24), same(25)]),
    row("Shrink", 9, &[]),
    row("Sigmoid", 1, &[by(6, legacy::in_place), same(13)]),
    row("Sign", 9, &[same(13)]),
    // Of ONNX Runtime, which has it in the domain of ONNX.
    row("SimplifiedLayerNormalization", 1, &[]),
    row("Sin", 7, &[same(22)]),
    row("Sinh", 9, &[same(22)]),
    row("Size", 1, &[same(13), same(19), same(21), same(23), same(24), same(25)]),
    row("Slice", 1, &[by(10, shapes::slice), same(11), same(13)]),
    row("Softmax", 1, &[same(11), by(13, activation::coerced)]),
    row("SoftmaxCrossEntropyLoss", 12, &[same(13)]),
    row("Softplus", 1, &[same(22)]),
    row("Softsign", 1, &[same(22)]),
    row("SpaceToDepth", 1, &[same(13), same(28)]),
    row(
        "Split",
        1,
        &[
            by(2, legacy::split),
            same(11),
            by(13, shapes::split_to_input),
            by(18, shapes::split_counted),
        ],
    ),
    row("SplitToSequence", 11, &[same(24)]),
    row("Sqrt", 1, &[by(6, legacy::in_place), same(13)]),
    row(
        "Squeeze",
        1,
        &[same(11), by(13, shapes::axes_to_input), same(21), same(23), same(24), same(25)],
    ),
    row("StringConcat", 20, &[]),
    row("StringNormalizer", 10, &[]),
    row("StringSplit", 20, &[]),
    row("Sub", 1, &[by(6, legacy::in_place), by(7, legacy::broadcast), same(13), same(14)]),
    row("Sum", 1, &[by(6, legacy::in_place), same(8), same(13)]),
    row("SwiGLU", 28, &[]),
    row("Swish", 24, &[]),
    row("Tan", 7, &[same(22)]),
    row("Tanh", 1, &[by(6, legacy::in_place), same(13)]),
    row("TensorScatter", 24, &[]),
    row("TfIdfVectorizer", 9, &[]),
    row("ThresholdedRelu", 10, &[same(22)]),
    row("Tile", 1, &[no(6, REPEATS), same(13)]),
    row("TopK", 1, &[by(10, shapes::top_k), same(11), same(24)]),
    row("Transpose", 1, &[same(13), same(21), same(23), same(24), same(25)]),
    row("Trilu", 14, &[]),
    row("Unique", 11, &[same(28)]),
    row(
        "Unsqueeze",
        1,
        &[same(11), by(13, shapes::axes_to_input), same(21), same(23), same(24), same(25)],
    ),
    row(
        "Upsample",
        1,
        &[
            by(7, resize::upsample_by_factors),
            by(9, resize::scales_to_input),
            by(10, resize::upsample),
        ],
    ),
    row("Where", 9, &[same(16)]),
    row("Xor", 1, &[by(7, legacy::broadcast)]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_and_their_versions_are_in_order() {
        assert!(OPERATORS.is_sorted_by(|a, b| a.name < b.name));
        for operator in OPERATORS {
            let versions = operator.steps.iter().map(|(version, _)| *version);
            let versions: Vec<i64> = std::iter::once(operator.since).chain(versions).collect();
            assert!(versions.is_sorted_by(|a, b| a < b), "{}", operator.name);
        }
    }
}
