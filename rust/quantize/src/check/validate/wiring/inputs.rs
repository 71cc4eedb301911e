//! The inputs of two nodes, and the values that their subgraphs read from the outer graph.

use std::collections::BTreeSet;

use quantize_rs_onnx::{DataType, NodeProto, reads};

use super::super::qlinear_ops::{has_twin, pads_integers};
use super::super::replaced::REPLACED;
use super::super::stored::base_of;
use super::super::{Check, kv_cache};
use super::{Step, Walk, constants_behind};
use crate::graph::ops::moves_elements;
use crate::graph::{Graph, Producer, ValueId};

impl Walk<'_, '_> {
    /// Compares the inputs of two nodes of the same operator. `cached` says that a cache became
    /// integers.
    pub(super) fn compare_inputs(&mut self, there: usize, here: usize, cached: bool) {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        for input in 0..was.input.len().max(is.input.len()) {
            let (original, read) = (self.before.input(there, input), self.after.input(here, input));
            match (original, read) {
                (_, Some(value)) if input == 2 && pads_integers(self.after, here) => {
                    self.padding(there, here, value);
                }
                // The scales of a quantized cache.
                (None, Some(_)) if cached && kv_cache::is_scale(input) => {}
                // A bias that was added by bias correction.
                (None, Some(_)) if bias_input(is, input) => {}
                _ => {
                    if let Some(original) = original
                        && !cached
                    {
                        self.check_dequantized(there, original, here, input);
                    }
                    self.compare_input(original, here, input);
                }
            }
        }
    }

    /// Compares an input of a node of the quantized model with what the original reads there.
    pub(in crate::check::validate) fn compare_input(
        &mut self,
        original: Option<ValueId>,
        node: usize,
        input: usize,
    ) {
        let is = self.after.nodes[node];
        let what = match (original, self.after.input(node, input)) {
            (None, None) => return,
            (Some(there), Some(here)) => {
                return self.waiting.push(Step::to_node(is, there, here).at_input(node, input));
            }
            (Some(there), None) => {
                let name = self.before.values[there].name;
                format!("input {input} is missing, the original reads `{name}`")
            }
            (None, Some(here)) => {
                let name = self.after.values[here].name;
                format!("it reads `{name}` at input {input}, the original nothing")
            }
        };
        self.found.problem(Check::Connectivity, is.named(), what);
    }

    /// Checks that a node which computes with floats does not read the integers that they were
    /// quantized to.
    fn check_dequantized(&mut self, was: usize, there: ValueId, node: usize, input: usize) {
        let Some(value) = self.after.input(node, input) else { return };
        let Some(dtype) = self.after.dtype(value).filter(|dtype| !dtype.is_float()) else { return };
        let was_float = self.before.dtype(there).is_some_and(DataType::is_float);
        if was_float && self.makes_float(was, node) {
            let read = self.after.values[value].name;
            let what = format!("it reads `{read}`, which is not dequantized: {dtype}");
            self.found.problem(Check::Connectivity, self.after.nodes[node].named(), what);
        }
    }

    /// Whether a node computes something different on integers than on the floats that they
    /// represent: it is a product of floats, or makes floats otherwise than by moving them. `was`
    /// is the node of the original.
    fn makes_float(&self, was: usize, node: usize) -> bool {
        let is = self.after.nodes[node];
        let op_type = is.op_type.as_str();
        let product = REPLACED.contains(&op_type) && op_type != "Gather" || has_twin(op_type);
        let output = |graph: &Graph<'_>, node| {
            graph
                .output(node, 0)
                .and_then(|output| graph.dtype(output))
                .is_some_and(DataType::is_float)
        };
        let takes_integers = op_type == "Cast"
            || moves_elements(self.after, node)
            || pads_integers(self.after, node);
        let makes = output(self.before, was) || output(self.after, node);
        is.is_onnx() && (product || makes && !takes_integers)
    }

    /// Compares what the subgraphs of two nodes read from the outer graph: the names stay.
    pub(super) fn compare_subgraph_inputs(&mut self, there: usize, here: usize) {
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let (originals, names) = (outer_names(was), outer_names(is));
        for name in originals.symmetric_difference(&names) {
            if !self.is_another_form(name, &originals, &names) {
                let what = format!("a subgraph of it reads `{name}` in only one of the two models");
                self.found.problem(Check::Connectivity, is.named(), what);
            }
        }
        for name in &originals {
            let narrowed = names.iter().find(|here| self.is_narrowed_value(here, name));
            if let (Some(there), Some(here)) =
                (self.before.value(name), narrowed.and_then(|here| self.after.value(here)))
            {
                self.waiting.push(Step::to_node(is, there, here));
            }
        }
        for name in originals.intersection(&names) {
            if let (Some(there), Some(here)) = (self.before.value(name), self.after.value(name)) {
                self.waiting.push(Step::to_node(is, there, here));
            }
        }
    }

    /// Whether a name that the subgraphs of only one of two nodes read is that of a constant which
    /// the others read in another form, or of a value that they read in 16 bits. `originals` and
    /// `names` are all that they read.
    fn is_another_form(
        &self,
        name: &str,
        originals: &BTreeSet<&str>,
        names: &BTreeSet<&str>,
    ) -> bool {
        let constant = |id: ValueId| self.before.constant(id).is_some();
        let there = self.before.value(name);
        let replaced =
            there.is_some_and(constant) && names.iter().any(|here| self.is_form_of(here, name));
        let from_constants = |id: ValueId| constants_behind(self.after, id, &mut Vec::new());
        let new = there.is_none()
            && (self.after.value(name).is_some_and(from_constants)
                || originals.iter().any(|there| self.is_form_of(name, there)));
        let narrowed = names.iter().any(|here| self.is_narrowed_value(here, name))
            || originals.iter().any(|there| self.is_narrowed_value(name, there));
        replaced || new || narrowed
    }

    /// Whether a value casts the one of this name to the 16-bit type that the model computes in.
    fn is_narrowed_value(&self, here: &str, there: &str) -> bool {
        let Some(half) = self.half else { return false };
        let Some(here) = self.after.value(here) else { return false };
        let Producer::Node { node, .. } = self.after.values[here].producer else { return false };
        let node = self.after.nodes[node];
        node.op_type == "Cast"
            && node.int("to", 0) == i64::from(half.data_type().number())
            && node.input.first().is_some_and(|read| read == there)
    }

    /// Whether a value stands for a constant of the original by its name: a weight that a subgraph
    /// reads may be stored as integers or in 16 bits, or be dequantized beside its floats.
    fn is_form_of(&self, here: &str, there: &str) -> bool {
        let half = self.half.map(|half| half.data_type().name());
        let mut suffixes = ["quantized", "dequantized"].into_iter().chain(half);
        self.after.value(here).is_some_and(|id| {
            let kept = self.kept.get(&id).is_some_and(|names| names.iter().any(|it| it == there));
            kept || suffixes.any(|suffix| base_of(here, suffix).as_deref() == Some(there))
        })
    }
}

/// The values of the outer graph that the subgraphs of a node read.
fn outer_names(node: &NodeProto) -> BTreeSet<&str> {
    let own = node.input.iter().filter(|name| !name.is_empty()).count();
    reads(node)[own..].iter().copied().collect()
}

/// Whether bias correction may change this input of a node.
pub(in crate::check::validate) fn bias_input(node: &NodeProto, input: usize) -> bool {
    match node.op_type.as_str() {
        "Conv" | "ConvTranspose" | "Gemm" => input == 2,
        "Add" => true,
        // A negated bias: see the pass `subtract_bias`.
        "Sub" => input == 1,
        _ => false,
    }
}
