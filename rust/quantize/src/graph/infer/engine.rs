//! Shape inference over a model: its main graph, its subgraphs, and the functions that it calls.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use quantize_rs_onnx::{
    AttributeProto, DataType, FunctionProto, GraphProto, Model, NodeProto, Raw, TensorProto,
    canonical_domain, topological,
};

use super::call::Call;
use super::dim::{Dim, Dims};
use super::fact::{Fact, MAX_AXES, MAX_ELEMENTS, declared};
use super::{control, data, ops};
use crate::graph::constants::ints;

/// The facts about the values of one graph, by name.
pub(crate) type Facts<'m> = HashMap<&'m str, Arc<Fact>>;

/// The facts about all values of a model.
#[derive(Debug, Default)]
pub(crate) struct Inferred<'m> {
    /// The values of the main graph.
    pub(crate) main: Facts<'m>,
    /// The values of the subgraphs, by the address of the subgraph.
    bodies: HashMap<usize, Facts<'m>>,
    /// The expressions of dynamic dimensions.
    pub(crate) dims: Dims,
    /// Contradictions between the declarations in the file and the inferred facts.
    pub(crate) warnings: Vec<String>,
}

/// The maximum nesting depth of function calls and subgraphs.
const MAX_DEPTH: usize = 32;

/// The maximum number of visits per node, on average. Bounds the work for nested functions and
/// loops.
const MAX_VISITS_PER_NODE: usize = 8;

impl<'m> Inferred<'m> {
    /// Infers the facts about all values of a model.
    pub(crate) fn of(model: &'m Model) -> Inferred<'m> {
        let mut functions = HashMap::new();
        for function in &model.proto().functions {
            let key = (canonical_domain(&function.domain), function.name.as_str());
            // If two functions have the same name, it is ambiguous which one is called.
            functions.entry(key).and_modify(|known| *known = None).or_insert(Some(&**function));
        }
        let state = InferenceState {
            model,
            functions,
            dims: RefCell::default(),
            left: Cell::new(
                MAX_VISITS_PER_NODE.saturating_mul(nodes_of(model)).saturating_add(1 << 10),
            ),
            depth: Cell::default(),
            bodies: RefCell::default(),
            warnings: RefCell::default(),
        };
        let within =
            GraphContext { opset: model.opset("").unwrap_or(1), ..GraphContext::default() };
        let main = state.graph(model.graph(), None, None, &within);
        // Loop bodies are visited several times, so warnings may repeat.
        let mut said = HashSet::new();
        let mut warnings = state.warnings.into_inner();
        warnings.retain(|warning| said.insert(warning.clone()));
        Inferred {
            main,
            bodies: state.bodies.into_inner(),
            dims: state.dims.into_inner(),
            warnings,
        }
    }

    /// The facts about the values of a subgraph of the main graph.
    pub(crate) fn body(&self, graph: &GraphProto) -> Option<&Facts<'m>> {
        self.bodies.get(&address(graph))
    }
}

/// The context shared by the nodes of a graph and of its subgraphs.
#[derive(Default)]
pub(super) struct GraphContext<'m> {
    /// The opset version of the ONNX domain.
    pub(super) opset: i64,
    /// The attributes that the function was called with.
    attributes: HashMap<&'m str, &'m AttributeProto>,
    /// Whether this is the body of a function, which is inferred once per caller.
    function: bool,
}

impl<'m> GraphContext<'m> {
    /// Resolves an attribute that may refer to an attribute of the function.
    pub(super) fn attribute(&self, own: &'m AttributeProto) -> Option<&'m AttributeProto> {
        match &own.ref_attr_name {
            Some(outer) => self.attributes.get(outer.as_str()).copied(),
            None => Some(own),
        }
    }
}

/// The facts about the values of a graph, and of the graphs that enclose it.
pub(super) struct Scope<'s, 'm> {
    values: Facts<'m>,
    outer: Option<&'s Scope<'s, 'm>>,
    pub(super) within: &'s GraphContext<'m>,
}

impl Scope<'_, '_> {
    fn fact(&self, name: &str) -> Option<Arc<Fact>> {
        match self.values.get(name) {
            Some(fact) => Some(fact.clone()),
            None => self.outer?.fact(name),
        }
    }
}

/// The state of the inference.
pub(super) struct InferenceState<'m> {
    pub(super) model: &'m Model,
    functions: HashMap<(&'m str, &'m str), Option<&'m FunctionProto>>,
    pub(super) dims: RefCell<Dims>,
    /// The remaining number of node visits.
    left: Cell<usize>,
    depth: Cell<usize>,
    bodies: RefCell<HashMap<usize, Facts<'m>>>,
    warnings: RefCell<Vec<String>>,
}

impl<'m> InferenceState<'m> {
    /// Infers the facts about the values of a graph. For a subgraph, `given` holds the facts about
    /// the values that its node passes to its inputs.
    fn graph<'s>(
        &self,
        graph: &'m GraphProto,
        given: Option<&[Fact]>,
        outer: Option<&'s Scope<'s, 'm>>,
        within: &'s GraphContext<'m>,
    ) -> Facts<'m> {
        let mut scope =
            Scope { values: HashMap::with_capacity(graph.node.len() * 2), outer, within };
        let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        // Before IR version 4, each initializer also had to be listed as an input, but was
        // constant.
        let may_override = self.model.proto().ir_version >= 4;
        for tensor in &graph.initializer {
            if !may_override || !inputs.contains(tensor.name.as_str()) {
                scope.values.insert(&tensor.name, Arc::new(self.constant(tensor)));
            }
        }
        for sparse in &graph.sparse_initializer {
            if let Some(values) = &sparse.values {
                // Shapes of sparse tensors are not inferred.
                let fact = Fact { dtype: values.dtype(), ..Fact::default() };
                scope.values.insert(&values.name, Arc::new(fact));
            }
        }
        for (at, input) in graph.input.iter().enumerate() {
            if !scope.values.contains_key(input.name.as_str()) {
                let said = declared(input, &mut self.dims.borrow_mut(), given.is_none());
                let fact = match given.and_then(|given| given.get(at)) {
                    Some(fact) => self.with_declared(&input.name, fact.clone(), &said),
                    None => said,
                };
                scope.values.insert(&input.name, Arc::new(fact));
            }
        }
        let infos = graph.output.iter().chain(&graph.value_info);
        let said = infos
            .map(|info| (info.name.as_str(), declared(info, &mut self.dims.borrow_mut(), false)));
        let said: HashMap<&str, Fact> = said.collect();
        self.nodes(&graph.node, &mut scope, &said);
        scope.values
    }

    fn nodes(
        &self,
        nodes: &'m [Raw<NodeProto>],
        scope: &mut Scope<'_, 'm>,
        said: &HashMap<&str, Fact>,
    ) {
        // Cyclic graphs are rejected elsewhere.
        let order = topological(nodes).unwrap_or_default();
        for node in order.into_iter().map(|index| &*nodes[index]) {
            let left = self.left.get();
            self.left.set(left.saturating_sub(1));
            let made = if left > 0 { self.node(node, scope) } else { Vec::new() };
            let mut made = made.into_iter();
            for name in &node.output {
                let fact = made.next().unwrap_or_default();
                if name.is_empty() {
                    continue;
                }
                let fact = match said.get(name.as_str()) {
                    Some(said) => self.with_declared(name, fact, said),
                    None => fact,
                };
                scope.values.insert(name, Arc::new(fact));
            }
        }
    }

    fn with_declared(&self, name: &str, mut fact: Fact, said: &Fact) -> Fact {
        if let Some(what) = fact.take(said, &mut self.dims.borrow_mut()) {
            self.warnings.borrow_mut().push(format!("`{name}` {what}"));
        }
        fact
    }

    /// Infers the outputs of a node.
    fn node(&self, node: &'m NodeProto, scope: &Scope<'_, 'm>) -> Vec<Fact> {
        let inputs = node.input.iter().map(|name| scope.fact(name)).collect();
        let call = Call { node, inputs, scope, state: self };
        let key = (canonical_domain(&node.domain), node.op_type.as_str());
        let mut made = match self.functions.get(&key) {
            Some(function) => function.and_then(|it| self.function(it, &call)).unwrap_or_default(),
            None => made(&call),
        };
        for fact in &mut made {
            self.hold(fact);
        }
        made
    }

    /// Infers the outputs of a function call.
    fn function(&self, function: &'m FunctionProto, call: &Call<'_, 'm>) -> Option<Vec<Fact>> {
        let _deeper = self.deeper()?;
        let around = call.scope.within;
        let defaults = function.attribute_proto.iter().map(|own| (own.name.as_str(), &**own));
        let mut attributes: HashMap<&str, &AttributeProto> = defaults.collect();
        for own in &call.node.attribute {
            if let Some(found) = around.attribute(own) {
                attributes.insert(&own.name, found);
            }
        }
        let import = function.opset_import.iter().find(|import| import.is_of(""));
        let opset = import.map_or(around.opset, |import| import.version);
        let within = GraphContext { opset, attributes, function: true };
        let mut scope = Scope { values: HashMap::new(), outer: None, within: &within };
        for (name, fact) in function.input.iter().zip(&call.inputs) {
            if let Some(fact) = fact {
                scope.values.insert(name, fact.clone());
            }
        }
        self.nodes(&function.node, &mut scope, &HashMap::new());
        Some(function.output.iter().map(|name| own(&scope.values, name)).collect())
    }

    /// Infers the outputs of a subgraph from the facts about its inputs.
    pub(super) fn body(
        &self,
        body: &'m GraphProto,
        given: &[Fact],
        scope: &Scope<'_, 'm>,
    ) -> Vec<Fact> {
        let Some(_deeper) = self.deeper() else { return Vec::new() };
        let values = self.graph(body, Some(given), Some(scope), scope.within);
        let output = |name: &str| match values.get(name) {
            Some(fact) => Fact::clone(fact),
            // A subgraph may output a value of an enclosing graph.
            None => scope.fact(name).map_or_else(Fact::default, |fact| Fact::clone(&fact)),
        };
        let outputs = body.output.iter().map(|output_info| output(&output_info.name)).collect();
        if !scope.within.function {
            self.bodies.borrow_mut().insert(address(body), values);
        }
        outputs
    }

    /// Drops the parts of a fact that are invalid or exceed the limits.
    fn hold(&self, fact: &mut Fact) {
        fact.shape.take_if(|shape| shape.len() > MAX_AXES);
        let wrong = |length: &&mut Dim| length.fixed().is_some_and(|length| length < 0);
        for length in fact.shape.iter_mut().flatten().filter(wrong) {
            *length = self.dims.borrow_mut().unnamed(false);
        }
        let count = match fact.shape.as_deref() {
            Some([]) => Some(1),
            Some([Dim::Fixed(length)]) => usize::try_from(*length).ok(),
            _ => None,
        };
        let fits =
            |elements: &mut Vec<_>| Some(elements.len()) == count && elements.len() <= MAX_ELEMENTS;
        fact.elements.take_if(|elements| !fits(elements));
        let narrow = |element: &Option<Dim>| {
            element.and_then(Dim::fixed).is_none_or(|number| i32::try_from(number).is_ok())
        };
        if fact.dtype == Some(DataType::Int32) {
            fact.elements.take_if(|elements| !elements.iter().all(narrow));
        }
    }

    /// Enters a nesting level until the returned guard is dropped; `None` at the maximum depth.
    fn deeper(&self) -> Option<Deeper<'_>> {
        let depth = self.depth.get() + 1;
        (depth <= MAX_DEPTH).then(|| {
            self.depth.set(depth);
            Deeper(&self.depth)
        })
    }

    /// The facts about a constant.
    pub(super) fn constant(&self, tensor: &'m TensorProto) -> Fact {
        let length = |dim: &i64| (*dim >= 0).then_some(Dim::Fixed(*dim));
        let shape = tensor.dims.iter().map(length).collect::<Option<Vec<Dim>>>();
        let few = match tensor.dims[..] {
            [] => true,
            [length] => usize::try_from(length).is_ok_and(|length| length <= MAX_ELEMENTS),
            _ => false,
        };
        let read = || self.model.tensor(tensor).ok();
        let (mut elements, mut floats) = (None, None);
        match tensor.dtype() {
            Some(DataType::Int64 | DataType::Int32) if few => {
                let numbers = read().and_then(|tensor| ints(&tensor));
                let fixed = |numbers: Vec<i64>| numbers.into_iter().map(|it| Some(Dim::Fixed(it)));
                elements = numbers.map(|numbers| fixed(numbers).collect());
            }
            Some(DataType::Float) if few => floats = read().and_then(|tensor| tensor.to_f32()),
            _ => {}
        }
        Fact { dtype: tensor.dtype(), shape, elements, floats }
    }
}

struct Deeper<'w>(&'w Cell<usize>);

impl Drop for Deeper<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Infers the outputs of an operator.
fn made(call: &Call<'_, '_>) -> Vec<Fact> {
    if let Some(made) = control::made(call) {
        return made;
    }
    let Some(rule) = ops::rule(call.node) else { return Vec::new() };
    let mut made = rule.made(call);
    if let Some(first) = made.first_mut()
        && let Some(elements) = data::operator(call.node)
    {
        first.elements = elements(call);
    }
    made
}

fn own(values: &Facts<'_>, name: &str) -> Fact {
    values.get(name).map_or_else(Fact::default, |fact| Fact::clone(fact))
}

fn address(graph: &GraphProto) -> usize {
    std::ptr::from_ref(graph).addr()
}

/// The number of nodes of a model, including those of subgraphs and functions.
fn nodes_of(model: &Model) -> usize {
    let functions = model.proto().functions.iter().map(|function| &function.node[..]);
    let mut waiting: Vec<&[Raw<NodeProto>]> = functions.collect();
    waiting.push(&model.graph().node);
    let mut count = 0usize;
    while let Some(nodes) = waiting.pop() {
        count = count.saturating_add(nodes.len());
        let bodies = nodes.iter().flat_map(|node| node.subgraphs());
        waiting.extend(bodies.map(|body| &body.node[..]));
    }
    count
}
