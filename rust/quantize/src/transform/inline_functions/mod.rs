//! Replaces calls of model-local functions with the nodes of the functions. Values inside a
//! function are not part of the graph, so a plan could not refer to them.
//!
//! Before planning, only calls that multiply by a constant are inlined, where the constant is an
//! argument or part of the function, and calls whose results are constant: these may be weights.

mod body;
mod weight_calls;

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use quantize_rs_onnx::{
    Edit, FunctionProto, Functions, NodeProto, OperatorSetIdProto, Raw, canonical_domain,
    topological,
};

use super::Changes;
use super::convert_opset::{convert_function, is_unchanged};
use crate::QuantizeError;
use crate::graph::names::Names;
use crate::graph::{self, Graph};

use body::Shared;
use weight_calls::{ConstantScope, WeightCalls};

/// The maximum number of nodes after inlining, for the whole model: a small file with nested
/// functions could expand to more nodes than fit in memory. This many bytes of the file allow one
/// more node.
const MAX_NODES: usize = 1 << 16;
const BYTES_PER_NODE: usize = 1 << 8;

/// Inlines all calls.
pub(super) fn all(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    run(graph, false)
}

/// Inlines the calls that multiply by constants or compute them.
pub(super) fn with_weights(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    run(graph, true)
}

/// Warnings about weights in functions that were not inlined.
pub(crate) fn weights_left(graph: &Graph<'_>) -> Vec<String> {
    let functions = Functions::of(graph.model.proto());
    if functions.all().is_empty() {
        return Vec::new();
    }
    let mut calls = WeightCalls::of(&functions);
    let mut inliner = Inliner::of(graph, &functions);
    let mut warnings = Vec::new();
    let mut fixed = ConstantScope::of_main(graph);
    for node in &graph.nodes {
        for function in calls.callees(node, &mut fixed) {
            let called = called(&functions.all()[function]);
            let why = inliner.converted(function).err().unwrap_or_else(|| {
                format!("pass `{}`, which inlines it, was not selected", super::INLINE_FUNCTIONS)
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
    let mut calls = WeightCalls::of(&functions);
    let mut inliner = Inliner::of(graph, &functions);
    inliner.calls = sparing.then_some(&mut calls);
    let mut fixed = ConstantScope::of_main(graph);
    let mut after: BTreeSet<usize> = BTreeSet::new();
    for index in graph.order()? {
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

/// The given functions, and those that they call.
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

/// The name of a function for messages.
fn called(function: &FunctionProto) -> String {
    match function.domain.as_str() {
        "" => format!("`{}`", function.name),
        domain => format!("`{domain}.{}`", function.name),
    }
}

/// Replaces calls with nodes.
struct Inliner<'g, 'm> {
    graph: &'g Graph<'m>,
    functions: &'g Functions<'m>,
    /// Which calls to inline; `None` for all.
    calls: Option<&'g mut WeightCalls<'g, 'm>>,
    names: Names<'g>,
    /// The opset versions that the model imports, by domain.
    opsets: HashMap<String, i64>,
    /// The functions converted to the opset versions of the model, or the reason why that failed.
    converted: HashMap<usize, Result<Rc<FunctionProto>, String>>,
    shared: Shared,
    made: usize,
    edits: Vec<Edit>,
    did: Vec<String>,
}

impl<'g, 'm> Inliner<'g, 'm> {
    fn of(graph: &'g Graph<'m>, functions: &'g Functions<'m>) -> Inliner<'g, 'm> {
        let imports = &graph.model.proto().opset_import;
        let domain = |import: &OperatorSetIdProto| canonical_domain(&import.domain).to_owned();
        let opsets = imports.iter().map(|import| (domain(import), import.version)).collect();
        Inliner {
            graph,
            functions,
            calls: None,
            names: Names::of(graph),
            opsets,
            converted: HashMap::new(),
            shared: Shared::default(),
            made: graph.nodes.len(),
            edits: Vec::new(),
            did: Vec::new(),
        }
    }

    /// The nodes that replace a node; `None` if it is unchanged. The recursion depth is limited by
    /// that of function calls.
    fn node(
        &mut self,
        node: &NodeProto,
        fixed: &mut ConstantScope<'_>,
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
        let with = self.with_subgraphs(node, fixed, depth);
        if let Some(calls) = &mut self.calls {
            calls.learn(node, fixed);
        }
        with.map(|node| vec![node])
    }

    /// The nodes that replace a call; `None` if the node is not a call to inline.
    fn call(
        &mut self,
        node: &NodeProto,
        fixed: &ConstantScope<'_>,
        depth: usize,
    ) -> Option<Vec<NodeProto>> {
        let function = self.functions.called(node)?;
        if let Some(calls) = &mut self.calls
            && !calls.call(node, function, fixed)
        {
            return None;
        }
        if depth > weight_calls::MAX_DEPTH {
            return None;
        }
        let with = self.converted(function).ok()?;
        let cost: usize = with.node.iter().map(|node| 1 + node.byte_len() / BYTES_PER_NODE).sum();
        self.made = self.made.checked_add(cost).filter(|made| *made <= MAX_NODES)?;
        self.import(&with);
        let nodes = body::expanded(node, function, &with, &mut self.names, &mut self.shared);
        self.edits.extend(self.shared.fresh.drain(..).map(Edit::AddInitializer));
        let count = nodes.len();
        let plural = if count == 1 { "" } else { "s" };
        self.did.push(format!(
            "replaced {} with the {count} node{plural} of its function",
            node.label()
        ));
        Some(nodes)
    }

    /// A copy of the node with calls in its subgraphs inlined; `None` if there are none.
    fn with_subgraphs(
        &mut self,
        node: &NodeProto,
        fixed: &ConstantScope<'_>,
        depth: usize,
    ) -> Option<NodeProto> {
        graph::with_subgraphs(node, |body| {
            let mut inner = ConstantScope::of(body, Some(fixed));
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

    /// Imports the operator domains that a function needs and the model does not import yet.
    fn import(&mut self, function: &FunctionProto) {
        for import in &function.opset_import {
            let (domain, version) = (canonical_domain(&import.domain), import.version);
            if !self.opsets.contains_key(domain) {
                self.edits.push(Edit::SetOpset { domain: domain.to_owned(), version });
                self.opsets.insert(domain.to_owned(), version);
            }
        }
    }

    /// A function converted to the opset versions of the model, or the reason why that is
    /// impossible.
    fn converted(&mut self, function: usize) -> Result<Rc<FunctionProto>, String> {
        if let Some(known) = self.converted.get(&function) {
            return known.clone();
        }
        let found = self.convert(&self.functions.all()[function]);
        self.converted.insert(function, found.clone());
        found
    }

    fn convert(&self, function: &FunctionProto) -> Result<Rc<FunctionProto>, String> {
        let mut found = None;
        for import in &function.opset_import {
            let (domain, wanted) = (canonical_domain(&import.domain), import.version);
            let Some(have) = self.opsets.get(domain).copied() else { continue };
            let mut nodes = Vec::new();
            function.node.iter().for_each(|node| within(node, &mut nodes));
            nodes.retain(|node| canonical_domain(&node.domain) == domain);
            nodes.retain(|node| self.functions.called(node).is_none());
            let differs = |node: &&NodeProto| {
                !domain.is_empty() || wanted > have && !is_unchanged(&node.op_type, have, wanted)
            };
            if wanted == have {
                continue;
            }
            if let Some(node) = nodes.into_iter().find(differs) {
                let domain = if domain.is_empty() { "ai.onnx" } else { domain };
                return Err(format!(
                    "its {} has opset version {wanted} of {domain}, but the model imports {have}",
                    node.op_type
                ));
            }
            if domain.is_empty() && wanted < have {
                let converted = convert_function(self.graph.model, function, have);
                let converted = converted.map_err(|error| error.to_string())?;
                found = converted.or(found);
            }
        }
        Ok(Rc::new(found.unwrap_or_else(|| function.clone())))
    }
}

/// A node, and the nodes in its subgraphs.
fn within<'n>(node: &'n NodeProto, all: &mut Vec<&'n NodeProto>) {
    all.push(node);
    for body in node.subgraphs() {
        body.node.iter().for_each(|node| within(node, all));
    }
}
