//! The plan: which values are quantized, to what, where their numbers will come from and why, and
//! for every other value why not. It decides everything and touches nothing.

mod accumulator_overflow;
mod activations;
mod biases;
mod blocks;
mod carried;
mod consumers;
mod display;
pub(crate) mod float32;
mod formats;
mod integer_ops;
mod moved;
mod opset;
mod pattern;
mod placement;
mod qconfig;
mod quantizable_constants;
mod select;
mod slowdown_warnings;
mod types;
mod unscalable;
mod weights;

pub(crate) use display::kind;
pub(crate) use formats::MICROSOFT;
pub(crate) use moved::SAYS_TYPE;
pub(crate) use opset::NEWEST as NEWEST_OPSET;
pub use qconfig::{QConfig, QConfigDict};
pub(crate) use select::still_there;
pub(crate) use weights::reserved;

use std::collections::{BTreeMap, BTreeSet};

use quantize_rs_math::{QSpec, QType, Range};
use quantize_rs_onnx::DataType;
use serde::{Deserialize, Serialize};

use crate::graph::uses;
use crate::graph::{Graph, Maker, ValueId};
use crate::transform::{Origin, Step, weights_left};
use crate::{Config, Format, QuantizeError, Rounding};

/// What will be done to each value of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The wishes it was made for.
    pub config: Config,
    /// Every value of the main graph: inputs, constants, then what each node makes.
    pub values: Vec<Planned>,
    /// Things the caller should know before going on.
    pub warnings: Vec<String>,
    /// What was done to the model before it.
    pub steps: Vec<Step>,
    /// The entries of [`Config::overrides`] that decided the type or granularity of a value, by the
    /// name of the value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: BTreeMap<String, Vec<String>>,
    /// Fingerprint of the model it was made for.
    pub(crate) model: String,
    /// The model before anything was done to it.
    #[serde(skip)]
    pub(crate) origin: Origin,
    /// Nodes with weights that will run on integers.
    #[serde(skip)]
    pub(crate) integer_nodes: Vec<IntegerNode>,
    /// All nodes that will read what comes back from integers, by position.
    #[serde(skip)]
    pub(crate) on_integers: BTreeSet<usize>,
}

/// One value and what will be done to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// Name of the value.
    pub name: String,
    /// What it is in the model.
    pub role: Role,
    /// Its element type, where known.
    pub dtype: Option<DataType>,
    /// Its shape, where known; `None` for a length that varies.
    pub shape: Option<Vec<Option<usize>>>,
    /// Quantized or kept.
    pub decision: Decision,
}

impl Planned {
    /// Whether it is quantized.
    pub fn is_quantized(&self) -> bool {
        matches!(self.decision, Decision::Quantize(_))
    }
}

/// What a value is in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// An input of the model.
    Input,
    /// A constant that some operator multiplies by.
    Weight,
    /// Any other constant.
    Constant,
    /// What a node makes.
    Activation,
}

/// Whether a value is quantized.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It is.
    Quantize(ValuePlan),
    /// It keeps its type.
    Keep(Kept),
}

/// How a value is quantized.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValuePlan {
    /// Type, symmetry, granularity.
    pub spec: QSpec,
    /// The type it is stored in: that of `spec`, unless 4 bits are widened to a byte.
    pub stored: QType,
    /// Rows and columns of the matrix it is stored as, where its scales go along several axes at
    /// once; it is reshaped when it comes back.
    pub matrix: Option<[usize; 2]>,
    /// How it is written into the file.
    pub format: Format,
    /// Where its numbers come from.
    pub source: Source,
    /// Who reads what comes back from integers.
    pub readers: Readers,
    /// Why it is quantized.
    pub because: Because,
}

/// Who reads what comes back from integers, instead of the float value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Readers {
    /// Everybody, graphs inside nodes and the caller of the model included.
    All,
    /// Nodes that run on integers; for others, and as an output of the model, it stays in float.
    OnIntegers,
    /// Nodes that read it as a weight and in no other way; for others, and as an output of the
    /// model, it stays in float.
    Weighing,
    /// Those who look it up take integers, and only what they take comes back from there.
    Rows,
    /// Those who read it once it is rearranged, as integers.
    Rearranged,
    /// Those who look it up, as [`Readers::Rows`], and those who multiply by it, once it is rearranged or
    /// as it is: a table of embeddings that is the weight of the last product too.
    Tied,
}

/// Where the numbers of a quantized value come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The constant itself.
    Weights,
    /// Calibration.
    Observed,
    /// Another value, whose elements it passes on.
    SameAs(String),
    /// What calibration found before: this range.
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
pub enum Because {
    /// It is the weight of this node.
    WeightOf(String),
    /// It is the bias of this node, which runs on integers.
    BiasOf(String),
    /// It goes into this node, which runs on integers.
    InputOf(String),
    /// It comes out of this node, which runs on integers only when it is quantized.
    OutputOf(String),
    /// This node passes on what is quantized already.
    PassedOnBy(String),
}

/// Why a value keeps its type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// No operator that reads it has a rule for quantized data.
    NoRule {
        /// Such an operator, when there is one.
        op_type: Option<String>,
    },
    /// Its elements are not float32.
    NotFloat32 {
        /// What they are.
        dtype: Option<DataType>,
    },
    /// The caller asked for it.
    Excluded {
        /// The name or pattern.
        pattern: String,
    },
    /// The caller asked for other weights and nodes only.
    NotIncluded {
        /// One that reads it and was not named, by its name, or by its type if it has none.
        node: String,
    },
    /// The caller asked for operators of other types only.
    OpType {
        /// The type of one that reads it.
        op_type: String,
    },
    /// It has few elements.
    TooSmall {
        /// How many.
        elements: usize,
        /// How many it should have.
        min_elements: usize,
    },
    /// It has no elements.
    Empty,
    /// It is a bias, and its node does not run on integers.
    Bias,
    /// It is a bias, which the runtime takes in float.
    FloatBias {
        /// The runtime.
        target: &'static str,
    },
    /// A node that needs it in float reads it too.
    AlsoReadBy {
        /// That node.
        node: String,
    },
    /// It has the type that was asked for.
    Already {
        /// That type.
        qtype: QType,
    },
    /// The output format has nothing for how it is read.
    NoForm {
        /// The format.
        format: Format,
        /// What it lacks.
        why: String,
    },
    /// It becomes integers when the model runs, for this node.
    AtRunTime {
        /// The node.
        node: String,
    },
    /// It is an output of the model.
    GraphOutput,
    /// A graph inside a node reads it.
    Captured,
    /// An input of the same name may replace it (IR 4 and later).
    Overridable,
    /// It carries a mask, as calibration saw.
    Masked,
    /// Calibration saw nothing of it but zeros.
    Blank,
    /// Calibration did not look at it.
    Unseen,
    /// Only weights are asked for.
    WeightsOnly,
    /// It lies between an operator and the activation function that is fused into it.
    FusedInto {
        /// The activation function.
        node: String,
    },
    /// It is the filter of a convolution at the entry, which is better left in float.
    Stem {
        /// The convolution.
        node: String,
    },
    /// The node that reads it does not run on integers.
    FloatNode {
        /// The node.
        node: String,
        /// Why it does not.
        why: &'static str,
    },
}

/// A node with a weight that runs on integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntegerNode {
    pub(crate) node: usize,
    pub(crate) input: ValueId,
    pub(crate) weight: ValueId,
    pub(crate) bias: Option<ValueId>,
}

impl Plan {
    /// Decides what to quantize.
    ///
    /// # Errors
    /// An option that cannot be met, a name that is not in the model, or a model whose opset does
    /// not know what the result would need.
    pub fn of(graph: &Graph<'_>, config: Config) -> Result<Plan, QuantizeError> {
        let plan = Plan::draft(graph, config)?;
        opset::check_enough(graph, &plan)?;
        Ok(plan)
    }

    /// As [`Plan::of`], whether or not the operator set of the model is enough for it.
    pub(crate) fn draft(graph: &Graph<'_>, mut config: Config) -> Result<Plan, QuantizeError> {
        config.check()?;
        if config.output_format == Format::FakeQuant {
            // Training moves weights and biases by itself.
            (config.smooth, config.bias_correction) = (false, false);
            config.rounding = Some(Rounding::Nearest);
        }
        opset::check_known(graph)?;
        let constants = uses::constants(graph);
        let selection = select::Selection::of(graph, &constants, &config)?;
        let mut draft = Draft::default();
        weights::plan(graph, &constants, &config, &selection, &mut draft);
        activations::plan(graph, &constants, &config, &selection, &mut draft)?;
        moved::settle(graph, &config, &mut draft);
        draft.warnings.extend(slowdown_warnings::than_float(graph, &constants, &config, &draft));
        out_of_sight(graph, &mut draft);
        let mut plan = draft.finish(graph, config);
        plan.overrides = selection.decided(graph, &constants);
        plan.overrides.retain(|name, _| {
            plan.values.iter().any(|value| value.name == *name && value.is_quantized())
        });
        Ok(plan)
    }

    /// The value called `name`.
    pub fn value(&self, name: &str) -> Option<&Planned> {
        self.values.iter().find(|value| value.name == name)
    }

    /// Values that are quantized, with how.
    pub fn quantized(&self) -> impl Iterator<Item = (&Planned, &ValuePlan)> {
        self.values.iter().filter_map(|value| match &value.decision {
            Decision::Quantize(plan) => Some((value, plan)),
            Decision::Keep(_) => None,
        })
    }

    /// Nodes that run on integers: all that they need is quantized.
    pub(crate) fn integer_nodes(&self) -> Vec<IntegerNode> {
        let quantized = |id: ValueId| {
            self.values.get(id).is_some_and(|value| matches!(value.decision, Decision::Quantize(_)))
        };
        let complete = |node: &&IntegerNode| {
            quantized(node.input) && quantized(node.weight) && node.bias.is_none_or(quantized)
        };
        self.integer_nodes.iter().filter(complete).copied().collect()
    }

    /// Whether integers of 8 bits are multiplied whose sums saturate on x86 without VNNI, and nobody
    /// said that it is for others.
    pub(crate) fn may_saturate(&self) -> bool {
        let multiplied: BTreeSet<ValueId> =
            self.integer_nodes().iter().map(|node| node.weight).collect();
        let saturates = |(id, value): (ValueId, &Planned)| {
            let Decision::Quantize(plan) = &value.decision else { return false };
            let multiplied = multiplied.contains(&id) || plan.format == Format::Dynamic;
            multiplied && plan.spec.qtype == QType::Int8 && !plan.spec.reduced
        };
        self.config.target.is_none()
            && !self.trains()
            && self.values.iter().enumerate().any(saturates)
    }

    /// Whether some product is computed on integers.
    pub(crate) fn computes_on_integers(&self) -> bool {
        self.quantized()
            .any(|(_, plan)| plan.source == Source::Observed || plan.format == Format::Dynamic)
    }

    /// Whether what is made of it is to be trained on.
    pub(crate) fn trains(&self) -> bool {
        self.config.output_format == Format::FakeQuant
    }

    pub(crate) fn quantized_mut(&mut self, name: &str) -> Option<&mut ValuePlan> {
        let value = self.values.iter_mut().find(|value| value.name == name)?;
        match &mut value.decision {
            Decision::Quantize(plan) => Some(plan),
            Decision::Keep(_) => None,
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

/// A plan being made: decisions so far, by value.
#[derive(Default)]
struct Draft {
    decisions: BTreeMap<ValueId, Decision>,
    weights: BTreeSet<ValueId>,
    integer_nodes: Vec<IntegerNode>,
    on_integers: BTreeSet<usize>,
    /// Values that come out of integer kernels, or are moved from there.
    made_on_integers: BTreeSet<ValueId>,
    warnings: Vec<String>,
}

impl Draft {
    fn keep(&mut self, value: ValueId, kept: Kept) {
        self.decisions.entry(value).or_insert(Decision::Keep(kept));
    }

    fn quantized(&self, value: ValueId) -> Option<&ValuePlan> {
        match self.decisions.get(&value) {
            Some(Decision::Quantize(plan)) => Some(plan),
            _ => None,
        }
    }

    fn finish(mut self, graph: &Graph<'_>, config: Config) -> Plan {
        let values = (0..graph.values.len())
            .map(|id| {
                let value = &graph.values[id];
                let decision =
                    self.decisions.remove(&id).unwrap_or_else(|| undecided(graph, id, &config));
                let role = match value.maker {
                    _ if self.weights.contains(&id) => Role::Weight,
                    Maker::Input => Role::Input,
                    Maker::Initializer { .. } | Maker::Sparse => Role::Constant,
                    Maker::Node { .. } if graph.constant(id).is_some() => Role::Constant,
                    Maker::Node { .. } => Role::Activation,
                };
                Planned {
                    name: value.name.to_owned(),
                    role,
                    dtype: graph.dtype(id),
                    shape: graph.shape(id),
                    decision,
                }
            })
            .collect();
        let origin = Origin::of(graph.model);
        Plan {
            config,
            values,
            warnings: self.warnings,
            overrides: BTreeMap::new(),
            steps: Vec::new(),
            model: origin.fingerprint.clone(),
            origin,
            integer_nodes: self.integer_nodes,
            on_integers: self.on_integers,
        }
    }
}

/// Says what is not looked into: graphs inside nodes whose weights were not lifted, and functions
/// whose nodes were not put in the place of their calls.
fn out_of_sight(graph: &Graph<'_>, draft: &mut Draft) {
    draft.warnings.extend(weights_left(graph));
    let left = uses::inside(graph, &uses::Bodies::of(graph)).len();
    if left > 0 {
        draft.warnings.push(format!(
            "{left} weights in graphs inside nodes (If, Loop, Scan) stay float: pass `lift_weights`, \
             which makes them weights of the main graph, was left out"
        ));
    }
}

/// Why a value that no rule spoke of keeps its type.
fn undecided(graph: &Graph<'_>, id: ValueId, config: &Config) -> Decision {
    let value = &graph.values[id];
    let reader = value.readers.first().map(|reader| graph.nodes[reader.node]);
    Decision::Keep(match (graph.dtype(id), reader) {
        (Some(dtype), _) if dtype != DataType::Float => Kept::NotFloat32 { dtype: Some(dtype) },
        (_, None) if value.is_output => Kept::GraphOutput,
        (_, None) if value.captured => Kept::Captured,
        _ if config.activations.is_none() && graph.constant(id).is_none() => Kept::WeightsOnly,
        (_, reader) => Kept::NoRule { op_type: reader.map(|node| node.op_type.clone()) },
    })
}
