//! Which nodes can multiply on integers. All other quantization of activations follows from them.

use std::collections::HashSet;

use quantize_rs_math::QType;
use quantize_rs_onnx::DataType;

use super::accumulator_overflow::overflows;
use super::activations::ActivationContext;
use super::decisions::{Decisions, Outcome};
use super::ort_int8_workarounds::{convs_after_resize, writes_type};
use super::{Decision, KeepReason};
use crate::graph::ops::{IntegerSupport, OpRule, Slot};
use crate::graph::uses;
use crate::graph::uses::{Along, Constant, Use};
use crate::graph::{Producer, ValueId};
use crate::options::target::{Bias, Placement};

/// The maximum number of products of two activations in a sum. In attention over more values, most
/// probabilities are less than half a step of 8 bits and are rounded to 0.
const MAX_SUMMED_PRODUCTS: usize = 512;

/// Why a `MatMul` computes in float if other nodes read its weight before it is reshaped or
/// transposed, such as an embedding table.
const REARRANGED: &str = "its weight is rearranged before it is read";

/// Why a `Conv` computes in float if ONNX Runtime would compute a `Resize` before it incorrectly.
const AFTER_RESIZE: &str =
    "ONNX Runtime may not load a Resize like the one before it between integer Convs";

/// The number of elements from which on dequantizing a weight takes noticeable time.
const MIN_SLOW_ELEMENTS: usize = 1 << 18;

/// A node that can multiply on integers, and what it needs for that.
pub(super) struct IntegerOp {
    pub(super) node: usize,
    /// Its inputs that are activations.
    pub(super) inputs: Vec<ValueId>,
    /// The constant that it multiplies by; `None` if it multiplies two activations.
    pub(super) weight: Option<ValueId>,
    /// Its bias, if it becomes int32.
    pub(super) bias: Option<ValueId>,
    /// The node that produces its result: itself, or the `Add` after it that holds its bias.
    pub(super) last: usize,
    /// Whether its output must be quantized too.
    pub(super) quantized_output: bool,
}

/// Finds the nodes that can multiply on integers. For other nodes that multiply, the reason is
/// recorded at their input.
pub(super) fn find(context: &ActivationContext<'_, '_>, decisions: &Decisions) -> Outcome {
    // Where inputs alone are quantized, ONNX Runtime fuses no convolution on integers.
    let inputs_alone = context.profile.placement == Placement::OpInputs;
    let moved = if inputs_alone { HashSet::new() } else { convs_after_resize(context.graph) };
    let of = |node: usize| match context.integer_op(decisions, node) {
        Ok(Some(_)) if moved.contains(&node) => Err(AFTER_RESIZE),
        found => found,
    };
    let of_node = |node: usize| match of(node) {
        Ok(Some(op)) => Outcome::integer_op(op).and(context.keep_bias(decisions, node)),
        Ok(None) => Outcome::default(),
        Err(why) => {
            let slow = context.slow(decisions, node).filter(|_| why == REARRANGED);
            let input = context.graph.input(node, 0).into_iter();
            let reason = || KeepReason::FloatNode { node: context.label(node), why };
            let kept: Outcome = input.map(|input| Outcome::keep(input, reason())).collect();
            kept.and(Outcome::warn(slow))
        }
    };
    (0..context.graph.nodes.len()).map(of_node).collect()
}

impl ActivationContext<'_, '_> {
    /// Warns about a large weight that is rearranged at every inference because other nodes read it
    /// in its original order.
    fn slow(&self, decisions: &Decisions, node: usize) -> Option<String> {
        let constant = self.constants.get(self.weighted.get(&node)?)?;
        decisions.quantized(constant.anchor)?;
        (constant.shape.iter().product::<usize>() >= MIN_SLOW_ELEMENTS).then(|| {
            let weight = self.graph.values[constant.anchor].name;
            format!(
                "{} computes in float, and `{weight}` is dequantized and rearranged for it at \
                 every inference: give it a weight of its own, or leave `{weight}` float with \
                 exclude, where speed matters",
                self.label(node)
            )
        })
    }

    /// Gives the reason why the bias of an integer op stays float, if the runtime requires that.
    fn keep_bias(&self, decisions: &Decisions, node: usize) -> Outcome {
        let bias = self.graph.input(node, 2).filter(|_| self.profile.bias == Bias::Float);
        let undecided = |bias: &ValueId| {
            matches!(decisions.get(*bias), Some(Decision::KeepFloat(KeepReason::Bias)))
        };
        let target = (self.config.quantize_bias != Some(false)).then_some(self.profile.name);
        let kept = Decision::KeepFloat(KeepReason::FloatBias { target });
        let bias = bias.filter(undecided);
        bias.map(|bias| Outcome::revise(bias, kept)).unwrap_or_default()
    }

    /// How a node multiplies on integers; `None` if it does not multiply.
    ///
    /// # Errors
    /// The reason why it multiplies in float.
    fn integer_op(
        &self,
        decisions: &Decisions,
        node: usize,
    ) -> Result<Option<IntegerOp>, &'static str> {
        let graph = self.graph;
        let Some((rule, integer)) = self.rules[node] else { return Ok(None) };
        let (Some(input), Some(weight)) = (graph.input(node, 0), graph.input(node, 1)) else {
            return Ok(None);
        };
        let anywhere = matches!(self.profile.placement, Placement::OpInputs | Placement::AllOps);
        let quantized_output = match integer {
            IntegerSupport::FloatOutput | IntegerSupport::OperatorAlone => false,
            IntegerSupport::QuantizedOutput { kernel: None } if !anywhere => {
                return Err("there is no integer kernel for it");
            }
            IntegerSupport::QuantizedOutput { .. } => true,
            IntegerSupport::No(why) if decisions.quantized(weight).is_some() => return Err(why),
            _ => return Ok(None),
        };
        if graph.constant(input).is_some() {
            return Err("its first input is constant");
        }
        if self.already.contains(&input) || self.already.contains(&weight) {
            return Err("it is quantized already");
        }
        let weight = self.before_rearranging(decisions, node, weight);
        let Some(plan) = decisions.quantized(weight) else {
            self.multiplies_activations(node, rule, input, weight)?;
            let (inputs, weight, bias) = (vec![input, weight], None, None);
            return Ok(Some(IntegerOp {
                node,
                inputs,
                weight,
                bias,
                last: node,
                quantized_output,
            }));
        };
        let float32 = |constant: &&Constant<'_>| constant.dtype == Some(DataType::Float);
        if self.constants.get(&weight).is_none_or(|found| !float32(found)) {
            return Err("its weight is not of float32, and runtimes fuse no other floats");
        }
        let beside = self.types.specs[input].qtype;
        if self.profile.weights_beside(beside).all(|taken| taken != plan.spec.qtype) {
            return Err("no integer kernel takes such weights");
        }
        if beside.bits() == 8
            && plan.spec.qtype.bits() <= 8
            && self.summed(node, weight).is_none_or(|summed| overflows(summed, &plan.spec))
        {
            return Err("its sums are so long that they may leave int32");
        }
        if beside == QType::Int8 && graph.nodes[node].op_type == "MatMul" && self.is_vector(input) {
            return Err("its input is an int8 vector, which ONNX Runtime may not load");
        }
        let operator_alone = integer == IntegerSupport::OperatorAlone;
        if operator_alone && beside != QType::UInt8 {
            return Err("QAttention takes an input of uint8");
        }
        let bias = match self.profile.bias_beside(beside) {
            Bias::Int32 if !operator_alone => self.bias(node, weight)?,
            _ => None,
        };
        let (mut bias, mut last) = (bias, node);
        if let Some((sum, added)) = self.sum_after(node, input, weight) {
            (bias, last) = (Some(added), sum);
        }
        let (inputs, weight) = (vec![input], Some(weight));
        let quantized_output = quantized_output || self.fuses_in_float(integer, input, last);
        Ok(Some(IntegerOp { node, inputs, weight, bias, last, quantized_output }))
    }

    /// Whether a value has one axis, in an opset from which on ONNX Runtime may not load what it
    /// fuses of a `MatMul` with an `Add`. A bias of two axes, as `rewrite::with_bias_rows` writes
    /// it, would change the shape of the sum.
    fn is_vector(&self, value: ValueId) -> bool {
        let axes = self.graph.shape(value).map(|shape| shape.len());
        writes_type(self.graph.model) && axes == Some(1)
    }

    /// The `Add` that holds the bias of a `MatMul`, and the bias.
    ///
    /// ONNX Runtime fuses the two into a `Gemm` if all dimensions are known or there are two axes.
    /// It runs that `Gemm` on integers only if the bias is int32. With int8, it may not load what
    /// it fuses, so the bias stays float there: see `rewrite::with_bias_rows`.
    fn sum_after(&self, node: usize, input: ValueId, weight: ValueId) -> Option<(usize, ValueId)> {
        let graph = self.graph;
        let is_product = graph.nodes[node].op_type == "MatMul"
            && self.profile.bias == Bias::Int32
            && self.profile.placement == Placement::WeightedAndInterior
            && self.has_kernels(&[input])
            && graph
                .input(node, 1)
                .and_then(|weight| graph.shape(weight))
                .is_some_and(|weight| weight.len() == 2);
        let shape = graph.shape(input).filter(|_| is_product)?;
        let int8 = self.types.specs[input].qtype == QType::Int8 && writes_type(graph.model);
        let known = shape.len() == 2 || shape.iter().all(Option::is_some) && !int8;
        let consumer = graph.only_consumer(graph.output(node, 0).filter(|_| known)?)?;
        let sum = consumer.node;
        if graph.nodes[sum].op_type != "Add" || self.selection.leaves_node(graph, sum) {
            return None;
        }
        let added = graph.input(sum, 1 - consumer.input.min(1))?;
        let fits = graph.only_consumer(added).is_some()
            && self.fits_as_bias(added, weight, node, shape.len()).is_ok();
        fits.then_some((sum, added))
    }

    /// Whether ONNX Runtime would fuse the activation function after a `Gemm` into it before it
    /// searches for quantized operators, and so compute both in float. It does not do so if it
    /// first removes the function because the quantized range starts at 0.
    fn fuses_in_float(&self, integer: IntegerSupport, input: ValueId, last: usize) -> bool {
        let gemm =
            self.graph.nodes[last].op_type != "MatMul" && integer == IntegerSupport::FloatOutput;
        let after = self.graph.output(last, 0).and_then(|output| self.function_after(output));
        let stays = |(function, output): (usize, ValueId)| {
            self.graph.nodes[function].op_type == "Relu" && !self.graph.values[output].is_output
        };
        gemm && self.profile.placement == Placement::WeightedAndInterior
            && self.has_kernels(&[input])
            && after.is_some_and(stays)
    }

    /// The constant that a weight is reshaped and transposed from, if this node is the only
    /// consumer besides `Gather` nodes; else the weight itself.
    fn before_rearranging(&self, decisions: &Decisions, node: usize, weight: ValueId) -> ValueId {
        let only = |constant: &Constant<'_>| match constant.uses[..] {
            [Use::Weight { node: reader, .. }] => reader == node,
            _ => false,
        };
        let looked_up = |constant: &Constant<'_>| {
            let plan = decisions.quantized(constant.anchor);
            plan.and_then(|plan| self.beside_look_ups(constant.anchor, plan))
                .is_some_and(|others| others.len() == 1)
                && self.graph.only_consumer(weight).is_some()
        };
        let alone = |constant: &&Constant<'_>| only(constant) || looked_up(constant);
        let found = self.weighted.get(&node).and_then(|anchor| self.constants.get(anchor));
        match found.copied().filter(alone) {
            Some(constant) if self.profile.placement == Placement::WeightedAndInterior => {
                let chain = uses::rearranging(self.graph, constant.anchor);
                let end = chain.last().and_then(|last| self.graph.output(*last, 0));
                if end == Some(weight) { constant.anchor } else { weight }
            }
            _ => weight,
        }
    }

    /// Checks that a node multiplies two activations, and that integers are accurate enough for
    /// that.
    ///
    /// # Errors
    /// The reason why it multiplies in float.
    fn multiplies_activations(
        &self,
        node: usize,
        rule: &OpRule,
        left: ValueId,
        right: ValueId,
    ) -> Result<(), &'static str> {
        let flows = |id: ValueId| {
            matches!(self.graph.values[id].producer, Producer::Input | Producer::Node { .. })
                && self.graph.constant(id).is_none()
        };
        if !matches!(rule.slot(1), Slot::Operand { .. }) || !flows(left) || !flows(right) {
            return Err("its weight is not a quantized constant");
        }
        if self.weighted.contains_key(&node) {
            return Err(REARRANGED);
        }
        if !self.profile.products {
            return Err("both of its inputs are activations");
        }
        let adds = self.graph.nodes[node].input.get(2).is_some_and(|name| !name.is_empty());
        if adds && self.profile.placement == Placement::WeightedAndInterior {
            return Err("what it adds is no constant of int32");
        }
        if !self.float32[left] || !self.float32[right] {
            return Err("its inputs are not known to be float32");
        }
        let summed = self.graph.shape(left).and_then(|shape| *shape.last()?);
        match summed {
            Some(length) if length > MAX_SUMMED_PRODUCTS => {
                Err("in rows this long, a probability may be less than a step of 8 bits")
            }
            _ => Ok(()),
        }
    }

    /// The bias of a node, if it has one.
    ///
    /// # Errors
    /// The reason why it cannot become int32.
    fn bias(&self, node: usize, weight: ValueId) -> Result<Option<ValueId>, &'static str> {
        let graph = self.graph;
        let Some(name) = graph.nodes[node].input.get(2).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let bias = graph.value(name).ok_or("its bias is not a value of the graph")?;
        // A Gemm adds a matrix of one row like a vector; it is written as a vector.
        let axes = if graph.nodes[node].op_type == "Gemm" { 2 } else { 1 };
        self.fits_as_bias(bias, weight, node, axes)?;
        Ok(Some(bias))
    }

    /// Checks that a value can become the int32 bias of a node: a vector, or a tensor of up to
    /// `axes` axes of which all but the last have length 1.
    ///
    /// # Errors
    /// The reason why it cannot.
    fn fits_as_bias(
        &self,
        bias: ValueId,
        weight: ValueId,
        node: usize,
        axes: usize,
    ) -> Result<(), &'static str> {
        let graph = self.graph;
        let vector = graph.fixed_constant(bias).is_some_and(|tensor| {
            tensor.dtype() == Some(DataType::Float) && (1..=axes).contains(&tensor.dims.len())
        });
        if !vector || !self.matches_channels(bias, weight, node) {
            return Err("its bias is not a constant vector of one value a channel");
        }
        let name = graph.values[bias].name;
        match self.selection.excluded(&[name], std::iter::empty()) {
            Some(_) => Err("its bias is excluded"),
            None => Ok(()),
        }
    }

    /// The shape of a constant, which may be cast.
    pub(super) fn shape(&self, constant: ValueId) -> Option<&[usize]> {
        self.constants.get(&constant).map(|constant| &constant.shape[..])
    }

    /// The maximum number of products that a node sums for one element of its output.
    fn summed(&self, node: usize, weight: ValueId) -> Option<usize> {
        let constant = self.constants.get(&weight)?;
        let elements = constant.shape.iter().product::<usize>();
        let batched = constant.shape.len() > 2 && self.graph.nodes[node].op_type == "MatMul";
        match self.channels(node, weight) {
            _ if batched => constant.shape.get(constant.shape.len() - 2).copied(),
            Some(channels) => elements.checked_div(channels),
            None => Some(elements),
        }
    }

    /// The number of output channels of a weight for a node.
    fn channels(&self, node: usize, weight: ValueId) -> Option<usize> {
        let constant = self.constants.get(&weight)?;
        let axis = constant.uses.iter().find_map(|usage| match usage {
            Use::Weight { node: consumer, channels: Some(Along::Axis(axis)), .. }
                if *consumer == node =>
            {
                Some(*axis)
            }
            _ => None,
        })?;
        constant.shape.get(axis).copied()
    }

    /// Whether the bias has one value for each output channel of the weight.
    fn matches_channels(&self, bias: ValueId, weight: ValueId, node: usize) -> bool {
        let channels = self.channels(node, weight).and_then(|channels| {
            let proto = self.graph.nodes[node];
            let groups = if uses::groups_outputs(proto) { proto.int("group", 1) } else { 1 };
            channels.checked_mul(usize::try_from(groups).ok()?)
        });
        let shape = self.graph.shape(bias);
        match (shape.as_deref(), channels) {
            (Some([before @ .., last]), Some(channels)) => {
                *last == Some(channels) && before.iter().all(|length| *length == Some(1))
            }
            _ => false,
        }
    }
}
