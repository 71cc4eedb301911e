//! Puts the nodes of the model's own functions in the place of the nodes that call them: what
//! stands in a function is no value of the graph, so that no plan could name it.
//!
//! Before planning that is done where a call multiplies by a constant, given by the caller or
//! standing in the function, and no other function is touched.

mod body;
mod holds;

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use quantize_rs_onnx::{Edit, FunctionProto, Functions, NodeProto, Raw, topological};

use super::Changes;
use super::convert_opset::{convert_function, is_unchanged};
use crate::QuantizeError;
use crate::graph::names::Names;
use crate::graph::{self, Graph};

use body::Shared;
use holds::{Fixed, Holds};

/// Nodes that calls may become, in a whole model: functions that call functions need few bytes for
/// more nodes than there is memory. A node counts once more for each of these bytes.
const NODES: usize = 1 << 16;
const BYTES: usize = 1 << 8;

/// Inlines every call.
pub(super) fn all(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    run(graph, false)
}

/// Inlines the calls that multiply by constants.
pub(super) fn with_weights(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    run(graph, true)
}

/// What to say of the weights in functions that were not inlined.
pub(crate) fn weights_left(graph: &Graph<'_>) -> Vec<String> {
    let functions = Functions::of(graph.model.proto());
    if functions.all().is_empty() {
        return Vec::new();
    }
    let mut holds = Holds::of(&functions);
    let mut inliner = Inliner::of(graph, &functions);
    let mut warnings = Vec::new();
    let mut fixed = Fixed::of_main(graph);
    for node in &graph.nodes {
        for function in holds.callees(node, &mut fixed) {
            let called = called(&functions.all()[function]);
            let why = inliner.converted(function).err().unwrap_or_else(|| {
                "pass `inline_functions`, which puts its nodes into the graph, was left out"
                    .to_owned()
            });
            warnings.push(format!("weights of function {called} stay float: {why}"));
        }
    }
    warnings.sort_unstable();
    warnings.dedup();
    warnings
}

fn run(graph: &Graph<'_>, sparing: bool) -> Result<Changes, QuantizeError> {
    let functions = Functions::of(graph.model.proto());
    let mut changes = Changes::default();
    if functions.all().is_empty() {
        return Ok(changes);
    }
    let mut holds = Holds::of(&functions);
    let mut inliner = Inliner::of(graph, &functions);
    inliner.holds = sparing.then_some(&mut holds);
    let mut fixed = Fixed::of_main(graph);
    let mut after: BTreeSet<usize> = BTreeSet::new();
    for index in topological(&graph.model.graph().node)? {
        let node = graph.nodes[index];
        let Some(nodes) = inliner.node(node, &mut fixed, 0) else {
            after.extend(functions.called_within(node));
            continue;
        };
        after.extend(nodes.iter().flat_map(|node| functions.called_within(node)));
        changes.edits.push(Edit::RemoveNode(index));
        changes.edits.extend(nodes.into_iter().map(Edit::AddNode));
    }
    let before = graph.nodes.iter().flat_map(|node| functions.called_within(node)).collect();
    let (before, after) = (reached(&functions, before), reached(&functions, after));
    changes.edits.extend(before.difference(&after).copied().map(Edit::RemoveFunction));
    changes.edits.append(&mut inliner.edits);
    changes.did = inliner.did;
    Ok(changes)
}

/// These functions, and those that they call.
fn reached(functions: &Functions<'_>, called: BTreeSet<usize>) -> BTreeSet<usize> {
    let mut waiting: Vec<usize> = called.iter().copied().collect();
    let mut reached = called;
    while let Some(function) = waiting.pop() {
        for node in &functions.all()[function].node {
            let called = functions.called_within(node);
            waiting.extend(called.into_iter().filter(|called| reached.insert(*called)));
        }
    }
    reached
}

/// How a person would name a function.
fn called(function: &FunctionProto) -> String {
    match function.domain.as_str() {
        "" => format!("`{}`", function.name),
        domain => format!("`{domain}.{}`", function.name),
    }
}

/// Puts nodes in the place of calls.
struct Inliner<'g, 'm> {
    graph: &'g Graph<'m>,
    functions: &'g Functions<'m>,
    /// Which calls are meant; `None` for all.
    holds: Option<&'g mut Holds<'g, 'm>>,
    names: Names<'g>,
    /// Versions of operators by domain, as far as the model imports them.
    opsets: HashMap<String, i64>,
    /// Functions in the versions of the model, or why they cannot be.
    converted: HashMap<usize, Result<Rc<FunctionProto>, String>>,
    shared: Shared,
    made: usize,
    edits: Vec<Edit>,
    did: Vec<String>,
}

impl<'g, 'm> Inliner<'g, 'm> {
    fn of(graph: &'g Graph<'m>, functions: &'g Functions<'m>) -> Inliner<'g, 'm> {
        let imports = &graph.model.proto().opset_import;
        let opsets = imports.iter().map(|import| (own(&import.domain), import.version)).collect();
        Inliner {
            graph,
            functions,
            holds: None,
            names: Names::of(graph),
            opsets,
            converted: HashMap::new(),
            shared: Shared::default(),
            made: graph.nodes.len(),
            edits: Vec::new(),
            did: Vec::new(),
        }
    }

    /// The nodes that a node becomes; `None` where it stays. As deep as functions call functions, of
    /// which there is a limit.
    fn node(
        &mut self,
        node: &NodeProto,
        fixed: &mut Fixed<'_>,
        depth: usize,
    ) -> Option<Vec<NodeProto>> {
        if let Some(nodes) = self.call(node, fixed, depth) {
            let mut all = Vec::with_capacity(nodes.len());
            for node in nodes {
                match self.node(&node, fixed, depth + 1) {
                    Some(nodes) => all.extend(nodes),
                    None => all.push(node),
                }
            }
            return Some(all);
        }
        let with = self.with_bodies(node, fixed, depth);
        fixed.learn(node);
        with.map(|node| vec![node])
    }

    /// The nodes of the function that a node calls, when that is to be inlined and can be.
    fn call(
        &mut self,
        node: &NodeProto,
        fixed: &Fixed<'_>,
        depth: usize,
    ) -> Option<Vec<NodeProto>> {
        let function = self.functions.called(node)?;
        if let Some(holds) = &mut self.holds
            && !holds.call(node, function, fixed)
        {
            return None;
        }
        if depth > holds::DEEPEST {
            return None;
        }
        let with = self.converted(function).ok()?;
        let cost: usize = with.node.iter().map(|node| 1 + node.byte_len() / BYTES).sum();
        self.made = self.made.checked_add(cost).filter(|made| *made <= NODES)?;
        self.import(&with);
        let nodes = body::expanded(node, function, &with, &mut self.names, &mut self.shared);
        self.edits.extend(self.shared.fresh.drain(..).map(Edit::AddInitializer));
        let count = nodes.len();
        let plural = if count == 1 { "" } else { "s" };
        self.did.push(format!("{} is the {count} node{plural} of its function", node.label()));
        Some(nodes)
    }

    /// The node with what its graphs call inlined, where that is anything.
    fn with_bodies(
        &mut self,
        node: &NodeProto,
        fixed: &Fixed<'_>,
        depth: usize,
    ) -> Option<NodeProto> {
        graph::with_bodies(node, |body| {
            let mut inner = Fixed::of(body, Some(fixed));
            let mut nodes = Vec::with_capacity(body.node.len());
            let mut changed = false;
            for index in topological(&body.node).ok()? {
                match self.node(&body.node[index], &mut inner, depth) {
                    Some(made) => {
                        nodes.extend(made.into_iter().map(Raw::new));
                        changed = true;
                    }
                    None => nodes.push(body.node[index].clone()),
                }
            }
            changed.then(|| {
                let mut with = body.clone();
                with.node = nodes;
                with
            })
        })
    }

    /// Imports what a function means and the model does not import yet.
    fn import(&mut self, function: &FunctionProto) {
        for import in &function.opset_import {
            let (domain, version) = (own(&import.domain), import.version);
            if !self.opsets.contains_key(&domain) {
                self.edits.push(Edit::SetOpset { domain: domain.clone(), version });
                self.opsets.insert(domain, version);
            }
        }
    }

    /// A function as it would stand in the model: of the versions that the model imports. Else why
    /// that cannot be.
    fn converted(&mut self, function: usize) -> Result<Rc<FunctionProto>, String> {
        if let Some(known) = self.converted.get(&function) {
            return known.clone();
        }
        let found = self.convert(&self.functions.all()[function]);
        self.converted.insert(function, found.clone());
        found
    }

    fn convert(&self, function: &FunctionProto) -> Result<Rc<FunctionProto>, String> {
        for import in &function.opset_import {
            let (domain, wanted) = (own(&import.domain), import.version);
            let Some(have) = self.opsets.get(&domain).copied() else { continue };
            let mut nodes = Vec::new();
            function.node.iter().for_each(|node| within(node, &mut nodes));
            nodes.retain(|node| own(&node.domain) == domain);
            nodes.retain(|node| self.functions.called(node).is_none());
            let differs = |node: &&NodeProto| {
                !domain.is_empty() || wanted > have && !is_unchanged(&node.op_type, have, wanted)
            };
            if wanted == have {
                continue;
            }
            if let Some(node) = nodes.into_iter().find(differs) {
                let domain = if domain.is_empty() { "ai.onnx" } else { &domain };
                return Err(format!(
                    "its {} is of version {wanted} of the operators of {domain}, of which the model \
                     imports {have}",
                    node.op_type
                ));
            }
            if domain.is_empty() && wanted < have {
                let converted = convert_function(self.graph.model, function, have);
                let converted = converted.map_err(|error| error.to_string())?;
                return Ok(Rc::new(converted.unwrap_or_else(|| function.clone())));
            }
        }
        Ok(Rc::new(function.clone()))
    }
}

/// A node, and those in the graphs inside it.
fn within<'n>(node: &'n NodeProto, all: &mut Vec<&'n NodeProto>) {
    all.push(node);
    for body in node.subgraphs() {
        body.node.iter().for_each(|node| within(node, all));
    }
}

/// The domain of ONNX's own operators has two names.
fn own(domain: &str) -> String {
    if domain == "ai.onnx" { String::new() } else { domain.to_owned() }
}
