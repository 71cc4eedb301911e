//! Writes the decisions into the graph: types of constants and attributes, and casts where two
//! types meet.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor, TensorProto};

use super::constant_kinds::ConstantKinds;
use super::constants::{held, holding, narrowed};
use super::control::given_to_main;
use super::decide::{Choice, Decisions, Kind, Settings, decide};
use super::operators::type_attribute;
use super::scope::Scope;
use super::written::{Item, Values, Written, rebuilt, with_type};
use super::{HalfChanges, HalfSettings, KeptNode};
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::elements::to_f32;
use crate::graph::names::Names;
use crate::graph::try_with_subgraphs;
use crate::options::HalfType;

/// A constant that is read in float32 and in 16 bits is stored in both types up to this size in
/// float32, in bytes: a cast would take as much. A larger one is cast, which runtimes do once, when
/// they load the model.
const LARGEST_COPY: usize = 512;

/// The edits that convert the main graph, and what they do.
pub(super) fn write(
    scope: &Scope<'_>,
    graph: &Graph<'_>,
    settings: &Settings<'_>,
    how: &HalfSettings<'_>,
) -> Result<(Vec<Edit>, HalfChanges), QuantizeError> {
    let given = given_to_main(scope, settings, how.keep_io);
    let decisions = decide(scope, settings, given, &|_| None)?;
    let mut writer = Writer {
        half: settings.half,
        names: Names::of(graph),
        constants: ConstantKinds::of(scope, &decisions)?,
        halves: HashMap::new(),
        simulated: how.simulated,
        changes: HalfChanges::default(),
    };
    let written = writer.graph(scope, &decisions, None)?;
    Ok((writer.edits(scope, written), writer.changes))
}

struct Writer<'w> {
    half: HalfType,
    names: Names<'w>,
    constants: ConstantKinds,
    /// The names of constants in 16 bits that are read in float32 too.
    halves: HashMap<*const TensorProto, String>,
    /// Whether values are rounded and stay float32.
    simulated: bool,
    changes: HalfChanges,
}

impl Writer<'_> {
    fn graph(
        &mut self,
        scope: &Scope<'_>,
        decisions: &Decisions,
        outer: Option<&Values<'_>>,
    ) -> Result<Written, QuantizeError> {
        let mut values = Values {
            outer,
            halves: HashSet::new(),
            floats: HashMap::new(),
            others: HashMap::new(),
        };
        let mut written = Written {
            items: Vec::new(),
            replaced: Vec::new(),
            added: Vec::new(),
            halves: HashSet::new(),
            removed: HashSet::new(),
            outputs: Vec::new(),
        };
        for (name, kind) in &decisions.given.inputs {
            values.floats.insert(name.clone(), (*kind, name.clone()));
            if *kind == Kind::Half {
                values.halves.insert(name.clone());
            }
        }
        for index in &scope.order {
            self.node(scope, decisions, *index, &mut values, &mut written)?;
        }
        self.outputs(scope, decisions, &mut values, &mut written);
        written.halves = values.halves;
        self.constants(scope, &mut written)?;
        Ok(written)
    }

    fn node(
        &mut self,
        scope: &Scope<'_>,
        decisions: &Decisions,
        index: usize,
        values: &mut Values<'_>,
        written: &mut Written,
    ) -> Result<(), QuantizeError> {
        let node = &*scope.graph.node[index];
        let choice = &decisions.choices[index];
        let (mut with, mut changed) = self.reading(scope, decisions, index, values, written);
        if let Some(bodies) = self.bodies(scope, node, decisions, values)? {
            with.attribute = bodies.attribute;
            changed = true;
        }
        self.count(node, choice);
        let makes_half = node.output.iter().any(|name| decisions.is_half(name));
        if makes_half && matches!(choice, Choice::Half | Choice::Source) {
            changed |= self.retype(scope, &mut with);
        }
        if let Some(read) = self.read_by_needless_cast(scope, decisions, &with, values) {
            let made = &node.output[0];
            values.floats.insert(made.clone(), (Kind::Half, read));
            written.removed.insert(made.clone());
            written.items.push(Item::Removed(index));
            return Ok(());
        }
        let casts = self.outputs_of(decisions, choice, &mut with, values);
        changed |= with.output != node.output;
        let item = if changed { Item::Replaced(index, with) } else { Item::Kept(index) };
        written.items.push(item);
        written.items.extend(casts.into_iter().map(Item::Added));
        Ok(())
    }

    /// A node that reads its inputs in the types that it wants, and whether it changes by that.
    fn reading(
        &mut self,
        scope: &Scope<'_>,
        decisions: &Decisions,
        index: usize,
        values: &mut Values<'_>,
        written: &mut Written,
    ) -> (NodeProto, bool) {
        let mut with = (*scope.graph.node[index]).clone();
        let mut changed = false;
        for (input, name) in with.input.iter_mut().enumerate() {
            let wants = decisions.wants(scope, index, input).filter(|_| scope.is_float(name));
            let found = self.read(scope, name, wants, values, written);
            changed |= found != *name;
            *name = found;
        }
        (with, changed)
    }

    /// Counts a node that computes in 16 bits, and lists one that stays float32.
    fn count(&mut self, node: &NodeProto, choice: &Choice) {
        match choice {
            Choice::Half => self.changes.converted += 1,
            Choice::Float(reason) => self.changes.kept.push(KeptNode {
                node: node.named().to_owned(),
                op_type: node.op_type.clone(),
                why: reason.to_string(),
                reason: reason.clone(),
            }),
            Choice::Untouched | Choice::Source | Choice::Control(_) => {}
        }
    }

    /// Names the outputs of a node, and returns the casts that follow it: of outputs of the graph
    /// that need another type, and of values that are only rounded.
    fn outputs_of(
        &mut self,
        decisions: &Decisions,
        choice: &Choice,
        with: &mut NodeProto,
        values: &mut Values<'_>,
    ) -> Vec<NodeProto> {
        let mut casts = Vec::new();
        for output in &mut with.output {
            let name = output.clone();
            let Some(kind) = decisions.kinds.get(&name).copied() else { continue };
            let required = decisions.given.outputs.get(&name).copied().filter(|to| *to != kind);
            if let Some(to) = required {
                *output = self.names.fresh(&name, self.name_of(kind));
                values.others.insert(name.clone(), name.clone());
                casts.extend(self.cast(output, &name, to));
                if to == Kind::Half {
                    values.halves.insert(name.clone());
                }
            }
            let stored = output.clone();
            if kind == Kind::Half && self.simulated && !matches!(choice, Choice::Control(_)) {
                *output = self.names.fresh(&name, "exact");
                let rounded = self.cast(output, &stored, kind);
                casts.splice(0..0, rounded);
            }
            if kind == Kind::Half {
                values.halves.insert(stored.clone());
            }
            values.floats.insert(name, (kind, stored));
        }
        casts
    }

    /// The name of a kind in the names of values.
    fn name_of(&self, kind: Kind) -> &'static str {
        match kind {
            Kind::Half => self.half.name(),
            Kind::Float => DataType::Float.name(),
        }
    }

    /// The nodes that cast a value; two if it is only rounded.
    fn cast(&mut self, from: &str, to: &str, kind: Kind) -> Vec<NodeProto> {
        self.changes.casts += 1;
        let half = self.half.data_type();
        match kind {
            Kind::Half if self.simulated => {
                let rounded = self.names.fresh(to, "rounded");
                let down = self.cast_node(from, &rounded, half);
                vec![down, self.cast_node(&rounded, to, DataType::Float)]
            }
            Kind::Half => vec![self.cast_node(from, to, half)],
            Kind::Float => vec![self.cast_node(from, to, DataType::Float)],
        }
    }

    fn cast_node(&mut self, from: &str, to: &str, dtype: DataType) -> NodeProto {
        let name = self.names.fresh(to, "cast");
        let types = vec![Raw::new(AttributeProto::int("to", i64::from(dtype.number())))];
        NodeProto::new(name, "Cast", vec![from.to_owned()], vec![to.to_owned()], types)
    }

    /// The name under which a value has a type; adds a cast if there is none yet.
    fn read(
        &mut self,
        scope: &Scope<'_>,
        name: &str,
        wants: Option<Kind>,
        values: &mut Values<'_>,
        written: &mut Written,
    ) -> String {
        if let Some(tensor) = scope.initializer(name).filter(|_| scope.is_float(name)) {
            return self.constant(tensor, wants);
        }
        let Some((kind, stored)) = values.float(name).cloned() else { return name.to_owned() };
        if wants.is_none_or(|wants| wants == kind) {
            return stored;
        }
        if let Some(other) = values.other(name) {
            return other.clone();
        }
        let to = if kind == Kind::Half { Kind::Float } else { Kind::Half };
        let other = self.names.fresh(name, self.name_of(to));
        written.items.extend(self.cast(&stored, &other, to).into_iter().map(Item::Added));
        if to == Kind::Half {
            values.halves.insert(other.clone());
        }
        values.others.insert(name.to_owned(), other.clone());
        other
    }

    /// The name of a constant in a type; in that of the model if any will do.
    fn constant(&mut self, tensor: &TensorProto, wants: Option<Kind>) -> String {
        if wants != Some(Kind::Half) || self.constants.of_constant(tensor) != [true, true] {
            return tensor.name.clone();
        }
        let (names, half) = (&mut self.names, self.half);
        let fresh = || names.fresh(&tensor.name, half.name());
        self.halves.entry(std::ptr::from_ref(tensor)).or_insert_with(fresh).clone()
    }

    /// What a node reads, if it is a cast between equal types now, whose result is no output.
    fn read_by_needless_cast(
        &self,
        scope: &Scope<'_>,
        decisions: &Decisions,
        with: &NodeProto,
        values: &Values<'_>,
    ) -> Option<String> {
        let [made] = &with.output[..] else { return None };
        let half = self.half.data_type();
        let to_half = with.int("to", 0) == i64::from(half.number());
        let read = with.input.first().filter(|_| with.is_onnx() && with.op_type == "Cast")?;
        let same = values.is_half(read) || scope.dtype(read) == Some(half);
        // One that was there before and computes something else stays.
        let narrowed = scope.is_float(made) || values.is_half(read);
        let is_output = decisions.given.outputs.contains_key(made)
            || scope.graph.output.iter().any(|output| output.name == *made);
        (to_half && same && narrowed && !is_output).then(|| read.clone())
    }

    /// Makes a node compute in 16 bits what its attributes say to be float32.
    fn retype(&self, scope: &Scope<'_>, with: &mut NodeProto) -> bool {
        if let Some(tensor) = held(scope, with) {
            *with = holding(with, &self.narrowed(&tensor));
            return true;
        }
        if self.simulated {
            return false;
        }
        let Some((name, by_default)) = type_attribute(&with.op_type) else { return false };
        let number = i64::from(self.half.data_type().number());
        let float = i64::from(DataType::Float.number());
        match with.attribute.iter_mut().find(|attribute| attribute.name == name) {
            Some(attribute) if attribute.i == Some(float) => {
                attribute.edit().i = Some(number);
                true
            }
            None if by_default => {
                with.attribute.push(Raw::new(AttributeProto::int(name, number)));
                true
            }
            _ => false,
        }
    }

    /// A node with its bodies converted; `None` if it has none.
    fn bodies(
        &mut self,
        scope: &Scope<'_>,
        node: &NodeProto,
        decisions: &Decisions,
        values: &Values<'_>,
    ) -> Result<Option<NodeProto>, QuantizeError> {
        try_with_subgraphs(node, |graph| {
            let Some(inner) = decisions.body(graph) else { return Ok(None) };
            let written = self.graph(&scope.body(graph)?, inner, Some(values))?;
            Ok(Some(rebuilt(graph, written, (!self.simulated).then_some(self.half))))
        })
    }

    /// Casts the outputs that are inputs or constants, or that come from around the graph.
    fn outputs(
        &mut self,
        scope: &Scope<'_>,
        decisions: &Decisions,
        values: &mut Values<'_>,
        written: &mut Written,
    ) {
        for (at, output) in scope.graph.output.iter().enumerate() {
            let name = output.name.as_str();
            if scope.producer(name).is_some() || !scope.is_float(name) {
                continue;
            }
            let wants = decisions.given.outputs.get(name).copied();
            let found = self.read(scope, name, wants, values, written);
            if found != name {
                written.outputs.push((at, found));
            }
        }
    }

    /// The constants of a graph in the types in which they are read.
    fn constants(&mut self, scope: &Scope<'_>, written: &mut Written) -> Result<(), QuantizeError> {
        for proto in &scope.graph.initializer {
            let [float, half] = self.constants.of_constant(proto);
            if !half {
                continue;
            }
            let address = std::ptr::from_ref::<TensorProto>(proto);
            let name = self.halves.get(&address).unwrap_or(&proto.name).clone();
            written.halves.insert(name.clone());
            let tensor = scope.model.tensor(proto)?;
            if float && tensor.data.len() > LARGEST_COPY {
                let casts = self.cast(&proto.name, &name, Kind::Half);
                written.items.splice(0..0, casts.into_iter().map(Item::Added));
                continue;
            }
            let narrow = TensorProto::new(name, &self.narrowed(&tensor));
            if float {
                written.added.push(narrow);
            } else {
                written.replaced.push(narrow);
            }
        }
        Ok(())
    }

    /// A constant in 16 bits, or rounded to them.
    fn narrowed(&self, tensor: &Tensor) -> Tensor {
        let narrow = narrowed(tensor, self.half);
        match to_f32(&narrow).filter(|_| self.simulated) {
            Some(values) => Tensor::from_f32_vec(narrow.shape, values),
            None => narrow,
        }
    }

    /// The edits of the main graph.
    fn edits(&self, scope: &Scope<'_>, written: Written) -> Vec<Edit> {
        let half = self.half.data_type();
        let mut edits = Vec::new();
        for item in written.items {
            match item {
                Item::Kept(_) => {}
                Item::Replaced(node, with) => edits.push(Edit::ReplaceNode { node, with }),
                Item::Added(node) => edits.push(Edit::AddNode(node)),
                Item::Removed(node) => edits.push(Edit::RemoveNode(node)),
            }
        }
        edits.extend(written.replaced.into_iter().map(Edit::ReplaceInitializer));
        edits.extend(written.added.into_iter().map(Edit::AddInitializer));
        let graph = scope.graph;
        for info in graph.value_info.iter().chain(&graph.input).chain(&graph.output) {
            if !self.simulated
                && written.halves.contains(&info.name)
                && let Some(typed) = with_type(info, half)
            {
                edits.push(Edit::SetValueInfo(typed));
            }
        }
        edits.extend(written.removed.into_iter().map(Edit::RemoveValueInfo));
        edits
    }
}
