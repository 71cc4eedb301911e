//! Decides for each node whether it computes in 16 bits, and why not.

use std::collections::{BTreeMap, HashMap, HashSet};

use quantize_rs_onnx::{DataType, GraphProto, NodeProto};

use super::constants::{Magnitudes, elements, held};
use super::control::{Control, given_to};
use super::dequantized;
use super::operators as ops;
use super::scope::Scope;
use super::{KeptReason, SCALES_SINCE};
use crate::QuantizeError;
use crate::graph::elements::to_f32;
use crate::options::HalfType;

/// The largest magnitude on samples may be this many times as large on other data.
const MARGIN: f32 = 4.0;

/// A `MatMul` of positions by a constant with more elements than this computes features.
const MAX_FREQUENCIES: usize = 4096;

/// The most rounds in which nodes between others in float32 join them.
const MAX_ROUNDS: usize = 8;

/// The type in which a float is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Half,
    Float,
}

/// What is done with a node.
#[derive(Clone, Debug)]
pub(super) enum Choice {
    /// It reads and computes no float32.
    Untouched,
    /// It computes in 16 bits.
    Half,
    /// It stays float32.
    Float(KeptReason),
    /// It has no float32 inputs, and computes what its consumers read: a `Cast`, a constant.
    Source,
    /// It runs bodies.
    Control(Control),
}

/// What decisions depend on.
pub(super) struct Settings<'a> {
    pub(super) half: HalfType,
    pub(super) opset: i64,
    /// Whether the model computes in 16 bits already: what is float32 was left so on purpose.
    pub(super) mixed: bool,
    /// The largest magnitude of each float of the main graph on samples.
    pub(super) magnitudes: Option<&'a BTreeMap<String, f32>>,
    /// Why the caller leaves a node in float32, if it does.
    pub(super) excluded: &'a dyn Fn(&NodeProto) -> Option<KeptReason>,
}

/// What is known of a graph before its nodes are looked at.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// The types of the floats among the inputs.
    pub(super) inputs: HashMap<String, Kind>,
    /// The types that the outputs must have.
    pub(super) outputs: HashMap<String, Kind>,
    /// Outputs that are passed on to the next iteration.
    pub(super) carried: HashSet<String>,
    /// Whether all nodes stay float32.
    pub(super) all_float: bool,
}

/// The decisions of a graph.
#[derive(Debug)]
pub(super) struct Decisions {
    pub(super) given: Given,
    pub(super) choices: Vec<Choice>,
    /// The types of the floats that are computed here or given to the graph.
    pub(super) kinds: HashMap<String, Kind>,
    /// The decisions of the bodies of nodes, by their address.
    bodies: HashMap<*const GraphProto, Decisions>,
}

impl Decisions {
    /// The decisions of a body of a node of this graph.
    pub(super) fn body(&self, graph: &GraphProto) -> Option<&Decisions> {
        self.bodies.get(&std::ptr::from_ref(graph))
    }

    /// Whether a float has 16 bits.
    pub(super) fn is_half(&self, name: &str) -> bool {
        self.kinds.get(name) == Some(&Kind::Half)
    }

    /// The type in which a node reads a float; `None` if any will do.
    pub(super) fn wants(&self, scope: &Scope<'_>, node: usize, input: usize) -> Option<Kind> {
        let proto = &*scope.graph.node[node];
        match &self.choices[node] {
            Choice::Untouched | Choice::Source => None,
            Choice::Half if ops::is_float32_input(proto, input) => Some(Kind::Float),
            Choice::Half => Some(Kind::Half),
            Choice::Float(_) => Some(Kind::Float),
            Choice::Control(control) => control.input(input),
        }
    }
}

/// Decides on the nodes of a graph and of their bodies. `outer` is the type of a float of a graph
/// around this one.
pub(super) fn decide(
    scope: &Scope<'_>,
    settings: &Settings<'_>,
    given: Given,
    outer: &dyn Fn(&str) -> Option<Kind>,
) -> Result<Decisions, QuantizeError> {
    let mut decider = Decider {
        scope,
        settings,
        outer,
        measured: settings.magnitudes.filter(|_| scope.outer.is_none()),
        found: Decisions {
            choices: vec![Choice::Untouched; scope.graph.node.len()],
            kinds: given.inputs.clone(),
            given,
            bodies: HashMap::new(),
        },
        whole: HashSet::new(),
        large: HashSet::new(),
        bounds: HashMap::new(),
    };
    for index in &scope.order {
        decider.node(*index);
    }
    for _ in 0..MAX_ROUNDS {
        if !decider.join() {
            break;
        }
    }
    decider.sources();
    decider.found.bodies = decider.bodies()?;
    Ok(decider.found)
}

/// The state of the decisions of a graph.
struct Decider<'d, 's> {
    scope: &'d Scope<'s>,
    settings: &'d Settings<'d>,
    outer: &'d dyn Fn(&str) -> Option<Kind>,
    measured: Option<&'d BTreeMap<String, f32>>,
    found: Decisions,
    /// Floats that are whole numbers, such as positions and sizes.
    whole: HashSet<&'s str>,
    /// Floats that may be larger than the type holds.
    large: HashSet<&'s str>,
    /// The largest magnitude of floats that are bounded whatever the inputs of the model are.
    bounds: HashMap<&'s str, f32>,
}

impl<'s> Decider<'_, 's> {
    fn proto(&self, index: usize) -> &'s NodeProto {
        &self.scope.graph.node[index]
    }

    /// The floats that a node computes.
    fn made(&self, index: usize) -> Vec<&'s str> {
        let outputs = self.proto(index).output.iter().map(String::as_str);
        outputs.filter(|name| self.scope.is_float(name)).collect()
    }

    /// The floats that a node reads, with the position of each.
    fn read(&self, index: usize) -> Vec<(usize, &'s str)> {
        let inputs = self.proto(index).input.iter().map(String::as_str).enumerate();
        inputs.filter(|(_, name)| self.scope.is_float(name)).collect()
    }

    /// The floats that a node reads and that are not constant.
    fn computed(&self, index: usize) -> Vec<(usize, &'s str)> {
        let mut read = self.read(index);
        read.retain(|(_, name)| !self.scope.is_constant(name));
        read
    }

    fn node(&mut self, index: usize) {
        let node = self.proto(index);
        let bound = self.bound(node);
        self.bounds.extend(node.output.first().map(String::as_str).zip(bound));
        let choice = self.choice(index);
        let made = self.made(index);
        for (output, name) in node.output.iter().enumerate() {
            if !self.scope.is_float(name) {
                continue;
            }
            let kind = match &choice {
                Choice::Half if ops::is_float32_output(node, output) => Kind::Float,
                Choice::Half | Choice::Source => Kind::Half,
                Choice::Untouched | Choice::Float(_) => Kind::Float,
                Choice::Control(_) if self.is_measured_large(name) => Kind::Float,
                Choice::Control(control) => control.output(output),
            };
            self.found.kinds.insert(name.clone(), kind);
        }
        if let Choice::Float(reason) = &choice {
            let is_whole = matches!(reason, KeptReason::WholeNumbers);
            if is_whole && !ops::is_of_whole_numbers(node) {
                self.whole.extend(&made);
            }
            let large = matches!(
                reason,
                KeptReason::MayOverflow | KeptReason::LargeConstant { .. } | KeptReason::ReadsLarge
            );
            if large && self.measured.is_none() && !ops::shrinks(node) {
                self.large.extend(&made);
            }
        }
        if self.makes_whole_numbers(index) {
            self.whole.extend(&made);
        }
        self.found.choices[index] = choice;
    }

    /// Whether a node turns integers that 16 bits do not hold exactly into floats.
    fn makes_whole_numbers(&self, index: usize) -> bool {
        let node = self.proto(index);
        let wide = |dtype| {
            !matches!(
                dtype,
                DataType::Bool
                    | DataType::Int8
                    | DataType::UInt8
                    | DataType::Float16
                    | DataType::BFloat16
                    | DataType::Float
                    | DataType::Double
            )
        };
        node.op_type == "Cast"
            && node.is_onnx()
            && node.input.first().and_then(|name| self.scope.dtype(name)).is_some_and(wide)
    }

    fn choice(&self, index: usize) -> Choice {
        let node = self.proto(index);
        if let Some(control) = Control::of(node) {
            let control = if self.found.given.all_float { Control::Other } else { control };
            return Choice::Control(control);
        }
        let (read, made) = (self.read(index), self.made(index));
        let unknown = |name: &&String| !name.is_empty() && self.scope.dtype(name).is_none();
        let unknown = node.input.iter().chain(&node.output).find(unknown);
        if read.is_empty() && made.is_empty() && unknown.is_none() {
            return Choice::Untouched;
        }
        if ops::takes_any(node) && made.is_empty() {
            return Choice::Untouched;
        }
        if self.is_source(node, &made) {
            let defined = ops::is_defined(node, self.settings.half, self.settings.opset);
            let reason = self.excluded(node).or((!defined).then_some(KeptReason::Operator));
            return reason.map_or(Choice::Source, Choice::Float);
        }
        if let Some(reason) = self.reason(index, unknown.map(String::as_str), &read, &made) {
            return Choice::Float(reason);
        }
        if let Some(reason) = self.reason_of_inputs(index) {
            return Choice::Float(reason);
        }
        Choice::Half
    }

    fn excluded(&self, node: &NodeProto) -> Option<KeptReason> {
        let all = self.found.given.all_float.then_some(KeptReason::Operator);
        (self.settings.excluded)(node).or(all)
    }

    /// Whether the consumers of a node decide in which type it computes.
    fn is_source(&self, node: &NodeProto, made: &[&str]) -> bool {
        if !node.is_onnx() || made.is_empty() {
            return false;
        }
        if node.op_type == "DequantizeLinear" {
            return false;
        }
        held(self.scope, node).is_some()
            || ops::type_attribute(&node.op_type).is_some_and(|(name, by_default)| {
                match node.attribute(name).and_then(|attribute| attribute.i) {
                    Some(number) => number == i64::from(DataType::Float.number()),
                    None => by_default,
                }
            })
    }

    /// Why a node stays float32, by itself.
    fn reason(
        &self,
        index: usize,
        unknown: Option<&str>,
        read: &[(usize, &str)],
        made: &[&str],
    ) -> Option<KeptReason> {
        let (node, Settings { half, opset, .. }) = (self.proto(index), self.settings);
        if let Some(reason) = self.excluded(node) {
            return Some(reason);
        }
        if self.settings.mixed {
            return Some(KeptReason::Before);
        }
        if let Some(value) = unknown {
            return Some(KeptReason::UnknownType { value: value.to_owned() });
        }
        if !ops::is_defined(node, *half, *opset) {
            return Some(KeptReason::Operator);
        }
        if matches!(node.op_type.as_str(), "QuantizeLinear" | "DequantizeLinear") {
            return self.scales(node);
        }
        if made.iter().any(|name| self.found.given.carried.contains(*name)) {
            return Some(KeptReason::Carried);
        }
        if self.crashes(node) {
            return Some(KeptReason::Crashes);
        }
        let constants = read.iter().find_map(|(input, name)| self.constant(node, *input, name));
        constants.or_else(|| {
            let values = made.iter().copied().chain(read.iter().map(|(_, name)| *name));
            values.into_iter().find_map(|name| self.measured(name))
        })
    }

    /// Whether ONNX Runtime (1.32 on CPUs) crashes when it loads a node in float16: it fuses such a
    /// `Transpose` into each `MatMul` that reads it, if the other factor is a constant matrix. In
    /// float32 it does not.
    fn crashes(&self, node: &NodeProto) -> bool {
        let is_matrix = |name: &String| {
            self.scope.is_constant(name)
                && self.scope.constant(name).is_some_and(|matrix| matrix.shape.len() == 2)
        };
        let fuses = |(node, _): &(usize, usize)| {
            let node = self.proto(*node);
            node.is_onnx() && node.op_type == "MatMul" && node.input.iter().any(is_matrix)
        };
        let consumers = node.output.first().map(|name| self.scope.consumers(name));
        self.settings.half == HalfType::Float16
            && ops::transposes_batch(node)
            && consumers.is_some_and(|all| !all.is_empty() && all.iter().all(fuses))
    }

    /// The largest magnitude of the result of a node, if it is bounded.
    fn bound(&self, node: &NodeProto) -> Option<f32> {
        let of = |input: usize| {
            let name = node.input.get(input)?;
            let constant = || Some(Magnitudes::of(&elements(self.scope, name)?)?.largest);
            self.bounds.get(name.as_str()).copied().or_else(constant)
        };
        if node.op_type != "Pow" {
            return ops::bound(node, of);
        }
        let exponents = to_f32(&self.scope.constant(node.input.get(1)?)?)?;
        let base = of(0)?.max(1.0);
        let positive = exponents.iter().all(|exponent| *exponent >= 0.0);
        positive.then(|| exponents.iter().map(|it| base.powf(*it)).fold(1.0, f32::max))
    }

    /// Why the scales of a `QuantizeLinear` or `DequantizeLinear` stay float32; `None` if it
    /// computes a weight with scales that fit the type.
    fn scales(&self, node: &NodeProto) -> Option<KeptReason> {
        let constant =
            |input: usize| node.input.get(input).and_then(|name| self.scope.constant(name));
        // The output of later opsets may have another type than the scales.
        let to_float = node.attribute("output_dtype").and_then(|own| own.i).unwrap_or(0);
        let as_scales = to_float == 0 || to_float == i64::from(DataType::Float.number());
        let is_weight = node.op_type == "DequantizeLinear" && as_scales && constant(0).is_some();
        let scales = constant(1).filter(|_| is_weight).and_then(|all| Magnitudes::of(&all));
        let Some(Magnitudes { largest: magnitude, .. }) = scales else {
            return Some(KeptReason::Quantization);
        };
        let Settings { half, opset, .. } = *self.settings;
        if node.is_onnx() && opset < SCALES_SINCE {
            return Some(KeptReason::Float32Scales { opset });
        }
        if let Some(large) = self.large_when_dequantized(node, 1, magnitude) {
            return Some(large);
        }
        let value = || node.input[1].clone();
        if magnitude > half.largest() {
            return Some(KeptReason::LargeConstant { value: value(), magnitude });
        }
        let too_small = magnitude < half.smallest_normal();
        too_small.then(|| KeptReason::SmallConstant { value: value(), magnitude })
    }

    /// That a constant is too large for 16 bits once it is dequantized, whose scales are up to
    /// `scale`.
    fn large_when_dequantized(
        &self,
        node: &NodeProto,
        input: usize,
        scale: f32,
    ) -> Option<KeptReason> {
        let name = |input: usize| node.input.get(input);
        let dtype = |input: usize| Some(self.scope.constant(name(input)?)?.dtype);
        let (integers, largest) = dequantized::scaled(node, input, dtype)?;
        let magnitude = scale * largest;
        let is_large = magnitude > self.settings.half.largest();
        is_large
            .then(|| KeptReason::LargeConstant { value: node.input[integers].clone(), magnitude })
    }

    /// Why a node cannot read a constant in 16 bits.
    fn constant(&self, node: &NodeProto, input: usize, name: &str) -> Option<KeptReason> {
        if ops::is_float32_input(node, input) {
            return None;
        }
        let found = Magnitudes::of(&elements(self.scope, name)?)?;
        let half = self.settings.half;
        let value = || name.to_owned();
        // As bounds, numbers beyond the range are as good as infinity.
        let is_bound = matches!(node.op_type.as_str(), "Clip" | "Max" | "Min");
        if found.largest > half.largest() && !is_bound {
            return Some(KeptReason::LargeConstant { value: value(), magnitude: found.largest });
        }
        if let Some(large) = self.large_when_dequantized(node, input, found.largest) {
            return Some(large);
        }
        // Here the relative error of each element counts.
        let each = match node.op_type.as_str() {
            "Div" | "Pow" => input == 1,
            "BatchNormalization" => input == 4,
            _ => is_bound,
        };
        let size = if each { found.least } else { found.largest };
        let too_small = size > 0.0 && size < half.smallest_normal();
        too_small.then(|| KeptReason::SmallConstant { value: value(), magnitude: size })
    }

    /// Why a float cannot be 16 bits wide, by the samples.
    fn measured(&self, name: &str) -> Option<KeptReason> {
        let magnitude = *self.measured?.get(name)?;
        let half = self.settings.half;
        let value = || name.to_owned();
        if magnitude > half.largest() / MARGIN {
            return Some(KeptReason::LargeValue { value: value(), magnitude });
        }
        let too_small = magnitude > 0.0 && magnitude < half.smallest_normal();
        too_small.then(|| KeptReason::SmallValue { value: value(), magnitude })
    }

    fn is_measured_large(&self, name: &str) -> bool {
        matches!(self.measured(name), Some(KeptReason::LargeValue { .. }))
    }

    /// Why a node stays float32, by what it reads.
    fn reason_of_inputs(&self, index: usize) -> Option<KeptReason> {
        let node = self.proto(index);
        let computed = self.computed(index);
        let any = |names: &HashSet<&str>| computed.iter().any(|(_, name)| names.contains(name));
        let all = |names: &HashSet<&str>| {
            !computed.is_empty() && computed.iter().all(|(_, name)| names.contains(name))
        };
        let arithmetic = ops::is_elementwise(node)
            || ops::moves(node)
            || ops::is_of_whole_numbers(node)
            || self.multiplies_by_few(node);
        if arithmetic && all(&self.whole) {
            return Some(KeptReason::WholeNumbers);
        }
        if any(&self.large) {
            return Some(KeptReason::ReadsLarge);
        }
        // Samples would have shown it.
        if self.measured.is_none() && self.settings.half.overflows() && ops::grows(node) {
            let made = node.output.first().and_then(|name| self.bounds.get(name.as_str()));
            let bounded = made.is_some_and(|bound| *bound <= self.settings.half.largest());
            let small = bounded || self.is_small_power(node);
            return (!small).then_some(KeptReason::MayOverflow);
        }
        let floats = |(_, name): &(usize, &str)| self.kind(name) == Some(Kind::Float);
        let given = |(_, name): &(usize, &str)| self.found.given.inputs.contains_key(*name);
        let moved = ops::moves(node) && computed.iter().any(floats);
        (moved && !computed.iter().any(given)).then_some(KeptReason::Between)
    }

    /// Whether a node multiplies by a constant of few elements.
    fn multiplies_by_few(&self, node: &NodeProto) -> bool {
        let few = |name: &String| {
            let constant = self.scope.constant(name);
            constant.is_some_and(|constant| constant.elements() <= MAX_FREQUENCIES)
        };
        node.op_type == "MatMul" && node.is_onnx() && node.input.iter().any(few)
    }

    /// Whether a node computes a root.
    fn is_small_power(&self, node: &NodeProto) -> bool {
        let exponent = node.input.get(1).filter(|_| node.op_type == "Pow");
        let exponent = exponent.and_then(|name| to_f32(&self.scope.constant(name)?));
        exponent.is_some_and(|all| all.iter().all(|x| x.abs() <= 1.0))
    }

    /// The type of a float here or around this graph.
    fn kind(&self, name: &str) -> Option<Kind> {
        self.found.kinds.get(name).copied().or_else(|| (self.outer)(name))
    }

    /// Lets nodes between others in float32 join them, where casts would cost more. Whether any
    /// did.
    fn join(&mut self) -> bool {
        let mut joined = false;
        for at in 0..self.scope.order.len() {
            let index = self.scope.order[at];
            let node = self.proto(index);
            let half = matches!(self.found.choices[index], Choice::Half);
            if !half || !(ops::is_elementwise(node) || ops::moves(node)) {
                continue;
            }
            let made = self.made(index);
            let computed = self.computed(index);
            let kept = |name: &str| {
                let producer = self.scope.producer(name);
                producer.is_some_and(|node| matches!(self.found.choices[node], Choice::Float(_)))
            };
            let before = !computed.is_empty() && computed.iter().all(|(_, name)| kept(name));
            let wanted = |name: &&str| {
                let consumers = self.scope.consumers(name);
                let float = |(node, input): &(usize, usize)| {
                    self.found.wants(self.scope, *node, *input) == Some(Kind::Float)
                };
                !consumers.is_empty() && consumers.iter().all(float)
            };
            if before && !made.is_empty() && made.iter().all(wanted) {
                self.found.kinds.extend(made.iter().map(|name| ((*name).to_owned(), Kind::Float)));
                self.found.choices[index] = Choice::Float(KeptReason::Between);
                joined = true;
            }
        }
        joined
    }

    /// Sources compute in 16 bits unless something reads them in float32.
    fn sources(&mut self) {
        for index in 0..self.found.choices.len() {
            if !matches!(self.found.choices[index], Choice::Source) {
                continue;
            }
            let node = self.proto(index);
            let too_large = held(self.scope, node)
                .and_then(|tensor| Magnitudes::of(&tensor))
                .is_some_and(|found| found.largest > self.settings.half.largest());
            for name in self.made(index) {
                let float = |(node, input): &(usize, usize)| {
                    self.found.wants(self.scope, *node, *input) == Some(Kind::Float)
                };
                let read = self.scope.consumers(name).iter().any(float);
                let given = self.found.given.outputs.get(name) == Some(&Kind::Float);
                let float = read || given || too_large || self.is_measured_large(name);
                let kind = if float { Kind::Float } else { Kind::Half };
                self.found.kinds.insert(name.to_owned(), kind);
            }
        }
    }

    /// Decides on the bodies of nodes, which read values of this graph.
    fn bodies(&self) -> Result<HashMap<*const GraphProto, Decisions>, QuantizeError> {
        let mut bodies = HashMap::new();
        for (index, choice) in self.found.choices.iter().enumerate() {
            let Choice::Control(control) = choice else { continue };
            let node = self.proto(index);
            for graph in node.subgraphs() {
                let body = self.scope.body(graph)?;
                let outer = |name: &str| self.kind(name);
                let given = given_to(&body, node, *control, &outer);
                let found = decide(&body, self.settings, given, &outer)?;
                bodies.insert(std::ptr::from_ref(graph), found);
            }
        }
        Ok(bodies)
    }
}
