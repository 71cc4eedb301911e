//! Topological order of nodes: every value is produced before it is consumed.

use std::collections::HashMap;

use crate::Raw;
use crate::error::Error;
use crate::schema::{GraphProto, NodeProto};

#[derive(Clone, Copy, PartialEq)]
enum State {
    Waiting,
    Begun,
    Placed,
}

/// Positions of `nodes` in an order in which every value is produced before it is consumed.
///
/// Nodes that are already in order keep it; any other node is placed right before its first
/// consumer.
///
/// # Errors
/// A node depends on itself.
pub fn topological(nodes: &[Raw<NodeProto>]) -> Result<Vec<usize>, Error> {
    // Most nodes have one output. A table that grows looks up every name again.
    let mut producers: HashMap<&str, usize> = HashMap::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let names = node.output.iter().filter(|name| !name.is_empty());
        producers.extend(names.map(|name| (name.as_str(), index)));
    }
    let needs: Vec<Vec<usize>> = nodes
        .iter()
        .map(|node| reads(node).iter().filter_map(|name| producers.get(name).copied()).collect())
        .collect();
    dependency_order(&needs).map_err(|index| {
        let what = "its output depends on itself: the graph has a cycle";
        Error::structure(nodes[index].label(), what)
    })
}

/// Positions in an order in which each comes after its dependencies, or one position of a cycle.
pub(crate) fn dependency_order(needs: &[Vec<usize>]) -> Result<Vec<usize>, usize> {
    let mut state = vec![State::Waiting; needs.len()];
    let mut placed = Vec::with_capacity(needs.len());
    for root in 0..needs.len() {
        // An explicit stack: a chain of a million nodes must not overflow the call stack.
        let mut stack = vec![(root, 0)];
        while let Some((index, next)) = stack.pop() {
            if state[index] == State::Placed {
                continue;
            }
            state[index] = State::Begun;
            match needs[index].get(next) {
                None => {
                    state[index] = State::Placed;
                    placed.push(index);
                }
                Some(need) => {
                    stack.push((index, next + 1));
                    match state[*need] {
                        State::Waiting => stack.push((*need, 0)),
                        State::Placed => {}
                        State::Begun => return Err(*need),
                    }
                }
            }
        }
    }
    Ok(placed)
}

/// Names of the values that a node consumes, including those that its subgraphs use from outer
/// graphs.
pub fn reads(node: &NodeProto) -> Vec<&str> {
    let mut names: Vec<&str> =
        node.input.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    node.subgraphs().for_each(|graph| captures(graph, &mut names));
    names
}

/// Adds the names that `graph` uses from outer graphs.
fn captures<'a>(graph: &'a GraphProto, names: &mut Vec<&'a str>) {
    let own: std::collections::HashSet<&str> = graph
        .input
        .iter()
        .map(|input| input.name.as_str())
        .chain(graph.initializer.iter().map(|tensor| tensor.name.as_str()))
        .chain(graph.sparse_initializer.iter().filter_map(|sparse| sparse.name()))
        .chain(graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)))
        .collect();
    let read = graph
        .node
        .iter()
        .flat_map(|node| reads(node))
        .chain(graph.output.iter().map(|output| output.name.as_str()));
    names.extend(read.filter(|name| !own.contains(name)));
}
