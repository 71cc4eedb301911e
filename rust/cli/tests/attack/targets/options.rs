//! Options: values under their names, and overrides of some layers.

use quantize_rs::options::{self, Override, Verb};
use quantize_rs::{Config, PreprocessedModel};
use serde_json::{Map, Value, json};

use super::Attack;
use crate::common;
use crate::corpus::Corpus;
use crate::mutate::json;
use crate::random::Random;

/// A value that is written as in Python.
fn literal(text: &str) -> Value {
    let text = text.replace("True", "true").replace("False", "false").replace('_', "");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// A value that this option takes, or nearly.
fn value(row: &options::OptionRow, random: &mut Random) -> Value {
    let written = row.example.split_once('=').map_or(Value::Null, |(_, text)| literal(text));
    let mut value = if written.is_null() { (row.default)() } else { written };
    match random.below(5) {
        0 => value = json::odd(random),
        1 => {
            let text = json::mutated(&value, random);
            value = serde_json::from_str(&text).unwrap_or_default();
        }
        _ => {}
    }
    value
}

/// Options of all names, as Python and the command give them.
pub(super) fn options(_: &Corpus) -> Attack {
    let rows = options::rows();
    let models = ["conv2d_relu", "gemm_plain", "transformer_block"].map(common::fixture);
    Box::new(move |random| {
        let given: Vec<(String, Value)> = (0..=random.below(4))
            .map(|_| {
                let row = random.of_all(&rows);
                let name = row.aliases.get(random.below(3)).unwrap_or(&row.name);
                ((*name).to_owned(), value(row, random))
            })
            .collect();
        let Ok(given) = options::canonical(given) else { return false };
        let verb = *random.of_all(&Verb::ALL);
        drop(options::unused(&given, &[verb]));
        let Ok(config) = Config::from_options(&given, verb) else { return false };
        let text = serde_json::to_string(&config).unwrap();
        let again: Config = serde_json::from_str(&text).expect("what is written can be read");
        drop(again.check());
        let prepared = PreprocessedModel::of(random.of_all(&models), config);
        prepared.map(|prepared| prepared.plan().to_string()).is_ok()
    })
}

/// Whole configurations and lists of overrides, as files hold them.
pub(super) fn overrides(_: &Corpus) -> Attack {
    let entry = |key: &str, text: &str, what: &str, value: Value| {
        let matches = Map::from_iter([(key.to_owned(), Value::from(text))]);
        let mut entry = Map::from_iter([("match".to_owned(), Value::Object(matches))]);
        entry.insert(what.to_owned(), value);
        Value::Object(entry)
    };
    let list = json!([
        entry("pattern", "*weight*", "weights", json!("int16")),
        entry("pattern", "re:^conv[0-9]+$", "weights", json!(4)),
        entry("op_type", "Conv", "exclude", json!(true)),
        entry("name", "x", "activations", json!("uint16")),
        entry("op_type", "MatMul", "block_size", json!(32)),
        entry("pattern", "[!a-c]*", "per_channel", json!(false)),
    ]);
    let mut config = serde_json::to_value(common::with_activations()).unwrap();
    config["overrides"] = list.clone();
    config["exclude"] = json!(["*fc*", "re:(a|b){1,9}"]);
    config["layer_bits"] = json!({"conv1.weight": 4});
    let models = ["conv2d_relu", "gemm_plain", "transformer_block"].map(common::fixture);
    Box::new(move |random| {
        if random.once_in(4) {
            let text = json::mutated(&list, random);
            return serde_json::from_str::<Vec<Override>>(&text).is_ok();
        }
        let text = json::mutated(&config, random);
        let Ok(config) = serde_json::from_str::<Config>(&text) else { return false };
        if config.check().is_err() {
            return false;
        }
        let prepared = PreprocessedModel::of(random.of_all(&models), config);
        prepared.map(|prepared| prepared.plan().to_string()).is_ok()
    })
}
