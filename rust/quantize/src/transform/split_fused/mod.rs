//! Replaces operators that ONNX Runtime fuses when it saves an optimized model by the operators
//! that they stand for: a product, to which all rules of planning apply, and the rest.
//!
//! The runtime fuses `FusedConv`, `FusedGemm` and `FusedMatMul` again when it loads the model. An
//! `Attention` becomes the product of its input and one matrix, a `Split` of the result, and a
//! `MultiHeadAttention`; an `EmbedLayerNormalization` becomes a `Gather` of each table, sums and a
//! normalization. Only nodes with a constant weight are replaced, since a product of two
//! activations is slower without its fused form.

mod transformer;

use std::ops::Range;

use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor, TensorProto};

use super::Changes;
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::names::Names;
use crate::graph::ops::{MICROSOFT, is_function};
use crate::graph::qattention::{fits, is_attention};
use crate::graph::uses;

/// A fused operator.
struct Fused {
    name: &'static str,
    /// The standard operator that reads the weight.
    product: &'static str,
    /// The inputs that may be weights.
    weights: Range<usize>,
    split: fn(&mut Split<'_, '_, '_>) -> Option<()>,
}

const FUSED: &[Fused] = &[
    Fused { name: "FusedConv", product: "Conv", weights: 0..2, split: convolution },
    Fused { name: "FusedGemm", product: "Gemm", weights: 0..2, split: gemm },
    Fused { name: "FusedMatMul", product: "MatMul", weights: 0..2, split: matmul },
    Fused { name: "Attention", product: "MatMul", weights: 0..2, split: transformer::attention },
    Fused {
        name: "EmbedLayerNormalization",
        product: "Gather",
        weights: 2..5,
        split: transformer::embedding,
    },
];

/// The opset from which on the bounds of `Clip` are inputs.
const BOUNDS_ARE_INPUTS: i64 = 11;

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    Ok(split(graph, |_| true))
}

/// As [`run`], but an `Attention` that can become `QAttention` stays.
#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn unless_qattention(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    Ok(split(graph, |node| !is_attention(node) || fits(graph, node).is_err()))
}

fn split(graph: &Graph<'_>, is_split: impl Fn(&NodeProto) -> bool) -> Changes {
    let mut names = Names::of(graph);
    let mut changes = Changes::default();
    for (index, node) in graph.nodes.iter().enumerate() {
        let fused = FUSED.iter().find(|fused| fused.name == node.op_type);
        let Some(fused) = fused.filter(|_| node.domain == MICROSOFT && is_split(node)) else {
            continue;
        };
        let inputs = fused.weights.clone().filter_map(|input| graph.input(index, input));
        let mut weights = inputs.filter_map(|id| uses::rearranged_from(graph, id));
        let is_weighted = weights.any(|id| graph.dtype(id) == Some(DataType::Float));
        if !is_weighted || is_function(graph, fused.name) {
            continue;
        }
        let mut with = (*node).clone();
        with.domain = String::new();
        fused.product.clone_into(&mut with.op_type);
        let (names, made) = (&mut names, node.output[0].clone());
        let mut split =
            Split { graph, index, node, with, made, names, before: vec![], after: vec![] };
        if (fused.split)(&mut split).is_none() {
            continue;
        }
        changes.edits.extend(split.edits());
        changes.did.push(format!("replaced {} by a {}", node.label(), fused.product));
    }
    changes
}

/// The replacement of one node.
struct Split<'a, 'g, 'm> {
    graph: &'g Graph<'m>,
    index: usize,
    node: &'m NodeProto,
    /// The standard operator that multiplies.
    with: NodeProto,
    /// The name of its output, if nothing is in `after`.
    made: String,
    names: &'a mut Names<'g>,
    /// Other edits, such as nodes before it.
    before: Vec<Edit>,
    /// What follows it: operators whose first input is the result so far.
    after: Vec<(String, Vec<String>, Vec<Raw<AttributeProto>>)>,
}

impl Split<'_, '_, '_> {
    /// The edits, with names for the values between the operators.
    fn edits(mut self) -> Vec<Edit> {
        let output = self.node.output[0].clone();
        let mut made = self.made;
        if !self.after.is_empty() {
            made = self.names.fresh(&output, "product");
        }
        self.with.output = vec![made.clone()];
        let count = self.after.len();
        for (at, (op_type, others, attribute)) in self.after.into_iter().enumerate() {
            let next =
                if at + 1 == count { output.clone() } else { self.names.fresh(&output, "sum") };
            let input = std::iter::once(made).chain(others).collect();
            let node = NodeProto::new("", &op_type, input, vec![next.clone()], attribute);
            self.before.push(Edit::AddNode(node));
            made = next;
        }
        self.before.push(Edit::ReplaceNode { node: self.index, with: self.with });
        self.before
    }

    /// Takes an attribute from the operator.
    fn take(&mut self, name: &str) -> Option<Raw<AttributeProto>> {
        let at = self.with.attribute.iter().position(|found| found.name == name)?;
        Some(self.with.attribute.remove(at))
    }

    /// Takes the name of the activation function.
    fn function(&mut self) -> Option<String> {
        let text = self.take("activation")?;
        String::from_utf8(text.s.as_ref()?.to_vec()).ok()
    }

    /// A constant with a name of its own.
    fn constant(&mut self, suffix: &str, tensor: &Tensor) -> String {
        let name = self.names.fresh(&self.node.output[0], suffix);
        self.before.push(Edit::AddInitializer(TensorProto::new(&name, tensor)));
        name
    }

    fn number(&mut self, suffix: &str, value: f32) -> String {
        self.constant(suffix, &Tensor::from_f32(vec![], &[value]))
    }

    /// Adds a node with one output, and returns the name of that.
    fn add(
        &mut self,
        op_type: &str,
        suffix: &str,
        input: &[&str],
        attribute: Vec<Raw<AttributeProto>>,
    ) -> String {
        let made = self.names.fresh(&self.node.output[0], suffix);
        let input = input.iter().map(|name| (*name).to_owned()).collect();
        let node = NodeProto::new("", op_type, input, vec![made.clone()], attribute);
        self.before.push(Edit::AddNode(node));
        made
    }

    /// The name of an input, empty if it is left out.
    fn input(&self, input: usize) -> &str {
        self.node.input.get(input).map_or("", String::as_str)
    }
}

/// `Conv`, a value that is added, and an activation function with its parameters.
fn convolution(split: &mut Split<'_, '_, '_>) -> Option<()> {
    let parameters = split.take("activation_params").map(|found| found.floats.clone());
    let parameters = parameters.unwrap_or_default();
    let function = split.function();
    if let Some(added) = split.with.input.get(3).filter(|name| !name.is_empty()).cloned() {
        split.after.push(("Add".to_owned(), vec![added], vec![]));
    }
    split.with.input.truncate(3);
    let Some(function) = function else { return Some(()) };
    let number = |name: &str, at: usize| {
        parameters.get(at).map(|value| Raw::new(AttributeProto::float(name, *value)))
    };
    let mut bounds = Vec::new();
    let attributes: Vec<Raw<AttributeProto>> = match function.as_str() {
        "Relu" | "Sigmoid" | "Tanh" => vec![],
        "LeakyRelu" => number("alpha", 0).into_iter().collect(),
        "HardSigmoid" => number("alpha", 0).into_iter().chain(number("beta", 1)).collect(),
        "Clip" if split.graph.model.opset("")? < BOUNDS_ARE_INPUTS => {
            number("min", 0).into_iter().chain(number("max", 1)).collect()
        }
        "Clip" => {
            let [low, high] = parameters[..] else { return None };
            bounds = vec![split.number("min", low), split.number("max", high)];
            vec![]
        }
        _ => return None,
    };
    split.after.push((function, bounds, attributes));
    Some(())
}

/// `Gemm` and an activation function, whose attributes begin with `activation_`.
#[allow(clippy::unnecessary_wraps)] // all of these have this signature
fn gemm(split: &mut Split<'_, '_, '_>) -> Option<()> {
    let function = split.function();
    let mut attributes = Vec::new();
    let (own, others): (Vec<_>, Vec<_>) = std::mem::take(&mut split.with.attribute)
        .into_iter()
        .partition(|found| !found.name.starts_with("activation_"));
    split.with.attribute = own;
    for mut attribute in others {
        let name = attribute.name.trim_start_matches("activation_").to_owned();
        attribute.edit().name = name;
        attributes.push(attribute);
    }
    if let Some(function) = function {
        split.after.push((function, vec![], attributes));
    }
    Some(())
}

/// `MatMul`, a `Transpose` before it, and a `Mul` after it.
fn matmul(split: &mut Split<'_, '_, '_>) -> Option<()> {
    let node = split.node;
    if node.int("transBatchA", 0) != 0 || node.int("transBatchB", 0) != 0 {
        return None;
    }
    for (input, name) in [(0, "transA"), (1, "transB")] {
        if node.int(name, 0) == 0 {
            continue;
        }
        let rank = split.graph.shape(split.graph.input(split.index, input)?)?.len();
        let mut axes: Vec<i64> = (0..).take(rank).collect();
        let [.., one, other] = &mut axes[..] else { return None };
        std::mem::swap(one, other);
        let attribute = vec![Raw::new(AttributeProto::ints("perm", &axes))];
        let from = std::mem::take(&mut split.with.input[input]);
        split.with.input[input] = split.add("Transpose", "transposed", &[&from], attribute);
    }
    let alpha = node.float("alpha", 1.0);
    split.with.attribute.clear();
    #[allow(clippy::float_cmp)] // compares an attribute, not a computed value
    if alpha != 1.0 {
        let alpha = split.number("alpha", alpha);
        split.after.push(("Mul".to_owned(), vec![alpha], vec![]));
    }
    Some(())
}
