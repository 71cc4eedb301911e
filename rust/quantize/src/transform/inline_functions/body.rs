//! The nodes of a function body as inlined at a call. Inputs and outputs take the names of the
//! caller; all other values get new names.

use std::collections::HashMap;

use quantize_rs_onnx::{
    AttributeProto, FunctionProto, GraphProto, NodeProto, Raw, TensorProto, ValueInfoProto,
};

use crate::graph::constant_of;
use crate::graph::names::Names;

/// Constants of functions. All calls share them, so the weights of a function that is called twice
/// are stored once.
#[derive(Default)]
pub(super) struct Shared {
    /// By function, and name in the function.
    names: HashMap<(usize, String), String>,
    /// Constants that still need to be added to the model.
    pub(super) fresh: Vec<TensorProto>,
}

impl Shared {
    fn name(
        &mut self,
        of: (usize, &FunctionProto),
        value: &str,
        tensor: &TensorProto,
        names: &mut Names<'_>,
    ) -> String {
        let known = self.names.entry((of.0, value.to_owned()));
        let name = known.or_insert_with(|| {
            let name = names.fresh(&of.1.name, value);
            let mut tensor = tensor.clone();
            tensor.name.clone_from(&name);
            self.fresh.push(tensor);
            name
        });
        name.clone()
    }
}

/// The nodes of a function, inlined at one call.
pub(super) fn expanded(
    call: &NodeProto,
    index: usize,
    function: &FunctionProto,
    names: &mut Names<'_>,
    shared: &mut Shared,
) -> Vec<NodeProto> {
    let base = match (call.name.as_str(), call.output.iter().find(|name| !name.is_empty())) {
        ("", Some(output)) => output,
        (name, _) => name,
    };
    let mut inlined = Inlined { call, function, new: HashMap::new() };
    let ends = |formal: &[String], actual: &[String]| -> Vec<(String, String)> {
        let given = actual.iter().cloned().chain(std::iter::repeat(String::new()));
        formal.iter().cloned().zip(given).collect()
    };
    inlined.new.extend(ends(&function.input, &call.input));
    let mut passed = Vec::new();
    for (formal, actual) in ends(&function.output, &call.output) {
        if let (false, Some(given)) = (actual.is_empty(), inlined.new.get(&formal)) {
            // An input that the function outputs unchanged.
            let (input, output) = (vec![given.clone()], vec![actual]);
            passed.push(NodeProto::new("", "Identity", input, output, Vec::new()));
        } else if !actual.is_empty() {
            inlined.new.insert(formal, actual);
        }
    }
    let mut nodes = Vec::with_capacity(function.node.len());
    for node in &function.node {
        let output = node.output.first().filter(|name| !inlined.new.contains_key(*name));
        match (output, constant_of(node)) {
            (Some(value), Some(tensor)) => {
                let name = shared.name((index, function), value, tensor, names);
                inlined.new.insert(value.clone(), name);
            }
            _ => nodes.push(node),
        }
    }
    for node in &nodes {
        made(node, &mut |name| {
            if !name.is_empty() && !inlined.new.contains_key(name) {
                inlined.new.insert(name.to_owned(), names.fresh(base, name));
            }
        });
    }
    let nodes = nodes.into_iter().map(|node| {
        let mut node = (**node).clone();
        inlined.node(&mut node);
        if !node.name.is_empty() {
            node.name = names.fresh(base, &node.name);
        }
        node
    });
    nodes.chain(passed).collect()
}

/// Calls a function with each name that a node defines, including names in its subgraphs.
fn made(node: &NodeProto, each: &mut impl FnMut(&str)) {
    node.output.iter().for_each(|name| each(name));
    for body in node.subgraphs() {
        body.input.iter().for_each(|input| each(&input.name));
        body.initializer.iter().for_each(|tensor| each(&tensor.name));
        body.sparse_initializer.iter().filter_map(|sparse| sparse.name()).for_each(&mut *each);
        body.node.iter().for_each(|node| made(node, each));
    }
}

/// Replaces a graph and its subgraphs by copies that are not shared.
fn apart(graph: &mut Raw<GraphProto>) {
    for node in &mut graph.edit().node {
        for attribute in &mut node.edit().attribute {
            if attribute.subgraphs().next().is_some() {
                attribute.edit().subgraphs_mut().for_each(apart);
            }
        }
    }
}

/// The inlining of a function at one call.
struct Inlined<'c> {
    call: &'c NodeProto,
    function: &'c FunctionProto,
    /// The new names by the names in the function; empty for an omitted input.
    new: HashMap<String, String>,
}

impl Inlined<'_> {
    fn rename(&self, name: &mut String) {
        if let Some(new) = self.new.get(name.as_str()) {
            name.clone_from(new);
        }
    }

    /// The recursion depth is the nesting depth of subgraphs, which the model reader limits.
    fn node(&self, node: &mut NodeProto) {
        node.input.iter_mut().chain(&mut node.output).for_each(|name| self.rename(name));
        let attributes = std::mem::take(&mut node.attribute);
        node.attribute = attributes.into_iter().filter_map(|own| self.attribute(own)).collect();
    }

    /// An attribute of a node; `None` if it refers to an attribute that the caller does not set.
    fn attribute(&self, mut own: Raw<AttributeProto>) -> Option<Raw<AttributeProto>> {
        if let Some(outer) = own.ref_attr_name.as_deref().filter(|name| !name.is_empty()) {
            let mut defaults = self.function.attribute_proto.iter();
            let default = || defaults.find(|default| default.name == outer).map(|it| &**it);
            // Subgraphs from attributes of the caller refer to values of the caller.
            let mut given = self.call.attribute(outer).or_else(default)?.clone();
            given.name.clone_from(&own.name);
            // Nodes are identified by their address, and another node may share this subgraph.
            given.subgraphs_mut().for_each(apart);
            let is_value = given.ref_attr_name.as_deref().is_none_or(str::is_empty);
            return is_value.then(|| Raw::new(given));
        }
        if own.subgraphs().next().is_some() {
            own.edit().subgraphs_mut().for_each(|body| self.body(body.edit()));
        }
        Some(own)
    }

    fn body(&self, body: &mut GraphProto) {
        let info = |info: &mut Raw<ValueInfoProto>| self.rename(&mut info.edit().name);
        body.input.iter_mut().chain(&mut body.output).chain(&mut body.value_info).for_each(info);
        body.initializer.iter_mut().for_each(|tensor| self.rename(&mut tensor.edit().name));
        for sparse in &mut body.sparse_initializer {
            if let Some(values) = &mut sparse.edit().values {
                self.rename(&mut values.edit().name);
            }
        }
        body.node.iter_mut().for_each(|node| self.node(node.edit()));
    }
}
