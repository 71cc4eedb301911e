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
mod planned;
mod preprocess;
mod qconfig;
mod quantizable_constants;
mod ranges;
mod routers;
mod rules;
mod select;
mod selectable;
mod sizes;
mod slowdown_warnings;
mod small_weights;
mod types;
mod unscalable;
mod unused_options;
mod weights;
mod wider_weights;

pub(crate) use biases::reduced_warning;
pub(crate) use display::{kind, not_quantized};
pub(crate) use excluded_nodes::ExcludedNodes;
pub(crate) use ort_int8_workarounds::writes_type;
pub use planned::{
    Consumers, Decision, KeepReason, Planned, QuantizeReason, Role, Source, ValuePlan,
};
pub use preprocess::PreprocessedModel;
pub use qconfig::{QConfig, QConfigDict};
pub use selectable::quantizable_op_types;
pub(crate) use weights::reserved;

use std::collections::{BTreeMap, BTreeSet};

use quantize_rs_math::QType;
use quantize_rs_onnx::DataType;
use serde::Serialize;

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
    pub(crate) fn draft(graph: &Graph<'_>, config: Config) -> Result<Plan, QuantizeError> {
        config.check()?;
        let plan = Plan::decided(graph, config)?;
        if !plan.quantizes_no_activation() {
            return Ok(plan);
        }
        // Weights that are dequantized get what they get in a model of quantized weights alone.
        let config = Config { activations: None, ..plan.config.clone() };
        let mut alone = Plan::decided(graph, config)?;
        // The other says why no activation is quantized.
        alone.warnings = plan.warnings;
        for (value, other) in alone.values.iter_mut().zip(plan.values) {
            if !value.is_quantized() && !other.is_quantized() {
                *value = other;
            }
        }
        Ok(alone)
    }

    /// Whether activations were to be quantized, and none is, because no operator multiplies
    /// integers with weights of so few bits. What replaces onnxruntime's results has the types that
    /// were asked for.
    fn quantizes_no_activation(&self) -> bool {
        let Config { activations, weights, output_format, onnxruntime_names, .. } = &self.config;
        activations.is_some()
            && weights.bits() < 8
            && *output_format == Format::Qdq
            && !onnxruntime_names
            && !self.needs_calibration()
            && self.quantized().next().is_some()
    }

    /// The decisions of all rules about a graph.
    fn decided(graph: &Graph<'_>, mut config: Config) -> Result<Plan, QuantizeError> {
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
        plan = plan.without_filled(graph);
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
        self.config.target.is_none() && !self.trains() && self.saturates_without_vnni()
    }

    /// Whether sums of 8-bit products may saturate on x86 without VNNI.
    pub(crate) fn saturates_without_vnni(&self) -> bool {
        let multiplied: BTreeSet<ValueId> =
            self.integer_nodes().iter().map(|node| node.weight).collect();
        let saturates = |(id, value): (ValueId, &Planned)| {
            let Decision::Quantize(plan) = &value.decision else { return false };
            let multiplied = multiplied.contains(&id) || plan.format == Format::Dynamic;
            multiplied && plan.spec.qtype == QType::Int8 && !plan.spec.reduce_range
        };
        self.values.iter().enumerate().any(saturates)
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
