//! Takes values out of `Loop` and `Scan` that each iteration passes on unchanged. The body captures
//! them instead, so that a constant among them is a constant of the body, too.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{Edit, GraphProto, NodeProto, Raw, reads};

use super::Changes;
use super::pass_edits::{own_names, rename_reads};
use crate::QuantizeError;
use crate::graph::{Graph, with_subgraphs};

/// The first opset whose `Scan` has no axis of samples and no input for lengths.
const SCAN_WITHOUT_LENGTHS: i64 = 9;

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut changes = Changes::default();
    let opset = graph.model.opset("").unwrap_or(1);
    for (node, proto) in graph.nodes.iter().enumerate() {
        let mut added = Vec::new();
        if let Some(with) = lifted(proto, opset, &mut added, &mut changes.did) {
            changes.edits.push(Edit::ReplaceNode { node, with });
        }
        changes.edits.extend(added.into_iter().map(Edit::AddNode));
    }
    Ok(changes)
}

/// A node without values that it passes on, in all of its subgraphs; `None` if it passes on none.
/// `added` receives nodes that compute what the node no longer does. The recursion depth is the
/// nesting depth of subgraphs, which the model reader limits.
fn lifted(
    node: &NodeProto,
    opset: i64,
    added: &mut Vec<NodeProto>,
    did: &mut Vec<String>,
) -> Option<NodeProto> {
    let with = with_subgraphs(node, |body| within(body, opset, did));
    without_passed_on(with.as_ref().unwrap_or(node), opset, added, did).or(with)
}

fn within(body: &GraphProto, opset: i64, did: &mut Vec<String>) -> Option<GraphProto> {
    let mut changed = false;
    let mut nodes = Vec::with_capacity(body.node.len());
    for node in &body.node {
        let mut added = Vec::new();
        match lifted(node, opset, &mut added, did) {
            Some(with) => {
                nodes.push(Raw::new(with));
                nodes.extend(added.into_iter().map(Raw::new));
                changed = true;
            }
            None => nodes.push(node.clone()),
        }
    }
    if !changed {
        return None;
    }
    let mut with = body.clone();
    with.node = nodes;
    Some(with)
}

/// Where a node and its body have the values that are carried from one iteration to the next.
struct Carried {
    count: usize,
    node_inputs: usize,
    body_inputs: usize,
    body_outputs: usize,
}

impl Carried {
    fn of(node: &NodeProto, body: &GraphProto, opset: i64) -> Option<Carried> {
        let carried = match node.op_type.as_str() {
            // The count and the condition precede them, and the condition that a body outputs.
            "Loop" => Carried {
                count: node.input.len().checked_sub(2)?,
                node_inputs: 2,
                body_inputs: 2,
                body_outputs: 1,
            },
            "Scan" if opset >= SCAN_WITHOUT_LENGTHS => {
                let scanned = usize::try_from(node.int("num_scan_inputs", 0)).ok()?;
                let count = node.input.len().checked_sub(scanned)?;
                Carried { count, node_inputs: 0, body_inputs: 0, body_outputs: 0 }
            }
            _ => return None,
        };
        let fits = body.input.len() >= carried.body_inputs + carried.count
            && body.output.len() >= carried.body_outputs + carried.count;
        fits.then_some(carried)
    }
}

/// The node without the values that it passes on unchanged.
fn without_passed_on(
    node: &NodeProto,
    opset: i64,
    added: &mut Vec<NodeProto>,
    did: &mut Vec<String>,
) -> Option<NodeProto> {
    let at = node.attribute.iter().position(|attribute| attribute.name == "body")?;
    let body = node.attribute[at].g.as_deref().filter(|_| node.is_onnx())?;
    let carried = Carried::of(node, body, opset)?;
    let mut places = carried.passed_on(node, body);
    // A node must have an output.
    if places.len() >= node.output.len() && (0..node.output.len()).all(|at| places.contains(&at)) {
        places.retain(|place| *place != 0);
    }
    if places.is_empty() {
        return None;
    }
    let (mut with, mut body) = (node.clone(), body.clone());
    let mut new: HashMap<String, String> = HashMap::new();
    let mut outputs = Vec::new();
    // From the last to the first, so that positions stay.
    for place in places.into_iter().rev() {
        let outer = with.input.remove(carried.node_inputs + place);
        did.push(format!("took `{outer}` out of {}: each iteration passes it on", node.label()));
        if place < with.output.len() {
            let output = with.output.remove(place);
            if !output.is_empty() {
                let reads = vec![outer.clone()];
                added.push(NodeProto::new("", "Identity", reads, vec![output], Vec::new()));
            }
        }
        new.insert(body.input.remove(carried.body_inputs + place).name.clone(), outer);
        outputs.push(body.output.remove(carried.body_outputs + place).name.clone());
    }
    remove_unread(&mut body, &outputs);
    body.value_info.retain(|info| !new.contains_key(&info.name));
    rename_reads(&mut body, &HashSet::new(), &|name| new.get(name).cloned());
    with.attribute[at].edit().g = Some(Raw::new(body));
    Some(with)
}

impl Carried {
    /// The places of the values that a body passes on unchanged.
    fn passed_on(&self, node: &NodeProto, body: &GraphProto) -> Vec<usize> {
        let mut names = HashSet::new();
        own_names(body, &mut names);
        let identities = identities(body);
        let constants: HashSet<&str> =
            body.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut times: HashMap<&str, usize> = HashMap::new();
        for output in &body.output {
            *times.entry(&output.name).or_default() += 1;
        }
        let is_passed_on = |place: &usize| {
            let outer = node.input[self.node_inputs + place].as_str();
            let inner = body.input[self.body_inputs + place].name.as_str();
            let output = body.output[self.body_outputs + place].name.as_str();
            let mut source = output;
            for _ in 0..=identities.len() {
                match identities.get(source) {
                    Some(next) => source = next,
                    None => break,
                }
            }
            // A body cannot output what it captures.
            let outputs = times.get(inner).copied().unwrap_or(0);
            source == inner
                && outputs == usize::from(output == inner)
                && !constants.contains(inner)
                && !outer.is_empty()
                && (outer == inner || !names.contains(outer))
        };
        (0..self.count).filter(is_passed_on).collect()
    }
}

/// The inputs of the `Identity` nodes of a body, by their output.
fn identities(body: &GraphProto) -> HashMap<&str, &str> {
    let ends = body.node.iter().filter_map(|node| match (&node.input[..], &node.output[..]) {
        ([input], [output]) if node.op_type == "Identity" && node.is_onnx() => {
            Some((output.as_str(), input.as_str()))
        }
        _ => None,
    });
    ends.collect()
}

/// Removes the `Identity` nodes that compute these values and are not read any more.
fn remove_unread(body: &mut GraphProto, values: &[String]) {
    let mut times: HashMap<&str, usize> = HashMap::new();
    let read = body.node.iter().flat_map(|node| reads(node));
    for name in read.chain(body.output.iter().map(|output| output.name.as_str())) {
        *times.entry(name).or_default() += 1;
    }
    let identities = identities(body);
    let mut gone: HashSet<String> = HashSet::new();
    for value in values {
        let mut name = value.as_str();
        while times.get(name).is_none_or(|times| *times == 0)
            && let Some(source) = identities.get(name)
            && gone.insert(name.to_owned())
        {
            times.entry(source).and_modify(|times| *times = times.saturating_sub(1));
            name = source;
        }
    }
    body.node.retain(|node| !node.output.first().is_some_and(|name| gone.contains(name)));
    body.value_info.retain(|info| !gone.contains(&info.name));
}
