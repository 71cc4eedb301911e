//! Which nodes multiply on integers: they lead, and all other quantization follows from them.

use quantize_rs_onnx::DataType;

use super::accumulator_overflow::overflows;
use super::activations::Planner;
use super::{Decision, Draft, IntegerNode, Kept};
use crate::graph::ops::{Integer, OpRule, Slot};
use crate::graph::uses;
use crate::graph::uses::{Along, Constant, Use};
use crate::graph::{Maker, ValueId};
use crate::options::target::{Bias, Placement};

/// Sums of products of two activations are no longer than this: attention over more than so many
/// values gives most of them less than half a step of 8 bits, which is nothing.
const LONGEST_SUM: usize = 512;

/// Why a product has no integers where its weight is also read as it is, such as a table of embeddings.
const REARRANGED: &str = "its weight is rearranged before it is read";

/// Elements of a weight that take long to bring back from integers.
const LARGE: usize = 1 << 18;

/// A node that multiplies, and what it needs to do so on integers.
pub(super) struct Lead {
    pub(super) node: usize,
    /// What flows into it.
    pub(super) inputs: Vec<ValueId>,
    /// The constant that it multiplies by; `None` when it multiplies what flows into it.
    pub(super) weight: Option<ValueId>,
    /// What it adds, when that becomes int32.
    pub(super) bias: Option<ValueId>,
    /// The node that makes its result: itself, or the sum after it that holds its bias.
    pub(super) last: usize,
    /// Whether its result must be quantized too.
    pub(super) quantized_output: bool,
}

impl Planner<'_, '_> {
    /// Nodes that can multiply on integers; what flows into one that cannot says why.
    pub(super) fn leads(&self, draft: &mut Draft) -> Vec<Lead> {
        let mut leads = Vec::new();
        for node in 0..self.graph.nodes.len() {
            match self.lead(draft, node) {
                Ok(Some(lead)) => {
                    self.keep_bias(draft, node);
                    leads.push(lead);
                }
                Ok(None) => {}
                Err(why) => {
                    let said = self.slow(draft, node).filter(|_| why == REARRANGED);
                    draft.warnings.extend(said);
                    if let Some(input) = self.graph.input(node, 0) {
                        draft.keep(input, Kept::FloatNode { node: self.label(node), why });
                    }
                }
            }
        }
        leads
    }

    /// What it means for a node that its large weight is rearranged in every run, since others read it as it is.
    fn slow(&self, draft: &Draft, node: usize) -> Option<String> {
        let constant = self.constants.get(self.weighted.get(&node)?)?;
        draft.quantized(constant.anchor)?;
        (constant.shape.iter().product::<usize>() >= LARGE).then(|| {
            let weight = self.graph.values[constant.anchor].name;
            format!(
                "{} computes in float, and `{weight}` is brought back from integers and rearranged for \
                 it in every run: give it a weight of its own, or leave `{weight}` float with \
                 exclude, where speed matters",
                self.label(node)
            )
        })
    }

    /// Says why the bias of an integer node stays float, where the runtime wants that.
    fn keep_bias(&self, draft: &mut Draft, node: usize) {
        if let Some(bias) = self.graph.input(node, 2).filter(|_| self.profile.bias == Bias::Float)
            && let Some(Decision::Keep(kept @ Kept::Bias)) = draft.decisions.get_mut(&bias)
        {
            *kept = Kept::FloatBias { target: self.profile.name };
        }
    }

    /// How a node multiplies on integers; `None` when it does not multiply, else why it cannot.
    fn lead(&self, draft: &Draft, node: usize) -> Result<Option<Lead>, &'static str> {
        let graph = self.graph;
        let Some((rule, integer)) = self.rules[node] else { return Ok(None) };
        let (Some(input), Some(weight)) = (graph.input(node, 0), graph.input(node, 1)) else {
            return Ok(None);
        };
        let anywhere = matches!(self.profile.placement, Placement::Inputs | Placement::Everything);
        let quantized_output = match integer {
            Integer::FloatOutput => false,
            Integer::QuantizedOutput { kernel: None } if !anywhere => {
                return Err("there is no integer kernel for it");
            }
            Integer::QuantizedOutput { .. } => true,
            Integer::No(why) if draft.quantized(weight).is_some() => return Err(why),
            _ => return Ok(None),
        };
        if graph.constant(input).is_some() {
            return Err("its first input is constant");
        }
        if self.already.contains(&input) || self.already.contains(&weight) {
            return Err("it is quantized already");
        }
        let weight = self.before_rearranging(draft, node, weight);
        let Some(plan) = draft.quantized(weight) else {
            self.product(node, rule, input, weight)?;
            let (inputs, weight, bias) = (vec![input, weight], None, None);
            return Ok(Some(Lead { node, inputs, weight, bias, last: node, quantized_output }));
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
        let bias = match self.profile.bias_beside(beside) {
            Bias::Int32 => self.bias(node, weight)?,
            Bias::Float => None,
        };
        let (mut bias, mut last) = (bias, node);
        if let Some((sum, added)) = self.sum_after(node, input, weight) {
            (bias, last) = (Some(added), sum);
        }
        let (inputs, weight) = (vec![input], Some(weight));
        let quantized_output = quantized_output || self.fuses_in_float(integer, input, last);
        Ok(Some(Lead { node, inputs, weight, bias, last, quantized_output }))
    }

    /// The sum that holds the bias of a matrix product, and the bias.
    ///
    /// ONNX Runtime makes a `Gemm` of the two where it knows all lengths or there are two axes, and
    /// runs that on integers only when the bias is int32.
    fn sum_after(&self, node: usize, input: ValueId, weight: ValueId) -> Option<(usize, ValueId)> {
        let graph = self.graph;
        let is_product = graph.nodes[node].op_type == "MatMul"
            && self.profile.placement == Placement::Between
            && self.has_kernels(&[input])
            && graph
                .input(node, 1)
                .and_then(|weight| graph.shape(weight))
                .is_some_and(|weight| weight.len() == 2);
        let shape = graph.shape(input).filter(|_| is_product)?;
        let known = shape.len() == 2 || shape.iter().all(Option::is_some);
        let value = &graph.values[graph.output(node, 0).filter(|_| known)?];
        let [reader] = value.readers[..] else { return None };
        let sum = reader.node;
        if value.is_output
            || value.captured
            || graph.nodes[sum].op_type != "Add"
            || self.selection.leaves_node(graph, sum)
        {
            return None;
        }
        let added = graph.input(sum, 1 - reader.input.min(1))?;
        let alone = &graph.values[added];
        let fits = alone.readers.len() == 1
            && !alone.captured
            && !alone.is_output
            && self.fits_as_bias(added, weight, node, shape.len()).is_ok();
        fits.then_some((sum, added))
    }

    /// Whether ONNX Runtime takes the activation function after a `Gemm` into it before it looks for
    /// integers, which then come too late. It does not where the function disappears first, in a
    /// grid that ends at 0.
    fn fuses_in_float(&self, integer: Integer, input: ValueId, last: usize) -> bool {
        let gemm = self.graph.nodes[last].op_type != "MatMul" && integer == Integer::FloatOutput;
        let after = self.graph.output(last, 0).and_then(|output| self.function_after(output));
        let stays = |(function, output): (usize, ValueId)| {
            self.graph.nodes[function].op_type == "Relu" && !self.graph.values[output].is_output
        };
        gemm && self.profile.placement == Placement::Between
            && self.has_kernels(&[input])
            && after.is_some_and(stays)
    }

    /// The constant that a weight is rearranged from, for this node and at most those who look it up;
    /// else the weight itself.
    fn before_rearranging(&self, draft: &Draft, node: usize, weight: ValueId) -> ValueId {
        let end = &self.graph.values[weight];
        let only = |constant: &Constant<'_>| matches!(constant.uses[..], [Use::Weight { node: reader, .. }] if reader == node);
        let looked_up = |constant: &Constant<'_>| {
            let plan = draft.quantized(constant.anchor);
            plan.and_then(|plan| self.beside_look_ups(constant.anchor, plan))
                .is_some_and(|others| others.len() == 1)
                && end.readers.len() == 1
                && !end.captured
                && !end.is_output
        };
        let alone = |constant: &&Constant<'_>| only(constant) || looked_up(constant);
        let found = self.weighted.get(&node).and_then(|anchor| self.constants.get(anchor));
        match found.copied().filter(alone) {
            Some(constant) if self.profile.placement == Placement::Between => {
                let chain = uses::rearranging(self.graph, constant.anchor);
                let end = chain.last().and_then(|last| self.graph.output(*last, 0));
                if end == Some(weight) { constant.anchor } else { weight }
            }
            _ => weight,
        }
    }

    /// Refuses what is no product of two activations, or one better left in float.
    fn product(
        &self,
        node: usize,
        rule: &OpRule,
        left: ValueId,
        right: ValueId,
    ) -> Result<(), &'static str> {
        let flows = |id: ValueId| {
            matches!(self.graph.values[id].maker, Maker::Input | Maker::Node { .. })
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
        if adds && self.profile.placement == Placement::Between {
            return Err("what it adds is no constant of int32");
        }
        if !self.float32[left] || !self.float32[right] {
            return Err("its inputs are not known to be float32");
        }
        let summed = self.graph.shape(left).and_then(|shape| *shape.last()?);
        match summed {
            Some(length) if length > LONGEST_SUM => {
                Err("a probability among so many may be less than a step of 8 bits")
            }
            _ => Ok(()),
        }
    }

    /// What a node adds; it must be fit to become int32.
    fn bias(&self, node: usize, weight: ValueId) -> Result<Option<ValueId>, &'static str> {
        let graph = self.graph;
        let Some(name) = graph.nodes[node].input.get(2).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let bias = graph.value(name).ok_or("its bias is not a value of the graph")?;
        // A Gemm adds a row as it adds a vector; it is written as one.
        let axes = if graph.nodes[node].op_type == "Gemm" { 2 } else { 1 };
        self.fits_as_bias(bias, weight, node, axes)?;
        Ok(Some(bias))
    }

    /// Refuses what cannot become the int32 bias of a node: a vector, which may be written with
    /// axes of length 1 before it, up to so many in all.
    fn fits_as_bias(
        &self,
        bias: ValueId,
        weight: ValueId,
        node: usize,
        axes: usize,
    ) -> Result<(), &'static str> {
        let graph = self.graph;
        let vector = graph.constant(bias).is_some_and(|tensor| {
            tensor.dtype() == Some(DataType::Float) && (1..=axes).contains(&tensor.dims.len())
        });
        let overridable =
            matches!(graph.values[bias].maker, Maker::Initializer { overridable: true, .. });
        if !vector || overridable || !self.matches_channels(bias, weight, node) {
            return Err("its bias is not a constant vector of one value a channel");
        }
        let name = graph.values[bias].name;
        match self.selection.excluded(&[name], std::iter::empty()) {
            Some(_) => Err("its bias is excluded"),
            None => Ok(()),
        }
    }

    /// The shape of a constant, cast ones included.
    pub(super) fn shape(&self, constant: ValueId) -> Option<&[usize]> {
        self.constants.get(&constant).map(|constant| &constant.shape[..])
    }

    /// How many products a node adds at most for one element of its result.
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

    /// How many output channels a weight has for a node.
    fn channels(&self, node: usize, weight: ValueId) -> Option<usize> {
        let constant = self.constants.get(&weight)?;
        let axis = constant.uses.iter().find_map(|usage| match usage {
            Use::Weight { node: reader, channels: Some(Along::Axis(axis)), .. }
                if *reader == node =>
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

    /// Records a node whose weight and bias are integers.
    pub(super) fn record(draft: &mut Draft, lead: &Lead) {
        draft.on_integers.insert(lead.node);
        if let (Some(weight), [input, ..]) = (lead.weight, &lead.inputs[..]) {
            let node = IntegerNode { node: lead.node, input: *input, weight, bias: lead.bias };
            draft.integer_nodes.push(node);
        }
    }
}
