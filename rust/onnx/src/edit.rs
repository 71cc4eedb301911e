//! The edits that can be made to a model.

use std::collections::{HashMap, HashSet};

use crate::Raw;
use crate::error::{Error, ErrorKind};
use crate::opset::ir_of_opset;
use crate::schema::{
    FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto,
};
use crate::topological_sort;

/// One edit of a model. Nodes are those of the main graph. Nodes and functions are identified by
/// their position before any edit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Edit {
    /// Adds an initializer. The IR version is raised to at least 4, before which an initializer was
    /// also a graph input, and to one that includes the type of the tensor.
    AddInitializer(TensorProto),
    /// Replaces the initializer of the same name.
    ReplaceInitializer(TensorProto),
    /// Removes an initializer, dense or sparse. Before IR 4, also removes the graph input of its
    /// name.
    RemoveInitializer(String),
    /// Adds a node; its position follows from its inputs.
    AddNode(NodeProto),
    /// Removes a node.
    RemoveNode(usize),
    /// Replaces or appends an input of a node.
    SetInput {
        /// Position of the node.
        node: usize,
        /// Position of the input; at most the number of existing inputs.
        input: usize,
        /// Name of the new input value.
        value: String,
    },
    /// Renames an output of a node.
    RenameOutput {
        /// Position of the node.
        node: usize,
        /// Position of the output.
        output: usize,
        /// The new name.
        value: String,
    },
    /// Replaces a node, including its attributes and subgraphs.
    ReplaceNode {
        /// Position of the node.
        node: usize,
        /// The new node.
        with: NodeProto,
    },
    /// Sets the type and shape of a value, replacing earlier information. Graph inputs and outputs
    /// are updated in place; other values go to `value_info`.
    SetValueInfo(ValueInfoProto),
    /// Removes the `value_info` of a value.
    RemoveValueInfo(String),
    /// Sets the opset version of a domain, which is empty for ONNX's own, and imports it if
    /// necessary. The nodes must be valid in that version. The IR version is raised to at least the
    /// first one that supports the opset.
    SetOpset {
        /// The domain.
        domain: String,
        /// The version.
        version: i64,
    },
    /// Replaces a function.
    ReplaceFunction {
        /// Position of the function.
        function: usize,
        /// The new function.
        with: FunctionProto,
    },
    /// Removes a function.
    RemoveFunction(usize),
    /// Appends a graph output, without a type; runtimes infer it.
    AddOutput(String),
    /// Removes a graph output; the node that produces it stays.
    RemoveOutput(String),
    /// Appends a graph input.
    AddInput(ValueInfoProto),
    /// Removes a graph input, which must not be used any more.
    RemoveInput(String),
}

/// Applies `edits` in order, then sorts the nodes.
pub(crate) fn apply(model: &mut ModelProto, edits: Vec<Edit>) -> Result<(), Error> {
    raise_ir_version(model, &edits);
    let edits = apply_model_edits(model, edits)?;
    let separate_initializers = model.ir_version >= IR_OF_SEPARATE_INITIALIZERS;
    let Some(graph) = &mut model.graph else {
        return Err(refused("the model has no graph".to_owned()));
    };
    let graph = graph.edit();
    let mut pending = Pending::default();
    for edit in edits {
        pending.apply(graph, edit)?;
    }
    if !separate_initializers {
        let constants = names(graph);
        let removed = &pending.removed.tensors;
        graph
            .input
            .retain(|input| !(removed.contains(&input.name) && constants.contains(&input.name)));
    }
    pending.finish(graph);
    sort(graph)
}

/// What is removed after all edits, so that positions stay.
#[derive(Default)]
struct Removed {
    nodes: HashSet<usize>,
    tensors: HashSet<String>,
    infos: HashSet<String>,
}

/// What is done after all edits.
#[derive(Default)]
struct Pending {
    removed: Removed,
    nodes: Vec<Raw<NodeProto>>,
    infos: Vec<Raw<ValueInfoProto>>,
    /// The positions of the initializers by name, where they are needed.
    places: Option<HashMap<String, usize>>,
}

impl Pending {
    fn apply(&mut self, graph: &mut GraphProto, edit: Edit) -> Result<(), Error> {
        match edit {
            Edit::AddInitializer(tensor) => graph.initializer.push(Raw::new(tensor)),
            Edit::ReplaceInitializer(tensor) => {
                // Initializers are only appended here, so that positions stay.
                let known = self.places.get_or_insert_with(|| {
                    let all = graph.initializer.iter().enumerate();
                    all.map(|(at, tensor)| (tensor.name.clone(), at)).collect::<HashMap<_, _>>()
                });
                match known.get(&tensor.name) {
                    Some(at) => graph.initializer[*at] = Raw::new(tensor),
                    None => return Err(refused(format!("no constant `{}`", tensor.name))),
                }
            }
            Edit::RemoveInitializer(name) => {
                self.removed.tensors.insert(name);
            }
            Edit::AddNode(node) => self.nodes.push(Raw::new(node)),
            Edit::RemoveNode(index) => {
                self.removed.nodes.insert(index);
            }
            Edit::SetInput { node, input, value } => {
                let inputs = graph.node.get_mut(node).map(|node| &mut node.edit().input);
                match inputs {
                    Some(inputs) if input < inputs.len() => inputs[input] = value,
                    Some(inputs) if input == inputs.len() => inputs.push(value),
                    _ => return Err(refused(format!("no input {input} at node {node}"))),
                }
            }
            Edit::RenameOutput { node, output, value } => {
                let place =
                    graph.node.get_mut(node).and_then(|node| node.edit().output.get_mut(output));
                *place.ok_or_else(|| refused(format!("no output {output} at node {node}")))? =
                    value;
            }
            Edit::ReplaceNode { node, with } => match graph.node.get_mut(node) {
                Some(place) => *place = Raw::new(with),
                None => return Err(refused(format!("no node {node}"))),
            },
            Edit::SetValueInfo(info) => self.infos.push(Raw::new(info)),
            Edit::RemoveValueInfo(name) => {
                self.removed.infos.insert(name);
            }
            Edit::AddOutput(name) => {
                let output = ValueInfoProto { name, ..ValueInfoProto::default() };
                graph.output.push(Raw::new(output));
            }
            Edit::RemoveOutput(name) => graph.output.retain(|output| output.name != name),
            Edit::AddInput(info) => graph.input.push(Raw::new(info)),
            Edit::RemoveInput(name) => graph.input.retain(|input| input.name != name),
            Edit::SetOpset { .. } | Edit::ReplaceFunction { .. } | Edit::RemoveFunction(_) => {}
        }
        Ok(())
    }

    fn finish(self, graph: &mut GraphProto) {
        let Removed { nodes, tensors, infos } = self.removed;
        graph.value_info.retain(|info| !infos.contains(&info.name));
        set_infos(graph, self.infos);
        graph.initializer.retain(|tensor| !tensors.contains(&tensor.name));
        let removed = |name: &str| tensors.contains(name);
        graph.sparse_initializer.retain(|sparse| !sparse.name().is_some_and(removed));
        remove_at(&mut graph.node, &nodes);
        graph.node.extend(self.nodes);
    }
}

/// Removes the elements at these positions.
fn remove_at<T>(all: &mut Vec<T>, removed: &HashSet<usize>) {
    let mut index = 0;
    all.retain(|_| {
        index += 1;
        !removed.contains(&(index - 1))
    });
}

fn sort(graph: &mut GraphProto) -> Result<(), Error> {
    let order = topological_sort::topological(&graph.node)?;
    let mut nodes: Vec<Option<Raw<NodeProto>>> =
        std::mem::take(&mut graph.node).into_iter().map(Some).collect();
    graph.node = order.into_iter().filter_map(|index| nodes[index].take()).collect();
    Ok(())
}

/// Replaces the information of values in place, or appends it.
fn set_infos(graph: &mut GraphProto, infos: Vec<Raw<ValueInfoProto>>) {
    if infos.is_empty() {
        return;
    }
    let mut places: HashMap<String, Vec<(usize, usize)>> = HashMap::new();
    let lists = [&graph.value_info, &graph.input, &graph.output];
    for (list, said) in lists.into_iter().enumerate() {
        for (at, info) in said.iter().enumerate() {
            places.entry(info.name.clone()).or_default().push((list, at));
        }
    }
    for info in infos {
        let known = places.entry(info.name.clone()).or_default();
        if known.is_empty() {
            known.push((0, graph.value_info.len()));
            graph.value_info.push(info);
            continue;
        }
        for (list, at) in known {
            let list = match list {
                0 => &mut graph.value_info,
                1 => &mut graph.input,
                _ => &mut graph.output,
            };
            list[*at] = info.clone();
        }
    }
}

/// Applies the edits outside the main graph, and returns the others.
fn apply_model_edits(model: &mut ModelProto, edits: Vec<Edit>) -> Result<Vec<Edit>, Error> {
    let mut removed = HashSet::new();
    let mut others = Vec::with_capacity(edits.len());
    for edit in edits {
        match edit {
            Edit::SetOpset { domain, version } => {
                // `ai.onnx` may be imported under both of its names.
                let imports = model.opset_import.iter_mut();
                let imports = imports.filter(|import| import.is_of(&domain));
                let changed = imports.map(|import| import.edit().version = version).count();
                if changed == 0 {
                    let import = OperatorSetIdProto::new(domain, version);
                    model.opset_import.push(Raw::new(import));
                }
            }
            Edit::ReplaceFunction { function, with } => match model.functions.get_mut(function) {
                Some(place) => *place = Raw::new(with),
                None => return Err(refused(format!("no function {function}"))),
            },
            Edit::RemoveFunction(function) => {
                removed.insert(function);
            }
            other => others.push(other),
        }
    }
    remove_at(&mut model.functions, &removed);
    Ok(others)
}

/// The first IR version in which initializers need not be graph inputs. From this version on, an
/// initializer that is also an input is only a default, which the caller may override.
const IR_OF_SEPARATE_INITIALIZERS: i64 = 4;

/// Raises the IR version as far as `edits` require.
///
/// New initializers need [`IR_OF_SEPARATE_INITIALIZERS`] and a version that includes their type;
/// new opsets need one that supports them. When a model reaches the former, its initializers are
/// removed from the inputs, so that they stay constant. Opset imports, which were optional before
/// IR 3, are added.
fn raise_ir_version(model: &mut ModelProto, edits: &[Edit]) {
    let before = model.ir_version;
    let needed = edits.iter().map(|edit| match edit {
        Edit::AddInitializer(tensor) => {
            tensor.dtype().map_or(IR_OF_SEPARATE_INITIALIZERS, |dtype| {
                dtype.since_ir().max(IR_OF_SEPARATE_INITIALIZERS)
            })
        }
        Edit::SetOpset { domain, version } if OperatorSetIdProto::new(domain, 1).is_of("") => {
            ir_of_opset(*version)
        }
        _ => before,
    });
    model.ir_version = needed.fold(before, i64::max);
    if model.ir_version > before && model.opset_import.is_empty() {
        model.opset_import.push(Raw::new(OperatorSetIdProto::first()));
    }
    if before < IR_OF_ATTRIBUTE_TYPES
        && model.ir_version >= IR_OF_ATTRIBUTE_TYPES
        && let Some(graph) = &mut model.graph
    {
        write_attribute_types(graph);
    }
    if before < IR_OF_SEPARATE_INITIALIZERS
        && model.ir_version >= IR_OF_SEPARATE_INITIALIZERS
        && let Some(graph) = &mut model.graph
    {
        remove_initializers_from_inputs(graph);
    }
}

/// The first IR version in which attributes have a type.
const IR_OF_ATTRIBUTE_TYPES: i64 = 2;

fn write_attribute_types(graph: &mut Raw<GraphProto>) {
    for node in graph.edit().node.iter_mut().filter(|node| !node.attribute.is_empty()) {
        for attribute in &mut node.edit().attribute {
            if attribute.kind == 0 {
                attribute.edit().kind = attribute.kind_of_content();
            }
            if attribute.subgraphs().next().is_some() {
                attribute.edit().subgraphs_mut().for_each(write_attribute_types);
            }
        }
    }
}

/// Includes subgraphs: one with additional inputs would not fit its operator.
fn remove_initializers_from_inputs(graph: &mut Raw<GraphProto>) {
    if !has_initializers_among_inputs(graph) {
        return;
    }
    let constants = names(graph);
    let graph = graph.edit();
    graph.input.retain(|input| !constants.contains(&input.name));
    for node in
        graph.node.iter_mut().filter(|node| node.subgraphs().any(has_initializers_among_inputs))
    {
        let attributes = node.edit().attribute.iter_mut();
        for attribute in attributes.filter(|own| own.subgraphs().any(has_initializers_among_inputs))
        {
            attribute.edit().subgraphs_mut().for_each(remove_initializers_from_inputs);
        }
    }
}

fn has_initializers_among_inputs(graph: &GraphProto) -> bool {
    let constants = names(graph);
    graph.input.iter().any(|input| constants.contains(&input.name))
        || graph.node.iter().flat_map(|node| node.subgraphs()).any(has_initializers_among_inputs)
}

fn names(graph: &GraphProto) -> HashSet<String> {
    graph.initializer.iter().map(|tensor| tensor.name.clone()).collect()
}

fn refused(what: String) -> Error {
    Error::new(ErrorKind::Edit(what))
}
