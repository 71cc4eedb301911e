//! The structural check: whether a model is one that a runtime could run.
//!
//! Every value is made once, every input resolves, tensors have the data that their shapes ask
//! for, nothing depends on itself. What runtimes tolerate is tolerated: nodes without names or
//! with repeated ones, and nodes out of order.

use std::collections::HashSet;

use crate::data;
use crate::error::Error;
use crate::external::External;
use crate::functions::Functions;
use crate::schema::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use crate::topological_sort;
use crate::{DataType, Raw};

/// Checks a whole model.
pub(crate) fn model(model: &ModelProto, external: &External) -> Result<(), Error> {
    if model.ir_version < 1 {
        let found = model.ir_version;
        return Err(Error::structure("model", format!("IR version {found}, expected 1 or more")));
    }
    opsets(model)?;
    let Some(graph) = &model.graph else {
        return Err(Error::structure("model", "it has no graph; is this an ONNX model?"));
    };
    self::graph(graph, None, external)?;
    for function in &model.functions {
        function.tensors().try_for_each(TensorProto::refuse_external)?;
        let made = function.input.iter().map(String::as_str).collect();
        let outputs: Vec<&str> = function.output.iter().map(String::as_str).collect();
        scope(&function.node, Scope { made, outer: None }, &outputs, external)
            .map_err(|error| within(&format!("function `{}`", function.name), error))?;
    }
    Functions::of(model).refuse_recursion()
}

fn opsets(model: &ModelProto) -> Result<(), Error> {
    // Before IR 3 a model did not say which operators it meant: version 1 of ONNX's own.
    if model.opset_import.is_empty() && model.ir_version >= 3 {
        return Err(Error::structure(
            "model",
            "it imports no operator set (opset_import is empty)",
        ));
    }
    let mut seen = HashSet::new();
    for opset in &model.opset_import {
        let domain = if opset.domain == "ai.onnx" { "" } else { &opset.domain };
        if opset.version < 1 {
            let what =
                format!("version {} of operator set `{domain}`, expected 1 or more", opset.version);
            return Err(Error::structure("model", what));
        }
        if !seen.insert(domain) {
            return Err(Error::structure(
                "model",
                format!("operator set `{domain}` is imported twice"),
            ));
        }
    }
    Ok(())
}

/// The values that can be read at one place: those made here, and those made outside.
struct Scope<'a, 'b> {
    made: HashSet<&'a str>,
    outer: Option<&'b Scope<'a, 'b>>,
}

impl Scope<'_, '_> {
    fn sees(&self, name: &str) -> bool {
        self.made.contains(name) || self.outer.is_some_and(|outer| outer.sees(name))
    }
}

/// Checks a graph that can see the values of `outer`.
fn graph<'a>(
    graph: &'a GraphProto,
    outer: Option<&Scope<'a, '_>>,
    external: &External,
) -> Result<(), Error> {
    let mut made: HashSet<&str> = HashSet::new();
    for input in &graph.input {
        element_type(input)?;
        if !made.insert(&input.name) {
            return Err(Error::structure(
                format!("graph input `{}`", input.name),
                "it stands there twice",
            ));
        }
    }
    let mut constants: HashSet<&str> = HashSet::new();
    for tensor in &graph.initializer {
        data::check(tensor, external)?;
        if !constants.insert(&tensor.name) {
            return Err(Error::structure(data::place(tensor), "it stands there twice"));
        }
    }
    for sparse in &graph.sparse_initializer {
        if let Some(values) = &sparse.values
            && !constants.insert(&values.name)
        {
            return Err(Error::structure(data::place(values), "it stands there twice"));
        }
    }
    // An initializer may give the default of an input of the same name.
    made.extend(constants);
    for info in graph.output.iter().chain(&graph.value_info) {
        element_type(info)?;
    }
    let outputs: Vec<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
    scope(&graph.node, Scope { made, outer }, &outputs, external)
}

fn scope<'a>(
    nodes: &'a [Raw<NodeProto>],
    mut scope: Scope<'a, '_>,
    outputs: &[&str],
    external: &External,
) -> Result<(), Error> {
    for node in nodes {
        if node.op_type.is_empty() {
            return Err(Error::structure(node.label(), "it has no op_type"));
        }
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            if !scope.made.insert(output) {
                return Err(Error::structure(
                    node.label(),
                    format!("value `{output}` is made twice"),
                ));
            }
        }
    }
    for node in nodes {
        for input in node.input.iter().filter(|name| !name.is_empty()) {
            if !scope.sees(input) {
                let what = format!("input `{input}` is made by no node, input or initializer");
                return Err(Error::structure(node.label(), what));
            }
        }
        for attribute in &node.attribute {
            for tensor in attribute.tensors() {
                data::check(tensor, external).map_err(|error| within(&node.label(), error))?;
            }
        }
        for body in node.subgraphs() {
            graph(body, Some(&scope), external).map_err(|error| within(&node.label(), error))?;
        }
    }
    for output in outputs {
        if !scope.sees(output) {
            let what = "it is made by no node, input or initializer";
            return Err(Error::structure(format!("graph output `{output}`"), what));
        }
    }
    topological_sort::topological(nodes).map(|_| ())
}

fn element_type(info: &ValueInfoProto) -> Result<(), Error> {
    match info.tensor_type() {
        // 0 is written by exporters that do not know the type.
        Some(tensor)
            if tensor.elem_type != 0 && DataType::from_number(tensor.elem_type).is_none() =>
        {
            let what = format!("element type {}, which ONNX does not know", tensor.elem_type);
            Err(Error::structure(format!("value `{}`", info.name), what))
        }
        _ => Ok(()),
    }
}

fn within(place: &str, error: Error) -> Error {
    match error.kind() {
        crate::ErrorKind::Structure { place: inner, what } => {
            Error::structure(format!("{place}: {inner}"), what.clone())
        }
        _ => error,
    }
}
