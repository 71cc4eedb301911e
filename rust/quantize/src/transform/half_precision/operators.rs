//! Which operators are defined for 16-bit floats, and which of their inputs and outputs are not.
//!
//! An operator of ONNX that has no row takes 16-bit floats at all inputs and outputs, in every
//! opset; one of another domain that has no row takes none.

use quantize_rs_onnx::{NodeProto, canonical_domain};

use crate::graph::ops::{MICROSOFT, rule};
use crate::options::HalfType;
use Defined::{Never, Since};

/// Since which opset of its domain an operator is defined for a type.
#[derive(Clone, Copy)]
enum Defined {
    Since(i64),
    Never,
}

/// What an operator takes.
struct OperatorRow {
    op_type: &'static str,
    float16: Defined,
    bfloat16: Defined,
    /// Inputs that are float32 whatever the others are: sizes and coordinates.
    float32_inputs: &'static [usize],
    /// Outputs that are float32 whatever the others are.
    float32_outputs: &'static [usize],
}

impl OperatorRow {
    const fn of(op_type: &'static str, float16: Defined, bfloat16: Defined) -> OperatorRow {
        OperatorRow { op_type, float16, bfloat16, float32_inputs: &[], float32_outputs: &[] }
    }

    const fn with(
        op_type: &'static str,
        float32_inputs: &'static [usize],
        float32_outputs: &'static [usize],
    ) -> OperatorRow {
        let (float16, bfloat16) = (Since(1), Since(1));
        OperatorRow { op_type, float16, bfloat16, float32_inputs, float32_outputs }
    }
}

/// The operators of ONNX that differ from the rule. `bfloat16` is asked for
/// [its opset](HalfType::since_opset) and later ones alone.
const ONNX_ROWS: &[OperatorRow] = &[
    // It would read 16 bits instead of 32.
    OperatorRow::of("BitCast", Never, Never),
    // ONNX Runtime has no kernels for 16 bits on a CPU, or expands them with float32.
    OperatorRow::of("AffineGrid", Never, Never),
    OperatorRow::of("BlackmanWindow", Never, Never),
    OperatorRow::of("EyeLike", Never, Never),
    OperatorRow::of("HammingWindow", Never, Never),
    OperatorRow::of("HannWindow", Never, Never),
    OperatorRow::of("RandomNormal", Never, Never),
    OperatorRow::of("RandomNormalLike", Never, Never),
    OperatorRow::of("RandomUniform", Never, Never),
    OperatorRow::of("RandomUniformLike", Never, Never),
    OperatorRow::of("Celu", Never, Never),
    OperatorRow::of("Compress", Since(1), Since(28)),
    OperatorRow::of("ConcatFromSequence", Never, Never),
    OperatorRow::of("CumSum", Since(14), Since(14)),
    OperatorRow::with("Dropout", &[1], &[]),
    OperatorRow::of("DynamicQuantizeLinear", Never, Never),
    OperatorRow::of("Einsum", Since(1), Since(28)),
    // The coordinates may have another type than the image.
    OperatorRow::with("GridSample", &[1], &[]),
    OperatorRow::of("IsInf", Since(20), Since(20)),
    OperatorRow::with("LayerNormalization", &[], &[1, 2]),
    // ONNX Runtime expands it with constants in float32.
    OperatorRow::of("MeanVarianceNormalization", Never, Never),
    OperatorRow::of("MelWeightMatrix", Never, Never),
    OperatorRow::of("NonMaxSuppression", Never, Never),
    // The indices and the depth are whole numbers.
    OperatorRow { float32_inputs: &[0, 1], ..OperatorRow::of("OneHot", Since(1), Since(28)) },
    OperatorRow::of("Optional", Never, Never),
    OperatorRow::of("OptionalGetElement", Never, Never),
    OperatorRow::of("OptionalHasElement", Never, Never),
    OperatorRow::of("QLinearConv", Never, Never),
    OperatorRow::of("QLinearMatMul", Never, Never),
    OperatorRow::of("Range", Never, Never),
    // The region and the scales; before opset 11 the scales are input 1.
    OperatorRow::with("Resize", &[1, 2], &[]),
    OperatorRow::of("ReverseSequence", Since(1), Since(28)),
    OperatorRow::of("SequenceAt", Never, Never),
    OperatorRow::of("SequenceConstruct", Never, Never),
    OperatorRow::of("SequenceInsert", Never, Never),
    OperatorRow::of("SequenceMap", Never, Never),
    OperatorRow::of("Shrink", Since(1), Never),
    OperatorRow::with("SimplifiedLayerNormalization", &[], &[1]),
    OperatorRow::of("SplitToSequence", Never, Never),
    OperatorRow::of("TfIdfVectorizer", Never, Never),
    OperatorRow::of("TopK", Since(1), Since(28)),
    OperatorRow::of("Unique", Since(1), Since(28)),
    OperatorRow::with("Upsample", &[1], &[]),
];

/// The operators of ONNX Runtime that are defined for both types (its release 1.32).
const MICROSOFT_ROWS: &[OperatorRow] = &[
    OperatorRow::with("Attention", &[], &[]),
    OperatorRow::with("BiasAdd", &[], &[]),
    OperatorRow::with("BiasGelu", &[], &[]),
    OperatorRow::with("BiasSoftmax", &[], &[]),
    OperatorRow::with("BiasSplitGelu", &[], &[]),
    OperatorRow::with("DecoderMaskedMultiHeadAttention", &[], &[]),
    OperatorRow::with("EmbedLayerNormalization", &[], &[]),
    OperatorRow::with("ExpandDims", &[], &[]),
    OperatorRow::with("FastGelu", &[], &[]),
    OperatorRow::with("FusedConv", &[], &[]),
    OperatorRow::with("FusedGemm", &[], &[]),
    OperatorRow::with("FusedMatMul", &[], &[]),
    OperatorRow::with("FusedMatMulActivation", &[], &[]),
    OperatorRow::with("GatedRelativePositionBias", &[], &[]),
    OperatorRow::with("GatherBlockQuantized", &[], &[]),
    OperatorRow::with("GatherND", &[], &[]),
    OperatorRow::with("Gelu", &[], &[]),
    OperatorRow::with("GemmFastGelu", &[], &[]),
    OperatorRow::with("GroupNorm", &[], &[]),
    // The scales of a quantized cache.
    OperatorRow::with("GroupQueryAttention", &[12, 13], &[]),
    OperatorRow::with("Inverse", &[], &[]),
    OperatorRow::with("LongformerAttention", &[], &[]),
    OperatorRow::with("MatMulBnb4", &[], &[]),
    OperatorRow::with("MatMulNBits", &[], &[]),
    OperatorRow::with("MultiHeadAttention", &[], &[]),
    OperatorRow::with("NhwcConv", &[], &[]),
    OperatorRow::with("PackedAttention", &[], &[]),
    OperatorRow::with("PackedMultiHeadAttention", &[], &[]),
    OperatorRow::with("Pad", &[], &[]),
    // The scales of activations and those of whole experts.
    OperatorRow::with("QMoE", &[15, 16, 17, 18], &[]),
    OperatorRow::with("QuickGelu", &[], &[]),
    OperatorRow::with("RelativePositionBias", &[], &[]),
    OperatorRow::with("RotaryEmbedding", &[], &[]),
    OperatorRow::with("SkipGroupNorm", &[], &[]),
    OperatorRow::with("SkipLayerNormalization", &[], &[1, 2]),
    OperatorRow::with("SkipSimplifiedLayerNormalization", &[], &[1, 2]),
    OperatorRow::with("TransposeMatMul", &[], &[]),
    OperatorRow::with("Trilu", &[], &[]),
];

fn row(node: &NodeProto) -> Option<&'static OperatorRow> {
    let rows = match canonical_domain(&node.domain) {
        "" => ONNX_ROWS,
        MICROSOFT => MICROSOFT_ROWS,
        _ => return None,
    };
    rows.iter().find(|row| row.op_type == node.op_type)
}

/// Whether the operator of a node is defined for a type in this opset of ONNX.
pub(super) fn is_defined(node: &NodeProto, half: HalfType, opset: i64) -> bool {
    // ONNX Runtime has no kernels of these for 16 bits, or imprecise ones.
    let reduces = node.op_type.starts_with("Scatter")
        && node.attribute("reduction").is_some_and(|own| own.s.as_deref() != Some(b"none"));
    if node.is_onnx() && (reduces || node.int("training_mode", 0) != 0) {
        return false;
    }
    match row(node) {
        None => node.is_onnx(),
        Some(row) => {
            let defined = match half {
                HalfType::Float16 => row.float16,
                HalfType::BFloat16 => row.bfloat16,
            };
            match defined {
                Since(version) => !node.is_onnx() || opset >= version,
                Never => false,
            }
        }
    }
}

/// Whether an input is float32 although the node computes in 16 bits.
pub(super) fn is_float32_input(node: &NodeProto, input: usize) -> bool {
    row(node).is_some_and(|row| row.float32_inputs.contains(&input))
}

/// Whether an output is float32 although the node computes in 16 bits.
pub(super) fn is_float32_output(node: &NodeProto, output: usize) -> bool {
    row(node).is_some_and(|row| row.float32_outputs.contains(&output))
}

/// Operators that only move elements, which is exact in any type, and whether the output has the
/// elements of the first input alone, and all of them.
const MOVES: &[(&str, bool)] = &[
    ("Concat", false),
    ("DepthToSpace", true),
    ("Expand", true),
    ("Flatten", true),
    ("Gather", false),
    ("GatherElements", false),
    ("GatherND", false),
    ("Identity", true),
    ("Pad", false),
    ("Reshape", true),
    ("Slice", false),
    ("SpaceToDepth", true),
    ("Split", false),
    ("Squeeze", true),
    ("Tile", true),
    ("Transpose", true),
    ("Trilu", false),
    ("Unsqueeze", true),
];

fn row_of_moves(node: &NodeProto) -> Option<bool> {
    let mut rows = MOVES.iter().filter(|_| node.is_onnx());
    rows.find(|(op_type, _)| *op_type == node.op_type).map(|(_, all)| *all)
}

/// Whether a node only moves elements.
pub(super) fn moves(node: &NodeProto) -> bool {
    row_of_moves(node).is_some()
}

/// Whether the output of a node has the elements of its first input alone, and all of them, perhaps
/// in another type.
pub(super) fn has_same_elements(node: &NodeProto) -> bool {
    row_of_moves(node).unwrap_or(node.is_onnx() && node.op_type == "Cast")
}

/// Operators of one value for each element, which cost less than the casts around them.
const ELEMENTWISE: &[&str] = &[
    "Abs",
    "Add",
    "Ceil",
    "Clip",
    "Div",
    "Floor",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Pow",
    "Reciprocal",
    "ReduceMean",
    "Relu",
    "Round",
    "Sqrt",
    "Sub",
    "Where",
];

/// Whether a node is a `Transpose` that moves the first axis to the last place or the one before
/// it, and leaves the others in order.
pub(super) fn transposes_batch(node: &NodeProto) -> bool {
    let Some(perm) = node.attribute("perm").filter(|_| node.is_onnx()) else { return false };
    let Some((batch, last)) = perm.ints.split_last_chunk::<2>() else { return false };
    let rank = perm.ints.len();
    let end = i64::try_from(rank).unwrap_or(i64::MAX) - 1;
    node.op_type == "Transpose"
        && rank > 2
        && batch.iter().zip(1..).all(|(axis, expected)| *axis == expected)
        && (*last == [0, end] || *last == [end, 0])
}

/// Whether a node computes one value for each element, or their mean.
pub(super) fn is_elementwise(node: &NodeProto) -> bool {
    node.is_onnx() && ELEMENTWISE.contains(&node.op_type.as_str())
}

/// Functions of an element whose input may be a large whole number although the output is small.
const OF_WHOLE_NUMBERS: &[&str] = &["Cos", "Exp", "Log", "Sin"];

/// Whether a node computes a small number from a position.
pub(super) fn is_of_whole_numbers(node: &NodeProto) -> bool {
    node.is_onnx() && OF_WHOLE_NUMBERS.contains(&node.op_type.as_str())
}

/// Operators whose results differ if whole numbers are rounded: comparisons, choices and sums.
const EXACT: &[&str] = &[
    "ArgMax",
    "ArgMin",
    "CumSum",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "ReduceL1",
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "Sum",
    "TopK",
];

/// Whether a node compares whole numbers, chooses among them or adds them.
pub(super) fn is_exact(node: &NodeProto) -> bool {
    node.is_onnx() && EXACT.contains(&node.op_type.as_str())
}

/// Whether a node counts: the sum of many small numbers is a large one.
pub(super) fn counts(node: &NodeProto) -> bool {
    node.is_onnx() && matches!(node.op_type.as_str(), "CumSum" | "ReduceSum")
}

/// Operators whose results often leave the range of float16: squares, sums, exponentials.
const GROWING: &[&str] = &[
    "CumProd",
    "CumSum",
    "Det",
    "Exp",
    "Pow",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
];

/// Whether the result of a node often leaves the range of float16.
pub(super) fn grows(node: &NodeProto) -> bool {
    let square = node.op_type == "Mul" && node.input.len() == 2 && node.input[0] == node.input[1];
    node.is_onnx() && (square || GROWING.contains(&node.op_type.as_str()))
}

/// Functions whose result is at most 1, besides those with a [range](crate::graph::ops::rule).
const AT_MOST_ONE: &[&str] = &["Cos", "Erf", "Sign", "Sin", "Softsign"];

/// The largest magnitude of the result of a function, whatever its input is.
fn most(node: &NodeProto) -> Option<f32> {
    match rule(node).and_then(|rule| rule.range) {
        Some(range) => Some(range.min.abs().max(range.max.abs())),
        None => AT_MOST_ONE.contains(&node.op_type.as_str()).then_some(1.0),
    }
}

/// The largest magnitude that the result of a node may have, given that of each input.
pub(super) fn bound(node: &NodeProto, of: impl Fn(usize) -> Option<f32>) -> Option<f32> {
    if !node.is_onnx() {
        return None;
    }
    let op_type = node.op_type.as_str();
    if let Some(most) = most(node) {
        return Some(most);
    }
    let both = || Some((of(0)?, of(1)?));
    match op_type {
        _ if moves(node) && op_type != "Concat" && op_type != "Pad" => of(0),
        "Concat" | "Max" | "Min" => {
            (0..node.input.len()).try_fold(0f32, |all, input| Some(all.max(of(input)?)))
        }
        "Where" => Some(of(1)?.max(of(2)?)),
        "Abs" | "Neg" | "Relu" => of(0),
        "Add" | "Sub" => both().map(|(a, b)| a + b),
        "Mul" => both().map(|(a, b)| a * b),
        "Exp" => of(0).map(f32::exp),
        _ => None,
    }
}

/// Operators whose result is small again although their input is large, besides the functions that
/// have a [largest](most) result.
const SHRINKING: &[&str] = &[
    "ArgMax",
    "ArgMin",
    "BatchNormalization",
    "Clip",
    "Div",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "RMSNormalization",
    "Reciprocal",
    "Sqrt",
];

/// Whether the result of a node is small although its input is large.
pub(super) fn shrinks(node: &NodeProto) -> bool {
    node.is_onnx() && (most(node).is_some() || SHRINKING.contains(&node.op_type.as_str()))
}

/// Operators that take values of any type, and read no more of a float than its shape, or turn it
/// into another type.
const ANY_TYPE: &[&str] =
    &["Cast", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Shape", "Size"];

/// Whether a node takes a value in whatever type it has.
pub(super) fn takes_any(node: &NodeProto) -> bool {
    node.is_onnx() && ANY_TYPE.contains(&node.op_type.as_str())
}

/// The attribute that says which type an output has, and whether it is float32 without it.
pub(crate) fn type_attribute(op_type: &str) -> Option<(&'static str, bool)> {
    Some(match op_type {
        "Cast" => ("to", false),
        "RandomNormal" | "RandomUniform" => ("dtype", true),
        "Bernoulli" | "EyeLike" | "RandomNormalLike" | "RandomUniformLike" => ("dtype", false),
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => ("output_datatype", true),
        "DequantizeLinear" => ("output_dtype", false),
        _ => return None,
    })
}
