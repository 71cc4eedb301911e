//! Files of TOML.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::node::{At, Node, Wrong};

pub(super) fn read(text: &str) -> Result<At<Node>, Wrong> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map(|span| line(text, span.start));
        Wrong { line, what: error.message().to_owned() }
    })?;
    Ok(At { value: of_table(text, table.get_ref()), line: 1 })
}

fn of_table(text: &str, table: &DeTable<'_>) -> Node {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let name: &Cow<'_, str> = key.get_ref();
        let key = At { value: name.clone().into_owned(), line: line(text, key.span().start) };
        let line = line(text, value.span().start);
        (key, At { value: of_toml(text, value.get_ref()), line })
    };
    Node::Map(entries.into_iter().map(entry).collect())
}

fn of_toml(text: &str, value: &DeValue<'_>) -> Node {
    match value {
        DeValue::Boolean(value) => Node::Bool(*value),
        DeValue::String(value) => Node::Text(value.clone().into_owned()),
        DeValue::Integer(value) => Node::Number(value.as_str().to_owned()),
        DeValue::Float(value) => Node::Number(value.as_str().to_owned()),
        DeValue::Datetime(value) => Node::Text(value.to_string()),
        DeValue::Array(items) => {
            let item = |item: &Spanned<DeValue<'_>>| At {
                value: of_toml(text, item.get_ref()),
                line: line(text, item.span().start),
            };
            Node::List(items.iter().map(item).collect())
        }
        DeValue::Table(table) => of_table(text, table),
    }
}

fn line(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}
