//! Checks that the file is a valid model with the inputs and outputs of the original. Unique
//! producers, resolved inputs and complete tensors were checked when it was opened.

use std::collections::{BTreeSet, HashSet};

use quantize_rs_onnx::{DataType, GraphProto, Model, ValueInfoProto, reads};

use super::{Check, Validation, activation_scales, kv_cache};
use crate::check::postconditions;
use crate::graph::{Graph, shape_of};
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
    interface(before.model.graph(), after.model.graph(), half, &caches, found);
    kv_cache::check(after, found);
    types(before, after, half, &caches, found);
    (0..after.nodes.len()).for_each(|node| activation_scales::check(after, node, half, found));
    let fault = postconditions::matmul_nbits::fault(before, after)
        .or_else(|| postconditions::matmul_bnb4::fault(before, after));
    if let Some((node, what)) = fault {
        found.problem(Check::Structure, node, what);
    }
}

/// A value that keeps its name keeps its type, since its consumers accept no other; but a float may
/// have the 16-bit type that the model computes in, and a constant that the original has in that
/// type is compared in float32.
fn types(
    before: &Graph<'_>,
    after: &Graph<'_>,
    half: Option<HalfType>,
    caches: &BTreeSet<&str>,
    found: &mut Validation,
) {
    let is_half = |dtype: DataType| half.is_some_and(|half| half.data_type() == dtype);
    let narrowed = |here: DataType, there: DataType| {
        there == DataType::Float && is_half(here) || here == DataType::Float && is_half(there)
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

/// Compares inputs and outputs. The types of `caches`, which became integers, may differ, and those
/// of floats may be the 16-bit type that the model computes in, which is a note.
fn interface(
    before: &GraphProto,
    after: &GraphProto,
    half: Option<HalfType>,
    caches: &BTreeSet<&str>,
    found: &mut Validation,
) {
    let said = |info: &ValueInfoProto| {
        let cache = || format!("{}: a cache", info.name);
        if caches.contains(info.name.as_str()) { cache() } else { said(info) }
    };
    for (what, expected, found_here) in
        [("input", inputs(before), inputs(after)), ("output", outputs(before), outputs(after))]
    {
        for at in 0..expected.len().max(found_here.len()) {
            let (expected, here) = (expected.get(at).copied(), found_here.get(at).copied());
            if expected.map(said) == here.map(said) {
                continue;
            }
            let both = expected.zip(here);
            if let Some(half) = half
                && both.is_some_and(|(there, here)| is_narrowed(there, here, half))
            {
                let name = here.map_or("", |here| here.name.as_str());
                found.notes.push(format!("{what} `{name}` is {half}, and float32 in the original"));
                continue;
            }
            if what == "output" && both.is_some_and(|(there, here)| is_refined(there, here)) {
                continue;
            }
            let said = |info: Option<&ValueInfoProto>| info.map_or("nothing".to_owned(), said);
            let name = here.or(expected).map_or("", |info| info.name.as_str());
            let what = format!("{what} {at} is {}, expected {}", said(here), said(expected));
            found.problem(Check::Interface, name, what);
        }
    }
}

/// The inputs that a caller gives.
fn inputs(graph: &GraphProto) -> Vec<&ValueInfoProto> {
    let constant: HashSet<&str> =
        graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let given = graph.input.iter().filter(|input| !constant.contains(input.name.as_str()));
    given.map(|input| &**input).collect()
}

fn outputs(graph: &GraphProto) -> Vec<&ValueInfoProto> {
    graph.output.iter().map(|output| &**output).collect()
}

/// Whether an input or output is that of the original in the 16-bit type of the model.
fn is_narrowed(there: &ValueInfoProto, here: &ValueInfoProto, half: HalfType) -> bool {
    let dtype = |info: &ValueInfoProto| {
        info.tensor_type().and_then(|tensor| DataType::from_number(tensor.elem_type))
    };
    there.name == here.name
        && shape_of(there) == shape_of(here)
        && dtype(there) == Some(DataType::Float)
        && dtype(here) == Some(half.data_type())
}

/// Whether an output is that of the original, and states lengths that the original leaves open.
fn is_refined(there: &ValueInfoProto, here: &ValueInfoProto) -> bool {
    let dtype = |info: &ValueInfoProto| info.tensor_type().map(|tensor| tensor.elem_type);
    let fits = match (shape_of(there), shape_of(here)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(there), Some(here)) => {
            there.len() == here.len()
                && there.iter().zip(&here).all(|(there, here)| there.is_none() || there == here)
        }
    };
    there.name == here.name && dtype(there) == dtype(here) && fits
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
