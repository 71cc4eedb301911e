//! Changes a tree of JSON: numbers, texts, keys, what is inside of what.

use serde_json::{Map, Value};

use crate::random::Random;

/// A document like this one, with some values changed; seldom the text is changed, too.
pub(crate) fn mutated(document: &Value, random: &mut Random) -> String {
    let mut changed = document.clone();
    for _ in 0..=random.below(4) {
        let donor = somewhere(&mut document.clone(), random).clone();
        change(somewhere(&mut changed, random), donor, random);
    }
    let text = changed.to_string();
    if random.once_in(8) { super::text::mutated(&text, random) } else { text }
}

/// A value anywhere in the tree; deep ones are as likely as others.
pub(crate) fn somewhere<'t>(value: &'t mut Value, random: &mut Random) -> &'t mut Value {
    let inner = match value {
        Value::Array(items) => items.len(),
        Value::Object(entries) => entries.len(),
        _ => 0,
    };
    if inner == 0 || random.once_in(5) {
        return value;
    }
    let at = random.below(inner);
    match value {
        Value::Array(items) => somewhere(&mut items[at], random),
        Value::Object(entries) => {
            let found = entries.values_mut().nth(at);
            somewhere(found.expect("an entry"), random)
        }
        _ => unreachable!("it has inner values"),
    }
}

fn change(value: &mut Value, donor: Value, random: &mut Random) {
    match random.below(10) {
        0 => *value = donor,
        1 => *value = odd(random),
        2 => {
            let inner = value.take();
            *value = if random.once_in(2) {
                Value::Array(vec![inner])
            } else {
                Value::Object(Map::from_iter([("a".to_owned(), inner)]))
            };
        }
        _ => match value {
            Value::Null => *value = odd(random),
            Value::Bool(on) => *on = !*on,
            Value::Number(_) => *value = number(value, random),
            Value::String(text) => change_text(text, random),
            Value::Array(items) => change_list(items, donor, random),
            Value::Object(entries) => change_map(entries, donor, random),
        },
    }
}

fn number(old: &Value, random: &mut Random) -> Value {
    let old = old.as_f64().unwrap_or(0.0);
    let floats = [1e308, -1e308, 1e-320, f64::from(f32::MAX), 3.5e38, -0.0, 0.5, 1e39];
    match random.below(6) {
        0 => Value::from(random.edge()),
        1 => Value::from(random.edge().cast_signed()),
        2 => Value::from(*random.of_all(&floats)),
        3 => Value::from(-old),
        4 => Value::from(old + [1.0, -1.0, 1e-9][random.below(3)]),
        _ => Value::from(old * [2.0, 1e10, 1e-10, 0.0][random.below(4)]),
    }
}

fn change_text(text: &mut String, random: &mut Random) {
    match random.below(4) {
        0 => text.clear(),
        1 => {
            text.pop();
        }
        2 => (*random.of_all(&TEXTS)).clone_into(text),
        _ => text.push(*random.of_all(&['x', '*', ':', '\u{0}', 'é', '9', '/'])),
    }
}

/// Texts that mean something somewhere.
const TEXTS: [&str; 18] = [
    "",
    "int4",
    "uint8",
    "float8e4m3fn",
    "mxfp4",
    "nf4",
    "auto",
    "mse",
    "percentile:99.9",
    "percentile:nan",
    "entropy",
    "re:(a|b)*",
    "re:(",
    "[z-a]",
    "*",
    "Conv",
    "nan",
    "-1e999",
];

fn change_list(items: &mut Vec<Value>, donor: Value, random: &mut Random) {
    let at = random.below(items.len());
    match random.below(5) {
        0 => items.clear(),
        1 if !items.is_empty() => drop(items.remove(at)),
        2 if !items.is_empty() => items.push(items[at].clone()),
        3 => items.insert(at, donor),
        _ => {
            let with = random.below(items.len());
            if !items.is_empty() {
                items.swap(at, with);
            }
        }
    }
}

fn change_map(entries: &mut Map<String, Value>, donor: Value, random: &mut Random) {
    let names: Vec<String> = entries.keys().cloned().collect();
    let name = names.get(random.below(names.len())).cloned().unwrap_or_default();
    match random.below(4) {
        0 => drop(entries.remove(&name)),
        1 => drop(entries.insert(format!("{name}x"), donor)),
        2 => {
            if let Some(value) = entries.remove(&name) {
                entries.insert((*random.of_all(&TEXTS)).to_owned(), value);
            }
        }
        _ => drop(entries.insert(name, donor)),
    }
}

/// A value of another kind.
pub(crate) fn odd(random: &mut Random) -> Value {
    match random.below(7) {
        0 => Value::Null,
        1 => Value::Bool(random.once_in(2)),
        2 => Value::from(random.edge()),
        3 => Value::from(1e300),
        4 => Value::from(*random.of_all(&TEXTS)),
        5 => Value::Array(Vec::new()),
        _ => Value::Object(Map::new()),
    }
}
