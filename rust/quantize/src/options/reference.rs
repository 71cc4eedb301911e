//! The reference of all options, docs/options.md, written from the table.

use std::fmt::Write;

use serde_json::Value;

use super::row::{Choice, Class, Group, Kind, OptionRow, Surface};
use super::table::of_group;

/// The reference of all options as Markdown.
pub fn reference() -> String {
    let mut text = String::from(
        "# Options\n\nEvery option, by its name in Python, in configuration files and, with `-` \
         for `_`, on the\ncommand line, except where an entry says \"none\" for one of these. \
         Other names are read too. A\ntest writes this file from the table in \
         `rust/quantize/src/options`.\n\nThe command line switches five of them off by flags of \
         their own: `--no-smooth`, `--no-equalize`,\n`--no-bias-correction`, `--no-fall-back`, \
         and `--no-optimize` for `passes=False`. It does not have\nthe other names `samples`, \
         `calibration_samples`, `statistics_path`, `auto_fallback` and\n\
         `sensitivity_analysis`.\n",
    );
    for group in Group::ALL {
        let _ = write!(text, "\n## {}\n", group.title());
        for row in of_group(*group) {
            text.push_str(&section(row));
        }
    }
    text
}

fn section(row: &OptionRow) -> String {
    let mut text = format!("\n### `{}`\n", row.name);
    for paragraph in row.paragraphs() {
        let _ = write!(text, "\n{}\n", wrapped(&paragraph, COLUMNS));
    }
    text.push('\n');
    let mut fact = |name: &str, what: String| {
        // Code is not broken: a space in it would be lost.
        let line = format!("- {name}: {what}");
        let line =
            if name == "Python" { line } else { wrapped(&line, COLUMNS - 2).replace('\n', "\n  ") };
        let _ = writeln!(text, "{line}");
    };
    fact("Type", kind(&row.kind));
    fact("Default", default(row));
    if let Some(range) = range(row) {
        fact("Range", range);
    }
    let verbs: Vec<String> = row.verbs.iter().map(|verb| format!("`{}`", verb.name())).collect();
    fact("For", verbs.join(", "));
    if !row.aliases.is_empty() {
        let aliases: Vec<String> = row.aliases.iter().map(|name| format!("`{name}`")).collect();
        fact("Other names", aliases.join(", "));
    }
    if let Some(since) = row.since {
        fact("Since", since.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if let Some(condition) = row.only_with {
        fact("Has an effect only", condition.text());
    }
    if !row.conflicts.is_empty() {
        let names: Vec<String> = row.conflicts.iter().map(|name| format!("`{name}`")).collect();
        fact("Not with", names.join(", "));
    }
    if row.is_on(Surface::Python) {
        fact("Python", format!("`{}`", row.example));
    } else {
        let field = row.class == Class::ImageFolder;
        fact("Python", if field { "a field of `ImageFolder`" } else { "none" }.to_owned());
    }
    for (surface, title) in [(Surface::Cli, "Command line"), (Surface::File, "Configuration files")]
    {
        if !row.is_on(surface) {
            fact(title, "none".to_owned());
        }
    }
    let choices = row.kind.choices().unwrap_or_default();
    let mut described = choices.iter().filter(|choice| !choice.about.is_empty()).peekable();
    if described.peek().is_some() {
        text.push_str("\n| value | meaning |\n|---|---|\n");
    }
    for choice in described {
        let _ = writeln!(text, "| `{}` | {} |", choice.name, choice.about);
    }
    text
}

fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::Integer => "whole number".to_owned(),
        Kind::OneOf(numbers) => {
            numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        }
        Kind::Number => "number".to_owned(),
        Kind::Fraction => "fraction below 1, or percentage such as `1%`".to_owned(),
        Kind::Text => "text".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Choice(choices) | Kind::Open(choices) => {
            let choices = choices();
            let (described, plain): (Vec<&Choice>, Vec<&Choice>) =
                choices.iter().partition(|choice| !choice.about.is_empty());
            let mut names: Vec<String> =
                plain.iter().map(|choice| format!("`{}`", choice.name)).collect();
            if !described.is_empty() {
                names.push("one of the values below".to_owned());
            }
            names.join(", ")
        }
        Kind::List(inner) => format!("list of: {}", self::kind(inner)),
        Kind::ByName(inner) => format!("map by name or pattern, to: {}", self::kind(inner)),
        Kind::AnyOf(kinds) => kinds.iter().map(self::kind).collect::<Vec<_>>().join("; or "),
        Kind::Overrides => "list of maps".to_owned(),
        Kind::Object => "path, in Python also an object".to_owned(),
    }
}

fn default(row: &OptionRow) -> String {
    let value = match (row.default)() {
        Value::String(text) => text,
        other => other.to_string(),
    };
    match row.default_text {
        Some(text) => text.to_owned(),
        None if value == "null" => "none".to_owned(),
        None => format!("`{value}`"),
    }
}

fn range(row: &OptionRow) -> Option<String> {
    match row.range {
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("{least} or more")),
        (None, Some(most)) => Some(format!("{most} or less")),
        (None, None) => None,
    }
}

/// The longest line of the document.
const COLUMNS: usize = 100;

/// Lines of up to this many columns.
fn wrapped(paragraph: &str, columns: usize) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    for word in paragraph.split(' ') {
        let line = lines.last_mut().expect("a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}
