//! Selectors of weights and nodes in options: a name, a pattern of names, or an operator type.

use std::collections::HashSet;

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;

use crate::QuantizeError;
use crate::options::Match;

/// A selector that matches something in the model.
pub(super) struct Pattern {
    text: String,
    kind: Kind,
}

enum Kind {
    Name,
    Glob(GlobMatcher),
    Regex(Regex),
    OpType,
}

/// The weight or node to match, with its names and operator types.
pub(super) struct Subject<'m> {
    pub(super) names: Vec<&'m str>,
    /// Outputs of the node, which select it too, but not by a pattern.
    pub(super) outputs: Vec<&'m str>,
    pub(super) op_types: Vec<&'m str>,
}

impl Pattern {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn fits(&self, subject: &Subject<'_>) -> bool {
        let any = |fits: &dyn Fn(&str) -> bool| subject.names.iter().any(|name| fits(name));
        match &self.kind {
            Kind::Name => {
                any(&|name| name == self.text) || subject.outputs.contains(&self.text.as_str())
            }
            Kind::Glob(matcher) => any(&|name| matcher.is_match(name)),
            Kind::Regex(regex) => any(&|name| regex.is_match(name)),
            Kind::OpType => subject.op_types.contains(&self.text.as_str()),
        }
    }

    /// The order of precedence: a name takes precedence over a pattern, and a pattern over an
    /// operator type.
    pub(super) fn breadth(&self) -> usize {
        match self.kind {
            Kind::Name => 0,
            Kind::Glob(_) | Kind::Regex(_) => 1,
            Kind::OpType => 2,
        }
    }
}

/// The names and operator types that a selector can match.
pub(super) struct Known<'m> {
    pub(super) names: HashSet<&'m str>,
    /// Outputs of nodes, each of which stands for its node.
    pub(super) outputs: HashSet<&'m str>,
    pub(super) op_types: HashSet<&'m str>,
    pub(super) what: &'static str,
}

/// The prefix of a regular expression.
const REGEX: &str = "re:";

impl<'m> Known<'m> {
    /// No names yet.
    pub(super) fn of(what: &'static str) -> Known<'m> {
        let (names, outputs, op_types) = (HashSet::new(), HashSet::new(), HashSet::new());
        Known { names, outputs, op_types, what }
    }

    /// The selector that `text` stands for: a name, if there is such a name.
    pub(super) fn pattern(&self, option: &str, text: &str) -> Result<Pattern, QuantizeError> {
        let refused = |what: String| QuantizeError::option(option, what);
        let kind = if self.names.contains(text) || self.outputs.contains(text) {
            Kind::Name
        } else if let Some(pattern) = self.pattern_of_names(option, text)? {
            return Ok(pattern);
        } else if self.op_types.contains(text) {
            Kind::OpType
        } else {
            let hint = self.several(option, text).unwrap_or_else(|| self.hint(text));
            return Err(refused(format!(
                "names `{text}`, which is no {} of the model{hint}",
                self.what
            )));
        };
        Ok(Pattern { text: text.to_owned(), kind })
    }

    /// The pattern of names that `text` stands for; `None` if it is not a pattern.
    fn pattern_of_names(&self, option: &str, text: &str) -> Result<Option<Pattern>, QuantizeError> {
        let refused = |what: String| QuantizeError::option(option, what);
        let kind = if let Some(regex) = text.strip_prefix(REGEX) {
            // As for the other patterns, the whole name must match.
            let regex = Regex::new(&format!("^(?:{regex})$")).map_err(|_| {
                refused(format!("has the pattern `{text}`, which is no regular expression"))
            })?;
            self.used(|name| regex.is_match(name), text).map_err(refused)?;
            Kind::Regex(regex)
        } else if text.contains(['*', '?', '[']) {
            let glob = GlobBuilder::new(text)
                .literal_separator(false)
                .build()
                .map_err(|error| refused(format!("has the pattern `{text}`: {}", error.kind())))?;
            let matcher = glob.compile_matcher();
            self.used(|name| matcher.is_match(name), text).map_err(refused)?;
            Kind::Glob(matcher)
        } else {
            return Ok(None);
        };
        Ok(Some(Pattern { text: text.to_owned(), kind }))
    }

    /// The selector of an entry of `option`.
    pub(super) fn matching(&self, option: &str, matches: &Match) -> Result<Pattern, QuantizeError> {
        let refused = |what: String| QuantizeError::option(option, what);
        let unknown = |text: &str| {
            let hint = self.hint(text);
            refused(format!("names `{text}`, which is no {} of the model{hint}", self.what))
        };
        match matches {
            Match { name: Some(name), pattern: None, op_type: None } => {
                let known = [&self.names, &self.outputs];
                if !known.iter().any(|names| names.contains(name.as_str())) {
                    return Err(unknown(name));
                }
                Ok(Pattern { text: name.clone(), kind: Kind::Name })
            }
            Match { name: None, pattern: Some(pattern), op_type: None } => {
                self.pattern_of_names(option, pattern)?.ok_or_else(|| {
                    refused(format!(
                        "has the pattern `{pattern}`, expected one with *, ? or [, or with re: \
                         before it"
                    ))
                })
            }
            Match { name: None, pattern: None, op_type: Some(op_type) } => {
                if !self.op_types.contains(op_type.as_str()) {
                    return Err(unknown(op_type));
                }
                Ok(Pattern { text: op_type.clone(), kind: Kind::OpType })
            }
            _ => Err(refused("needs a match with one of name, pattern and op_type".to_owned())),
        }
    }

    fn used(&self, fits: impl Fn(&str) -> bool, text: &str) -> Result<(), String> {
        // All names are meant by `*`, also those that appear when functions are inlined.
        if text == "*" || self.names.iter().any(|name| fits(name)) {
            return Ok(());
        }
        Err(format!("has the pattern `{text}`, which fits no {}", self.what))
    }

    /// A hint that several names stand in a list; `None` where commas separate none.
    fn several(&self, option: &str, text: &str) -> Option<String> {
        let all = [&self.names, &self.outputs, &self.op_types];
        let is_known = |name: &&str| all.iter().any(|known| known.contains(name));
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let is_list = ["exclude", "include"].contains(&option);
        (is_list && names.len() > 1 && names.iter().any(is_known))
            .then(|| format!("; names may hold commas, give each on its own: {option}={names:?}"))
    }

    /// A hint with similar names, as the end of a message.
    pub(super) fn hint(&self, text: &str) -> String {
        let all = self.names.iter().chain(&self.op_types);
        let mut scored: Vec<(f64, &str)> =
            all.map(|name| (strsim::jaro_winkler(text, name), *name)).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        let near: Vec<String> = scored
            .iter()
            .take_while(|(score, _)| *score > 0.7)
            .take(3)
            .map(|(_, name)| format!("`{name}`"))
            .collect();
        if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) }
    }
}
