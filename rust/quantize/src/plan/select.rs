//! Which weights and nodes the caller named.

use std::collections::HashSet;

use globset::{GlobBuilder, GlobMatcher};

use crate::graph::Graph;
use crate::uses;
use crate::{Config, QuantizeError};

/// Names and patterns of a configuration, each known to fit something in the model.
pub(super) struct Selection {
    exclude: Vec<Pattern>,
    bits: Vec<(Pattern, u8)>,
}

struct Pattern {
    text: String,
    matcher: Option<GlobMatcher>,
}

impl Selection {
    pub(super) fn of(graph: &Graph<'_>, config: &Config) -> Result<Selection, QuantizeError> {
        let known = Known::of(graph, config);
        let parse = |option, text: &String| known.pattern(option, text);
        let exclude = config
            .exclude
            .iter()
            .map(|text| parse("excluded_layers", text))
            .collect::<Result<_, _>>()?;
        let bits = config
            .layer_bits
            .iter()
            .map(|(text, bits)| Ok((parse("layer_bits", text)?, *bits)))
            .collect::<Result<_, QuantizeError>>()?;
        Ok(Selection { exclude, bits })
    }

    /// The pattern that excludes a weight, or a node that reads it.
    pub(super) fn excluded(
        &self,
        graph: &Graph<'_>,
        weight: &str,
        readers: impl Iterator<Item = usize>,
    ) -> Option<String> {
        let names: Vec<&str> = std::iter::once(weight)
            .chain(readers.map(|node| graph.nodes[node].name.as_str()))
            .collect();
        let hit = self.exclude.iter().find(|pattern| names.iter().any(|name| pattern.fits(name)));
        hit.map(|pattern| pattern.text.clone())
    }

    /// Bits asked for a weight: an exact name goes before a pattern.
    pub(super) fn bits(&self, weight: &str) -> Option<u8> {
        let exact = self.bits.iter().find(|(pattern, _)| pattern.text == weight);
        exact
            .or_else(|| self.bits.iter().find(|(pattern, _)| pattern.fits(weight)))
            .map(|(_, bits)| *bits)
    }
}

impl Pattern {
    fn fits(&self, name: &str) -> bool {
        self.text == name || self.matcher.as_ref().is_some_and(|matcher| matcher.is_match(name))
    }
}

/// Names that a caller can mean.
struct Known<'m> {
    names: HashSet<&'m str>,
}

impl<'m> Known<'m> {
    fn of(graph: &Graph<'m>, config: &Config) -> Known<'m> {
        let mut names = HashSet::new();
        // Only gathered when somebody asks.
        if !(config.exclude.is_empty() && config.layer_bits.is_empty()) {
            let anchors = uses::constants(graph);
            names.extend(anchors.iter().map(|constant| graph.values[constant.anchor].name));
            names.extend(
                graph.nodes.iter().map(|node| node.name.as_str()).filter(|name| !name.is_empty()),
            );
        }
        Known { names }
    }

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
            return refused(format!("has the pattern `{text}`, which fits no weight or node"));
        }
        let near = self.near(text);
        let hint = if near.is_empty() { String::new() } else { format!("; did you mean {near}?") };
        refused(format!("names `{text}`, which is no weight or node of the model{hint}"))
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
