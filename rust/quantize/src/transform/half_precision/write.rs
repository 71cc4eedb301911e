//! Writes the decisions into the graph: types of constants and attributes, and casts where two
//! types meet.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{AttributeProto, DataType, Edit, NodeProto, Raw, Tensor, TensorProto};

use super::constants::{held, holding, narrowed, with_bodies};
use super::control::{Control, given_to, given_to_main};
use super::decide::{Choice, Decisions, Given, Kind, Settings, decide};
use super::operators::type_attribute;
use super::scope::Scope;
use super::written::{Item, Values, Written, rebuilt, with_type};
use super::{HalfChanges, HalfSettings, KeptNode};
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::elements::to_f32;
use crate::graph::names::Names;
use crate::options::HalfType;

/// The edits that convert the main graph, and what they do.
pub(super) fn write(
    scope: &Scope<'_>,
    graph: &Graph<'_>,
    settings: &Settings<'_>,
    how: &HalfSettings<'_>,
) -> Result<(Vec<Edit>, HalfChanges), QuantizeError> {
    let given = given_to_main(scope, settings, how.keep_io);
    let decisions = decide(scope, settings, &given);
    let mut wanted = HashMap::new();
    // In the first run it turns out which constants are read in both types.
    for last in [false, true] {
        let names = Names::of(graph);
        let mut writer = Writer {
            settings,
            names,
            wanted: std::mem::take(&mut wanted),
            halves: HashMap::new(),
            last,
            simulated: how.simulated,
            changes: HalfChanges::default(),
        };
        let written = writer.graph(scope, &decisions, &given, None)?;
        if last {
            let changes = std::mem::take(&mut writer.changes);
            return Ok((writer.edits(scope, written), changes));
        }
        wanted = writer.wanted;
    }
    Ok((Vec::new(), HalfChanges::default()))
}

struct Writer<'w> {
    settings: &'w Settings<'w>,
    names: Names<'w>,
    /// Whether each constant is read in float32 and in 16 bits, by its address.
    wanted: HashMap<*const TensorProto, [bool; 2]>,
    /// The names of constants in 16 bits that are read in float32 too.
    halves: HashMap<*const TensorProto, String>,
    /// Whether this is the second run; the first one finds what is wanted.
    last: bool,
    /// Whether values are rounded and stay float32.
    simulated: bool,
    changes: HalfChanges,
}

impl Writer<'_> {
    fn half(&self) -> HalfType {
        self.settings.half
    }

    fn graph(
        &mut self,
        scope: &Scope<'_>,
        decisions: &Decisions<'_>,
        given: &Given<'_>,
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
        for (name, kind) in &given.inputs {
            values.floats.insert((*name).to_owned(), (*kind, (*name).to_owned()));
            if *kind == Kind::Half {
                values.halves.insert((*name).to_owned());
            }
        }
        let sparse = scope.graph.sparse_initializer.iter().filter_map(|sparse| sparse.name());
        for name in sparse.filter(|name| scope.is_float(name)) {
            values.floats.insert(name.to_owned(), (Kind::Float, name.to_owned()));
        }
        for index in &scope.order {
            self.node(scope, decisions, given, *index, &mut values, &mut written)?;
        }
        self.outputs(scope, given, &mut values, &mut written);
        written.halves = values.halves;
        self.constants(scope, &mut written)?;
        Ok(written)
    }

    fn node(
        &mut self,
        scope: &Scope<'_>,
        decisions: &Decisions<'_>,
        given: &Given<'_>,
        index: usize,
        values: &mut Values<'_>,
        written: &mut Written,
    ) -> Result<(), QuantizeError> {
        let node = &*scope.graph.node[index];
        let choice = &decisions.choices[index];
        let mut with = node.clone();
        let mut changed = false;
        for (input, name) in with.input.iter_mut().enumerate() {
            let wants = decisions.wants(scope, index, input).filter(|_| scope.is_float(name));
            let found = self.read(scope, name, wants, values, written);
            if found != *name {
                *name = found;
                changed = true;
            }
        }
        if let Choice::Control(control) = choice {
            let bodies = self.bodies(scope, node, *control, decisions, values)?;
            if let Some(bodies) = bodies {
                with.attribute = bodies.attribute;
                changed = true;
            }
        }
        let kinds = |name: &String| decisions.kinds.get(name.as_str()).copied();
        let half = node.output.iter().any(|name| kinds(name) == Some(Kind::Half));
        match choice {
            Choice::Half => self.changes.converted += 1,
            Choice::Float(reason) => self.changes.kept.push(KeptNode {
                node: node.named().to_owned(),
                op_type: node.op_type.clone(),
                why: reason.to_string(),
                reason: reason.clone(),
            }),
            _ => {}
        }
        if half && matches!(choice, Choice::Half | Choice::Source) {
            changed |= self.retype(scope, &mut with);
        }
        // A cast between equal types is not needed.
        if let [made] = &node.output[..]
            && let Some(alias) = self.alias(scope, &with, made, values)
            && !given.outputs.contains_key(made.as_str())
            && !scope.graph.output.iter().any(|output| output.name == *made)
        {
            values.floats.insert(made.clone(), (Kind::Half, alias));
            written.removed.insert(made.clone());
            written.items.push(Item::Removed(index));
            return Ok(());
        }
        let mut casts = Vec::new();
        for (output, name) in node.output.iter().enumerate() {
            let Some(kind) = kinds(name) else { continue };
            let mut stored = name.clone();
            let required = given.outputs.get(name.as_str()).copied().filter(|to| *to != kind);
            if let Some(to) = required {
                stored = self.names.fresh(name, self.name_of(kind));
                with.output[output].clone_from(&stored);
                changed = true;
                values.others.insert(name.clone(), name.clone());
                casts.extend(self.cast(&stored, name, to));
                if to == Kind::Half {
                    values.halves.insert(name.clone());
                }
            }
            if kind == Kind::Half && self.simulated && !matches!(choice, Choice::Control(_)) {
                let exact = self.names.fresh(name, "exact");
                with.output[output].clone_from(&exact);
                changed = true;
                let rounded = self.cast(&exact, &stored, kind);
                casts.splice(0..0, rounded);
            }
            if kind == Kind::Half {
                values.halves.insert(stored.clone());
            }
            values.floats.insert(name.clone(), (kind, stored));
        }
        let item = if changed { Item::Replaced(index, with) } else { Item::Kept(index) };
        written.items.push(item);
        written.items.extend(casts.into_iter().map(Item::Added));
        Ok(())
    }

    /// The name of a kind in the names of values.
    fn name_of(&self, kind: Kind) -> &'static str {
        match kind {
            Kind::Half => self.half().name(),
            Kind::Float => DataType::Float.name(),
        }
    }

    /// The nodes that cast a value; two if it is only rounded.
    fn cast(&mut self, from: &str, to: &str, kind: Kind) -> Vec<NodeProto> {
        self.changes.casts += 1;
        let half = self.half().data_type();
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
            return self.constant(tensor, wants.unwrap_or(Kind::Half));
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

    /// The name of a constant in a type.
    fn constant(&mut self, tensor: &TensorProto, kind: Kind) -> String {
        let address = std::ptr::from_ref(tensor);
        let wanted = self.wanted.entry(address).or_default();
        wanted[usize::from(kind == Kind::Half)] = true;
        if kind == Kind::Float || *wanted != [true, true] {
            return tensor.name.clone();
        }
        let (names, half) = (&mut self.names, self.settings.half);
        let fresh = || names.fresh(&tensor.name, half.name());
        self.halves.entry(address).or_insert_with(fresh).clone()
    }

    /// What a cast computes that has no effect any more: the value that it reads.
    fn alias(
        &self,
        scope: &Scope<'_>,
        with: &NodeProto,
        made: &str,
        values: &Values<'_>,
    ) -> Option<String> {
        let half = self.half().data_type();
        let to_half = with.int("to", 0) == i64::from(half.number());
        let read = with.input.first().filter(|_| with.is_onnx() && with.op_type == "Cast")?;
        let same = values.is_half(read) || scope.dtype(read) == Some(half);
        // One that was there before and computes something else stays.
        let narrowed = scope.is_float(made) || values.is_half(read);
        (to_half && same && narrowed).then(|| read.clone())
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
        let number = i64::from(self.half().data_type().number());
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

    /// A node with its bodies converted; `None` if none changes.
    fn bodies(
        &mut self,
        scope: &Scope<'_>,
        node: &NodeProto,
        control: Control,
        decisions: &Decisions<'_>,
        values: &Values<'_>,
    ) -> Result<Option<NodeProto>, QuantizeError> {
        with_bodies(node, |graph| {
            let body = scope.body(graph)?;
            let outer = |name: &str| values.float(name).map(|(kind, _)| *kind);
            let given = given_to(&body, node, control, decisions, &outer);
            let inner = decide(&body, self.settings, &given);
            let written = self.graph(&body, &inner, &given, Some(values))?;
            Ok(Some(rebuilt(graph, written, (!self.simulated).then(|| self.half()))))
        })
    }

    /// Casts the outputs that are inputs or constants, or that come from around the graph.
    fn outputs(
        &mut self,
        scope: &Scope<'_>,
        given: &Given<'_>,
        values: &mut Values<'_>,
        written: &mut Written,
    ) {
        for (at, output) in scope.graph.output.iter().enumerate() {
            let name = output.name.as_str();
            if scope.producer(name).is_some() || !scope.is_float(name) {
                continue;
            }
            let wants = given.outputs.get(name).copied();
            let found = self.read(scope, name, wants, values, written);
            if found != name {
                written.outputs.push((at, found));
            }
        }
    }

    /// The constants of a graph in the types in which they are read.
    fn constants(&mut self, scope: &Scope<'_>, written: &mut Written) -> Result<(), QuantizeError> {
        for proto in &scope.graph.initializer {
            let address = std::ptr::from_ref::<TensorProto>(proto);
            let Some([float, half]) = self.wanted.get(&address).copied() else { continue };
            if !half {
                continue;
            }
            let name = self.halves.get(&address).unwrap_or(&proto.name).clone();
            written.halves.insert(name.clone());
            if !self.last {
                continue;
            }
            let tensor = scope.model.tensor(proto)?;
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
        let narrow = narrowed(tensor, self.half());
        match to_f32(&narrow).filter(|_| self.simulated) {
            Some(values) => Tensor::from_f32_vec(narrow.shape, values),
            None => narrow,
        }
    }

    /// The edits of the main graph.
    fn edits(&self, scope: &Scope<'_>, written: Written) -> Vec<Edit> {
        let half = self.half().data_type();
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
