//! A file of YAML or TOML as values with line numbers.

use std::path::Path;

use serde_json::Value;

use super::{toml, yaml};

/// The languages that files may be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Yaml,
    Toml,
}

impl Language {
    /// The language of a file, by its extension.
    pub(crate) fn of(path: &Path) -> Result<Language, String> {
        let extension =
            path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("yaml" | "yml") => Ok(Language::Yaml),
            Some("toml") => Ok(Language::Toml),
            _ => Err(format!("`{}` does not end in .yaml, .yml or .toml", path.display())),
        }
    }
}

/// A value and its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) line: usize,
}

/// A value. Numbers are kept as text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Nothing,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<At<Node>>),
    Map(Vec<(At<String>, At<Node>)>),
}

impl Node {
    /// The value as JSON.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Node::Nothing => Value::Null,
            Node::Bool(on) => Value::Bool(*on),
            Node::Number(text) => {
                serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()))
            }
            Node::Text(text) => Value::from(text.as_str()),
            Node::List(items) => items.iter().map(|item| item.value.to_json()).collect(),
            Node::Map(entries) => entries
                .iter()
                .map(|(name, value)| (name.value.clone(), value.value.to_json()))
                .collect(),
        }
    }
}

/// An error in a file, and its line.
#[derive(Debug, PartialEq)]
pub(super) struct Wrong {
    pub(super) line: Option<usize>,
    pub(super) what: String,
}

impl Wrong {
    pub(super) fn at(line: usize, what: impl Into<String>) -> Wrong {
        Wrong { line: Some(line), what: what.into() }
    }
}

/// The values in the text of a file.
pub(super) fn read(text: &str, language: Language) -> Result<At<Node>, Wrong> {
    let node = match language {
        Language::Yaml => yaml::read(text)?,
        Language::Toml => toml::read(text)?,
    };
    once(&node)?;
    Ok(node)
}

/// Rejects keys that occur twice in one map.
fn once(node: &At<Node>) -> Result<(), Wrong> {
    match &node.value {
        Node::List(items) => items.iter().try_for_each(once),
        Node::Map(entries) => {
            for (at, (key, value)) in entries.iter().enumerate() {
                if entries[..at].iter().any(|(other, _)| other.value == key.value) {
                    return Err(Wrong::at(key.line, format!("`{}` stands there twice", key.value)));
                }
                once(value)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(node: &At<Node>) -> String {
        match &node.value {
            Node::Nothing => format!("-@{}", node.line),
            Node::Bool(value) => format!("{value}@{}", node.line),
            Node::Number(text) => format!("{text}@{}", node.line),
            Node::Text(text) => format!("{text:?}@{}", node.line),
            Node::List(items) => {
                format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(" "))
            }
            Node::Map(entries) => {
                let entry = |(key, value): &(At<String>, At<Node>)| {
                    format!("{}@{} {}", key.value, key.line, shown(value))
                };
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
            }
        }
    }

    #[test]
    fn both_languages_say_the_same_and_on_which_line() {
        let yaml = "bits: 8\nper_channel: true\nnames: [a, \"b c\"]\nmodels:\n  - input: \
                    x.onnx\n    scale: 0.5\nbatch:\n  jobs: 2\n";
        let toml = "bits = 8\nper_channel = true\nnames = [\"a\", \"b c\"]\n[[models]]\ninput = \
                    \"x.onnx\"\nscale = 0.5\n[batch]\njobs = 2\n";
        let expected = "{bits@1 8@1, per_channel@2 true@2, names@3 [\"a\"@3 \"b c\"@3], \
                        models@4 [{input@5 \"x.onnx\"@5, scale@6 0.5@6}], batch@7 {jobs@8 2@8}}";
        assert_eq!(shown(&read(yaml, Language::Yaml).expect("YAML")), expected);
        assert_eq!(shown(&read(toml, Language::Toml).expect("TOML")), expected);
    }

    #[test]
    fn what_is_not_well_formed_says_where() {
        for (text, language) in [
            ("bits: 8\nmodels: [", Language::Yaml),
            ("bits = 8\nmodels = [", Language::Toml),
            ("a: 1\na: 2", Language::Yaml),
            ("a = 1\na = 2", Language::Toml),
        ] {
            let wrong = read(text, language).expect_err(text);
            assert_eq!(wrong.line, Some(2), "{wrong:?}");
        }
    }
}
