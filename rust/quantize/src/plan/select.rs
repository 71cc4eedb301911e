//! Settings for some weights and nodes: an ordered list of entries. For each setting, the first
//! entry that matches and has the setting decides.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use quantize_rs_math::QType;
use quantize_rs_onnx::NodeProto;

use super::KeepReason;
use super::pattern::{Pattern, Subject};
use super::selectable::{Names, Owners, known_op_types};
use crate::graph::ops;
use crate::graph::uses::{Constant, Subgraphs};
use crate::graph::{Graph, Producer};
use crate::options::{Override, Width, config};
use crate::{Config, QuantizeError, WeightType};

/// The entries of a configuration, each of which matches something in the model.
pub(super) struct Selection {
    entries: Vec<Entry>,
    /// Whether nodes that no entry matches are excluded, because other nodes were included.
    others_excluded: bool,
    op_types: Option<HashSet<String>>,
    /// The nodes around each node of a subgraph, by its address: what selects an `If` selects its
    /// branches.
    owners: Owners,
}

/// One entry: what it matches, and its settings.
struct Entry {
    pattern: Pattern,
    /// Its name in a plan.
    name: String,
    /// Whether matching nodes and weights stay float.
    exclude: Option<bool>,
    /// The type of weights, or that they stay float; a bit width is resolved to a type.
    weights: Option<Width>,
    activations: Option<QType>,
    symmetric: Option<bool>,
    per_channel: Option<bool>,
    block_size: Option<usize>,
}

impl Entry {
    fn new(pattern: Pattern) -> Entry {
        let name = pattern.text().to_owned();
        Entry {
            pattern,
            name,
            exclude: None,
            weights: None,
            activations: None,
            symmetric: None,
            per_channel: None,
            block_size: None,
        }
    }

    /// Whether it is one of `overrides`.
    fn is_override(&self) -> bool {
        self.name != self.pattern.text()
    }

    /// The order of precedence; entries of `overrides` keep the order of the caller.
    fn breadth(&self) -> usize {
        if self.is_override() { 0 } else { self.pattern.breadth() }
    }
}

/// The entries, in order: those of `overrides` come first; then `exclude` before `include`; types
/// of weights and of activations by name, then by pattern, then by type of operator.
fn entries(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    owners: &Owners,
) -> Result<Vec<Entry>, QuantizeError> {
    let names = Names::of(graph, constants, owners);
    let mut entries = Vec::new();
    for (index, entry) in config.overrides.iter().enumerate() {
        entries.push(overridden(index, entry, &names)?);
    }
    let listed = |option, texts: &[String], exclude: bool| {
        let entry = |text: &String| {
            let pattern = names.all().pattern(option, text)?;
            Ok(Entry { exclude: Some(exclude), ..Entry::new(pattern) })
        };
        texts.iter().map(entry).collect::<Result<Vec<Entry>, QuantizeError>>()
    };
    entries.extend(listed("exclude", &config.exclude, true)?);
    entries.extend(listed("include", config.include.as_deref().unwrap_or_default(), false)?);
    let mut activations = Vec::new();
    for (text, qtype) in &config.activation_types {
        let pattern = names.values().pattern("activation_types", text)?;
        activations.push(Entry { activations: Some(*qtype), ..Entry::new(pattern) });
    }
    activations.sort_by_key(Entry::breadth);
    let mut weights = Vec::new();
    let mut add = |option, text: &String, found: Width| {
        let pattern = names.weights().pattern(option, text)?;
        weights.push(Entry { weights: Some(found), ..Entry::new(pattern) });
        Ok::<(), QuantizeError>(())
    };
    for (text, bits) in &config.layer_bits {
        let found = config::signed("layer_bits", *bits)?;
        add("layer_bits", text, Width::Type(found))?;
    }
    for (text, found) in &config.layer_types {
        add("layer_types", text, Width::Type(*found))?;
    }
    for text in &config.layer_float {
        add("layer_bits", text, Width::Float)?;
    }
    weights.sort_by_key(Entry::breadth);
    entries.extend(activations);
    entries.extend(weights);
    Ok(entries)
}

/// An entry of `overrides`.
fn overridden(
    index: usize,
    entry: &Override,
    names: &Names<'_, '_>,
) -> Result<Entry, QuantizeError> {
    let Override { matches, exclude, weights, activations, symmetric, per_channel, block_size } =
        entry;
    // An entry for activations may name a value; all others name weights and nodes.
    let known = if activations.is_some() { names.anything() } else { names.all() };
    let pattern = known.matching("overrides", matches)?;
    let name = format!("overrides[{index}]: {}", pattern.text());
    let weights = match *weights {
        Some(Width::Bits(bits)) => Some(Width::Type(config::signed("overrides", bits)?)),
        other => other,
    };
    Ok(Entry {
        pattern,
        name,
        exclude: *exclude,
        weights,
        activations: *activations,
        symmetric: *symmetric,
        per_channel: *per_channel,
        block_size: *block_size,
    })
}

impl Selection {
    pub(super) fn of(
        graph: &Graph<'_>,
        constants: &[Constant<'_>],
        config: &Config,
    ) -> Result<Selection, QuantizeError> {
        let op_types = match &config.op_types {
            None => None,
            Some(op_types) => Some(known_op_types(op_types)?),
        };
        let owners = Owners::of(graph);
        let entries = entries(graph, constants, config, &owners)?;
        Ok(Selection { entries, others_excluded: config.include.is_some(), op_types, owners })
    }

    /// A constant with all its names, and the nodes that read it.
    fn subject<'a, 'm: 'a>(
        &'a self,
        constant: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> Subject<'a> {
        let names: Vec<&str> = constant.to_vec();
        let mut subject = Subject { names, outputs: Vec::new(), op_types: Vec::new() };
        for reader in readers {
            let around = self.owners.around(reader);
            let nodes = std::iter::once((reader.name.as_str(), reader.op_type.as_str()));
            for (name, op_type) in nodes.chain(around) {
                subject.names.push(name);
                subject.op_types.push(op_type);
            }
        }
        subject.names.retain(|name| !name.is_empty());
        subject
    }

    /// A node, which the names of its outputs select too: many exporters give nodes no name.
    fn itself_of<'a>(&'a self, node: &'a NodeProto) -> Subject<'a> {
        let outputs = node.output.iter().map(String::as_str).filter(|name| !name.is_empty());
        Subject { outputs: outputs.collect(), ..self.subject(&[], std::iter::once(node)) }
    }

    /// The first entry that matches and has this setting: its position, the entry and the setting.
    fn first<T>(
        &self,
        subject: &Subject<'_>,
        answer: impl Fn(&Entry) -> Option<T>,
    ) -> Option<(usize, &Entry, T)> {
        self.entries.iter().enumerate().find_map(|(index, entry)| {
            let answer = answer(entry)?;
            entry.pattern.fits(subject).then_some((index, entry, answer))
        })
    }

    /// Whether any entry sets the type of some activations.
    pub(super) fn asks_activations(&self) -> bool {
        self.entries.iter().any(|entry| entry.activations.is_some())
    }

    /// The first entry for a value or a node that sets the type of activations: its position, its
    /// breadth, and the type.
    pub(super) fn activation(
        &self,
        graph: &Graph<'_>,
        value: &str,
        node: Option<usize>,
    ) -> Option<(usize, usize, QType)> {
        let subject = self.subject(&[value], node.map(|node| graph.nodes[node]).into_iter());
        let (index, entry, qtype) = self.first(&subject, |entry| entry.activations)?;
        Some((index, entry.breadth(), qtype))
    }

    /// The entries for activations that are not in `met`: position and selector.
    pub(super) fn unmet(&self, met: &[usize]) -> Vec<(usize, &str)> {
        let entries = self.entries.iter().enumerate();
        let unmet =
            entries.filter(|(index, entry)| entry.activations.is_some() && !met.contains(index));
        unmet.map(|(index, entry)| (index, entry.pattern.text())).collect()
    }

    /// Whether operators of the type of this node, or of one that it is inside, may be quantized.
    pub(super) fn allows(&self, node: &NodeProto) -> bool {
        let around = self.owners.around(node).map(|(_, op_type)| op_type);
        let mut types = std::iter::once(node.op_type.as_str()).chain(around);
        self.op_types.as_ref().is_none_or(|allowed| types.any(|op_type| allowed.contains(op_type)))
    }

    /// Leaves the nodes in float that the options exclude, wherever other nodes multiply by the
    /// same constant. These read integers, unless they only look up rows: the floats stay anyway,
    /// and looking up rows is not faster on integers.
    pub(super) fn leave_float<'m>(&self, graph: &Graph<'m>, constants: &mut [Constant<'m>]) {
        for constant in constants {
            let names = constant.names(graph);
            let is_left = |node: &NodeProto| self.left_by(&names, node).is_some();
            let (mut others, mut any) = (0, false);
            for node in constant.multipliers(graph) {
                let left = is_left(node);
                any |= left;
                others += usize::from(!left && node.op_type != "Gather");
            }
            if any {
                constant.leave_float(graph, |reader| others == 0 || is_left(reader.node));
            }
        }
    }

    /// The reason why a node does not read the integers of a constant, if the options say so.
    pub(super) fn left_by(&self, constant: &[&str], node: &NodeProto) -> Option<KeepReason> {
        let excluded = self.excluded(constant, std::iter::once(node));
        let op_type = || KeepReason::OpType { op_type: node.op_type.clone() };
        excluded.or_else(|| (!self.allows(node)).then(op_type))
    }

    /// What to say of `op_types` if the model has no node of any of them.
    pub(super) fn unmet_op_types(&self, graph: &Graph<'_>) -> Option<String> {
        let wanted = self.op_types.as_ref()?;
        let bodies = Subgraphs::of(graph);
        let mut nodes = graph.nodes.iter().copied().chain(bodies.nodes().map(|(_, node)| node));
        if nodes.any(|node| wanted.contains(&node.op_type)) {
            return None;
        }
        let wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
        let found: BTreeSet<&str> = graph
            .nodes
            .iter()
            .filter(|node| ops::rule(node).is_some())
            .map(|node| node.op_type.as_str())
            .collect();
        let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
        Some(format!(
            "op_types allows {}, and the model has no such operator, but {}",
            list(wanted),
            list(found)
        ))
    }

    /// The reason why a constant stays float, if the options exclude it: an entry excludes it or a
    /// node that reads it, or other nodes are included and neither it nor such a node is.
    pub(super) fn excluded<'m>(
        &self,
        constant: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> Option<KeepReason> {
        let mut undecided: Vec<&NodeProto> = readers.collect();
        let itself = self.subject(constant, std::iter::empty());
        for entry in &self.entries {
            let Some(exclude) = entry.exclude else { continue };
            let of_node = |node: &NodeProto| entry.pattern.fits(&self.itself_of(node));
            if entry.pattern.fits(&itself) {
                return exclude.then(|| KeepReason::Excluded { pattern: entry.name.clone() });
            }
            if exclude && undecided.iter().any(|node| of_node(node)) {
                return Some(KeepReason::Excluded { pattern: entry.name.clone() });
            }
            let before = undecided.len();
            undecided.retain(|node| !of_node(node));
            if before > 0 && undecided.is_empty() {
                return None;
            }
        }
        let left = undecided.first().filter(|_| self.others_excluded)?;
        Some(KeepReason::NotIncluded {
            node: if left.name.is_empty() { left.op_type.clone() } else { left.name.clone() },
        })
    }

    /// Whether a node is excluded, by its name or by its type.
    pub(super) fn excludes_node(&self, graph: &Graph<'_>, node: usize) -> bool {
        let subject = self.itself_of(graph.nodes[node]);
        self.first(&subject, |entry| entry.exclude).is_some_and(|(_, _, exclude)| exclude)
    }

    /// Whether a value stays float because an option names it.
    pub(super) fn excludes_value(&self, name: &str) -> bool {
        let subject = Subject { outputs: vec![name], ..self.subject(&[], std::iter::empty()) };
        self.first(&subject, |entry| entry.exclude).is_some_and(|(_, _, exclude)| exclude)
    }

    /// Whether a node is left unchanged: it is excluded, or it is not among the included nodes.
    pub(super) fn leaves_node(&self, graph: &Graph<'_>, node: usize) -> bool {
        if self.excludes_node(graph, node) {
            return true;
        }
        let mut subject = self.itself_of(graph.nodes[node]);
        // The name of a weight also selects the node that reads it.
        let inputs = (0..graph.nodes[node].input.len()).filter_map(|at| graph.input(node, at));
        let constants = inputs.filter(|input| graph.constant_behind(*input).is_some());
        subject.names.extend(constants.map(|constant| graph.values[constant].name));
        let included = |entry: &Entry| entry.exclude.filter(|exclude| !exclude);
        self.others_excluded && self.first(&subject, included).is_none()
    }

    /// Whether a node may be quantized by itself: its type is allowed, and it is not left
    /// unchanged.
    pub(super) fn asks_for(&self, graph: &Graph<'_>, node: usize) -> bool {
        self.allows(graph.nodes[node]) && !self.leaves_node(graph, node)
    }

    /// The type requested for a weight, or for a node that reads it.
    pub(super) fn weight_type<'m>(
        &self,
        weight: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> Option<WeightType> {
        match self.first(&self.subject(weight, readers), |entry| entry.weights)? {
            (.., Width::Type(found)) => Some(found),
            _ => None,
        }
    }

    /// The name of the entry that keeps a weight float, unless an earlier entry gives it a type.
    pub(super) fn float<'m>(
        &self,
        weight: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> Option<String> {
        let (_, entry, asked) =
            self.first(&self.subject(weight, readers), |entry| entry.weights)?;
        (asked == Width::Float).then(|| entry.name.clone())
    }

    /// The configuration for this weight, with the symmetry and granularity that entries set for
    /// it.
    pub(super) fn config_of<'c, 'm>(
        &self,
        config: &'c Config,
        weight: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> Cow<'c, Config> {
        let subject = self.subject(weight, readers);
        let per_channel = self.first(&subject, |entry| entry.per_channel);
        let block_size = self.first(&subject, |entry| entry.block_size);
        let symmetric = self.first(&subject, |entry| entry.symmetric);
        if per_channel.is_none() && block_size.is_none() && symmetric.is_none() {
            return Cow::Borrowed(config);
        }
        Cow::Owned(Config {
            symmetric: symmetric.map(|(_, _, found)| found).or(config.symmetric),
            per_channel: per_channel.map(|(_, _, found)| found).or(config.per_channel),
            block_size: block_size.map(|(_, _, found)| found).or(config.block_size),
            ..config.clone()
        })
    }

    /// Whether an entry sets the granularity of this weight.
    pub(super) fn sets_granularity<'m>(
        &self,
        weight: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> bool {
        let subject = self.subject(weight, readers);
        self.first(&subject, |entry| entry.block_size).is_some()
            || self.first(&subject, |entry| entry.per_channel).is_some()
    }

    /// The entries of `overrides` that decided the type, symmetry or granularity of a value, by the
    /// name of the value.
    pub(super) fn decided(
        &self,
        graph: &Graph<'_>,
        constants: &[Constant<'_>],
    ) -> BTreeMap<String, Vec<String>> {
        let mut decided = BTreeMap::new();
        if !self.entries.iter().any(Entry::is_override) {
            return decided;
        }
        let mut add = |value: &str, entries: Vec<&Entry>| {
            let mut names: Vec<String> =
                entries.iter().filter(|e| e.is_override()).map(|e| e.name.clone()).collect();
            names.dedup();
            if !names.is_empty() {
                decided.insert(value.to_owned(), names);
            }
        };
        for constant in constants {
            let subject = self.subject(&constant.names(graph), constant.multipliers(graph));
            let of_weight = [
                self.first(&subject, |entry| entry.weights.map(|_| ())),
                self.first(&subject, |entry| entry.symmetric.map(|_| ())),
                self.first(&subject, |entry| entry.per_channel.map(|_| ())),
                self.first(&subject, |entry| entry.block_size.map(|_| ())),
            ];
            let of_weight = of_weight.into_iter().flatten().map(|(_, entry, ())| entry);
            add(graph.values[constant.anchor].name, of_weight.collect());
        }
        for value in &graph.values {
            // Entries for the value itself come first, then for its producer, then for its
            // consumers.
            let producer = match value.producer {
                Producer::Node { node, .. } => Some(node),
                _ => None,
            };
            let nodes =
                producer.into_iter().chain(value.consumers.iter().map(|reader| reader.node));
            let found = self.activation(graph, value.name, None);
            let found = found.or_else(|| {
                nodes.into_iter().find_map(|node| self.activation(graph, "", Some(node)))
            });
            if let Some((index, ..)) = found {
                add(value.name, vec![&self.entries[index]]);
            }
        }
        decided
    }
}
