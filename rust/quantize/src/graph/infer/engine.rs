//! The way through a model: its main graph, the graphs inside nodes, and the functions it calls.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use quantize_rs_onnx::{
    AttributeProto, DataType, FunctionProto, GraphProto, Model, NodeProto, Raw, TensorProto,
    topological,
};

use super::call::Call;
use super::dim::{Dim, Dims};
use super::fact::{AXES, ELEMENTS, Fact, declared};
use super::{control, data, ops};
use crate::graph::constants::ints;

/// What is known of the values of one graph, by their names.
pub(crate) type Facts<'m> = HashMap<&'m str, Arc<Fact>>;

/// What is known of all values of a model.
#[derive(Debug, Default)]
pub(crate) struct Inferred<'m> {
    /// The values of the main graph.
    pub(crate) main: Facts<'m>,
    /// The values of the graphs inside nodes, by the address of the graph.
    bodies: HashMap<usize, Facts<'m>>,
    /// What the lengths that vary stand for.
    pub(crate) dims: Dims,
    /// Where the file contradicts what its operators make.
    pub(crate) warnings: Vec<String>,
}

/// How deep functions may call each other, and graphs stand in graphs.
const DEPTH: usize = 32;

/// How often each node is looked at, on average: functions that call functions, loops in loops.
const VISITS: usize = 8;

impl<'m> Inferred<'m> {
    /// Looks at a model.
    pub(crate) fn of(model: &'m Model) -> Inferred<'m> {
        let mut functions = HashMap::new();
        for function in &model.proto().functions {
            let key = (own_domain(&function.domain), function.name.as_str());
            // Of two of one name nobody knows here which is meant.
            functions.entry(key).and_modify(|known| *known = None).or_insert(Some(&**function));
        }
        let walk = Walk {
            model,
            functions,
            dims: RefCell::default(),
            left: Cell::new(VISITS.saturating_mul(nodes_of(model)).saturating_add(1 << 10)),
            depth: Cell::default(),
            bodies: RefCell::default(),
            warnings: RefCell::default(),
        };
        let within = Within { opset: model.opset("").unwrap_or(1), ..Within::default() };
        let main = walk.graph(model.graph(), None, None, &within);
        // Bodies of loops are looked at several times.
        let mut said = HashSet::new();
        let mut warnings = walk.warnings.into_inner();
        warnings.retain(|warning| said.insert(warning.clone()));
        Inferred { main, bodies: walk.bodies.into_inner(), dims: walk.dims.into_inner(), warnings }
    }

    /// What is known of the values of a graph inside a node of the main graph.
    pub(crate) fn body(&self, graph: &GraphProto) -> Option<&Facts<'m>> {
        self.bodies.get(&address(graph))
    }
}

/// What is the same for all nodes of a graph and of the graphs inside them.
#[derive(Default)]
pub(super) struct Within<'m> {
    /// Version of ONNX's own operators.
    pub(super) opset: i64,
    /// Attributes that the function was called with.
    attributes: HashMap<&'m str, &'m AttributeProto>,
    /// Whether this is a function, another one for each caller.
    function: bool,
}

impl<'m> Within<'m> {
    /// What an attribute stands for.
    pub(super) fn attribute(&self, own: &'m AttributeProto) -> Option<&'m AttributeProto> {
        match &own.ref_attr_name {
            Some(outer) => self.attributes.get(outer.as_str()).copied(),
            None => Some(own),
        }
    }
}

/// What is known of the values of a graph, and of those around it.
pub(super) struct Scope<'s, 'm> {
    values: Facts<'m>,
    outer: Option<&'s Scope<'s, 'm>>,
    pub(super) within: &'s Within<'m>,
}

impl Scope<'_, '_> {
    fn fact(&self, name: &str) -> Option<Arc<Fact>> {
        match self.values.get(name) {
            Some(fact) => Some(fact.clone()),
            None => self.outer?.fact(name),
        }
    }
}

/// What the walk carries along.
pub(super) struct Walk<'m> {
    pub(super) model: &'m Model,
    functions: HashMap<(&'m str, &'m str), Option<&'m FunctionProto>>,
    pub(super) dims: RefCell<Dims>,
    /// How many nodes may yet be looked at.
    left: Cell<usize>,
    depth: Cell<usize>,
    bodies: RefCell<HashMap<usize, Facts<'m>>>,
    warnings: RefCell<Vec<String>>,
}

impl<'m> Walk<'m> {
    /// What is known of the values of a graph. `given`: what a node gives to the inputs of a graph
    /// inside it.
    fn graph<'s>(
        &self,
        graph: &'m GraphProto,
        given: Option<&[Fact]>,
        outer: Option<&'s Scope<'s, 'm>>,
        within: &'s Within<'m>,
    ) -> Facts<'m> {
        let mut scope =
            Scope { values: HashMap::with_capacity(graph.node.len() * 2), outer, within };
        let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        // Before IR 4 every initializer had to stand among the inputs; it was a constant all the same.
        let may_override = self.model.proto().ir_version >= 4;
        for tensor in &graph.initializer {
            if !may_override || !inputs.contains(tensor.name.as_str()) {
                scope.values.insert(&tensor.name, Arc::new(self.constant(tensor)));
            }
        }
        for sparse in &graph.sparse_initializer {
            if let Some(values) = &sparse.values {
                // Its shape is not looked into.
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
        // A graph that depends on itself is refused elsewhere.
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

    /// What is known of what a node makes.
    fn node(&self, node: &'m NodeProto, scope: &Scope<'_, 'm>) -> Vec<Fact> {
        let inputs = node.input.iter().map(|name| scope.fact(name)).collect();
        let call = Call { node, inputs, scope, walk: self };
        let key = (own_domain(&node.domain), node.op_type.as_str());
        let mut made = match self.functions.get(&key) {
            Some(function) => function.and_then(|it| self.function(it, &call)).unwrap_or_default(),
            None => made(&call),
        };
        for fact in &mut made {
            self.hold(fact);
        }
        made
    }

    /// What a function makes.
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
        let within = Within { opset, attributes, function: true };
        let mut scope = Scope { values: HashMap::new(), outer: None, within: &within };
        for (name, fact) in function.input.iter().zip(&call.inputs) {
            if let Some(fact) = fact {
                scope.values.insert(name, fact.clone());
            }
        }
        self.nodes(&function.node, &mut scope, &HashMap::new());
        Some(function.output.iter().map(|name| own(&scope.values, name)).collect())
    }

    /// What a graph inside a node makes of what it is given.
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
            // A body may pass on a value from outside.
            None => scope.fact(name).map_or_else(Fact::default, |fact| Fact::clone(&fact)),
        };
        let outputs = body.output.iter().map(|output_info| output(&output_info.name)).collect();
        if !scope.within.function {
            self.bodies.borrow_mut().insert(address(body), values);
        }
        outputs
    }

    /// Holds a fact to its bounds.
    fn hold(&self, fact: &mut Fact) {
        fact.shape.take_if(|shape| shape.len() > AXES);
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
            |elements: &mut Vec<_>| Some(elements.len()) == count && elements.len() <= ELEMENTS;
        fact.elements.take_if(|elements| !fits(elements));
        let narrow = |element: &Option<Dim>| {
            element.and_then(Dim::fixed).is_none_or(|number| i32::try_from(number).is_ok())
        };
        if fact.dtype == Some(DataType::Int32) {
            fact.elements.take_if(|elements| !elements.iter().all(narrow));
        }
    }

    /// One step deeper, until what is given is dropped.
    fn deeper(&self) -> Option<Deeper<'_>> {
        let depth = self.depth.get() + 1;
        (depth <= DEPTH).then(|| {
            self.depth.set(depth);
            Deeper(&self.depth)
        })
    }

    /// What is known of a constant.
    pub(super) fn constant(&self, tensor: &'m TensorProto) -> Fact {
        let length = |dim: &i64| (*dim >= 0).then_some(Dim::Fixed(*dim));
        let shape = tensor.dims.iter().map(length).collect::<Option<Vec<Dim>>>();
        let few = match tensor.dims[..] {
            [] => true,
            [length] => usize::try_from(length).is_ok_and(|length| length <= ELEMENTS),
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

/// What an operator makes.
fn made(call: &Call<'_, '_>) -> Vec<Fact> {
    if let Some(made) = control::made(call) {
        return made;
    }
    let Some(row) = ops::row(call.node) else { return Vec::new() };
    let mut made = row.made(call);
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

/// The domain of ONNX's own operators has two names.
fn own_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// How many nodes a model has, those of graphs inside nodes and of functions too.
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
