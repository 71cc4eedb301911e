//! Checks that every node reads the same values as in the original. Both graphs are walked side by
//! side from the outputs to the inputs, past nodes that quantize and dequantize.

use std::collections::{BTreeSet, HashMap, HashSet};

use quantize_rs_onnx::{AttributeProto, DataType, NodeProto, TensorProto, reads};

use super::kv_cache;
use super::qlinear_ops::{FOLDED, has_twin, pads_integers};
use super::replaced::REPLACED;
use super::stored::{Stored, base_of};
use super::{Check, Validation};
use crate::graph::qlinear::qlinear_of;
use crate::graph::{Graph, Producer, ValueId, moe};
use crate::options::HalfType;

/// Nodes of the quantized model with the corresponding nodes of the original.
pub(super) type Pairs = HashMap<usize, usize>;

pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    stored: &mut [Stored],
    half: Option<HalfType>,
    found: &mut Validation,
) -> Pairs {
    let originals = |stored: &Stored| (stored.integers, stored.originals.clone());
    let kept: HashMap<ValueId, Vec<String>> = stored.iter().map(originals).collect();
    let mut walk = Walk {
        before,
        after,
        kept,
        copied: copied(before, after, half),
        half,
        found,
        seen: HashSet::new(),
        waiting: Vec::new(),
        pairs: Pairs::new(),
    };
    for output in &before.model.graph().output {
        if let (Some(there), Some(here)) = (before.value(&output.name), after.value(&output.name)) {
            let from = format!("output `{}`", output.name);
            walk.waiting.push(Step {
                there,
                here,
                name: output.name.clone(),
                from,
                consumer: None,
            });
        }
    }
    while let Some(step) = walk.waiting.pop() {
        walk.step(&step);
    }
    for stored in stored.iter_mut().filter(|stored| is_unknown(before, &stored.originals)) {
        stored.originals.extend(walk.kept.get(&stored.integers).cloned().unwrap_or_default());
    }
    walk.pairs
}

/// Whether none of the names that a weight may have in the original is that of a constant.
pub(super) fn is_unknown(before: &Graph<'_>, names: &[String]) -> bool {
    let constant = |name: &String| before.constant_behind(before.value(name)?);
    !names.iter().any(|name| constant(name).is_some())
}

/// The values of the quantized model without a counterpart of their name of which a value with one
/// is a copy: cast, or quantized and dequantized. Each with the name of that value.
fn copied<'m>(
    before: &Graph<'m>,
    after: &Graph<'m>,
    half: Option<HalfType>,
) -> HashMap<ValueId, &'m str> {
    let copy =
        |graph: &Graph<'m>, value| rounded(graph, value).or_else(|| cast(graph, value, half));
    let mut copied = HashMap::new();
    for (id, value) in after.values.iter().enumerate() {
        let there = before.value(value.name);
        if there.is_none_or(|there| copy(before, there).is_some()) {
            continue;
        }
        let mut source = id;
        while let Some(next) = copy(after, source)
            && before.value(after.values[next].name).is_none()
        {
            copied.insert(next, value.name);
            source = next;
        }
    }
    copied
}

/// Two values that should correspond, and their consumer.
pub(super) struct Step {
    pub(super) there: ValueId,
    pub(super) here: ValueId,
    /// The node or output that reads them.
    pub(super) name: String,
    /// Its label.
    pub(super) from: String,
    /// The node of the quantized model that reads it, and the input.
    pub(super) consumer: Option<(usize, usize)>,
}

pub(super) struct Walk<'a, 'm> {
    pub(super) before: &'a Graph<'m>,
    pub(super) after: &'a Graph<'m>,
    /// The constants that store weights, and the names that these may have in the original.
    pub(super) kept: HashMap<ValueId, Vec<String>>,
    /// See [`copied`].
    copied: HashMap<ValueId, &'m str>,
    /// The type that the quantized model computes in, where the original computes in float32.
    half: Option<HalfType>,
    pub(super) found: &'a mut Validation,
    seen: HashSet<(ValueId, ValueId)>,
    pub(super) waiting: Vec<Step>,
    pub(super) pairs: Pairs,
}

impl<'m> Walk<'_, 'm> {
    fn step(&mut self, step: &Step) {
        let there = root(self.before, step.there);
        let here = self.past_casts(there, self.root(step.here));
        if self.before.constant_behind(there).is_some() || sparse(self.before, there) {
            return self.constant(there, here, step);
        }
        if !self.seen.insert((there, here)) {
            return;
        }
        match (self.before.values[there].producer, self.after.values[here].producer) {
            (Producer::Node { node: n, output: a }, Producer::Node { node: m, output: b }) => {
                let (was, is) = (self.before.nodes[n], self.after.nodes[m]);
                if same_operator(was, is) && a == b {
                    self.nodes(n, m);
                } else if let Some(twin) = qlinear_of(is).filter(|twin| twin.replaces(was)) {
                    self.twins(n, m, twin);
                } else if FOLDED.contains(&was.op_type.as_str())
                    && was.is_onnx()
                    && let Some(twin) = qlinear_of(is)
                    && let Some(there) = self.before.input(n, 0)
                {
                    self.folded(n, m, twin);
                    let (name, from, consumer) =
                        (step.name.clone(), step.from.clone(), step.consumer);
                    self.waiting.push(Step { there, here: step.here, name, from, consumer });
                } else if moe::is_moe(was) && moe::is_qmoe(is) {
                    self.experts(n, m);
                } else if REPLACED.contains(&was.op_type.as_str()) && was.is_onnx() {
                    let read = self.result(there, step.here);
                    self.replaced(n, read, &step.name);
                } else {
                    self.wrong(there, here, step);
                }
            }
            _ if self.before.values[there].name == self.after.values[here].name => {}
            _ => self.wrong(there, here, step),
        }
    }

    /// A value before it is cast to 16 bits or back, around what stays as it was: subgraphs, and
    /// operators of ONNX Runtime.
    pub(super) fn past_casts(&self, there: ValueId, mut here: ValueId) -> ValueId {
        if cast(self.before, there, self.half).is_some() {
            return here;
        }
        while let Some(source) = cast(self.after, here, self.half) {
            here = self.root(source);
        }
        here
    }

    /// The value of the original that a value of the quantized model has the name of, or is the
    /// source of, see [`copied`].
    pub(super) fn counterpart(&self, here: ValueId) -> Option<&'m str> {
        let name = self.after.values[here].name;
        let own = self.before.value(name).map(|_| name);
        own.or_else(|| self.copied.get(&here).copied())
    }

    /// The result that stands for a value of the original, before what is read of it was quantized,
    /// smoothed or cast.
    fn result(&self, there: ValueId, here: ValueId) -> ValueId {
        let name = self.before.values[there].name;
        let mut value = here;
        while self.counterpart(value) != Some(name) {
            let source = self.source(value).or_else(|| cast(self.after, value, self.half));
            let Some(source) = source else { return self.past_casts(there, here) };
            value = source;
        }
        value
    }

    /// A value before quantization, dequantization or smoothing.
    fn root(&self, mut value: ValueId) -> ValueId {
        while let Some(source) = self.source(value) {
            value = source;
        }
        value
    }

    /// The value that a value is quantized, dequantized or smoothed from.
    fn source(&self, value: ValueId) -> Option<ValueId> {
        if let Some(source) = rounded(self.after, value) {
            return Some(source);
        }
        let Producer::Node { node, .. } = self.after.values[value].producer else { return None };
        let new = |name: &str, suffix: &str| {
            base_of(name, suffix).is_some() && self.before.value(name).is_none()
        };
        // A value that is smoothed and then quantized has the name `_smooth_float`.
        let by = || self.after.input(node, 1).map(|by| self.after.values[by].name);
        let smoothed = self.after.nodes[node].op_type == "Mul"
            && (new(self.after.values[value].name, "smooth")
                || by().is_some_and(|by| new(by, "smoothing")));
        self.after.input(node, 0).filter(|_| smoothed)
    }

    /// Compares two nodes of the same operator.
    fn nodes(&mut self, there: usize, here: usize) {
        self.pairs.insert(here, there);
        let (was, is) = (self.before.nodes[there], self.after.nodes[here]);
        let quantized = |graph: &Graph<'_>, node| kv_cache::is_quantized(graph, node);
        // Its cache has become integers.
        let cached = quantized(self.after, here) && !quantized(self.before, there);
        let same = if cached {
            kv_cache::same_but_types(was, is)
        } else {
            same_attributes(was, is) || self.is_narrowed(was, is)
        };
        if !same {
            let what = "its attributes differ from the original";
            self.found.problem(Check::Connectivity, is.named(), what);
        }
        let from = is.label();
        for input in 0..was.input.len().max(is.input.len()) {
            let (a, b) = (self.before.input(there, input), self.after.input(here, input));
            match (a, b) {
                (_, Some(b)) if input == 2 && pads_integers(self.after, here) => {
                    self.padding(there, here, b);
                }
                (Some(a), Some(b)) => {
                    if is_float_product(is) && self.reads_codes(b) {
                        let read = self.after.values[b].name;
                        let what = format!("it reads `{read}`, which is not dequantized");
                        self.found.problem(Check::Connectivity, is.named(), what);
                    }
                    let (name, from) = (is.named().to_owned(), from.clone());
                    self.waiting.push(Step {
                        there: a,
                        here: b,
                        name,
                        from,
                        consumer: Some((here, input)),
                    });
                }
                // The scales of a quantized cache.
                (None, Some(_)) if cached && kv_cache::is_scale(input) => {}
                // A bias that was added by bias correction.
                (None, Some(_)) if bias_input(is, input) => {}
                (None, None) => {}
                (Some(a), None) => {
                    let what = format!(
                        "input {input} is missing, the original reads `{}`",
                        self.before.values[a].name
                    );
                    self.found.problem(Check::Connectivity, is.named(), what);
                }
                (None, Some(b)) => {
                    let what = format!(
                        "it reads `{}` at input {input}, the original nothing",
                        self.after.values[b].name
                    );
                    self.found.problem(Check::Connectivity, is.named(), what);
                }
            }
        }
        // Names that subgraphs read from the outer graph stay.
        let own = |node: &NodeProto| node.input.iter().filter(|name| !name.is_empty()).count();
        let names = [reads(was), reads(is)];
        let taken: BTreeSet<&str> = names[0][own(was)..].iter().copied().collect();
        let read: BTreeSet<&str> = names[1][own(is)..].iter().copied().collect();
        for name in taken.symmetric_difference(&read) {
            // A weight that a subgraph reads may be stored as integers or in 16 bits, or be
            // dequantized beside its floats.
            let stands_for = |here: &str, there: &str| {
                let half = self.half.map(|half| half.data_type().name());
                let mut suffixes = ["quantized", "dequantized"].into_iter().chain(half);
                self.after.value(here).is_some_and(|id| {
                    let kept = self.kept.get(&id).is_some_and(|it| it.iter().any(|it| it == there));
                    kept || suffixes.any(|suffix| base_of(here, suffix).as_deref() == Some(there))
                })
            };
            let constant = |graph: &Graph<'_>, name: &str| {
                graph.value(name).is_some_and(|id| graph.constant(id).is_some())
            };
            let kept =
                constant(self.before, name) && read.iter().any(|here| stands_for(here, name));
            let from_constants = |name: &str| {
                let value = self.after.value(name);
                value.is_some_and(|id| constants_behind(self.after, id, &mut Vec::new()))
            };
            let new = self.before.value(name).is_none()
                && (from_constants(name) || taken.iter().any(|there| stands_for(name, there)));
            if kept || new {
                continue;
            }
            let what = format!("a subgraph of it reads `{name}` in only one of the two models");
            self.found.problem(Check::Connectivity, is.named(), what);
        }
        for name in taken.intersection(&read) {
            if let (Some(a), Some(b)) = (self.before.value(name), self.after.value(name)) {
                let (name, from) = (is.named().to_owned(), from.clone());
                self.waiting.push(Step { there: a, here: b, name, from, consumer: None });
            }
        }
    }

    /// Whether a cast to float32 became one to the 16-bit type that the model computes in.
    fn is_narrowed(&self, was: &NodeProto, is: &NodeProto) -> bool {
        let casts_to = |node: &NodeProto, dtype: DataType| {
            node.op_type == "Cast" && node.int("to", 0) == i64::from(dtype.number())
        };
        let half = self.half.map(HalfType::data_type);
        half.is_some_and(|half| casts_to(was, DataType::Float) && casts_to(is, half))
    }

    /// Whether a value is the output of a `QuantizeLinear`.
    fn reads_codes(&self, value: ValueId) -> bool {
        let Producer::Node { node, .. } = self.after.values[value].producer else { return false };
        let producer = self.after.nodes[node];
        producer.op_type == "QuantizeLinear" && producer.is_onnx()
    }

    /// Compares a constant, which may be stored in another form.
    fn constant(&mut self, there: ValueId, here: ValueId, step: &Step) {
        let name = self.before.values[there].name;
        let mut leaves = Vec::new();
        if !constants_behind(self.after, here, &mut leaves) {
            return self.wrong(there, here, step);
        }
        // Biases are compared separately, since bias correction may have changed them.
        if let Some((node, input)) = step.consumer
            && bias_input(self.after.nodes[node], input)
        {
            return;
        }
        let through = self.after.values[step.here].name;
        let direct = through == name || base_of(through, "dequantized").as_deref() == Some(name);
        if self.is_turned(here) || self.is_computed(here) {
            return self.wrong(there, here, step);
        }
        for id in &leaves {
            self.read_as(there, *id);
        }
        if !direct && !leaves.iter().any(|id| self.stands_for(there, *id)) {
            self.wrong(there, here, step);
        }
    }

    /// Notes that a node reads a stored weight as the paired node of the original reads a constant:
    /// which one it is, if its name does not tell, as in files of other tools.
    pub(super) fn read_as(&mut self, there: ValueId, here: ValueId) {
        let before = self.before;
        if before.constant_behind(there).is_some()
            && let Some(names) = self.kept.get_mut(&here)
            && is_unknown(before, names)
        {
            names.push(before.values[there].name.to_owned());
        }
    }

    /// Whether arithmetic makes a value at run time. If the original has a constant there, the
    /// constants that it is made of are compared with a candidate whose constants are not folded.
    fn is_computed(&self, value: ValueId) -> bool {
        let Producer::Node { node, .. } = self.after.values[value].producer else { return false };
        let producer = self.after.nodes[node];
        producer.is_onnx() && matches!(&*producer.op_type, "Add" | "Div" | "Mul" | "Sub")
    }

    /// Whether a value that is derived from constants alone is transposed at run time.
    fn is_turned(&self, mut value: ValueId) -> bool {
        while let Producer::Node { node, .. } = self.after.values[value].producer {
            if self.after.nodes[node].op_type == "Transpose" {
                return true;
            }
            let Some(next) = self.after.input(node, 0) else { return false };
            value = next;
        }
        false
    }

    /// Whether a constant is one of the original, or its stored form.
    pub(super) fn stands_for(&self, there: ValueId, here: ValueId) -> bool {
        let (was, is) = (self.before.values[there].name, self.after.values[here].name);
        let kept = self.kept.get(&here).map(Vec::as_slice).unwrap_or_default();
        let half = self.half.and_then(|half| base_of(is, half.name()));
        is == was
            || base_of(is, "quantized").as_deref() == Some(was)
            || half.as_deref() == Some(was)
            || self.equal(there, is)
            || kept.iter().any(|known| known == was || self.equal(there, known))
    }

    /// Whether another constant of the original is equal: equal constants are stored once.
    fn equal(&self, one: ValueId, other: &str) -> bool {
        let tensor = |id: ValueId| -> Option<_> {
            self.before.model.tensor(self.before.constant_behind(id)?).ok()
        };
        let other = self.before.value(other).and_then(tensor);
        other.is_some() && other == tensor(one)
    }

    fn wrong(&mut self, there: ValueId, here: ValueId, step: &Step) {
        let said = |graph: &Graph<'_>, id: ValueId| {
            let name = graph.values[id].name;
            match graph.values[id].producer {
                Producer::Input => format!("the input `{name}`"),
                Producer::Node { node, .. } if graph.constant(id).is_none() => {
                    format!("`{name}` of {}", graph.nodes[node].label())
                }
                _ => format!("the constant `{name}`"),
            }
        };
        let (mut here, there) = (said(self.after, here), said(self.before, there));
        let read = self.after.values[step.here].name;
        if !here.contains(&format!("`{read}`")) {
            here = format!("`{read}`, which is {here},");
        }
        let at = step.consumer.map_or(String::new(), |(_, input)| format!(" at input {input}"));
        let what = format!("{}: it reads {here}{at}, the original reads {there}", step.from);
        self.found.problem(Check::Connectivity, step.name.clone(), what);
    }
}

/// A value before it was quantized and dequantized.
pub(super) fn root(graph: &Graph<'_>, mut value: ValueId) -> ValueId {
    while let Some(source) = rounded(graph, value) {
        value = source;
    }
    value
}

/// The value that a value is quantized or dequantized from.
fn rounded(graph: &Graph<'_>, value: ValueId) -> Option<ValueId> {
    let Producer::Node { node, .. } = graph.values[value].producer else { return None };
    let proto = graph.nodes[node];
    // The other outputs of `DynamicQuantizeLinear` are its scale and its zero point.
    let passes = match proto.op_type.as_str() {
        "QuantizeLinear" | "DequantizeLinear" => true,
        "DynamicQuantizeLinear" => graph.output(node, 0) == Some(value),
        _ => false,
    };
    graph.input(node, 0).filter(|_| passes && proto.is_onnx())
}

/// The value that a value is cast from, between float32 and the type that a model computes in.
fn cast(graph: &Graph<'_>, value: ValueId, half: Option<HalfType>) -> Option<ValueId> {
    let half = half?;
    let float = |value: ValueId| {
        let dtype = graph.dtype(value);
        dtype.is_some_and(|dtype| dtype == DataType::Float || dtype == half.data_type())
    };
    let Producer::Node { node, .. } = graph.values[value].producer else { return None };
    let source = graph.input(node, 0).filter(|_| graph.nodes[node].op_type == "Cast")?;
    Some(source).filter(|source| float(*source) && float(value))
}

/// The constants that a value is derived from; `false` and none if it is derived from anything
/// else.
pub(super) fn constants_behind(
    graph: &Graph<'_>,
    value: ValueId,
    leaves: &mut Vec<ValueId>,
) -> bool {
    let (mut waiting, mut found) = (vec![value], Vec::new());
    let mut steps = 0;
    while let Some(id) = waiting.pop() {
        steps += 1;
        if graph.constant(id).is_some() || sparse(graph, id) {
            found.push(id);
            continue;
        }
        let Producer::Node { node, .. } = graph.values[id].producer else { return false };
        let inputs = (0..graph.nodes[node].input.len()).rev();
        waiting.extend(inputs.filter_map(|input| graph.input(node, input)));
        // A constant is dequantized through fewer nodes.
        if steps > 100 {
            return false;
        }
    }
    leaves.append(&mut found);
    true
}

/// Whether an operator computes something different on integers than on the floats that they
/// represent.
fn is_float_product(node: &NodeProto) -> bool {
    let op_type = node.op_type.as_str();
    node.is_onnx() && (REPLACED.contains(&op_type) && op_type != "Gather" || has_twin(op_type))
}

/// Whether bias correction may change this input of a node.
pub(super) fn bias_input(node: &NodeProto, input: usize) -> bool {
    match node.op_type.as_str() {
        "Conv" | "ConvTranspose" | "Gemm" => input == 2,
        "Add" => true,
        // A negated bias: see the pass `subtract_bias`.
        "Sub" => input == 1,
        _ => false,
    }
}

fn sparse(graph: &Graph<'_>, value: ValueId) -> bool {
    matches!(graph.values[value].producer, Producer::Sparse)
}

fn same_operator(one: &NodeProto, other: &NodeProto) -> bool {
    one.op_type == other.op_type && (one.domain == other.domain || one.is_onnx() && other.is_onnx())
}

pub(super) fn same_attributes(one: &NodeProto, other: &NodeProto) -> bool {
    let same = |attribute: &AttributeProto| {
        other.attribute(&attribute.name).is_some_and(|there| equal(attribute, there))
    };
    one.attribute.len() == other.attribute.len() && one.attribute.iter().all(|kept| same(kept))
}

/// Subgraphs are compared by the values that they read from the outer graph.
pub(super) fn equal(one: &AttributeProto, other: &AttributeProto) -> bool {
    let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let tensor =
        |tensor: &TensorProto| (tensor.data_type, tensor.dims.clone(), tensor.raw_data.clone());
    let tensors = |attribute: &AttributeProto| attribute.tensors().map(tensor).collect::<Vec<_>>();
    one.f.map(f32::to_bits) == other.f.map(f32::to_bits)
        && one.i == other.i
        && one.s == other.s
        && *one.ints == *other.ints
        && bits(&one.floats) == bits(&other.floats)
        && tensors(one) == tensors(other)
}
