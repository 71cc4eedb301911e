//! Folds constants in subgraphs, where results become `Constant` nodes.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{
    AttributeProto, Edit, GraphProto, NodeProto, Raw, Tensor, TensorProto, reads, topological,
};

use super::evaluated;
use crate::graph::constants::{constant, fixed};
use crate::graph::uses;
use crate::graph::{Graph, with_subgraphs};
use crate::transform::Changes;

pub(super) fn run(graph: &Graph<'_>) -> Changes {
    let mut changes = Changes::default();
    for (node, proto) in graph.nodes.iter().enumerate() {
        let did = &mut changes.did;
        if let Some(with) = with_subgraphs(proto, |body| folded(graph, body, None, did)) {
            changes.edits.push(Edit::ReplaceNode { node, with });
        }
    }
    changes
}

/// The constants of a subgraph and its enclosing graphs.
struct Scope<'a> {
    graph: &'a Graph<'a>,
    known: HashMap<&'a str, Tensor>,
    /// The names that the subgraph defines.
    made: HashSet<&'a str>,
    outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    fn of(graph: &'a Graph<'a>, body: &'a GraphProto, outer: Option<&'a Scope<'a>>) -> Scope<'a> {
        let mut known: HashMap<&str, Tensor> = HashMap::new();
        for tensor in &body.initializer {
            known.extend(graph.model.tensor(tensor).ok().map(|it| (tensor.name.as_str(), it)));
        }
        // Initializers that are also inputs can be overridden.
        for input in &body.input {
            known.remove(input.name.as_str());
        }
        for node in &body.node {
            if let (Some(name), Some(tensor)) = (node.output.first(), constant(graph, node)) {
                known.insert(name, tensor);
            }
        }
        Scope { graph, known, made: uses::made(body).collect(), outer }
    }

    fn constant(&self, name: &str) -> Option<Tensor> {
        if self.made.contains(name) {
            return self.known.get(name).cloned();
        }
        match self.outer {
            Some(outer) => outer.constant(name),
            None => fixed(self.graph, self.graph.value(name)?),
        }
    }

    /// Evaluates a node if its output is constant. `times` holds the number of uses of each value.
    fn computed(&self, node: &NodeProto, times: &HashMap<&str, usize>) -> Option<Tensor> {
        let [_] = node.output[..] else { return None };
        let inputs: Vec<Option<Tensor>> = node
            .input
            .iter()
            .map(|name| if name.is_empty() { Some(None) } else { self.constant(name).map(Some) })
            .collect::<Option<_>>()?;
        let own = |name: &&String| {
            self.made.contains(name.as_str()) && times.get(name.as_str()) == Some(&1)
        };
        let freed = node.input.iter().filter(own).filter_map(|name| self.known.get(name.as_str()));
        let freed = freed.fold(0usize, |all, tensor| all.saturating_add(tensor.data.len()));
        evaluated(self.graph, node, &inputs, freed)
    }
}

/// Folds constants in a subgraph; `None` if nothing changes. The recursion depth is the nesting
/// depth of subgraphs, which the model reader limits.
fn folded(
    graph: &Graph<'_>,
    body: &GraphProto,
    outer: Option<&Scope<'_>>,
    did: &mut Vec<String>,
) -> Option<GraphProto> {
    let mut scope = Scope::of(graph, body, outer);
    let times = times(&body.node, body);
    let mut computed: HashSet<usize> = HashSet::new();
    for index in topological(&body.node).ok()? {
        let node = &body.node[index];
        if let Some(tensor) = scope.computed(node, &times) {
            scope.known.insert(&node.output[0], tensor);
            computed.insert(index);
            let (label, name) = (node.label(), body.name.as_deref().unwrap_or_default());
            did.push(format!("replaced {label}, in subgraph `{name}`, with its constant value"));
        }
    }
    let mut inside = false;
    let mut nodes: Vec<Raw<NodeProto>> = Vec::with_capacity(body.node.len());
    for (index, node) in body.node.iter().enumerate() {
        let known = computed.contains(&index).then(|| &scope.known[node.output[0].as_str()]);
        if let Some(tensor) = known {
            let value = AttributeProto::tensor("value", TensorProto::new("", tensor));
            let (name, output) = (node.name.clone(), node.output.clone());
            let value = vec![Raw::new(value)];
            nodes.push(Raw::new(NodeProto::new(name, "Constant", Vec::new(), output, value)));
            continue;
        }
        match with_subgraphs(node, |body| folded(graph, body, Some(&scope), did)) {
            Some(with) => {
                nodes.push(Raw::new(with));
                inside = true;
            }
            None => nodes.push(node.clone()),
        }
    }
    if computed.is_empty() && !inside {
        return None;
    }
    let left = self::times(&nodes, body);
    let unneeded: HashSet<&str> =
        times.into_keys().filter(|name| !left.contains_key(name)).collect();
    let mut with = body.clone();
    let gone = |node: &NodeProto| {
        node.op_type == "Constant"
            && node.output.iter().all(|name| unneeded.contains(name.as_str()))
    };
    with.node = nodes.iter().filter(|node| !gone(node)).cloned().collect();
    with.initializer.retain(|tensor| !unneeded.contains(tensor.name.as_str()));
    with.value_info.retain(|info| !unneeded.contains(info.name.as_str()));
    Some(with)
}

/// How often each value is used: by nodes, by nodes in their subgraphs, or as an output.
fn times<'n>(nodes: &'n [Raw<NodeProto>], body: &'n GraphProto) -> HashMap<&'n str, usize> {
    let mut times = HashMap::new();
    let read = nodes.iter().flat_map(|node| reads(node));
    for name in read.chain(body.output.iter().map(|output| output.name.as_str())) {
        *times.entry(name).or_default() += 1;
    }
    times
}
