//! `Attention` and `EmbedLayerNormalization`.

use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor};

use super::Split;
use crate::graph::constants::{is_read, of_ints};
use crate::graph::ops::MICROSOFT;
use crate::graph::{Graph, Producer};

/// The opset from which on the lengths of `Split` and the axes of `ReduceSum` are inputs.
const ARE_INPUTS: i64 = 13;
/// The opset of `Range`.
const RANGE: i64 = 11;

/// The attributes that `Attention` and `MultiHeadAttention` have in common.
const SHARED: [&str; 4] = ["num_heads", "unidirectional", "mask_filter_value", "scale"];

/// `MatMul`, a `Split` into queries, keys and values, and a `MultiHeadAttention`, which adds the
/// bias.
pub(super) fn attention(split: &mut Split<'_, '_, '_>) -> Option<()> {
    const BIAS: usize = 2;
    const MASK: usize = 3;
    const PAST: usize = 4;
    const ADDED: usize = 5;
    let (graph, node, index) = (split.graph, split.node, split.index);
    let has = |input: usize| !split.input(input).is_empty();
    let others = (PAST..node.input.len()).any(|input| input != ADDED && has(input));
    let presents = node.output.iter().skip(1).any(|name| !name.is_empty());
    let plain = node.attribute.iter().all(|found| {
        SHARED.contains(&found.name.as_str())
            || found.name == "qkv_hidden_sizes"
            || found.i == Some(0)
    });
    if others || presents || !plain || has(MASK) && !is_shared_mask(graph, index, MASK) {
        return None;
    }
    let opset = graph.model.opset("")?;
    let columns = (*graph.shape(graph.input(index, 1)?)?.get(1)?)?;
    let third = i64::try_from(columns / 3).ok()?;
    let sizes = node.attribute("qkv_hidden_sizes").map(|found| found.ints.clone());
    let lengths = sizes.unwrap_or_else(|| vec![third; 3].into());
    let output = &node.output[0];
    let [product, query, key, value] =
        ["product", "query", "key", "value"].map(|suffix| split.names.fresh(output, suffix));
    let mut axis = vec![Raw::new(AttributeProto::int("axis", 2))];
    let mut input = vec![product.clone()];
    if opset < ARE_INPUTS {
        axis.push(Raw::new(AttributeProto::ints("split", &lengths)));
    } else {
        input.push(split.constant("lengths", &of_ints(vec![lengths.len()], &lengths)));
    }
    let parts = vec![query.clone(), key.clone(), value.clone()];
    split.before.push(Edit::AddNode(NodeProto::new("", "Split", input, parts, axis)));
    let [bias, mask, added] = [BIAS, MASK, ADDED].map(|input| split.input(input).to_owned());
    let mut input = vec![query, key, value, bias, mask, added];
    while input.last().is_some_and(String::is_empty) {
        input.pop();
    }
    let shared = node.attribute.iter().filter(|found| SHARED.contains(&found.name.as_str()));
    let shared = shared.cloned().collect();
    let mut heads = NodeProto::new("", "MultiHeadAttention", input, vec![output.clone()], shared);
    MICROSOFT.clone_into(&mut heads.domain);
    split.before.push(Edit::AddNode(heads));
    split.with.input.truncate(2);
    split.with.attribute.clear();
    split.made = product;
    Some(())
}

/// Whether `MultiHeadAttention` understands a mask of `Attention`: one number for each sequence,
/// or one for each element. It takes no pairs of a start and an end.
fn is_shared_mask(graph: &Graph<'_>, node: usize, input: usize) -> bool {
    let Some(mask) = graph.input(node, input) else { return false };
    let counts = |made: usize| {
        let producer = graph.nodes[made];
        producer.op_type == "EmbedLayerNormalization" || producer.op_type == "ReduceSum"
    };
    match (graph.shape(mask).map(|shape| shape.len()), graph.values[mask].producer) {
        (Some(2 | 3), _) => true,
        (_, Producer::Node { node: made, .. }) => counts(made),
        _ => false,
    }
}

/// `Gather` of words, positions and segments, their sum, and a `SkipLayerNormalization`; the second
/// output counts the ones of the mask.
pub(super) fn embedding(split: &mut Split<'_, '_, '_>) -> Option<()> {
    const MASK: usize = 7;
    const POSITIONS: usize = 8;
    let (graph, node, index) = (split.graph, split.node, split.index);
    let [ids, segments, words, places, kinds, gamma, beta, mask] =
        [0, 1, 2, 3, 4, 5, 6, MASK].map(|input| split.input(input).to_owned());
    let opset = graph.model.opset("")?;
    let counted = graph.output(index, 1).filter(|output| is_read(graph, *output));
    let plain = opset >= RANGE && node.int("mask_index_type", 0) == 0;
    if !plain || segments.is_empty() || counted.is_some() && mask.is_empty() {
        return None;
    }
    let positions = match split.input(POSITIONS).to_owned() {
        given if !given.is_empty() => given,
        _ => {
            let shape = split.add("Shape", "shape", &[&ids], vec![]);
            let one = split.constant("one", &of_ints(vec![], &[1]));
            let zero = split.constant("zero", &of_ints(vec![], &[0]));
            let length = split.add("Gather", "length", &[&shape, &one], vec![]);
            split.add("Range", "positions", &[&zero, &length, &one], vec![])
        }
    };
    let word = split.names.fresh(&node.output[0], "words");
    let place = split.add("Gather", "places", &[&places, &positions], vec![]);
    let kind = split.add("Gather", "kinds", &[&kinds, &segments], vec![]);
    let sum = split.add("Add", "sum", &[&word, &place], vec![]);
    if let Some(counted) = counted {
        let one = split.constant("seen", &of_int32(1));
        let seen = split.add("Equal", "is_seen", &[&mask, &one], vec![]);
        let to = i64::from(DataType::Int32.number());
        let to = vec![Raw::new(AttributeProto::int("to", to))];
        let seen = split.add("Cast", "seen", &[&seen], to);
        let mut attribute = vec![Raw::new(AttributeProto::int("keepdims", 0))];
        let mut input = vec![seen];
        if opset < ARE_INPUTS {
            attribute.push(Raw::new(AttributeProto::ints("axes", &[1])));
        } else {
            input.push(split.constant("axes", &of_ints(vec![1], &[1])));
        }
        let output = vec![graph.values[counted].name.to_owned()];
        let node = NodeProto::new("", "ReduceSum", input, output, attribute);
        split.before.push(Edit::AddNode(node));
    }
    let epsilon = node.attribute.iter().filter(|found| found.name == "epsilon").cloned();
    let mut output = vec![node.output[0].clone()];
    if let Some(sum) = node.output.get(2).filter(|name| !name.is_empty()) {
        output.extend([String::new(), String::new(), sum.clone()]);
    }
    let input = vec![sum, kind, gamma, beta];
    let mut norm = NodeProto::new("", "SkipLayerNormalization", input, output, epsilon.collect());
    MICROSOFT.clone_into(&mut norm.domain);
    split.before.push(Edit::AddNode(norm));
    split.with.input = vec![words, ids];
    split.with.attribute.clear();
    split.made = word;
    Some(())
}

fn of_int32(value: i32) -> Tensor {
    let data = value.to_le_bytes().to_vec().into();
    Tensor { dtype: DataType::Int32, shape: vec![], data }
}
