//! Converts the graphs of a model: the main graph, its subgraphs, and its functions. Each function
//! imports its own opset version.

use std::collections::HashSet;

use quantize_rs_onnx::{
    AttributeProto, DataType, Edit, FunctionProto, Functions, GraphProto, Model, NodeProto, Raw,
};

use super::OpsetConversion;
use super::context::{Constants, ModelContext, NodeContext, Scope};
use super::kernels::LostKernels;
use super::steps::{self, Change, Next};
use crate::QuantizeError;
use crate::error::QuantizeErrorKind;
use crate::graph::infer::Inferred;
use crate::graph::names::Names;
use crate::graph::try_with_subgraphs;
use crate::graph::{all_names, collect_names};

/// Converts a whole model.
pub(super) fn model(
    model: &Model,
    from: Option<i64>,
    to: i64,
) -> Result<(OpsetConversion, Vec<Edit>), QuantizeError> {
    let inferred = Inferred::of(model);
    let mut converter = Converter::of(model, &inferred, names(model), to);
    let mut edits = Vec::new();
    converter.main_graph(from, &mut edits)?;
    for (index, function) in model.proto().functions.iter().enumerate() {
        if let Some(with) = converter.function(function)? {
            edits.push(Edit::ReplaceFunction { function: index, with });
        }
    }
    edits.push(Edit::SetOpset { domain: String::new(), version: to });
    let from = from.unwrap_or(to);
    let (changed, warnings) = (converter.changed, converter.lost_kernels.warnings());
    Ok((OpsetConversion { from, to, changed, warnings }, edits))
}

/// Converts one function; `None` if it already has that opset version.
pub(super) fn function(
    model: &Model,
    function: &FunctionProto,
    to: i64,
) -> Result<Option<FunctionProto>, QuantizeError> {
    // The types of values in a function depend on its callers.
    Converter::of(model, &Inferred::default(), names(model), to).function(function)
}

struct Converter<'m> {
    model: &'m Model,
    inferred: &'m Inferred<'m>,
    common: ModelContext<'m>,
    functions: Functions<'m>,
    to: i64,
    changed: Vec<String>,
    lost_kernels: LostKernels,
}

/// A converted node.
struct ConvertedNode {
    /// The resulting nodes, in order.
    nodes: Vec<NodeProto>,
    /// The index of the node that replaces the original.
    own: usize,
}

/// Constants to add to a graph or function, and values that were removed.
#[derive(Default)]
struct Additions {
    constants: Constants,
    gone: Vec<String>,
}

impl<'m> Converter<'m> {
    fn of(
        model: &'m Model,
        inferred: &'m Inferred<'m>,
        taken: HashSet<&'m str>,
        to: i64,
    ) -> Converter<'m> {
        let common = ModelContext {
            names: Names::beside(taken),
            only_float: only_float(model),
            read: read(model),
        };
        let functions = Functions::of(model.proto());
        let (changed, lost_kernels) = (Vec::new(), LostKernels::default());
        Converter { model, inferred, common, functions, to, changed, lost_kernels }
    }

    fn main_graph(
        &mut self,
        from: Option<i64>,
        edits: &mut Vec<Edit>,
    ) -> Result<(), QuantizeError> {
        let graph = self.model.graph();
        let scope = Scope::of(self.model, graph, Some(&self.inferred.main), None);
        let mut additions = Additions::default();
        for (index, node) in graph.node.iter().enumerate() {
            let Some(mut converted) = self.node(node, from, &scope, &mut additions)? else {
                continue;
            };
            let with = converted.nodes.remove(converted.own);
            edits.push(Edit::ReplaceNode { node: index, with });
            edits.extend(converted.nodes.into_iter().map(Edit::AddNode));
        }
        edits.extend(additions.constants.tensors.into_iter().map(Edit::AddInitializer));
        edits.extend(additions.gone.into_iter().map(Edit::RemoveValueInfo));
        Ok(())
    }

    /// Converts a subgraph; `None` if nothing changes.
    fn body(
        &mut self,
        graph: &GraphProto,
        from: Option<i64>,
        outer: &Scope<'_>,
    ) -> Result<Option<GraphProto>, QuantizeError> {
        let scope = Scope::of(self.model, graph, self.inferred.body(graph), Some(outer));
        let mut additions = Additions::default();
        let Some(node) = self.nodes(&graph.node, from, &scope, &mut additions)? else {
            return Ok(None);
        };
        let mut body = graph.clone();
        body.node = node;
        body.initializer.extend(additions.constants.tensors.into_iter().map(Raw::new));
        body.value_info.retain(|info| !additions.gone.contains(&info.name));
        Ok(Some(body))
    }

    /// Converts a function; `None` if it has a new enough opset version.
    fn function(
        &mut self,
        function: &FunctionProto,
    ) -> Result<Option<FunctionProto>, QuantizeError> {
        let import = function.opset_import.iter().find(|import| import.is_of(""));
        let from = import.map(|import| import.version).filter(|from| *from < self.to);
        let Some(from) = from else { return Ok(None) };
        let scope = Scope::of_nodes(self.model, &function.node);
        let mut additions = Additions::default();
        let nodes = self.nodes(&function.node, Some(from), &scope, &mut additions)?;
        let mut with = function.clone();
        for import in with.opset_import.iter_mut().filter(|import| import.is_of("")) {
            import.edit().version = self.to;
        }
        if let Some(nodes) = nodes {
            // Functions have no initializers, so constants become nodes.
            let constants = additions.constants.tensors.into_iter().map(|mut tensor| {
                let output = vec![std::mem::take(&mut tensor.name)];
                let value = Raw::new(AttributeProto::tensor("value", tensor));
                Raw::new(NodeProto::new("", "Constant", Vec::new(), output, vec![value]))
            });
            with.node = constants.chain(nodes).collect();
        }
        Ok(Some(with))
    }

    /// Converts the nodes of a subgraph or function; `None` if nothing changes.
    fn nodes(
        &mut self,
        nodes: &[Raw<NodeProto>],
        from: Option<i64>,
        scope: &Scope<'_>,
        additions: &mut Additions,
    ) -> Result<Option<Vec<Raw<NodeProto>>>, QuantizeError> {
        let mut all = Vec::with_capacity(nodes.len());
        let mut changed = false;
        for node in nodes {
            match self.node(node, from, scope, additions)? {
                Some(became) => {
                    all.extend(became.nodes.into_iter().map(Raw::new));
                    changed = true;
                }
                None => all.push(node.clone()),
            }
        }
        Ok(changed.then_some(all))
    }

    /// Converts a node and its subgraphs; `None` if nothing changes.
    fn node(
        &mut self,
        node: &NodeProto,
        from: Option<i64>,
        scope: &Scope<'_>,
        additions: &mut Additions,
    ) -> Result<Option<ConvertedNode>, QuantizeError> {
        let with_subgraphs = try_with_subgraphs(node, |body| self.body(body, from, scope))?;
        let adapted = if node.is_onnx() && self.functions.called(node).is_none() {
            let refused = |what: String| refused(node, from, self.to, what);
            let from = from.ok_or_else(|| {
                refused("the model does not import the operators of ONNX".to_owned())
            })?;
            self.lost_kernels.add(node, from, self.to);
            let now = with_subgraphs.as_ref().unwrap_or(node);
            let common = &mut self.common;
            adapted(now, from, self.to, scope, common, additions).map_err(refused)?
        } else {
            None
        };
        if adapted.is_some() {
            self.changed.push(node.label());
        }
        Ok(adapted
            .or_else(|| with_subgraphs.map(|node| ConvertedNode { nodes: vec![node], own: 0 })))
    }
}

/// Applies the adapters of all opset versions that changed the operator of a node.
fn adapted(
    node: &NodeProto,
    from: i64,
    to: i64,
    scope: &Scope<'_>,
    common: &mut ModelContext<'_>,
    additions: &mut Additions,
) -> Result<Option<ConvertedNode>, String> {
    let was = node.op_type.as_str();
    // Most nodes are unchanged in all versions. They are not copied.
    let mut at = from;
    loop {
        match steps::next(was, at, to) {
            Next::Done => return Ok(None),
            Next::Step(version, Change::Same) => at = version,
            Next::Step(..) | Next::Unknown => break,
        }
    }
    let mut done: Vec<NodeProto> = Vec::new();
    let mut own = None;
    let mut changed = false;
    // A stack of nodes to convert, with their opset version and whether they are the original.
    let mut waiting = vec![(node.clone(), at, true)];
    while let Some((mut node, at, is_own)) = waiting.pop() {
        match steps::next(&node.op_type, at, to) {
            Next::Done => {
                own = if is_own { Some(done.len()) } else { own };
                done.push(node);
            }
            Next::Unknown => return Err(unknown(&node.op_type, at)),
            Next::Step(version, Change::Same) => waiting.push((node, version, is_own)),
            Next::Step(_, Change::No(why)) => return Err(why.to_owned()),
            Next::Step(version, Change::By(adapter)) => {
                let mut context = NodeContext {
                    version,
                    to,
                    was: if is_own { was } else { "" },
                    before: Vec::new(),
                    after: Vec::new(),
                    scope,
                    common: &mut *common,
                    constants: &mut additions.constants,
                    gone: &mut additions.gone,
                };
                changed |= adapter(&mut node, &mut context)?;
                let NodeContext { before, after, .. } = context;
                waiting.extend(after.into_iter().rev().map(|node| (node, version, false)));
                waiting.push((node, version, is_own));
                waiting.extend(before.into_iter().rev().map(|node| (node, version, false)));
            }
        }
    }
    Ok(own.filter(|_| changed).map(|own| ConvertedNode { nodes: done, own }))
}

fn unknown(op_type: &str, at: i64) -> String {
    format!("opset {at} has no operator {op_type}")
}

fn refused(node: &NodeProto, from: Option<i64>, to: i64, what: String) -> QuantizeError {
    QuantizeError::new(QuantizeErrorKind::Convert {
        place: node.label(),
        op_type: node.op_type.clone(),
        from: from.unwrap_or(1),
        to,
        what,
    })
}

/// Calls `look` with the nodes of each graph and function of a model.
fn each_nodes<'m>(
    model: &'m Model,
    mut look: impl FnMut(Option<&'m GraphProto>, &'m [Raw<NodeProto>]),
) {
    let graph = model.graph();
    let functions = model.proto().functions.iter().map(|function| (None, &function.node[..]));
    let mut waiting: Vec<_> = functions.collect();
    waiting.push((Some(graph), &graph.node[..]));
    while let Some((graph, nodes)) = waiting.pop() {
        look(graph, nodes);
        let bodies = nodes.iter().flat_map(|node| node.subgraphs());
        waiting.extend(bodies.map(|body| (Some(body), &body.node[..])));
    }
}

/// All names in a model, including those in functions.
fn names(model: &Model) -> HashSet<&str> {
    let mut names = all_names(model.graph());
    for function in &model.proto().functions {
        names.extend(function.input.iter().chain(&function.output).map(String::as_str));
        for node in &function.node {
            names.extend(node.input.iter().chain(&node.output).map(String::as_str));
            node.subgraphs().for_each(|body| collect_names(body, &mut names));
        }
    }
    names
}

/// The names of all values that are an input of a node or an output of a graph or function.
fn read(model: &Model) -> HashSet<&str> {
    let mut read = HashSet::new();
    each_nodes(model, |graph, nodes| {
        read.extend(nodes.iter().flat_map(|node| &node.input).map(String::as_str));
        let outputs = graph.into_iter().flat_map(|graph| &graph.output);
        read.extend(outputs.map(|output| output.name.as_str()));
    });
    let functions = model.proto().functions.iter();
    read.extend(functions.flat_map(|function| &function.output).map(String::as_str));
    read
}

/// The only float type in a model; `None` if it has several. Considers the types of values and
/// constants, and the attributes of nodes that specify output types.
fn only_float(model: &Model) -> Option<DataType> {
    let mut types = HashSet::new();
    each_nodes(model, |graph, nodes| {
        if let Some(graph) = graph {
            let infos = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
            types.extend(infos.filter_map(|info| Some(info.tensor_type()?.elem_type)));
            types.extend(graph.initializer.iter().map(|tensor| tensor.data_type));
        }
        for attribute in nodes.iter().flat_map(|node| &node.attribute) {
            types.extend(attribute.tensors().map(|tensor| tensor.data_type));
            if matches!(attribute.name.as_str(), "to" | "dtype" | "output_dtype") {
                types.extend(attribute.i.and_then(|number| i32::try_from(number).ok()));
            }
        }
    });
    let types = types.into_iter().filter_map(DataType::from_number);
    let mut floats = types.filter(|dtype| dtype.is_float());
    let first = floats.next();
    first.filter(|_| floats.next().is_none())
}
