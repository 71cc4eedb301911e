//! Which weights and nodes the caller named.

use std::collections::HashSet;

use globset::{GlobBuilder, GlobMatcher};

use crate::graph::Graph;
use crate::uses::{Constant, Use};
use crate::{Config, QuantizeError, ops};

/// Names and patterns of a configuration, each known to fit something in the model.
pub(super) struct Selection {
    exclude: Vec<Pattern>,
    bits: Vec<(Pattern, u8)>,
    op_types: Option<HashSet<String>>,
}

struct Pattern {
    text: String,
    matcher: Option<GlobMatcher>,
}

impl Selection {
    pub(super) fn of(
        graph: &Graph<'_>,
        constants: &[Constant<'_>],
        config: &Config,
    ) -> Result<Selection, QuantizeError> {
        let named = |wanted: fn(&Use) -> Option<usize>| {
            let mut names = HashSet::new();
            for constant in constants {
                let readers: Vec<usize> = constant.uses.iter().filter_map(wanted).collect();
                if !readers.is_empty() {
                    names.insert(graph.values[constant.anchor].name);
                }
                names.extend(readers.iter().map(|node| graph.nodes[*node].name.as_str()));
            }
            names.remove("");
            names
        };
        let weight = |usage: &Use| match usage {
            Use::Weight { node, .. } => Some(*node),
            _ => None,
        };
        let weight_or_bias = |usage: &Use| match usage {
            Use::Weight { node, .. } | Use::Bias { node } => Some(*node),
            _ => None,
        };
        let weights = Known { names: named(weight), what: "weight, or node that has one," };
        let mut all = Known { names: named(weight_or_bias), what: "weight, bias or node" };
        all.names.extend(graph.nodes.iter().map(|node| node.name.as_str()));
        all.names.remove("");
        let exclude = config
            .exclude
            .iter()
            .map(|text| all.pattern("excluded_layers", text))
            .collect::<Result<_, _>>()?;
        let bits = config
            .layer_bits
            .iter()
            .map(|(text, bits)| Ok((weights.pattern("layer_bits", text)?, *bits)))
            .collect::<Result<_, QuantizeError>>()?;
        let op_types = match &config.op_types {
            None => None,
            Some(op_types) => Some(known_op_types(op_types)?),
        };
        Ok(Selection { exclude, bits, op_types })
    }

    /// Whether operators of this type may be quantized.
    pub(super) fn allows(&self, op_type: &str) -> bool {
        self.op_types.as_ref().is_none_or(|op_types| op_types.contains(op_type))
    }

    /// The pattern that excludes a constant, or a node that reads it.
    pub(super) fn excluded(
        &self,
        graph: &Graph<'_>,
        constant: &str,
        readers: impl Iterator<Item = usize>,
    ) -> Option<String> {
        let names = names(graph, constant, readers);
        let hit = self.exclude.iter().find(|pattern| names.iter().any(|name| pattern.fits(name)));
        hit.map(|pattern| pattern.text.clone())
    }

    /// Whether a node is excluded by its name.
    pub(super) fn excludes_node(&self, graph: &Graph<'_>, node: usize) -> bool {
        let name = &graph.nodes[node].name;
        !name.is_empty() && self.exclude.iter().any(|pattern| pattern.fits(name))
    }

    /// Bits asked for a weight, or for a node that reads it: an exact name goes before a pattern.
    pub(super) fn bits(
        &self,
        graph: &Graph<'_>,
        weight: &str,
        readers: impl Iterator<Item = usize>,
    ) -> Option<u8> {
        let names = names(graph, weight, readers);
        let exact = self.bits.iter().find(|(pattern, _)| names.contains(&pattern.text.as_str()));
        let fits = |pattern: &Pattern| names.iter().any(|name| pattern.fits(name));
        exact.or_else(|| self.bits.iter().find(|(pattern, _)| fits(pattern))).map(|(_, bits)| *bits)
    }
}

/// Refuses operators that no rule speaks of.
fn known_op_types(op_types: &[String]) -> Result<HashSet<String>, QuantizeError> {
    let names = ops::ALL.iter().flat_map(|family| family.iter()).map(|rule| rule.op_type).collect();
    let known = Known { names, what: "operator that can be quantized" };
    for op_type in op_types {
        if !known.names.contains(op_type.as_str()) {
            let hint = known.hint(op_type);
            let what = format!("names `{op_type}`, which is no {}{hint}", known.what);
            return Err(QuantizeError::option("op_types", what));
        }
    }
    Ok(op_types.iter().cloned().collect())
}

/// The name of a constant and those of the nodes that read it.
fn names<'m>(
    graph: &Graph<'m>,
    constant: &'m str,
    readers: impl Iterator<Item = usize>,
) -> Vec<&'m str> {
    let readers =
        readers.map(|node| graph.nodes[node].name.as_str()).filter(|name| !name.is_empty());
    std::iter::once(constant).chain(readers).collect()
}

impl Pattern {
    fn fits(&self, name: &str) -> bool {
        self.text == name || self.matcher.as_ref().is_some_and(|matcher| matcher.is_match(name))
    }
}

/// Names that a caller can mean.
struct Known<'m> {
    names: HashSet<&'m str>,
    what: &'static str,
}

impl Known<'_> {
    fn pattern(&self, option: &str, text: &str) -> Result<Pattern, QuantizeError> {
        if self.names.contains(text) {
            return Ok(Pattern { text: text.to_owned(), matcher: None });
        }
        let refused = |what: String| Err(QuantizeError::option(option, what));
        if text.contains(['*', '?', '[']) {
            let glob = match GlobBuilder::new(text).literal_separator(false).build() {
                Ok(glob) => glob,
                Err(error) => {
                    return refused(format!("has the pattern `{text}`: {}", error.kind()));
                }
            };
            let matcher = glob.compile_matcher();
            if self.names.iter().any(|name| matcher.is_match(name)) {
                return Ok(Pattern { text: text.to_owned(), matcher: Some(matcher) });
            }
            return refused(format!("has the pattern `{text}`, which fits no {}", self.what));
        }
        let hint = self.hint(text);
        refused(format!("names `{text}`, which is no {} of the model{hint}", self.what))
    }

    /// What may have been meant, as the end of a message.
    fn hint(&self, text: &str) -> String {
        let near = self.near(text);
        if near.is_empty() { String::new() } else { format!("; did you mean {near}?") }
    }

    /// Up to three names like this one.
    fn near(&self, text: &str) -> String {
        let mut scored: Vec<(f64, &str)> =
            self.names.iter().map(|name| (strsim::jaro_winkler(text, name), *name)).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        let near: Vec<String> = scored
            .iter()
            .take_while(|(score, _)| *score > 0.7)
            .take(3)
            .map(|(_, name)| format!("`{name}`"))
            .collect();
        near.join(", ")
    }
}
