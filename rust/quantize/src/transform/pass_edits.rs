//! Collects the edits of a pass to a graph: replaced values, changed producers, removed nodes. Uses
//! in subgraphs are updated too.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{Edit, GraphProto, NodeProto, Tensor, TensorProto, reads};

use super::Changes;
use crate::graph::names::Names;
use crate::graph::{Graph, Producer, ValueId};

/// Collects the edits of a pass to a graph.
pub(super) struct PassEdits<'g, 'm> {
    graph: &'g Graph<'m>,
    names: Names<'g>,
    /// The replacement of each replaced value.
    replacements: HashMap<String, String>,
    /// The new values of inputs, which take precedence over replacements.
    inputs: HashMap<(usize, usize), String>,
    gone: HashSet<usize>,
    added: Vec<NodeProto>,
    /// Names of values that are defined in subgraphs.
    inner: HashSet<&'m str>,
    edits: Vec<Edit>,
    did: Vec<String>,
}

impl<'g, 'm> PassEdits<'g, 'm> {
    pub(super) fn of(graph: &'g Graph<'m>) -> PassEdits<'g, 'm> {
        let mut inner = HashSet::new();
        for node in &graph.nodes {
            node.subgraphs().for_each(|body| own_names(body, &mut inner));
        }
        PassEdits {
            graph,
            names: Names::of(graph),
            replacements: HashMap::new(),
            inputs: HashMap::new(),
            gone: HashSet::new(),
            added: Vec::new(),
            inner,
            edits: Vec::new(),
            did: Vec::new(),
        }
    }

    /// The current name of a value, after replacements.
    pub(super) fn current_name<'a>(&'a self, mut name: &'a str) -> &'a str {
        while let Some(next) = self.replacements.get(name) {
            name = next;
        }
        name
    }

    /// Removes a node.
    pub(super) fn remove(&mut self, node: usize) {
        if self.gone.insert(node) {
            self.edits.push(Edit::RemoveNode(node));
        }
    }

    /// Adds a node, which may produce the outputs of a removed node.
    pub(super) fn add_node(&mut self, node: NodeProto) {
        self.added.push(node);
    }

    /// Adds any other edit.
    pub(super) fn edit(&mut self, edit: Edit) {
        self.edits.push(edit);
    }

    /// Adds a description of a change to the report.
    pub(super) fn did(&mut self, what: String) {
        self.did.push(what);
    }

    /// Replaces all uses of `value` with `other`, which must be available wherever `value` is.
    /// Returns `false` if a subgraph defines another value with that name.
    pub(super) fn replace_uses(&mut self, value: ValueId, other: &str) -> bool {
        let other = self.current_name(other).to_owned();
        let found = &self.graph.values[value];
        if other == found.name || found.used_in_subgraph && self.inner.contains(&*other) {
            return false;
        }
        self.replacements.insert(found.name.to_owned(), other);
        true
    }

    /// Sets the value of an input, whatever it was before.
    pub(super) fn set_input(&mut self, node: usize, input: usize, value: String) {
        self.inputs.insert((node, input), value);
    }

    /// An unused name.
    pub(super) fn fresh(&mut self, base: &str, suffix: &str) -> String {
        self.names.fresh(base, suffix)
    }

    /// Adds a constant with an unused name, and returns the name.
    pub(super) fn add_constant(&mut self, base: &str, suffix: &str, tensor: &Tensor) -> String {
        let name = self.names.fresh(base, suffix);
        self.edits.push(Edit::AddInitializer(TensorProto::new(name.clone(), tensor)));
        name
    }

    /// Replaces the constant at an input. If the input is its only use, the constant keeps its
    /// name.
    pub(super) fn replace_constant(
        &mut self,
        (node, input): (usize, usize),
        value: ValueId,
        suffix: &str,
        tensor: &Tensor,
    ) {
        let found = &self.graph.values[value];
        let own = self.graph.only_consumer(value).is_some();
        match found.producer {
            Producer::Initializer { .. } if own => {
                self.edit(Edit::ReplaceInitializer(TensorProto::new(found.name, tensor)));
            }
            _ => {
                let name = self.add_constant(found.name, suffix, tensor);
                self.set_input(node, input, name);
            }
        }
    }

    /// Removes a node whose output equals `source`.
    ///
    /// The uses of the output are replaced with `source`. If the output is an output of the model,
    /// the producer of `source` is made to produce it instead. Returns `false` without any edit if
    /// both are outputs of the model or no node produces `source`.
    pub(super) fn bypass(&mut self, node: usize, source: ValueId) -> bool {
        let Some(made) = self.graph.output(node, 0) else { return false };
        let graph = self.graph;
        if !graph.values[made].is_output {
            let passed = self.replace_uses(made, graph.values[source].name);
            if passed {
                self.remove(node);
            }
            return passed;
        }
        let name = self.current_name(graph.values[source].name).to_owned();
        let Some(source) = graph.value(&name) else { return false };
        let value = &graph.values[source];
        let Producer::Node { node: producer, output } = value.producer else { return false };
        if value.is_output || !self.replace_uses(source, graph.values[made].name) {
            return false;
        }
        let value = graph.values[made].name.to_owned();
        self.edits.push(Edit::RenameOutput { node: producer, output, value });
        self.remove(node);
        true
    }

    /// Returns the collected edits, plus edits that remove what they leave unused.
    pub(super) fn finish(mut self) -> Changes {
        let idle = self.edits.is_empty() && self.added.is_empty();
        if idle && self.replacements.is_empty() && self.inputs.is_empty() {
            return Changes::default();
        }
        let mut whole = Vec::new();
        let mut parts = Vec::new();
        let mut reads_left = vec![0usize; self.graph.values.len()];
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if self.gone.contains(&index) {
                continue;
            }
            let before = node.input.len();
            let added = (before..).take_while(|input| self.inputs.contains_key(&(index, *input)));
            for input in (0..before).chain(added) {
                let old = node.input.get(input).map_or("", String::as_str);
                let new = match self.inputs.get(&(index, input)) {
                    Some(value) => value,
                    None => self.current_name(old),
                };
                if let Some(value) = self.graph.value(new) {
                    reads_left[value] += 1;
                }
                if new != old {
                    parts.push(Edit::SetInput { node: index, input, value: new.to_owned() });
                }
            }
            let own = node.input.iter().filter(|name| !name.is_empty()).count();
            let captured = &reads(node)[own..];
            for value in
                captured.iter().filter_map(|name| self.graph.value(self.current_name(name)))
            {
                reads_left[value] += 1;
            }
            if captured.iter().any(|name| self.replacements.contains_key(*name)) {
                whole.push(Edit::ReplaceNode { node: index, with: self.rewired(node) });
            }
        }
        for name in self.added.iter().flat_map(|node| &node.input) {
            if let Some(value) = self.graph.value(name) {
                reads_left[value] += 1;
            }
        }
        self.edits.extend(std::mem::take(&mut self.added).into_iter().map(Edit::AddNode));
        self.orphans(reads_left);
        // Nodes must be replaced before their inputs are set.
        whole.append(&mut self.edits);
        whole.append(&mut parts);
        Changes { edits: whole, did: self.did }
    }

    /// Removes constants and nodes that the edits leave unused, and the value infos of removed
    /// values.
    fn orphans(&mut self, mut reads_left: Vec<usize>) {
        // A node whose output was renamed produces the value with the new name.
        let renamed: HashSet<usize> = self
            .edits
            .iter()
            .filter_map(|edit| match edit {
                Edit::RenameOutput { node, .. } => Some(*node),
                _ => None,
            })
            .collect();
        let made_elsewhere: HashSet<String> = self
            .edits
            .iter()
            .flat_map(|edit| match edit {
                Edit::AddInitializer(tensor) => vec![tensor.name.clone()],
                Edit::RenameOutput { value, .. } => vec![value.clone()],
                Edit::AddNode(node) => node.output.clone(),
                _ => Vec::new(),
            })
            .collect();
        self.remove_unread(&mut reads_left, &renamed);
        self.remove_stale_infos(&reads_left, &renamed, &made_elsewhere);
    }

    /// Removes constants and nodes that nothing reads any more.
    fn remove_unread(&mut self, reads_left: &mut [usize], renamed: &HashSet<usize>) {
        let graph = self.graph;
        let values = 0..graph.values.len();
        let mut waiting: Vec<ValueId> =
            values.filter(|value| is_unneeded(graph, reads_left, *value)).collect();
        while let Some(value) = waiting.pop() {
            let found = &graph.values[value];
            match found.producer {
                Producer::Initializer { overridable: false, .. } => {
                    self.edits.push(Edit::RemoveInitializer(found.name.to_owned()));
                }
                Producer::Node { node, .. } => {
                    let proto = graph.nodes[node];
                    let mut made =
                        (0..proto.output.len()).filter_map(|output| graph.output(node, output));
                    let idle = is_pure(proto)
                        && made
                            .all(|value| reads_left[value] == 0 && !graph.values[value].is_output);
                    if self.gone.contains(&node) || renamed.contains(&node) || !idle {
                        continue;
                    }
                    self.remove(node);
                    for value in reads(proto)
                        .into_iter()
                        .filter_map(|name| graph.value(self.current_name(name)))
                    {
                        reads_left[value] = reads_left[value].saturating_sub(1);
                        if is_unneeded(graph, reads_left, value) {
                            waiting.push(value);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Removes the value infos of removed values, unless the edits make a value of that name.
    fn remove_stale_infos(
        &mut self,
        reads_left: &[usize],
        renamed: &HashSet<usize>,
        made_elsewhere: &HashSet<String>,
    ) {
        let graph = self.graph;
        for info in &graph.model.graph().value_info {
            let Some(value) = graph.value(&info.name) else { continue };
            let gone = match graph.values[value].producer {
                Producer::Node { node, output } => {
                    self.gone.contains(&node) || renamed.contains(&node) && output == 0
                }
                Producer::Initializer { overridable, .. } => {
                    !overridable && is_unneeded(graph, reads_left, value)
                }
                _ => false,
            };
            if gone && !made_elsewhere.contains(&info.name) {
                self.edits.push(Edit::RemoveValueInfo(info.name.clone()));
            }
        }
    }

    /// A copy of the node with replaced values in its subgraphs.
    fn rewired(&self, node: &NodeProto) -> NodeProto {
        let mut node = node.clone();
        for attribute in &mut node.attribute {
            if attribute.subgraphs().next().is_none() {
                continue;
            }
            for body in attribute.edit().subgraphs_mut() {
                rename_reads(body.edit(), &HashSet::new(), &|name| {
                    let replaced = self.replacements.contains_key(name);
                    replaced.then(|| self.current_name(name).to_owned())
                });
            }
        }
        node
    }
}

/// Whether a value had readers and has none left.
fn is_unneeded(graph: &Graph<'_>, reads_left: &[usize], value: ValueId) -> bool {
    let found = &graph.values[value];
    reads_left[value] == 0
        && !found.is_output
        && (!found.consumers.is_empty() || found.used_in_subgraph)
}

/// Replaces the names of captured values in a subgraph and its subgraphs. `hidden` are names that
/// enclosing subgraphs define. The recursion depth is the nesting depth of subgraphs, which the
/// model reader limits.
pub(super) fn rename_reads(
    body: &mut GraphProto,
    hidden: &HashSet<String>,
    new: &dyn Fn(&str) -> Option<String>,
) {
    let mut own = HashSet::new();
    defined(body, &mut own);
    let hidden: HashSet<String> =
        hidden.iter().cloned().chain(own.into_iter().map(str::to_owned)).collect();
    let renamed = |name: &str| if hidden.contains(name) { None } else { new(name) };
    for node in &mut body.node {
        if !reads(node).iter().any(|name| renamed(name).is_some()) {
            continue;
        }
        let node = node.edit();
        for input in &mut node.input {
            if let Some(name) = renamed(input) {
                *input = name;
            }
        }
        for attribute in &mut node.attribute {
            if attribute.subgraphs().next().is_none() {
                continue;
            }
            for inner in attribute.edit().subgraphs_mut() {
                rename_reads(inner.edit(), &hidden, new);
            }
        }
    }
    for output in &mut body.output {
        if let Some(name) = renamed(&output.name) {
            output.edit().name = name;
        }
    }
}

/// The names of the values that a graph defines.
fn defined<'a>(graph: &'a GraphProto, names: &mut HashSet<&'a str>) {
    names.extend(graph.input.iter().map(|input| input.name.as_str()));
    names.extend(graph.initializer.iter().map(|tensor| tensor.name.as_str()));
    names.extend(graph.sparse_initializer.iter().filter_map(|sparse| sparse.name()));
    names.extend(graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)));
}

/// The names of the values that a graph and its subgraphs define.
pub(super) fn own_names<'a>(graph: &'a GraphProto, names: &mut HashSet<&'a str>) {
    defined(graph, names);
    for node in &graph.node {
        node.subgraphs().for_each(|body| own_names(body, names));
    }
}

/// Whether a node has no effect besides its outputs. Operators of other domains might have.
pub(super) fn is_pure(node: &NodeProto) -> bool {
    node.is_onnx() && node.subgraphs().flat_map(|body| &body.node).all(|node| is_pure(node))
}
