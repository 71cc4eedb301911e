//! Checks that every node reads the same values as in the original. Both graphs are walked side by
//! side from the outputs to the inputs, past nodes that quantize and dequantize.

mod constants;
mod equality;
mod inputs;
mod sources;

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{DataType, NodeProto, Tensor};

use self::constants::sparse;
use self::equality::same_operator;
use self::sources::copied;
use super::kv_cache;
use super::qlinear_ops::FOLDED;
use super::replaced::REPLACED;
use super::stored::Stored;
use super::{Check, Validation};
use crate::graph::qlinear::qlinear_of;
use crate::graph::{Graph, Producer, ValueId, moe};
use crate::options::HalfType;
use crate::transform::half_precision::{rounds_to, type_attribute};

pub(super) use self::constants::{constants_behind, is_unknown};
pub(super) use self::equality::{equal, same_attributes};
pub(super) use self::inputs::bias_input;
pub(super) use self::sources::before_quantization;

/// Nodes of the quantized model with the corresponding nodes of the original.
pub(super) type Counterparts = HashMap<usize, usize>;

pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &mut [Stored],
    half: Option<HalfType>,
    found: &mut Validation,
) -> Counterparts {
    let originals = |stored: &Stored| (stored.integers, stored.originals.clone());
    let kept: HashMap<ValueId, Vec<String>> = stored.iter().map(originals).collect();
    let mut walk = Walk {
        before,
        after,
        kept,
        copied: copied(before, after, half),
        half,
        found,
        seen: HashSet::new(),
        waiting: Vec::new(),
        counterparts: Counterparts::new(),
    };
    for output in &before.model.graph().output {
        if let (Some(there), Some(here)) = (before.value(&output.name), after.value(&output.name)) {
            walk.waiting.push(Step::to_output(&output.name, there, here));
        }
    }
    while let Some(step) = walk.waiting.pop() {
        walk.step(&step);
    }
    for stored in stored.iter_mut().filter(|stored| is_unknown(before, &stored.originals)) {
        stored.originals.extend(walk.kept.get(&stored.integers).cloned().unwrap_or_default());
    }
    walk.counterparts
}

/// Two values that should correspond, and their consumer.
#[derive(Clone)]
pub(super) struct Step {
    pub(super) there: ValueId,
    pub(super) here: ValueId,
    /// The node or output that reads them.
    pub(super) name: String,
    /// Its label.
    pub(super) from: String,
    /// The node of the quantized model that reads it, and the input.
    pub(super) consumer: Option<(usize, usize)>,
}

impl Step {
    /// Two values that are an output of the model.
    fn to_output(name: &str, there: ValueId, here: ValueId) -> Step {
        let from = format!("output `{name}`");
        Step { there, here, name: name.to_owned(), from, consumer: None }
    }

    /// Two values that a node reads.
    pub(super) fn to_node(node: &NodeProto, there: ValueId, here: ValueId) -> Step {
        Step { there, here, name: node.named().to_owned(), from: node.label(), consumer: None }
    }

    /// The same, for an input of a node of the quantized model.
    pub(super) fn at_input(self, node: usize, input: usize) -> Step {
        Step { consumer: Some((node, input)), ..self }
    }
}

pub(super) struct Walk<'a, 'm> {
    pub(super) before: &'a Graph<'m>,
    pub(super) after: &'a Graph<'m>,
    /// The constants that store weights, and the names that these may have in the original.
    pub(super) kept: HashMap<ValueId, Vec<String>>,
    /// See [`copied`].
    copied: HashMap<ValueId, &'m str>,
    /// The type that the quantized model computes in, where the original computes in float32.
    half: Option<HalfType>,
    pub(super) found: &'a mut Validation,
    seen: HashSet<(ValueId, ValueId)>,
    pub(super) waiting: Vec<Step>,
    pub(super) counterparts: Counterparts,
}

impl Walk<'_, '_> {
    fn step(&mut self, step: &Step) {
        let there = before_quantization(self.before, step.there);
        let here = self.past_casts(there, self.before_smoothing(step.here));
        if self.before.constant_behind(there).is_some() || sparse(self.before, there) {
            return self.constant(there, here, step);
        }
        if let Some(there) = self.past_clamp(there, step.here, here) {
            self.waiting.push(Step { there, ..step.clone() });
            return;
        }
        if !self.seen.insert((there, here)) {
            return;
        }
        match (self.before.values[there].producer, self.after.values[here].producer) {
            (Producer::Node { node: n, output: a }, Producer::Node { node: m, output: b }) => {
                let (was, is) = (self.before.nodes[n], self.after.nodes[m]);
                if same_operator(was, is) && a == b {
                    self.nodes(n, m);
                } else if let Some(twin) = qlinear_of(is).filter(|twin| twin.replaces(was)) {
                    self.qlinear(n, m, twin);
                } else if FOLDED.contains(&was.op_type.as_str())
                    && was.is_onnx()
                    && let Some(twin) = qlinear_of(is)
                    && let Some(there) = self.before.input(n, 0)
                {
                    self.folded(n, m, twin.output);
                    self.waiting.push(Step { there, ..step.clone() });
                } else if moe::is_moe(was) && moe::is_qmoe(is) {
                    self.experts(n, m);
                } else if REPLACED.contains(&was.op_type.as_str()) && was.is_onnx() {
                    let read = self.result(there, step.here);
                    self.replaced(n, read, &step.name);
                } else {
                    self.wrong(there, here, step);
                }
            }
            _ if self.before.values[there].name == self.after.values[here].name => {}
            _ => self.wrong(there, here, step),
        }
    }

    /// Compares two nodes of the same operator.
    fn nodes(&mut self, there: usize, here: usize) {
        self.counterparts.insert(here, there);
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let quantized = |graph: &Graph<'_>, node| kv_cache::is_quantized(graph, node);
        // Its cache has become integers.
        let cached = quantized(self.after, here) && !quantized(self.before, there);
        let same = if cached {
            kv_cache::same_but_types(was, is)
        } else {
            same_attributes(was, is) || self.is_same_or_narrowed(was, is)
        };
        if !same {
            let what = "its attributes differ from the original";
            self.found.problem(Check::Connectivity, is.named(), what);
        }
        self.compare_inputs(there, here, cached);
        self.compare_subgraph_inputs(there, here);
    }

    /// Whether a `ConstantOfShape` has the same element, which it may omit, or a node that makes
    /// float32 became one that makes the 16-bit type that the model computes in.
    fn is_same_or_narrowed(&self, was: &NodeProto, is: &NodeProto) -> bool {
        if was.op_type == "ConstantOfShape" {
            let both = element(self.before, was).zip(element(self.after, is));
            return both.is_some_and(|(there, here)| {
                let rounds = |half: HalfType| {
                    here.dtype == half.data_type() && rounds_to(&there, &here, half)
                };
                (there.dtype, &there.data) == (here.dtype, &here.data)
                    || self.half.is_some_and(rounds)
            });
        }
        let Some((name, by_default)) = type_attribute(&was.op_type) else { return false };
        let says = |node: &NodeProto, dtype: DataType| match node.attribute(name) {
            Some(attribute) => attribute.i == Some(i64::from(dtype.number())),
            None => by_default && dtype == DataType::Float,
        };
        let others = |node: &NodeProto| {
            let mut node = node.clone();
            node.attribute.retain(|attribute| attribute.name != name);
            node
        };
        let narrowed = self.half.is_some_and(|half| says(is, half.data_type()));
        says(was, DataType::Float)
            && (narrowed || says(is, DataType::Float))
            && same_attributes(&others(was), &others(is))
    }

    /// The input of a `Relu` or `Clip` of the original whose place a `QuantizeLinear` takes: one
    /// that quantizes `here` before it is read as `read`, without such a node. Its range is
    /// checked.
    fn past_clamp(&mut self, there: ValueId, read: ValueId, here: ValueId) -> Option<ValueId> {
        let Producer::Node { node: n, .. } = self.before.values[there].producer else {
            return None;
        };
        let was = self.before.nodes[n];
        if !was.is_onnx() || !FOLDED.contains(&was.op_type.as_str()) {
            return None;
        }
        if let Producer::Node { node, .. } = self.after.values[here].producer {
            let is = self.after.nodes[node];
            if same_operator(was, is) || qlinear_of(is).is_some() {
                return None;
            }
        }
        let quantizes = self.quantizes(read)?;
        self.folded(n, quantizes, Some(1));
        self.before.input(n, 0)
    }

    fn wrong(&mut self, there: ValueId, here: ValueId, step: &Step) {
        let said = |graph: &Graph<'_>, id: ValueId| {
            let name = graph.values[id].name;
            match graph.values[id].producer {
                Producer::Input => format!("the input `{name}`"),
                Producer::Node { node, .. } if graph.constant(id).is_none() => {
                    format!("`{name}` of {}", graph.nodes[node].label())
                }
                _ => format!("the constant `{name}`"),
            }
        };
        let (mut here, there) = (said(self.after, here), said(self.before, there));
        let read = self.after.values[step.here].name;
        if !here.contains(&format!("`{read}`")) {
            here = format!("`{read}`, which is {here},");
        }
        let at = step.consumer.map_or(String::new(), |(_, input)| format!(" at input {input}"));
        let what = format!("{}: it reads {here}{at}, the original reads {there}", step.from);
        self.found.problem(Check::Connectivity, step.name.clone(), what);
    }
}

/// What a `ConstantOfShape` fills its result with.
fn element(graph: &Graph<'_>, node: &NodeProto) -> Option<Tensor> {
    match node.attribute("value") {
        Some(attribute) => graph.model.tensor(attribute.t.as_deref()?).ok(),
        None => Some(Tensor::from_f32(vec![1], &[0.0])),
    }
}
