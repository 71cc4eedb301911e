//! The plan: for each value, whether it is quantized, to which type, where its scale comes from,
//! and the reason.
//!
//! Input: a model or a graph, a [`Config`], and ranges if there are any. Output: a [`Plan`], and
//! the model that it is for. This module imports the modules up to `transform`. [`rules`] lists the
//! rules that decide, in order of precedence; each is a function from the graph, the options and
//! the decisions so far to new decisions. Planning reads no samples.

mod accumulator_overflow;
mod activations;
mod before_logarithms;
mod biases;
mod blocks;
mod consumers;
mod decisions;
mod display;
mod excluded_nodes;
mod fallback;
pub(crate) mod float32;
mod float_outputs;
mod formats;
mod integer_ops;
mod joined_inputs;
mod minimum_opset;
mod misread_pools;
mod mixed_layers;
mod non_finite;
mod nothing;
mod observing;
mod open_lengths;
mod opset;
mod ort_int8_workarounds;
mod pattern;
mod placement;
mod preprocess;
mod qconfig;
mod quantizable_constants;
mod ranges;
mod routers;
mod rules;
mod select;
mod selectable;
mod slowdown_warnings;
mod small_weights;
mod types;
mod unscalable;
mod unused_methods;
mod weights;
mod wider_weights;

pub(crate) use display::{kind, not_quantized};
pub(crate) use excluded_nodes::ExcludedNodes;
pub(crate) use ort_int8_workarounds::writes_type;
pub use preprocess::PreprocessedModel;
pub use qconfig::{QConfig, QConfigDict};
pub use selectable::quantizable_op_types;
pub(crate) use weights::reserved;

use std::collections::{BTreeMap, BTreeSet};

use quantize_rs_math::{QSpec, QType, Range};
use quantize_rs_onnx::DataType;
use serde::{Deserialize, Serialize};

use self::activations::ActivationContext;
use self::decisions::Decisions;
use crate::graph::kv_cache::cached_attention;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};
use crate::transform::Step;
use crate::{Config, Format, QuantizeError, Rounding};
use preprocess::Origin;
use selectable::names_removed_by_passes;

/// The decision about each value of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The options it was made for.
    pub config: Config,
    /// Every value of the main graph: inputs, constants, then the outputs of each node.
    pub values: Vec<Planned>,
    /// Warnings for the caller.
    pub warnings: Vec<String>,
    /// The transforms that were applied to the model before planning.
    pub steps: Vec<Step>,
    /// The entries of [`Config::overrides`] that decided the type or granularity of a value, by the
    /// name of the value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: BTreeMap<String, Vec<String>>,
    /// Fingerprint of the model it was made for.
    pub(crate) model: String,
    /// The model before these transforms.
    #[serde(skip)]
    pub(crate) origin: Origin,
    /// Nodes with weights that will compute on integers.
    #[serde(skip)]
    pub(crate) integer_nodes: Vec<IntegerNode>,
    /// All nodes that will read dequantized values, by position.
    #[serde(skip)]
    pub(crate) on_integers: BTreeSet<usize>,
    /// Whether a calibration also observes float values that stay float or share a range.
    #[serde(skip)]
    pub(crate) observes_all: bool,
}

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

/// A node with a weight that computes on integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntegerNode {
    pub(crate) node: usize,
    pub(crate) input: ValueId,
    pub(crate) weight: ValueId,
    pub(crate) bias: Option<ValueId>,
}

/// The number of elements from which on a constant counts as a weight, whatever reads it.
const MIN_LARGE_ELEMENTS: usize = 1 << 12;

/// Whether a constant is as large as a weight: a float tensor of two or more axes.
fn is_large(constant: &uses::Constant<'_>) -> bool {
    let axes = constant.shape.iter().filter(|length| **length > 1).count();
    let elements = constant.shape.iter().product::<usize>();
    let is_float = constant.dtype.is_some_and(DataType::is_float);
    is_float && axes > 1 && elements >= MIN_LARGE_ELEMENTS
}

impl Plan {
    /// Decides what to quantize.
    ///
    /// # Errors
    /// An option that cannot be satisfied, a name that is not in the model, or a model whose opset
    /// is too old for the result.
    pub fn of(graph: &Graph<'_>, config: Config) -> Result<Plan, QuantizeError> {
        let plan = Plan::draft(graph, config)?;
        opset::check_enough(graph, &plan)?;
        Ok(plan)
    }

    /// As [`Plan::of`], for a model of any opset.
    pub(crate) fn draft(graph: &Graph<'_>, mut config: Config) -> Result<Plan, QuantizeError> {
        config.check()?;
        if config.output_format == Format::FakeQuant {
            // Training changes weights and biases by itself.
            (config.smooth, config.bias_correction) = (false, false);
            config.rounding = Some(Rounding::Nearest);
        }
        opset::check_known(graph)?;
        if config.kv_cache.is_some() && cached_attention(graph).is_empty() {
            let what = "is given, but no GroupQueryAttention of the model takes its past from \
                        inputs of the model and gives its present to outputs, with float elements \
                        and a known number of heads";
            return Err(QuantizeError::option("kv_cache", what));
        }
        let mut constants = uses::constants(graph);
        let selection = select::Selection::of(graph, &constants, &config)?;
        selection.leave_float(graph, &mut constants);
        let mut wider = wider_weights::find(graph, &constants, &config, &selection);
        let mixed = mixed_layers::find(graph, &constants, &config)?;
        wider.extend(mixed.into_iter().map(|anchor| (anchor, "8 bits for mixed_layers")));
        let context = rules::Context {
            graph,
            constants: &constants,
            config: &config,
            selection: &selection,
            float_weights: formats::float_weights(graph, &constants, &config),
            wider_weights: wider,
            activations: ActivationContext::of(graph, &constants, &config, &selection)?,
        };
        let decisions = rules::decide(&context);
        let mut plan = Plan::from_decisions(graph, &constants, config.clone(), decisions);
        plan = plan.without_float_outputs(graph)?.without_misread_pools(graph);
        plan.overrides = selection.decided(graph, &constants);
        // A plan has a decision about each value of the graph, in its order.
        let is_quantized = |id: ValueId| plan.values.get(id).is_some_and(Planned::is_quantized);
        plan.overrides.retain(|name, _| graph.value(name).is_some_and(is_quantized));
        Ok(plan)
    }

    fn from_decisions(
        graph: &Graph<'_>,
        constants: &[uses::Constant<'_>],
        config: Config,
        decisions: Decisions,
    ) -> Plan {
        let weights = constants.iter().filter(|constant| constant.is_weight());
        let weights: BTreeSet<ValueId> = weights.map(|constant| constant.anchor).collect();
        let large = constants.iter().filter(|constant| is_large(constant));
        let large: BTreeSet<ValueId> = large.map(|constant| constant.anchor).collect();
        let role = |id: ValueId, decision: &Decision| match graph.values[id].producer {
            _ if weights.contains(&id) => Role::Weight,
            // A report must not hide what it leaves in float.
            _ if large.contains(&id) && matches!(decision, Decision::KeepFloat(_)) => Role::Weight,
            Producer::Input => Role::Input,
            Producer::Initializer { .. } | Producer::Sparse => Role::Constant,
            Producer::Node { .. } if graph.constant(id).is_some() => Role::Constant,
            Producer::Node { .. } => Role::Activation,
        };
        let Decisions { values, integer_nodes, on_integers, warnings, .. } = decisions;
        // The last rule decides about all remaining values, so that values are in the order of the
        // graph.
        let values = values.into_iter().map(|(id, decision)| Planned {
            name: graph.values[id].name.to_owned(),
            role: role(id, &decision),
            dtype: graph.dtype(id),
            shape: graph.shape(id),
            decision,
        });
        let origin = Origin::of(graph.model);
        Plan {
            config,
            values: values.collect(),
            warnings,
            steps: Vec::new(),
            overrides: BTreeMap::new(),
            model: origin.fingerprint.clone(),
            origin,
            integer_nodes,
            on_integers,
            observes_all: false,
        }
    }

    /// The constants of the graph that it was made for, with the nodes that it leaves in float.
    pub(crate) fn constants<'m>(&self, graph: &Graph<'m>) -> Vec<uses::Constant<'m>> {
        let mut constants = uses::constants(graph);
        if let Ok(selection) = select::Selection::of(graph, &constants, &self.config) {
            selection.leave_float(graph, &mut constants);
        }
        constants
    }

    /// The value called `name`.
    pub fn value(&self, name: &str) -> Option<&Planned> {
        self.values.iter().find(|value| value.name == name)
    }

    /// The quantized values, each with its plan.
    pub fn quantized(&self) -> impl Iterator<Item = (&Planned, &ValuePlan)> {
        self.values.iter().filter_map(|value| match &value.decision {
            Decision::Quantize(plan) => Some((value, plan)),
            Decision::KeepFloat(_) => None,
        })
    }

    /// Nodes that compute on integers: input, weight and bias are quantized.
    pub(crate) fn integer_nodes(&self) -> Vec<IntegerNode> {
        let quantized = |id: ValueId| {
            self.values.get(id).is_some_and(|value| matches!(value.decision, Decision::Quantize(_)))
        };
        let complete = |node: &&IntegerNode| {
            quantized(node.input) && quantized(node.weight) && node.bias.is_none_or(quantized)
        };
        self.integer_nodes.iter().filter(complete).copied().collect()
    }

    /// Whether sums of 8-bit products may saturate on x86 without VNNI, and no target is set that
    /// rules it out.
    pub(crate) fn may_saturate(&self) -> bool {
        let multiplied: BTreeSet<ValueId> =
            self.integer_nodes().iter().map(|node| node.weight).collect();
        let saturates = |(id, value): (ValueId, &Planned)| {
            let Decision::Quantize(plan) = &value.decision else { return false };
            let multiplied = multiplied.contains(&id) || plan.format == Format::Dynamic;
            multiplied && plan.spec.qtype == QType::Int8 && !plan.spec.reduce_range
        };
        self.config.target.is_none()
            && !self.trains()
            && self.values.iter().enumerate().any(saturates)
    }

    /// Whether some operator multiplies on integers.
    pub(crate) fn computes_on_integers(&self) -> bool {
        self.quantized()
            .any(|(_, plan)| plan.source == Source::Observed || plan.format == Format::Dynamic)
    }

    /// Whether the result is a model for training.
    pub(crate) fn trains(&self) -> bool {
        self.config.output_format == Format::FakeQuant
    }

    pub(crate) fn quantized_mut(&mut self, name: &str) -> Option<&mut ValuePlan> {
        let value = self.values.iter_mut().find(|value| value.name == name)?;
        match &mut value.decision {
            Decision::Quantize(plan) => Some(plan),
            Decision::KeepFloat(_) => None,
        }
    }

    /// Names of the values whose range calibration must find.
    pub fn observed(&self) -> Vec<String> {
        self.quantized()
            .filter(|(_, plan)| plan.source == Source::Observed)
            .map(|(value, _)| value.name.clone())
            .collect()
    }

    /// Whether samples are needed.
    pub fn needs_calibration(&self) -> bool {
        self.quantized().any(|(_, plan)| plan.source == Source::Observed)
    }
}
