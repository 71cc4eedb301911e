//! Moves weights out of subgraphs (bodies of `If`, `Loop` and `Scan`) into the main graph, from
//! which the subgraphs capture them. There, options can refer to them by name, and they are
//! dequantized once instead of in each iteration of a loop.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{Edit, GraphProto, NodeProto, Raw, Tensor, TensorProto};

use super::Changes;
use crate::QuantizeError;
use crate::graph::names::Names;
use crate::graph::uses;
use crate::graph::uses::Subgraphs;
use crate::graph::{Graph, constant_of};
use crate::util::fnv::hash_of_some;

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let bodies = Subgraphs::of(graph);
    let mut changes = Changes::default();
    let weights = uses::inside(graph, &bodies);
    if weights.is_empty() {
        return Ok(changes);
    }
    let known = bodies.names().chain(graph.values.iter().map(|value| value.name));
    let mut times: HashMap<&str, usize> = HashMap::new();
    known.for_each(|name| *times.entry(name).or_default() += 1);
    let mut names = Names::of(graph);
    let mut lifted: Lifted<'_> = HashMap::new();
    let mut moved = Moved::default();
    for (body, tensor, name) in weights {
        let elements = graph.model.tensor(tensor)?;
        // Equal weights of several branches are stored once if they are used alike.
        let usage = bodies.reads(body, name).iter().find_map(|read| read.by);
        let usage = usage.map(|(node, input)| (node.op_type.as_str(), input));
        let new = if let Some(first) = moved.equal(&elements, usage) {
            first
        } else {
            // The name is kept unless several graphs use it.
            let alone = times.get(name).is_none_or(|times| *times == 1);
            let new = if alone { name.to_owned() } else { names.fresh(name, "lifted") };
            let mut tensor: TensorProto = tensor.clone();
            tensor.name.clone_from(&new);
            changes.edits.push(Edit::AddInitializer(tensor));
            moved.add(elements, usage, new.clone());
            new
        };
        changes
            .did
            .push(format!("moved `{new}` out of subgraph `{}`", called(bodies.all[body].graph)));
        let key = std::ptr::from_ref(bodies.all[body].graph);
        lifted.entry(key).or_default().insert(name, new);
    }
    for (node, proto) in graph.nodes.iter().enumerate() {
        if proto.subgraphs().next().is_none() {
            continue;
        }
        let mut with = (*proto).clone();
        if each_body(proto, &mut with, &lifted, &HashMap::new()) {
            changes.edits.push(Edit::ReplaceNode { node, with });
        }
    }
    Ok(changes)
}

/// The operator type and the input that read a weight.
type Usage<'m> = Option<(&'m str, usize)>;

/// The weights that were moved, by a hash of their elements.
#[derive(Default)]
struct Moved<'m> {
    by_hash: HashMap<u64, Vec<(Tensor, Usage<'m>, String)>>,
}

impl<'m> Moved<'m> {
    /// The name of an equal weight that is used alike.
    fn equal(&self, tensor: &Tensor, usage: Usage<'m>) -> Option<String> {
        let alike = self.by_hash.get(&hash_of_some(&tensor.data))?;
        let same = alike.iter().find(|(other, of, _)| {
            *of == usage
                && (other.dtype, &other.shape) == (tensor.dtype, &tensor.shape)
                && other.data == tensor.data
        });
        same.map(|(.., name)| name.clone())
    }

    fn add(&mut self, tensor: Tensor, usage: Usage<'m>, name: String) {
        self.by_hash.entry(hash_of_some(&tensor.data)).or_default().push((tensor, usage, name));
    }
}

/// The new names of the moved weights, by the address of their subgraph and their name there.
type Lifted<'m> = HashMap<*const GraphProto, HashMap<&'m str, String>>;

fn called(body: &GraphProto) -> &str {
    body.name.as_deref().unwrap_or_default()
}

/// Makes the subgraphs of a node capture the moved weights. Returns whether any changed. The
/// recursion depth is the nesting depth of subgraphs, which the model reader limits.
fn each_body(
    before: &NodeProto,
    after: &mut NodeProto,
    lifted: &Lifted<'_>,
    outer: &HashMap<&str, String>,
) -> bool {
    let mut changed = false;
    for (before, after) in before.attribute.iter().zip(&mut after.attribute) {
        if before.subgraphs().next().is_none() {
            continue;
        }
        let mut copy = (**before).clone();
        let olds = before.g.iter().chain(&before.graphs);
        let mut own = false;
        for (old, new) in olds.zip(copy.subgraphs_mut()) {
            let mut body = (**old).clone();
            if one_body(old, &mut body, lifted, outer) {
                *new = Raw::new(body);
                own = true;
            }
        }
        if own {
            *after = Raw::new(copy);
            changed = true;
        }
    }
    changed
}

fn one_body(
    before: &GraphProto,
    after: &mut GraphProto,
    lifted: &Lifted<'_>,
    outer: &HashMap<&str, String>,
) -> bool {
    let nothing = HashMap::new();
    let gone = lifted.get(&std::ptr::from_ref(before)).unwrap_or(&nothing);
    // Values that are defined here shadow moved weights of enclosing graphs.
    let made: HashSet<&str> = uses::made(before).filter(|name| !gone.contains_key(name)).collect();
    let renamed: HashMap<&str, String> = outer
        .iter()
        .filter(|(name, _)| !made.contains(*name))
        .chain(gone)
        .map(|(name, new)| (*name, new.clone()))
        .collect();
    let mut changed = !gone.is_empty();
    for (before, after) in before.node.iter().zip(&mut after.node) {
        let mut node = (**before).clone();
        let mut own = each_body(before, &mut node, lifted, &renamed);
        for name in &mut node.input {
            if let Some(new) = renamed.get(name.as_str()).filter(|new| *new != name) {
                name.clone_from(new);
                own = true;
            }
        }
        if own {
            *after = Raw::new(node);
            changed = true;
        }
    }
    let is_gone = |name: &str| gone.contains_key(name);
    after.initializer.retain(|tensor| !is_gone(&tensor.name));
    after.value_info.retain(|info| !is_gone(&info.name));
    after.node.retain(|node| {
        constant_of(node).is_none() || !node.output.iter().any(|output| is_gone(output))
    });
    changed
}
