//! Checks, node by node, whether a target runtime supports a quantized model.

mod pairs;

use std::fmt;

use quantize_rs_math::QType;
use quantize_rs_onnx::{DataType, Model};
use serde::Serialize;

use crate::error::while_unchanged;
use crate::graph::elements::data_type;
use crate::graph::ops;
use crate::graph::ops::{IntegerSupport, Slot};
use crate::graph::{Graph, Producer, ValueId};
use crate::options::target::{Bias, Placement, Profile};
use crate::{QuantizeError, Target};

use pairs::{Pairs, Parameters};

/// A part of a model that the runtime does not support.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The label of the node.
    pub node: String,
    /// Its name or, if it has none, that of its first output.
    pub name: String,
    /// The violated rule.
    pub rule: Rule,
    /// A description.
    pub what: String,
}

/// The rules of a runtime for a quantized graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Activations have a supported type.
    ActivationType,
    /// Weights beside quantized activations have a supported type.
    WeightType,
    /// Zero points are at the midpoint, if no others are supported.
    ZeroPoint,
    /// Only weights of some operators have a scale for each channel.
    PerChannel,
    /// Weights use a reduced range, if sums of pairs saturate.
    Saturation,
    /// A quantized bias is int32 with the scale of input × weight, if it may be quantized.
    Bias,
    /// A bias is quantized, if that is required for fusion.
    FloatBias,
    /// Nothing is quantized twice.
    DoublePair,
    /// Operators that only move data keep the scale.
    MovedScale,
    /// An operator with a quantized input has a quantized weight too, of a type that integer
    /// kernels take.
    FloatWeight,
    /// Operators that run on integers only with a quantized output have one.
    FloatOutput,
    /// Every operator that can be quantized is.
    FloatNode,
}

impl Rule {
    /// Whether the runtime rejects the model or computes other results, and does not only run
    /// slower.
    pub fn is_strict(self) -> bool {
        !matches!(self, Rule::FloatBias | Rule::FloatWeight | Rule::FloatOutput | Rule::FloatNode)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.what)
    }
}

/// The violations of `model` for `target`; empty if it conforms.
///
/// ```
/// use quantize_rs::{Model, Target, conformance};
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// assert_eq!(conformance(&Model::open(path)?, Target::TensorRt)?, []);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A node of a known operator has fewer inputs or outputs than the operator needs.
pub fn conformance(model: &Model, target: Target) -> Result<Vec<Violation>, QuantizeError> {
    while_unchanged(&[model], || {
        let graph = Graph::of(model)?;
        let mut check =
            Check { pairs: Pairs::of(&graph), profile: target.profile(), found: Vec::new() };
        for node in 0..graph.nodes.len() {
            match graph.nodes[node].op_type.as_str() {
                "QuantizeLinear" => check.quantize(node),
                "DequantizeLinear" => {}
                _ => check.operator(node),
            }
        }
        Ok(check.found)
    })
}

struct Check<'g, 'm> {
    pairs: Pairs<'g, 'm>,
    profile: &'static Profile,
    found: Vec<Violation>,
}

impl Check<'_, '_> {
    fn violate(&mut self, node: usize, rule: Rule, what: impl Into<String>) {
        let proto = self.pairs.graph.nodes[node];
        let (node, name) = (proto.label(), proto.named().to_owned());
        self.found.push(Violation { node, name, rule, what: what.into() });
    }

    /// Checks the activation that a `QuantizeLinear` quantizes.
    fn quantize(&mut self, node: usize) {
        let graph = self.pairs.graph;
        let Some(input) = graph.input(node, 0) else { return };
        if self.pairs.was_float(input) {
            let name = graph.values[input].name;
            self.violate(node, Rule::DoublePair, format!("`{name}` was quantized before"));
        }
        let Some(found) = self.pairs.parameters(node) else { return };
        let (types, symmetric) = (self.profile.activations, self.profile.symmetric.0);
        self.check_type(node, Rule::ActivationType, &found, types);
        if symmetric {
            self.check_zero(node, &found);
        }
    }

    fn check_type(&mut self, node: usize, rule: Rule, found: &Parameters, types: &[QType]) {
        if types.iter().all(|qtype| data_type(*qtype) != found.dtype) {
            let names: Vec<&str> = types.iter().map(|qtype| qtype.name()).collect();
            let instead = match &names[..] {
                [] => String::new(),
                names => format!(" instead of {}", names.join(" or ")),
            };
            let what = format!("{}{instead}", found.dtype);
            self.violate(node, rule, what);
        }
    }

    fn check_zero(&mut self, node: usize, found: &Parameters) {
        let middle = match found.dtype {
            DataType::UInt8 => 1 << 7,
            DataType::UInt16 => 1 << 15,
            _ => 0,
        };
        let moved = found.zero_points.iter().find(|zero| **zero != middle);
        if let Some(zero) = moved {
            self.violate(node, Rule::ZeroPoint, format!("zero point {zero} instead of {middle}"));
        }
    }

    /// Checks an operator between pairs.
    fn operator(&mut self, node: usize) {
        let graph = self.pairs.graph;
        let Some(rule) = ops::rule(graph.nodes[node]) else { return };
        match (rule.integer)(graph, node) {
            IntegerSupport::FloatOutput => self.multiplies(node, true, false),
            IntegerSupport::QuantizedOutput { kernel } => {
                self.multiplies(node, kernel.is_some(), kernel.is_some());
            }
            IntegerSupport::SameAsInput { .. } => self.moves(node),
            _ => {}
        }
        if self.profile.placement == Placement::AllOps {
            self.is_whole(node, rule);
        }
    }

    /// Checks an operator that multiplies: its weight, its bias and its output.
    fn multiplies(&mut self, node: usize, has_kernel: bool, needs_output: bool) {
        let graph = self.pairs.graph;
        let input = self.pairs.restored(graph.input(node, 0)).cloned();
        let weight = self.pairs.restored(graph.input(node, 1)).cloned();
        let Some(input) = input.filter(|input| input.constant.is_none()) else { return };
        let Some(weight) = weight else {
            if graph.input(node, 1).is_some_and(|weight| graph.constant(weight).is_some()) {
                self.violate(
                    node,
                    Rule::FloatWeight,
                    "a quantized input is multiplied by a float weight",
                );
            }
            return;
        };
        if weight.constant.is_some() {
            if self.multiplies_in_float(&input, &weight) {
                let what = format!("no integer kernel takes its weight of {}", weight.dtype);
                self.violate(node, Rule::FloatWeight, what);
                return;
            }
            self.weight(node, &input, &weight);
            if has_kernel && self.profile.reduced && weight.dtype == DataType::Int8 {
                self.saturates(node, &weight);
            }
        }
        self.bias(node, &input, &weight);
        let ends_in_integers = matches!(
            self.profile.placement,
            Placement::WeightedOps | Placement::WeightedAndInterior | Placement::AllOps
        ) && input.scales.len() == 1
            && matches!(input.dtype, DataType::Int8 | DataType::UInt8);
        let output = graph.output(node, 0);
        if needs_output
            && ends_in_integers
            && output.is_some_and(|output| self.pairs.quantized(output).is_none())
        {
            self.violate(node, Rule::FloatOutput, "its output is not quantized");
        }
    }

    /// Whether a CPU dequantizes this weight and multiplies in float: there it may have any type.
    fn multiplies_in_float(&self, input: &Parameters, weight: &Parameters) -> bool {
        let is_cpu = matches!(
            self.profile.placement,
            Placement::WeightedOps | Placement::WeightedAndInterior
        );
        let is_taken = |beside: QType| {
            let mut types = self.profile.weights_beside(beside);
            types.any(|qtype| data_type(qtype) == weight.dtype)
        };
        is_cpu && input.qtype().is_some_and(|beside| !is_taken(beside))
    }

    fn weight(&mut self, node: usize, input: &Parameters, weight: &Parameters) {
        let op_type = self.pairs.graph.nodes[node].op_type.as_str();
        match input.qtype() {
            Some(beside) => {
                let types: Vec<QType> = self.profile.weights_beside(beside).collect();
                self.check_type(node, Rule::WeightType, weight, &types);
            }
            None => self.check_type(node, Rule::WeightType, weight, self.profile.weights),
        }
        if self.profile.symmetric.1 {
            self.check_zero(node, weight);
        }
        let allowed = self.profile.per_channel.is_none_or(|op_types| op_types.contains(&op_type));
        if weight.scales.len() > 1 && !allowed {
            let what = format!("{} scales for its weight instead of one", weight.scales.len());
            self.violate(node, Rule::PerChannel, what);
        }
    }

    fn saturates(&mut self, node: usize, weight: &Parameters) {
        let graph = self.pairs.graph;
        let tensor = weight.constant.and_then(|id| graph.model.tensor(graph.constant(id)?).ok());
        let largest = QType::Int8.max() / 2 + 1;
        let over = tensor.is_some_and(|tensor| {
            tensor.data.iter().any(|byte| i32::from(byte.cast_signed()).abs() > largest)
        });
        if over {
            let what = format!("a weight beyond ±{largest}, with which sums can saturate");
            self.violate(node, Rule::Saturation, what);
        }
    }

    fn bias(&mut self, node: usize, input: &Parameters, weight: &Parameters) {
        let graph = self.pairs.graph;
        let is_bias =
            ops::rule(graph.nodes[node]).is_some_and(|rule| matches!(rule.slot(2), Slot::Bias));
        let Some(bias) = graph.input(node, 2).filter(|_| is_bias) else { return };
        let expected =
            input.qtype().map_or(self.profile.bias, |qtype| self.profile.bias_beside(qtype));
        match (self.pairs.restored(Some(bias)).cloned(), expected) {
            (None, Bias::Int32) => {
                self.violate(node, Rule::FloatBias, "a float bias, expected int32");
            }
            (Some(found), Bias::Float) => {
                let what = format!("a bias of {} instead of float", found.dtype);
                self.violate(node, Rule::Bias, what);
            }
            (None, Bias::Float) => {}
            (Some(found), Bias::Int32) => {
                let scale = |scales: &[f32], at: usize| scales[at.min(scales.len() - 1)];
                let fits = |at: usize| {
                    let product = scale(&input.scales, 0) * scale(&weight.scales, at);
                    (scale(&found.scales, at) / product - 1.0).abs() < 1e-5
                };
                let sound = found.dtype == DataType::Int32
                    && !found.scales.is_empty()
                    && !input.scales.is_empty()
                    && !weight.scales.is_empty()
                    && found.zero_points.iter().all(|zero| *zero == 0)
                    && (0..found.scales.len().max(weight.scales.len())).all(fits);
                if !sound {
                    let what = "a bias that is not int32 with the scale of input × weight";
                    self.violate(node, Rule::Bias, what);
                }
            }
        }
    }

    /// Operators that move quantized data keep its scale; but rows of a table have the scale of the
    /// table, which contains more than these rows.
    fn moves(&mut self, node: usize) {
        let graph = self.pairs.graph;
        let (Some(input), Some(output)) = (graph.input(node, 0), graph.output(node, 0)) else {
            return;
        };
        if self.is_looked_up(input) {
            return;
        }
        let before = self.pairs.restored(Some(input)).filter(|found| found.constant.is_none());
        let (Some(before), Some(after)) = (before, self.pairs.quantized(output)) else { return };
        let consumers = &graph.values[output].consumers;
        let direct = consumers.iter().all(|r| graph.nodes[r.node].op_type == "QuantizeLinear");
        let same = before.scales == after.scales && before.zero_points == after.zero_points;
        if direct && !same {
            self.violate(node, Rule::MovedScale, "the output has another scale than the input");
        }
    }

    /// Whether a value is dequantized from integers that were gathered from a constant.
    fn is_looked_up(&self, value: ValueId) -> bool {
        let graph = self.pairs.graph;
        let producer = |value: ValueId| match graph.values[value].producer {
            Producer::Node { node, .. } => Some(node),
            _ => None,
        };
        let taken = producer(value)
            .filter(|node| graph.nodes[*node].op_type == "DequantizeLinear")
            .and_then(|node| producer(graph.input(node, 0)?))
            .filter(|node| graph.nodes[*node].op_type == "Gather");
        taken
            .and_then(|node| graph.input(node, 0))
            .is_some_and(|table| graph.constant(table).is_some())
    }

    /// Operators are quantized completely or not at all.
    fn is_whole(&mut self, node: usize, rule: &ops::OpRule) {
        let graph = self.pairs.graph;
        let flowing: Vec<ValueId> = (0..graph.nodes[node].input.len())
            .filter(|input| rule.takes_activation(*input))
            .filter_map(|input| graph.input(node, input))
            .filter(|id| self.pairs.restored(Some(*id)).is_none_or(|pair| pair.constant.is_none()))
            .collect();
        let quantized = |id: &&ValueId| self.pairs.restored(Some(**id)).is_some();
        let count = flowing.iter().filter(quantized).count();
        let output = graph.output(node, 0);
        let whole = count == flowing.len()
            && output.is_some_and(|output| self.pairs.quantized(output).is_some());
        if count > 0 && !whole {
            self.violate(node, Rule::FloatNode, "only a part of it is quantized");
        }
    }
}
