//! What selectors of options can match in a model: names and operator types, and the nodes around
//! those of subgraphs.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::NodeProto;

use super::pattern::Known;
use crate::graph::Graph;
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::uses::{Constant, Subgraphs, Use};
use crate::{Config, QuantizeError};

/// The names and operator types of the nodes around each node of a subgraph, by its address.
pub(super) struct Owners(HashMap<usize, Vec<(String, String)>>);

impl Owners {
    pub(super) fn of(graph: &Graph<'_>) -> Owners {
        let bodies = Subgraphs::of(graph);
        let around = |body: usize| {
            let owners = bodies.owners(body);
            owners.map(|owner| (owner.name.clone(), owner.op_type.clone())).collect()
        };
        let nodes = bodies.nodes().filter(|(_, node)| ops::rule(node).is_some());
        Owners(nodes.map(|(body, node)| (address(node), around(body))).collect())
    }

    pub(super) fn around(&self, node: &NodeProto) -> impl Iterator<Item = (&str, &str)> {
        let owners = self.0.get(&address(node)).into_iter().flatten();
        owners.map(|(name, op_type)| (name.as_str(), op_type.as_str()))
    }
}

fn address(node: &NodeProto) -> usize {
    std::ptr::from_ref(node).addr()
}

/// The names that selectors can match, by kind of option. They are collected on first use: most
/// calls name nothing.
pub(super) struct Names<'a, 'm> {
    graph: &'a Graph<'m>,
    constants: &'a [Constant<'m>],
    owners: &'a Owners,
    weights: OnceCell<Known<'a>>,
    all: OnceCell<Known<'a>>,
    values: OnceCell<Known<'a>>,
    anything: OnceCell<Known<'a>>,
}

impl<'a, 'm> Names<'a, 'm> {
    pub(super) fn of(
        graph: &'a Graph<'m>,
        constants: &'a [Constant<'m>],
        owners: &'a Owners,
    ) -> Names<'a, 'm> {
        let (weights, all) = (OnceCell::new(), OnceCell::new());
        let (values, anything) = (OnceCell::new(), OnceCell::new());
        Names { graph, constants, owners, weights, all, values, anything }
    }

    /// Weights, and nodes with a weight.
    pub(super) fn weights(&self) -> &Known<'a> {
        let what = "weight, or node that has one,";
        self.weights.get_or_init(|| known(self.graph, self.constants, self.owners, false, what))
    }

    /// Constants and nodes.
    pub(super) fn all(&self) -> &Known<'a> {
        self.all.get_or_init(|| {
            let nodes = &self.graph.nodes;
            let what = "weight, bias or node";
            let mut all = known(self.graph, self.constants, self.owners, true, what);
            all.names.extend(nodes.iter().map(|node| node.name.as_str()));
            all.names.remove("");
            let outputs = nodes.iter().flat_map(|node| node.output.iter().map(String::as_str));
            all.outputs = outputs.filter(|name| !name.is_empty()).collect();
            all.op_types.extend(nodes.iter().map(|node| node.op_type.as_str()));
            all
        })
    }

    /// Values and nodes.
    pub(super) fn values(&self) -> &Known<'a> {
        self.values.get_or_init(|| values(self.graph))
    }

    /// All of these.
    pub(super) fn anything(&self) -> &Known<'a> {
        self.anything.get_or_init(|| Known {
            names: self.all().names.union(&self.values().names).copied().collect(),
            op_types: self.all().op_types.clone(),
            ..Known::of("weight, value or node")
        })
    }
}

fn values<'m>(graph: &Graph<'m>) -> Known<'m> {
    let values = graph.values.iter().map(|value| value.name);
    let mut known = Known {
        names: values.chain(graph.nodes.iter().map(|node| node.name.as_str())).collect(),
        op_types: graph.nodes.iter().map(|node| node.op_type.as_str()).collect(),
        ..Known::of("value or node")
    };
    known.names.remove("");
    known
}

/// The options that apply to the graph after the passes, and warnings about options that name
/// something that the passes removed.
pub(crate) fn names_removed_by_passes(
    before: &Graph<'_>,
    after: &Graph<'_>,
    mut config: Config,
) -> (Config, Vec<String>) {
    let (then, now) = (uses::constants(before), uses::constants(after));
    let (owners, still) = (Owners::of(before), Owners::of(after));
    let (then, now) = (Names::of(before, &then, &owners), Names::of(after, &now, &still));
    let mut gone = Vec::new();
    let mut stays = |option: &str, text: &String, then: &Known<'_>, now: &Known<'_>| {
        let is_gone = now.pattern(option, text).is_err() && then.pattern(option, text).is_ok();
        if is_gone {
            gone.push(format!(
                "{option} names `{text}`, which was folded away before planning; passes=False \
                 leaves the model as it is"
            ));
        }
        !is_gone
    };
    config.exclude.retain(|text| stays("exclude", text, then.all(), now.all()));
    if let Some(include) = &mut config.include {
        include.retain(|text| stays("include", text, then.all(), now.all()));
    }
    let mut of_weight = |text: &String| stays("layer_bits", text, then.weights(), now.weights());
    config.layer_bits.retain(|text, _| of_weight(text));
    config.layer_types.retain(|text, _| of_weight(text));
    config.layer_float.retain(|text| of_weight(text));
    config
        .activation_types
        .retain(|text, _| stays("activation_types", text, then.values(), now.values()));
    for op_type in config.op_types.iter().flatten() {
        let of = |names: &Names<'_, '_>| names.all().op_types.contains(op_type.as_str());
        if of(&then) && !of(&now) {
            gone.push(format!(
                "op_types names `{op_type}`, which was folded away before planning; passes=False \
                 leaves the model as it is"
            ));
        }
    }
    config.overrides.retain(|entry| {
        let known =
            |names: &Names<'_, '_>| names.anything().matching("overrides", &entry.matches).is_ok();
        let is_gone = known(&then) && !known(&now);
        if is_gone {
            let text = entry.matches.text().unwrap_or_default();
            gone.push(format!(
                "overrides names `{text}`, which was folded away before planning; passes=False \
                 leaves the model as it is"
            ));
        }
        !is_gone
    });
    (config, gone)
}

/// Names of weights (and of biases if `biases` is true), and of the nodes that use them.
fn known<'m>(
    graph: &Graph<'m>,
    constants: &[Constant<'m>],
    owners: &'m Owners,
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
        for (name, op_type) in readers.iter().flat_map(|node| owners.around(node)) {
            names.insert(name);
            op_types.insert(op_type);
        }
    }
    names.remove("");
    Known { names, op_types, ..Known::of(what) }
}

/// Operators that stand for the nodes of their subgraphs.
const WITH_BODIES: [&str; 3] = ["If", "Loop", "Scan"];

/// The operator types that [`Config::op_types`] may name.
///
/// ```
/// assert!(quantize_rs::quantizable_op_types().any(|op_type| op_type == "Conv"));
/// ```
pub fn quantizable_op_types() -> impl Iterator<Item = &'static str> {
    ops::op_types().chain(WITH_BODIES)
}

/// Rejects operators without a rule.
pub(super) fn known_op_types(op_types: &[String]) -> Result<HashSet<String>, QuantizeError> {
    let known = Known {
        op_types: quantizable_op_types().collect(),
        ..Known::of("operator that can be quantized")
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
