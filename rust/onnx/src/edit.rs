//! The closed list of changes that can be made to a model.

use std::collections::HashSet;

use crate::Kept;
use crate::error::{Error, ErrorKind};
use crate::order;
use crate::schema::{ModelProto, NodeProto, TensorProto};

/// One change to the main graph. Nodes are meant by their position before any change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Edit {
    /// Adds a constant tensor.
    AddInitializer(TensorProto),
    /// Takes a constant tensor out, and the graph input of its name that models before IR 4 have.
    RemoveInitializer(String),
    /// Adds a node; where it stands follows from what it reads.
    AddNode(NodeProto),
    /// Takes a node out.
    RemoveNode(usize),
    /// Lets a node read another value.
    SetInput {
        /// Position of the node.
        node: usize,
        /// Position of the input.
        input: usize,
        /// Name of the value to read.
        value: String,
    },
    /// Gives what a node makes another name.
    RenameOutput {
        /// Position of the node.
        node: usize,
        /// Position of the output.
        output: usize,
        /// The new name.
        value: String,
    },
    /// Raises the IR version to at least this, for types that older ones do not know.
    RequireIr(i64),
}

/// Applies `edits` in order, then puts the nodes in order.
pub(crate) fn apply(model: &mut ModelProto, edits: Vec<Edit>) -> Result<(), Error> {
    let mut removed_nodes = HashSet::new();
    let mut removed_tensors = HashSet::new();
    let mut added_nodes = Vec::new();
    for edit in &edits {
        if let Edit::RequireIr(version) = edit {
            model.ir_version = model.ir_version.max(*version);
        }
    }
    let Some(graph) = &mut model.graph else {
        return Err(refused("the model has no graph".to_owned()));
    };
    let graph = graph.edit();
    for edit in edits {
        match edit {
            Edit::AddInitializer(tensor) => graph.initializer.push(Kept::new(tensor)),
            Edit::RemoveInitializer(name) => {
                removed_tensors.insert(name);
            }
            Edit::AddNode(node) => added_nodes.push(Kept::new(node)),
            Edit::RemoveNode(index) => {
                removed_nodes.insert(index);
            }
            Edit::SetInput { node, input, value } => {
                let place =
                    graph.node.get_mut(node).and_then(|node| node.edit().input.get_mut(input));
                *place.ok_or_else(|| refused(format!("no input {input} at node {node}")))? = value;
            }
            Edit::RenameOutput { node, output, value } => {
                let place =
                    graph.node.get_mut(node).and_then(|node| node.edit().output.get_mut(output));
                *place.ok_or_else(|| refused(format!("no output {output} at node {node}")))? =
                    value;
            }
            Edit::RequireIr(_) => {}
        }
    }
    graph.initializer.retain(|tensor| !removed_tensors.contains(&tensor.name));
    graph.input.retain(|input| !removed_tensors.contains(&input.name));
    let mut index = 0;
    graph.node.retain(|_| {
        index += 1;
        !removed_nodes.contains(&(index - 1))
    });
    graph.node.append(&mut added_nodes);

    let order = order::topological(&graph.node)?;
    let mut nodes: Vec<Option<Kept<NodeProto>>> =
        std::mem::take(&mut graph.node).into_iter().map(Some).collect();
    graph.node = order.into_iter().filter_map(|index| nodes[index].take()).collect();
    Ok(())
}

fn refused(what: String) -> Error {
    Error::new(ErrorKind::Edit(what))
}
