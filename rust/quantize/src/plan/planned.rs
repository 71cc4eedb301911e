//! What a plan says about a value: its role, how it is quantized, and why or why not.

use quantize_rs_math::{QSpec, QType, Range};
use quantize_rs_onnx::DataType;
use serde::{Deserialize, Serialize};

use crate::Format;

/// One value and the decision about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Name of the value.
    pub name: String,
    /// Its role in the model.
    pub role: Role,
    /// Its element type, if known.
    pub dtype: Option<DataType>,
    /// Its shape, if known, with `None` for a dynamic dimension.
    pub shape: Option<Vec<Option<usize>>>,
    /// Whether it is quantized or keeps its type.
    pub decision: Decision,
}

impl Planned {
    /// Whether it is quantized.
    pub fn is_quantized(&self) -> bool {
        matches!(self.decision, Decision::Quantize(_))
    }
}

/// The role of a value in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// An input of the model.
    Input,
    /// A constant that some operator multiplies by, or one that is as large and stays float.
    Weight,
    /// Any other constant.
    Constant,
    /// The output of a node.
    Activation,
}

/// Whether a value is quantized.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It is.
    Quantize(ValuePlan),
    /// It keeps its type, for this reason.
    #[serde(rename = "keep")]
    KeepFloat(KeepReason),
}

/// How a value is quantized.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValuePlan {
    /// Type, symmetry, granularity.
    pub spec: QSpec,
    /// The type it is stored in: that of `spec`, unless 4 bits are widened to a byte.
    pub stored: QType,
    /// Rows and columns of the matrix it is stored as, where its scales go along several axes at
    /// once; it is reshaped after it is dequantized.
    pub matrix: Option<[usize; 2]>,
    /// How it is written into the file.
    pub format: Format,
    /// Where its scale and zero point come from.
    pub source: Source,
    /// Which nodes read the dequantized value.
    #[serde(rename = "readers")]
    pub consumers: Consumers,
    /// Why it is quantized.
    pub because: QuantizeReason,
}

/// Which nodes read the dequantized value instead of the float value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Consumers {
    /// All consumers, subgraphs and the caller of the model included.
    All,
    /// Nodes that compute on integers; for others, and as an output of the model, it stays float.
    #[serde(rename = "on_integers")]
    IntegerOps,
    /// Nodes that read it as a weight and as nothing else; for others, and as an output of the
    /// model, it stays float.
    #[serde(rename = "weighing")]
    AsWeight,
    /// `Gather` nodes: they take rows of integers, and only these rows are dequantized.
    #[serde(rename = "rows")]
    GatheredRows,
    /// Nodes that read it after reshapes and transposes, which move integers.
    #[serde(rename = "rearranged")]
    AfterReshape,
    /// `Gather` nodes, as for [`Consumers::GatheredRows`], and nodes that multiply by it, directly
    /// or after reshapes and transposes: a table of embeddings that is also the weight of the
    /// output layer.
    #[serde(rename = "tied")]
    TiedEmbedding,
}

/// Where the scale and zero point of a quantized value come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The constant itself.
    Weights,
    /// Calibration.
    Observed,
    /// The scale and zero point of another value, whose elements it passes on.
    SameAs(String),
    /// This range.
    Fixed(Range),
    /// A bias: the scale of the node's input times that of its weight, as int32.
    Product {
        /// Name of the node's input.
        input: String,
        /// Name of the node's weight.
        weight: String,
    },
}

/// Why a value is quantized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuantizeReason {
    /// It is the weight of this node.
    WeightOf(String),
    /// It is one of the smallest weights, and the weight of this node. It gets 16 bits.
    SmallWeightOf(String),
    /// It is the weight of this node, and gets 8 bits where others get fewer, for this reason.
    WiderWeightOf(String, &'static str),
    /// It is the bias of this node, which computes on integers.
    BiasOf(String),
    /// It is an input of this node, which computes on integers.
    InputOf(String),
    /// It is the output of this node, which computes on integers only if its output is quantized.
    OutputOf(String),
    /// It is the output of this node, which moves quantized data.
    PassedOnBy(String),
}

/// Why a value keeps its type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepReason {
    /// No consumer has a rule for quantized data.
    NoRule {
        /// The type of a consumer, if there is one.
        op_type: Option<String>,
    },
    /// Its elements are not float32.
    NotFloat32 {
        /// Their type.
        dtype: Option<DataType>,
    },
    /// It is excluded.
    Excluded {
        /// The name or pattern.
        pattern: String,
    },
    /// Only other weights and nodes are included.
    NotIncluded {
        /// A consumer that is not included: its name, or its type if it has no name.
        node: String,
    },
    /// Only operators of other types are to be quantized.
    OpType {
        /// The type of a consumer.
        op_type: String,
    },
    /// It has few elements.
    TooSmall {
        /// The number of its elements.
        elements: usize,
        /// The smallest number that is quantized.
        min_elements: usize,
    },
    /// It is in 16-bit floats already, which the smallest weights keep.
    In16Bits,
    /// It has no elements.
    Empty,
    /// It is a bias, and its node computes in float.
    Bias,
    /// It is a bias, which the runtime expects in float.
    FloatBias {
        /// The runtime; `None` if the options leave biases in float.
        target: Option<&'static str>,
    },
    /// A pool reads it that ONNX Runtime would compute wrongly on integers.
    MisreadBy {
        /// The pool.
        node: String,
    },
    /// It is the output of an operator whose outputs the options leave in float.
    FloatOutput {
        /// The type of the operator.
        op_type: String,
    },
    /// Another consumer needs it in float.
    AlsoReadBy {
        /// That consumer.
        node: String,
    },
    /// It has the requested type already.
    Already {
        /// That type.
        qtype: QType,
    },
    /// The output format cannot store it for its consumers.
    NoForm {
        /// The format.
        format: Format,
        /// Why not.
        why: String,
    },
    /// It is quantized at run time, for this node.
    AtRunTime {
        /// The node.
        node: String,
    },
    /// It is an output of the model.
    GraphOutput,
    /// A subgraph reads it.
    Captured,
    /// An input of the same name may replace it (IR 4 and later).
    Overridable,
    /// It carries an attention mask, as calibration found.
    AttentionMask,
    /// It was 0 in all calibration samples.
    AllZero,
    /// It holds probabilities over an axis of open length, and no sample came near the largest.
    OpenLength,
    /// It joins elements of several inputs, and one scale for all would lose one input.
    LosesInput {
        /// That input.
        input: String,
    },
    /// A node chooses experts, or the largest elements, by its products.
    Router {
        /// That node.
        node: String,
    },
    /// It holds factors that differ too much for one scale.
    UnevenFactors,
    /// It holds NaN or infinity.
    NotFinite {
        /// Which element, and what it is.
        found: String,
    },
    /// It holds numbers that are too large for its type, a float without a scale.
    TooLarge {
        /// Which element, and what it is.
        found: String,
        /// The type.
        qtype: QType,
    },
    /// Calibration did not observe it.
    Unseen,
    /// Only weights are to be quantized.
    WeightsOnly,
    /// It lies between an operator and the activation function that is fused into the operator.
    FusedInto {
        /// The activation function.
        node: String,
    },
    /// It is the weight of a convolution at the start of the model, which is faster and more
    /// accurate in float.
    Stem {
        /// The convolution.
        node: String,
    },
    /// Its consumer computes in float.
    FloatNode {
        /// The node.
        node: String,
        /// Why.
        why: &'static str,
    },
}
