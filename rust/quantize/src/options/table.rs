//! The table of all options, and what follows from it: names, hints, options without effect.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::row::{Condition, Group, Kind, OptionRow, Surface, Verb};
use super::{Config, stages};
use crate::QuantizeError;

/// Every option, in the parts that declare them.
///
/// ```
/// use quantize_rs::options;
/// let names = options::ALL.iter().flat_map(|part| part.iter()).map(|row| row.name);
/// assert!(names.into_iter().any(|name| name == "per_channel"));
/// ```
pub const ALL: &[&[OptionRow]] = &[
    Config::ROWS,
    stages::CALIBRATION_ROWS,
    stages::IMAGE_ROWS,
    stages::ACCURACY_ROWS,
    stages::RUN_ROWS,
];

/// Every option, group by group.
pub fn rows() -> Vec<&'static OptionRow> {
    let mut rows: Vec<&OptionRow> = ALL.iter().flat_map(|part| part.iter()).collect();
    rows.sort_by_key(|row| row.group);
    rows
}

/// The option with this name, or alias.
pub fn find(name: &str) -> Option<&'static OptionRow> {
    ALL.iter().flat_map(|part| part.iter()).find(|row| row.is_called(name))
}

/// The name or alias that `name` resembles most, where one is close enough: for "did you mean".
///
/// ```
/// use quantize_rs::options::{self, Surface};
/// assert_eq!(options::closest("per_chanel", Surface::File, &[]), Some("per_channel"));
/// assert_eq!(options::closest("frobnicate", Surface::File, &[]), None);
/// ```
pub fn closest<'n>(name: &str, surface: Surface, others: &[&'n str]) -> Option<&'n str> {
    const SIMILAR: f64 = 0.85;
    let rows = ALL.iter().flat_map(|part| part.iter()).filter(|row| row.is_on(surface));
    let known = rows.flat_map(|row| std::iter::once(&row.name).chain(row.aliases)).copied();
    let scored = others.iter().copied().chain(known);
    let scored = scored.map(|known| (strsim::jaro_winkler(name, known), known));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score >= SIMILAR);
    best.map(|(_, known)| known)
}

/// The options that a caller gave, by canonical name, as JSON. `null` stands for "not given".
pub type Given = BTreeMap<&'static str, Value>;

/// An option that was given and has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// The option.
    pub name: &'static str,
    /// Why, after "has no effect": `without calibration_data`.
    pub why: String,
}

/// The options among `given` that have no effect beside the others, or that none of these verbs
/// takes.
///
/// ```
/// use quantize_rs::options::{self, Given, Verb};
/// let given = Given::from([("limit", 10.into())]);
/// let unused = options::unused(&given, &[Verb::Quantize]);
/// assert_eq!((unused[0].name, &*unused[0].why), ("limit", "without calibration_data"));
/// ```
pub fn unused(given: &Given, verbs: &[Verb]) -> Vec<Unused> {
    let is_given = |name: &&str| given.get(*name).is_some_and(|value| !value.is_null());
    let why = |row: &OptionRow| {
        if !verbs.iter().any(|verb| row.verbs.contains(verb)) {
            let names: Vec<&str> = verbs.iter().map(|verb| verb.name()).collect();
            return Some(format!("with {}", names.join(" or ")));
        }
        let without = |names: &[&str]| {
            let taken = |name: &&&str| {
                find(name).is_some_and(|row| row.verbs.iter().any(|verb| verbs.contains(verb)))
            };
            let taken: Vec<&str> = names.iter().filter(taken).copied().collect();
            (!names.iter().any(is_given)).then(|| format!("without {}", taken.join(" or ")))
        };
        match row.only_with? {
            Condition::GivenUnless(_, value) if given[row.name] == value => None,
            Condition::Given(names) | Condition::GivenUnless(names, _) => without(names),
            Condition::Value(name, values) => {
                let default = find(name).map(|row| (row.default)());
                let found = given.get(name).filter(|value| !value.is_null()).or(default.as_ref());
                let found = found.and_then(Value::as_str);
                let holds = found.is_some_and(|found| values.contains(&found));
                let values = values.iter().map(|value| format!("{name}={value}"));
                (!holds).then(|| format!("without {}", values.collect::<Vec<_>>().join(" or ")))
            }
        }
    };
    let rows = rows().into_iter().filter(|row| is_given(&row.name));
    let rows = rows.filter(|row| given[row.name] != (row.default)());
    rows.filter_map(|row| Some(Unused { name: row.name, why: why(row)? })).collect()
}

/// The first option of [`Config`] that has no effect beside its other ones. Options whose effect
/// depends on those of other stages are for a command to refuse.
pub(super) fn unused_in_config(given: &Given) -> Option<Unused> {
    let is_here = |unused: &Unused| {
        find(unused.name).is_some_and(|row| {
            let elsewhere = row.only_with.and_then(|condition| condition.given());
            row.set.is_some() && elsewhere.is_none()
        })
    };
    unused(given, &Verb::ALL).into_iter().find(is_here)
}

impl From<Unused> for QuantizeError {
    fn from(Unused { name, why }: Unused) -> QuantizeError {
        QuantizeError::option(name, format!("has no effect {why}"))
    }
}

/// The table as JSON: an array of objects, one for each option, for generators and other languages.
pub fn to_json() -> Value {
    rows().into_iter().map(row_to_json).collect()
}

fn row_to_json(row: &OptionRow) -> Value {
    let default = (row.default)();
    let optional = default.is_null() && row.python_type.is_none();
    let python_type = match row.python_type {
        Some(name) => name.to_owned(),
        None if optional => format!("{} | None", row.kind.python_type()),
        None => row.kind.python_type(),
    };
    json!({
        "name": row.name,
        "aliases": row.aliases,
        "group": row.group.name(),
        "class": row.class.name(),
        "kind": kind_to_json(&row.kind),
        "at_least": row.range.0,
        "at_most": row.range.1,
        "default": default,
        "default_text": row.default_text,
        "verbs": row.verbs.iter().map(|verb| verb.name()).collect::<Vec<_>>(),
        "surfaces": row.surfaces.iter().map(|surface| surface.name()).collect::<Vec<_>>(),
        "since": row.since,
        "only_with": row.only_with.map(|condition| condition_to_json(&condition)),
        "conflicts": row.conflicts,
        "summary": row.summary(),
        "help": row.paragraphs(),
        "example": row.example,
        "python_type": python_type,
    })
}

fn kind_to_json(kind: &Kind) -> Value {
    let mut made = json!({ "type": kind.name() });
    match kind {
        Kind::OneOf(numbers) => made["values"] = json!(numbers),
        Kind::Choice(choices) | Kind::Open(choices) => {
            let choice = |choice: super::Choice| {
                json!({
                    "name": choice.name,
                    "aliases": choice.aliases,
                    "about": choice.about,
                })
            };
            made["values"] = choices().into_iter().map(choice).collect();
        }
        Kind::List(inner) | Kind::ByName(inner) => made["items"] = kind_to_json(inner),
        Kind::AnyOf(kinds) => made["kinds"] = kinds.iter().map(kind_to_json).collect(),
        _ => {}
    }
    made
}

fn condition_to_json(condition: &Condition) -> Value {
    let text = condition.text();
    match condition {
        Condition::Given(names) => json!({ "given": names, "text": text }),
        Condition::Value(name, values) => json!({ "option": name, "values": values, "text": text }),
        Condition::GivenUnless(names, value) => {
            json!({ "given": names, "unless": value, "text": text })
        }
    }
}

/// Every option of a group.
pub fn of_group(group: Group) -> impl Iterator<Item = &'static OptionRow> {
    ALL.iter().flat_map(|part| part.iter()).filter(move |row| row.group == group)
}
