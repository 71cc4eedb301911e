//! Structural checks: whether a runtime can load the model.
//!
//! Every value is produced once, every input resolves, tensors have as much data as their shapes
//! require, and there are no cycles. What runtimes accept is accepted: nodes with empty or
//! duplicate names, and nodes out of order.

use std::collections::{HashMap, HashSet};

use crate::data;
use crate::error::Error;
use crate::external::External;
use crate::functions::Functions;
use crate::schema::{
    GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, canonical_domain,
};
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
    // Before IR 3, `opset_import` was optional: version 1 of ONNX's own operators.
    if model.opset_import.is_empty() && model.ir_version >= 3 {
        return Err(Error::structure(
            "model",
            "it imports no operator set (opset_import is empty)",
        ));
    }
    let mut seen = HashMap::new();
    for opset in &model.opset_import {
        // The standard's own operators may be imported under both of their names.
        let domain = canonical_domain(&opset.domain);
        if opset.version < 1 {
            let what =
                format!("version {} of operator set `{domain}`, expected 1 or more", opset.version);
            return Err(Error::structure("model", what));
        }
        if let Some(other) = seen.insert(domain, opset.version).filter(|it| *it != opset.version) {
            let domain = if domain.is_empty() { "ai.onnx" } else { domain };
            let what = format!(
                "operator set `{domain}` is imported twice, in versions {other} and {}: keep the \
                 import for which the nodes were written",
                opset.version
            );
            return Err(Error::structure("model", what));
        }
    }
    Ok(())
}

/// The values visible at one point: those of this graph, and those of outer graphs.
struct Scope<'a, 'b> {
    made: HashSet<&'a str>,
    outer: Option<&'b Scope<'a, 'b>>,
}

impl Scope<'_, '_> {
    fn sees(&self, name: &str) -> bool {
        self.made.contains(name) || self.outer.is_some_and(|outer| outer.sees(name))
    }
}

/// Checks a graph that can read the values of `outer`.
fn graph<'a>(
    graph: &'a GraphProto,
    outer: Option<&Scope<'a, '_>>,
    external: &External,
) -> Result<(), Error> {
    let outputs: usize = graph.node.iter().map(|node| node.output.len()).sum();
    let count = graph.input.len() + graph.initializer.len() + outputs;
    let mut made: HashSet<&str> = HashSet::with_capacity(count);
    for input in &graph.input {
        element_type(input)?;
        if !made.insert(&input.name) {
            return Err(Error::structure(
                format!("graph input `{}`", input.name),
                "it is defined twice",
            ));
        }
    }
    let mut constants: HashSet<&str> = HashSet::with_capacity(graph.initializer.len());
    for tensor in &graph.initializer {
        data::check(tensor, external)?;
        if !constants.insert(&tensor.name) {
            return Err(Error::structure(data::place(tensor), "it is defined twice"));
        }
    }
    for sparse in &graph.sparse_initializer {
        if let Some(values) = &sparse.values
            && !constants.insert(&values.name)
        {
            return Err(Error::structure(data::place(values), "it is defined twice"));
        }
    }
    // An initializer may give an input of the same name its default.
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
    // Whether each node reads only what comes before it, as in most files. Then all inputs are
    // known, and there is no cycle.
    let mut in_order = true;
    for node in nodes {
        if node.op_type.is_empty() {
            return Err(Error::structure(node.label(), "it has no op_type"));
        }
        in_order = in_order && reads_all_from(&scope.made, node);
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            if !scope.made.insert(output) {
                return Err(Error::structure(
                    node.label(),
                    format!("value `{output}` is produced twice"),
                ));
            }
        }
    }
    for node in nodes {
        let unknown = node.input.iter().filter(|name| !in_order && !name.is_empty());
        for input in unknown {
            if !scope.sees(input) {
                let what =
                    format!("no node, graph input or initializer produces its input `{input}`");
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
            let what = "no node, graph input or initializer produces it";
            return Err(Error::structure(format!("graph output `{output}`"), what));
        }
    }
    if in_order { Ok(()) } else { topological_sort::topological(nodes).map(|_| ()) }
}

/// Whether `made` has all that a node and its subgraphs read.
fn reads_all_from(made: &HashSet<&str>, node: &NodeProto) -> bool {
    if node.subgraphs().next().is_some() {
        return topological_sort::reads(node).iter().all(|name| made.contains(name));
    }
    node.input.iter().all(|name| name.is_empty() || made.contains(name.as_str()))
}

fn element_type(info: &ValueInfoProto) -> Result<(), Error> {
    match info.tensor_type() {
        // Exporters that do not know the type write 0.
        Some(tensor)
            if tensor.elem_type != 0 && DataType::from_number(tensor.elem_type).is_none() =>
        {
            let what = format!("element type {}, which ONNX does not define", tensor.elem_type);
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
