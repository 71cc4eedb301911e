//! Which weights and nodes the caller named.

use std::collections::HashSet;

use quantize_rs_math::QType;
use quantize_rs_onnx::NodeProto;

use super::KeepReason;
use super::pattern::{Known, Pattern, Subject};
use crate::graph::Graph;
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::uses::{Constant, Use};
use crate::options::config;
use crate::{Config, QuantizeError, WeightType};

/// Names and patterns of a configuration, each known to fit something in the model.
pub(super) struct Selection {
    exclude: Vec<Pattern>,
    /// All else is excluded, where there is a list.
    include: Option<Vec<Pattern>>,
    /// Types for some weights, none for those that stay float; narrower patterns first.
    types: Vec<(Pattern, Option<WeightType>)>,
    /// Types for some activations; narrower patterns first.
    activations: Vec<(Pattern, QType)>,
    op_types: Option<HashSet<String>>,
}

impl Selection {
    pub(super) fn of(
        graph: &Graph<'_>,
        constants: &[Constant<'_>],
        config: &Config,
    ) -> Result<Selection, QuantizeError> {
        let Names { weights, all, .. } = Names::of(graph, constants);
        let patterns = |option, texts: &[String]| {
            texts.iter().map(|text| all.pattern(option, text)).collect::<Result<_, _>>()
        };
        let exclude = patterns("excluded_layers", &config.exclude)?;
        let include = match &config.include {
            None => None,
            Some(texts) => Some(patterns("included_layers", texts)?),
        };
        let op_types = match &config.op_types {
            None => None,
            Some(op_types) => Some(known_op_types(op_types)?),
        };
        let activations = activations(graph, config)?;
        let types = types(&weights, config)?;
        Ok(Selection { exclude, include, types, activations, op_types })
    }

    /// Whether anything was asked for some activations alone.
    pub(super) fn asks_activations(&self) -> bool {
        !self.activations.is_empty()
    }

    /// The narrowest wish for a value, or for a node, of what type activations are to be: its
    /// position, its breadth, the type.
    pub(super) fn activation(
        &self,
        graph: &Graph<'_>,
        value: &str,
        node: Option<usize>,
    ) -> Option<(usize, usize, QType)> {
        let subject = subject(&[value], node.map(|node| graph.nodes[node]).into_iter());
        let wish = self.activations.iter().position(|(pattern, _)| pattern.fits(&subject))?;
        let (pattern, qtype) = &self.activations[wish];
        Some((wish, pattern.breadth(), *qtype))
    }

    /// What was written in the wishes that are not among those `met`.
    pub(super) fn unmet(&self, met: &[usize]) -> Vec<&str> {
        let wishes = self.activations.iter().enumerate();
        let unmet = wishes.filter(|(wish, _)| !met.contains(wish));
        unmet.map(|(_, (pattern, _))| pattern.text()).collect()
    }

    /// Whether operators of this type may be quantized.
    pub(super) fn allows(&self, op_type: &str) -> bool {
        self.op_types.as_ref().is_none_or(|op_types| op_types.contains(op_type))
    }

    /// Why a constant stays as it is by the caller's wish: it, or a node that reads it, is excluded, or neither it nor
    /// such a node is included.
    pub(super) fn excluded<'m>(
        &self,
        constant: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> Option<KeepReason> {
        let readers: Vec<&NodeProto> = readers.collect();
        let all = subject(constant, readers.iter().copied());
        let hit = self.exclude.iter().find(|pattern| pattern.fits(&all));
        if let Some(pattern) = hit {
            return Some(KeepReason::Excluded { pattern: pattern.text().to_owned() });
        }
        if self.includes(&subject(constant, std::iter::empty())) {
            return None;
        }
        let is_left = |node: &&NodeProto| !self.includes(&subject(&[], std::iter::once(*node)));
        let left = readers.into_iter().find(is_left);
        left.map(|node| KeepReason::NotIncluded {
            node: if node.name.is_empty() { node.op_type.clone() } else { node.name.clone() },
        })
    }

    fn includes(&self, subject: &Subject<'_>) -> bool {
        self.include
            .as_ref()
            .is_none_or(|include| include.iter().any(|pattern| pattern.fits(subject)))
    }

    /// Whether a node is excluded, by its name or by its type.
    pub(super) fn excludes_node(&self, graph: &Graph<'_>, node: usize) -> bool {
        let subject = subject(&[], std::iter::once(graph.nodes[node]));
        self.exclude.iter().any(|pattern| pattern.fits(&subject))
    }

    /// Whether a node is to stay as it is: it is excluded, or not among those included.
    pub(super) fn leaves_node(&self, graph: &Graph<'_>, node: usize) -> bool {
        let mut subject = subject(&[], std::iter::once(graph.nodes[node]));
        // Who names a weight means the operator that it is of.
        let inputs = (0..graph.nodes[node].input.len()).filter_map(|at| graph.input(node, at));
        let constants = inputs.filter(|input| graph.constant_behind(*input).is_some());
        subject.names.extend(constants.map(|constant| graph.values[constant].name));
        self.excludes_node(graph, node) || !self.includes(&subject)
    }

    /// Whether a node may be quantized for its own sake: its type is allowed, and it is not to stay as it is.
    pub(super) fn asks_for(&self, graph: &Graph<'_>, node: usize) -> bool {
        self.allows(&graph.nodes[node].op_type) && !self.leaves_node(graph, node)
    }

    /// The type asked for a weight, or for a node that reads it.
    pub(super) fn weight_type<'m>(
        &self,
        weight: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> Option<WeightType> {
        let subject = subject(weight, readers);
        self.types.iter().find(|(pattern, _)| pattern.fits(&subject))?.1
    }

    /// The wish that a weight stays float, where no narrower one gives it a type.
    pub(super) fn float<'m>(
        &self,
        weight: &[&'m str],
        readers: impl Iterator<Item = &'m NodeProto>,
    ) -> Option<String> {
        let subject = subject(weight, readers);
        let (pattern, asked) = self.types.iter().find(|(pattern, _)| pattern.fits(&subject))?;
        asked.is_none().then(|| pattern.text().to_owned())
    }
}

/// Types for some weights, by what was written under `layer_bits`, `layer_types` and `layer_float`.
fn types(
    weights: &Known<'_>,
    config: &Config,
) -> Result<Vec<(Pattern, Option<WeightType>)>, QuantizeError> {
    let mut types = Vec::new();
    for (text, bits) in &config.layer_bits {
        let qtype = config::signed("layer_bits", *bits)?;
        types.push((weights.pattern("layer_bits", text)?, Some(qtype.into())));
    }
    for (text, found) in &config.layer_types {
        types.push((weights.pattern("layer_types", text)?, Some(*found)));
    }
    for text in &config.layer_float {
        types.push((weights.pattern("layer_bits", text)?, None));
    }
    types.sort_by_key(|(pattern, _)| pattern.breadth());
    Ok(types)
}

/// Types for some activations.
fn activations(graph: &Graph<'_>, config: &Config) -> Result<Vec<(Pattern, QType)>, QuantizeError> {
    if config.activation_types.is_empty() {
        return Ok(Vec::new());
    }
    let known = values(graph);
    let wishes = config.activation_types.iter();
    let mut types: Vec<(Pattern, QType)> = wishes
        .map(|(text, qtype)| Ok((known.pattern("activation_types", text)?, *qtype)))
        .collect::<Result<_, QuantizeError>>()?;
    types.sort_by_key(|(pattern, _)| pattern.breadth());
    Ok(types)
}

/// What callers can mean, by the wish.
struct Names<'m> {
    /// Weights, and nodes that have one.
    weights: Known<'m>,
    /// Constants and nodes.
    all: Known<'m>,
    /// Values and nodes.
    values: Known<'m>,
}

impl<'m> Names<'m> {
    fn of(graph: &Graph<'m>, constants: &[Constant<'m>]) -> Names<'m> {
        let weights = known(graph, constants, false, "weight, or node that has one,");
        let mut all = known(graph, constants, true, "weight, bias or node");
        all.names.extend(graph.nodes.iter().map(|node| node.name.as_str()));
        all.names.remove("");
        all.op_types.extend(graph.nodes.iter().map(|node| node.op_type.as_str()));
        Names { weights, all, values: values(graph) }
    }
}

fn values<'m>(graph: &Graph<'m>) -> Known<'m> {
    let values = graph.values.iter().map(|value| value.name);
    let mut known = Known {
        names: values.chain(graph.nodes.iter().map(|node| node.name.as_str())).collect(),
        op_types: graph.nodes.iter().map(|node| node.op_type.as_str()).collect(),
        what: "value or node",
    };
    known.names.remove("");
    known
}

/// The wishes that can be met in the graph `after` preparation, and what to say of those that speak
/// of something it took out.
pub(crate) fn names_removed_by_passes(
    before: &Graph<'_>,
    after: &Graph<'_>,
    mut config: Config,
) -> (Config, Vec<String>) {
    let (then, now) = (uses::constants(before), uses::constants(after));
    let (then, now) = (Names::of(before, &then), Names::of(after, &now));
    let mut gone = Vec::new();
    let mut stays = |option: &str, text: &String, then: &Known<'_>, now: &Known<'_>| {
        let is_gone = now.pattern(option, text).is_err() && then.pattern(option, text).is_ok();
        if is_gone {
            gone.push(format!(
                "{option} names `{text}`, which was folded away before planning; the option \
                 optimize leaves the model as it is"
            ));
        }
        !is_gone
    };
    config.exclude.retain(|text| stays("excluded_layers", text, &then.all, &now.all));
    if let Some(include) = &mut config.include {
        include.retain(|text| stays("included_layers", text, &then.all, &now.all));
    }
    let mut of_weight = |text: &String| stays("layer_bits", text, &then.weights, &now.weights);
    config.layer_bits.retain(|text, _| of_weight(text));
    config.layer_types.retain(|text, _| of_weight(text));
    config.layer_float.retain(|text| of_weight(text));
    config
        .activation_types
        .retain(|text, _| stays("activation_types", text, &then.values, &now.values));
    (config, gone)
}

/// Names of weights, and with them of biases if asked for, and of the nodes that they belong to.
fn known<'m>(
    graph: &Graph<'m>,
    constants: &[Constant<'m>],
    biases: bool,
    what: &'static str,
) -> Known<'m> {
    let (mut names, mut op_types) = (HashSet::new(), HashSet::new());
    for constant in constants {
        let added = constant.uses.iter().filter_map(|usage| match usage {
            Use::Bias { node } if biases => Some(graph.nodes[*node]),
            _ => None,
        });
        let readers: Vec<&NodeProto> = constant.multipliers(graph).chain(added).collect();
        if !readers.is_empty() {
            names.extend(constant.names(graph));
        }
        names.extend(readers.iter().map(|node| node.name.as_str()));
        op_types.extend(readers.iter().map(|node| node.op_type.as_str()));
    }
    names.remove("");
    Known { names, op_types, what }
}

/// Refuses operators that no rule speaks of.
fn known_op_types(op_types: &[String]) -> Result<HashSet<String>, QuantizeError> {
    let rules = ops::ALL.iter().flat_map(|family| family.iter());
    let known = Known {
        names: HashSet::new(),
        op_types: rules.map(|rule| rule.op_type).collect(),
        what: "operator that can be quantized",
    };
    for op_type in op_types {
        if !known.op_types.contains(op_type.as_str()) {
            let hint = known.hint(op_type);
            let what = format!("names `{op_type}`, which is no {}{hint}", known.what);
            return Err(QuantizeError::option("op_types", what));
        }
    }
    Ok(op_types.iter().cloned().collect())
}

/// A constant, by all its names, with the nodes that read it.
fn subject<'m>(constant: &[&'m str], readers: impl Iterator<Item = &'m NodeProto>) -> Subject<'m> {
    let mut subject = Subject { names: constant.to_vec(), op_types: Vec::new() };
    for reader in readers {
        subject.names.push(&reader.name);
        subject.op_types.push(&reader.op_type);
    }
    subject.names.retain(|name| !name.is_empty());
    subject
}
