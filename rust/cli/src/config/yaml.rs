//! Files of YAML: one document of maps, lists and plain values. Anchors and tags are not supported.

use granit_parser::{Event, Parser, ScalarStyle};

use super::node::{At, Node, Wrong};

/// A list or a map that is not complete.
struct Open {
    line: usize,
    kind: Kind,
}

enum Kind {
    List(Vec<At<Node>>),
    /// The entries, and the key whose value has not been read yet.
    Map(Vec<(At<String>, At<Node>)>, Option<At<String>>),
}

pub(super) fn read(text: &str) -> Result<At<Node>, Wrong> {
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event
            .map_err(|error| Wrong { line: Some(error.marker().line()), what: error.info() })?;
        let line = span.start.line();
        let node = match event {
            Event::Scalar(text, style, ..) => scalar(&text, style),
            Event::SequenceStart(..) => {
                open.push(Open { line, kind: Kind::List(Vec::new()) });
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open { line, kind: Kind::Map(Vec::new(), None) });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                None => continue,
                Some(Open { line, kind }) => {
                    let node = match kind {
                        Kind::List(items) => Node::List(items),
                        Kind::Map(entries, _) => Node::Map(entries),
                    };
                    put(At { value: node, line }, &mut open, &mut root)?;
                    continue;
                }
            },
            Event::Alias(..) => return Err(Wrong::at(line, "an alias, expected a value itself")),
            Event::DocumentStart(..) if root.is_some() => {
                return Err(Wrong::at(line, "a second document, expected one"));
            }
            _ => continue,
        };
        put(At { value: node, line }, &mut open, &mut root)?;
    }
    Ok(root.unwrap_or(At { value: Node::Map(Vec::new()), line: 1 }))
}

/// Adds a value to the innermost open node: at the end of a list, as the value of a key, or as a
/// key.
fn put(node: At<Node>, open: &mut [Open], root: &mut Option<At<Node>>) -> Result<(), Wrong> {
    match open.last_mut().map(|open| &mut open.kind) {
        None => *root = Some(node),
        Some(Kind::List(items)) => items.push(node),
        Some(Kind::Map(entries, key)) => match key.take() {
            Some(key) => entries.push((key, node)),
            None => *key = Some(name(node)?),
        },
    }
    Ok(())
}

fn name(node: At<Node>) -> Result<At<String>, Wrong> {
    let line = node.line;
    match node.value {
        Node::Text(text) | Node::Number(text) => Ok(At { value: text, line }),
        Node::Bool(on) => Ok(At { value: on.to_string(), line }),
        Node::Nothing => Ok(At { value: String::new(), line }),
        Node::List(_) | Node::Map(_) => Err(Wrong::at(line, "a key that is no word")),
    }
}

/// The value of a scalar in the core schema of YAML 1.2.
fn scalar(text: &str, style: ScalarStyle) -> Node {
    if style != ScalarStyle::Plain {
        return Node::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Node::Nothing,
        "true" | "True" | "TRUE" => Node::Bool(true),
        "false" | "False" | "FALSE" => Node::Bool(false),
        number if is_number(number) => Node::Number(number.to_owned()),
        text => Node::Text(text.to_owned()),
    }
}

fn is_number(text: &str) -> bool {
    text.chars().all(|char| char.is_ascii_digit() || "+-.eE".contains(char))
        && text.parse::<f64>().is_ok()
}
