//! Checks that the file is a valid model with the inputs and outputs of the original. Unique
//! producers, resolved inputs and complete tensors were checked when it was opened.

use std::collections::{BTreeSet, HashSet};

use quantize_rs_onnx::{DataType, GraphProto, Model, TensorProto, ValueInfoProto, reads};

use super::{Check, Validation, kv_cache};
use crate::check::postconditions;
use crate::graph::elements::to_f32;
use crate::graph::uses;
use crate::graph::{Graph, Producer, shape_of};
use crate::options::HalfType;

pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    half: Option<HalfType>,
    found: &mut Validation,
) {
    if let Some((node, name)) = out_of_order(after.model.graph()) {
        let what = format!(
            "it reads `{name}` before it is computed: nodes have to be in topological order"
        );
        match out_of_order(before.model.graph()) {
            None => found.problem(Check::Structure, node, what),
            Some(_) => found.notes.push(format!("`{node}`: {what}, as in the original")),
        }
    }
    imports(after.model, after.model.graph(), found);
    let caches = kv_cache::quantized_values(after);
    interface(before.model.graph(), after.model.graph(), &caches, found);
    kv_cache::check(after, found);
    types(before, after, half, &caches, found);
    (0..after.nodes.len()).for_each(|node| pair(after, node, found));
    let fault = postconditions::matmul_nbits::fault(before, after)
        .or_else(|| postconditions::matmul_bnb4::fault(before, after));
    if let Some((node, what)) = fault {
        found.problem(Check::Structure, node, what);
    }
}

/// A value that keeps its name keeps its type, since its consumers accept no other; but a float may
/// have the 16-bit type that the model computes in.
fn types(
    before: &Graph<'_>,
    after: &Graph<'_>,
    half: Option<HalfType>,
    caches: &BTreeSet<&str>,
    found: &mut Validation,
) {
    let narrowed = |here: DataType, there: DataType| {
        there == DataType::Float && half.is_some_and(|half| half.data_type() == here)
    };
    for (id, value) in after.values.iter().enumerate() {
        let there = before.value(value.name).and_then(|there| before.dtype(there));
        if let (Some(here), Some(there)) = (after.dtype(id), there)
            && here != there
            && !narrowed(here, there)
            && !caches.contains(value.name)
        {
            let what = format!("is {here}, and {there} in the original");
            found.problem(Check::Structure, value.name, what);
        }
    }
}

/// The first node that reads a value that is computed after it.
fn out_of_order(graph: &GraphProto) -> Option<(String, String)> {
    let mut waiting: HashSet<&str> =
        graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)).collect();
    for node in &graph.node {
        if let Some(name) = reads(node).into_iter().find(|name| waiting.contains(name)) {
            return Some((node.named().to_owned(), name.to_owned()));
        }
        node.output.iter().for_each(|name| {
            waiting.remove(name.as_str());
        });
    }
    None
}

/// Checks that the domain of every operator is imported.
fn imports(model: &Model, graph: &GraphProto, found: &mut Validation) {
    for node in &graph.node {
        if model.opset(&node.domain).is_none() {
            let what = format!(
                "{} is of `{}`, which the model does not import",
                node.op_type, node.domain
            );
            found.problem(Check::Structure, node.named(), what);
        }
        node.subgraphs().for_each(|body| imports(model, body, found));
    }
}

/// Compares inputs and outputs. The types of `caches`, which became integers, may differ.
fn interface(
    before: &GraphProto,
    after: &GraphProto,
    caches: &BTreeSet<&str>,
    found: &mut Validation,
) {
    let said = |info: &ValueInfoProto| {
        let cache = || format!("{}: a cache", info.name);
        if caches.contains(info.name.as_str()) { cache() } else { said(info) }
    };
    let constant = |graph: &GraphProto| -> HashSet<String> {
        graph.initializer.iter().map(|tensor| tensor.name.clone()).collect()
    };
    let (ours, theirs) = (constant(after), constant(before));
    let inputs = |graph: &'_ GraphProto, constant: &HashSet<String>| -> Vec<String> {
        let given = graph.input.iter().filter(|input| !constant.contains(&input.name));
        given.map(|input| said(input)).collect()
    };
    let outputs = |graph: &GraphProto| -> Vec<String> {
        graph.output.iter().map(|output| said(output)).collect()
    };
    for (what, expected, found_here) in [
        ("input", inputs(before, &theirs), inputs(after, &ours)),
        ("output", outputs(before), outputs(after)),
    ] {
        for at in 0..expected.len().max(found_here.len()) {
            let (expected, here) = (expected.get(at), found_here.get(at));
            if expected != here {
                let none = "nothing".to_owned();
                let name = here.or(expected).unwrap_or(&none);
                let name = name.split(": ").next().unwrap_or_default().to_owned();
                let what = format!(
                    "{what} {at} is {}, expected {}",
                    here.unwrap_or(&none),
                    expected.unwrap_or(&none)
                );
                found.problem(Check::Interface, name, what);
            }
        }
    }
}

/// `x: float32 [?, 3]`
fn said(info: &ValueInfoProto) -> String {
    let dtype = info.tensor_type().map(|tensor| tensor.elem_type);
    let dtype = match dtype.and_then(DataType::from_number) {
        Some(dtype) => dtype.name(),
        None => "unknown type",
    };
    let length =
        |length: &Option<usize>| length.map_or("?".to_owned(), |length| length.to_string());
    match shape_of(info) {
        None => format!("{}: {dtype} of any shape", info.name),
        Some(shape) => {
            let shape: Vec<String> = shape.iter().map(length).collect();
            format!("{}: {dtype} [{}]", info.name, shape.join(", "))
        }
    }
}

/// Checks the scale and zero point of a node that quantizes or dequantizes, and whether a value is
/// dequantized with the parameters that it was quantized with.
fn pair(after: &Graph<'_>, node: usize, found: &mut Validation) {
    let proto = after.nodes[node];
    let kind = proto.op_type.as_str();
    if !proto.is_onnx() || !matches!(kind, "QuantizeLinear" | "DequantizeLinear") {
        return;
    }
    let constant = |node: usize, input: usize| {
        let id = after.input(node, input)?;
        Some((after.values[id].name, after.constant(id)?))
    };
    let elements = |tensor: &TensorProto| after.model.tensor(tensor).ok();
    if let Some((name, scale)) = constant(node, 1) {
        let scales = elements(scale).as_ref().and_then(to_f32).unwrap_or_default();
        let activation = after.input(node, 0).is_some_and(|id| after.constant(id).is_none());
        let bad = |scale: &f32| !scale.is_finite() || *scale == 0.0 || activation && *scale < 0.0;
        if let Some(at) = scales.iter().position(bad) {
            let positive = if activation { "above" } else { "that is not" };
            let what =
                format!("scale {at} is {}, expected a finite number {positive} 0", scales[at]);
            found.problem(Check::Scale, name, what);
        }
        if let Some((point, tensor)) = constant(node, 2)
            && tensor.dims != scale.dims
        {
            let what =
                format!("zero points of shape {:?} beside scales of {:?}", tensor.dims, scale.dims);
            found.problem(Check::Scale, point, what);
        }
    }
    let Some(source) = after.input(node, 0).filter(|_| kind == "DequantizeLinear") else { return };
    if let Some(dtype) = after.dtype(source).filter(|dtype| uses::FLOATS.contains(dtype)) {
        let what = format!("it dequantizes `{}`, which is {dtype}", after.values[source].name);
        return found.problem(Check::Structure, proto.named(), what);
    }
    let Producer::Node { node: quantizes, .. } = after.values[source].producer else { return };
    if after.nodes[quantizes].op_type != "QuantizeLinear" {
        return;
    }
    // An omitted zero point is 0.
    let zero = |tensor: &TensorProto| {
        elements(tensor).is_some_and(|tensor| tensor.data.iter().all(|byte| *byte == 0))
    };
    for (input, what) in [(1, "scale"), (2, "zero point")] {
        let (there, here) = (constant(quantizes, input), constant(node, input));
        let same = match (there, here) {
            (Some((there, one)), Some((here, other))) => {
                there == here || elements(one) == elements(other)
            }
            (Some((_, one)), None) if proto.input.get(input).is_none_or(String::is_empty) => {
                zero(one)
            }
            (None, Some((_, one))) => {
                let left_out = after.nodes[quantizes].input.get(input).is_none_or(String::is_empty);
                !left_out || zero(one)
            }
            _ => true,
        };
        if !same {
            let output = proto.output.first().map_or("", String::as_str);
            let there = there.map_or("0", |(name, _)| name);
            let what = format!(
                "the {what} that `{output}` is dequantized with is not `{there}`, which it is \
                    quantized with"
            );
            found.problem(Check::Scale, here.map_or(proto.named(), |(name, _)| name), what);
        }
    }
}
