//! Extracts a part of a model as a model of its own.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{DataType, Dimension, Edit, Model, ValueInfoProto, reads};

use crate::QuantizeError;
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::graph::InputSpec;
use crate::graph::names::Names;

/// A part of a model.
#[derive(Clone, Debug)]
pub struct Extract {
    /// The part as a model, with only the nodes and constants that its outputs need.
    pub model: Model,
    /// Its inputs: the needed ones of `inputs`, and the needed ones of the whole model.
    pub inputs: Vec<String>,
    /// The names of its outputs, in the order of the arguments. An output that is also an input
    /// gets another name as an output.
    pub outputs: Vec<String>,
}

/// The part of a model that computes `outputs` from `inputs`, float32 values of the main graph.
///
/// A value in `inputs` becomes a graph input: its consumers read the input. A value that does not
/// follow from `inputs` alone follows from inputs of the whole model, which the part then has, too.
///
/// ```
/// use quantize_rs::{Model, extract};
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let model = Model::open(path)?;
/// let middle = model.graph().node[1].output[0].clone();
/// let output = model.graph().output[0].name.clone();
/// let part = extract(&model, &[middle.clone()], &[output])?;
/// assert_eq!(part.inputs, [middle]);
/// assert!(part.model.graph().node.len() < model.graph().node.len());
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
///
/// # Errors
/// A name that is not a value of the main graph.
pub fn extract(
    model: &Model,
    inputs: &[String],
    outputs: &[String],
) -> Result<Extract, QuantizeError> {
    let graph = Graph::of(model)?;
    for (option, names) in [("inputs", inputs), ("outputs", outputs)] {
        if let Some(unknown) = names.iter().find(|name| graph.value(name).is_none()) {
            let what = format!("names `{unknown}`, which is not a value of the main graph");
            return Err(QuantizeError::option(option, what));
        }
    }
    let cut: HashSet<&str> = inputs.iter().map(String::as_str).collect();
    let needed = Needed::of(&graph, &cut, outputs);
    let mut edits = Vec::new();
    let mut names = Names::of(&graph);
    let mut renamed: HashMap<String, String> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !needed.nodes.contains(&index) {
            edits.push(Edit::RemoveNode(index));
            continue;
        }
        for (output, name) in node.output.iter().enumerate() {
            if cut.contains(name.as_str()) {
                let value = names.fresh(name, "made");
                renamed.insert(name.clone(), value.clone());
                edits.push(Edit::RenameOutput { node: index, output, value });
            }
        }
    }
    let proto = model.graph();
    let is_read = |name: &str| needed.values.contains(name);
    let constants = proto.initializer.iter().map(|tensor| tensor.name.as_str());
    let sparse = proto.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref());
    let constants = constants.chain(sparse.map(|values| values.name.as_str()));
    let is_kept = |name: &str| {
        !cut.contains(name) && (is_read(name) || outputs.iter().any(|output| output == name))
    };
    let constants = constants.filter(|name| !is_kept(name));
    edits.extend(constants.map(|name| Edit::RemoveInitializer(name.to_owned())));
    // Declarations of removed values, or of values that are inputs now, would be contradictions.
    let infos = proto.value_info.iter().map(|info| &info.name);
    let gone = infos.filter(|name| !is_read(name) || cut.contains(name.as_str()));
    edits.extend(gone.map(|name| Edit::RemoveValueInfo(name.clone())));

    let own: Vec<String> = InputSpec::of(model).into_iter().map(|input| input.name).collect();
    // An input whose initializer is removed would become a required one.
    let with_default = proto.input.iter().map(|input| &input.name);
    let with_default = with_default.filter(|name| !own.contains(name));
    let gone = with_default.filter(|name| !is_kept(name));
    edits.extend(gone.map(|name| Edit::RemoveInput(name.clone())));
    let (kept, unread): (Vec<String>, Vec<String>) =
        own.into_iter().partition(|name| is_read(name) || outputs.contains(name));
    edits.extend(unread.into_iter().map(Edit::RemoveInput));
    let mut part_inputs = kept.clone();
    for name in inputs.iter().filter(|name| is_read(name) && !kept.contains(name)) {
        edits.push(Edit::AddInput(declared(&graph, name)));
        part_inputs.push(name.clone());
    }
    let outputs: Vec<String> =
        outputs.iter().map(|name| renamed.get(name).unwrap_or(name).clone()).collect();
    let before: Vec<&String> = proto.output.iter().map(|output| &output.name).collect();
    let gone = before.iter().filter(|name| !outputs.contains(name));
    edits.extend(gone.map(|name| Edit::RemoveOutput((*name).clone())));
    let added = outputs.iter().filter(|name| !before.contains(name));
    edits.extend(added.map(|name| Edit::AddOutput(name.clone())));
    let mut part = model.clone();
    part.apply(edits)?;
    if part.graph().output.is_empty() {
        let what = "a part of a model has no outputs".to_owned();
        return Err(QuantizeError::new(QuantizeErrorKind::Verify(what)));
    }
    Ok(Extract { model: part, inputs: part_inputs, outputs })
}

/// A value as an input. Runtimes infer more of a part if they know how many axes it has; the
/// lengths may be others than those that the model declares.
fn declared(graph: &Graph<'_>, name: &str) -> ValueInfoProto {
    let shape = graph.value(name).and_then(|value| graph.shape(value));
    let shape = shape.map(|shape| vec![Dimension::default(); shape.len()]);
    ValueInfoProto::new(name, DataType::Float, shape)
}

/// What the outputs are computed from.
struct Needed<'m> {
    /// Nodes, by position.
    nodes: HashSet<usize>,
    /// Names that these nodes read, including their subgraphs.
    values: HashSet<&'m str>,
}

impl<'m> Needed<'m> {
    fn of(graph: &'m Graph<'m>, cut: &HashSet<&str>, outputs: &[String]) -> Needed<'m> {
        let producers: HashMap<&str, usize> = graph
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(index, node)| node.output.iter().map(move |name| (name.as_str(), index)))
            .filter(|(name, _)| !name.is_empty())
            .collect();
        let mut needed = Needed { nodes: HashSet::new(), values: HashSet::new() };
        let mut pending: Vec<usize> =
            outputs.iter().filter_map(|name| producers.get(name.as_str()).copied()).collect();
        while let Some(index) = pending.pop() {
            if !needed.nodes.insert(index) {
                continue;
            }
            for name in reads(graph.nodes[index]) {
                needed.values.insert(name);
                if !cut.contains(name) {
                    pending.extend(producers.get(name).copied());
                }
            }
        }
        needed
    }
}
