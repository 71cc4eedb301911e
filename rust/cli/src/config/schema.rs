//! The JSON Schema of configuration files, from the table of options.

use quantize_rs::options::{self, Kind, OptionRow, Surface};
use serde_json::{Map, Value, json};

/// The schema, in the draft of 2020-12.
pub(super) fn schema() -> Value {
    let paths = |names: &[&str]| -> Map<String, Value> {
        names.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect()
    };
    let mut model = paths(&["input", "output"]);
    model.extend([skip_existing()]);
    let mut batch = paths(&["input_dir", "output_dir"]);
    batch.extend(manner());
    let mut root = manner();
    root.insert(
        "models".to_owned(),
        json!({
            "description": "The models, each with its own options.",
            "type": "array",
            "items": { "$ref": "#/$defs/model" },
        }),
    );
    root.insert("batch".to_owned(), json!({ "$ref": "#/$defs/batch" }));
    let section = |properties: Map<String, Value>, required: &[&str]| {
        json!({
            "type": "object",
            "allOf": [{ "$ref": "#/$defs/options" }],
            "properties": properties,
            "required": required,
            "unevaluatedProperties": false,
        })
    };
    let mut schema = section(root, &[]);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Configuration file of quantize-rs");
    schema["anyOf"] = json!([{ "required": ["models"] }, { "required": ["batch"] }]);
    schema["$defs"] = json!({
        "options": { "type": "object", "properties": properties() },
        "model": section(model, &["input", "output"]),
        "batch": section(batch, &["input_dir", "output_dir"]),
        "override": of_override(),
    });
    schema
}

/// The keys that say how jobs are run.
fn manner() -> Map<String, Value> {
    let jobs = json!({
        "type": "integer",
        "description": "How many models are quantized at once.",
        "minimum": 1,
        "maximum": 256,
        "default": 1,
    });
    Map::from_iter([
        skip_existing(),
        flag("continue_on_error", "Go on when a model fails."),
        ("jobs".to_owned(), jobs),
    ])
}

fn skip_existing() -> (String, Value) {
    flag("skip_existing", "Skip models whose output exists.")
}

fn flag(name: &str, about: &str) -> (String, Value) {
    (name.to_owned(), json!({ "type": "boolean", "description": about, "default": false }))
}

/// Every option, by each of its names, and the keys that only files have.
fn properties() -> Map<String, Value> {
    let mut properties = Map::new();
    for row in options::rows().into_iter().filter(|row| row.is_on(Surface::File)) {
        properties.insert(row.name.to_owned(), of_row(row));
        for alias in row.aliases {
            let value = json!({
                "$ref": format!("#/$defs/options/properties/{}", row.name),
                "description": format!("Another name of `{}`.", row.name),
            });
            properties.insert((*alias).to_owned(), value);
        }
    }
    let own = json!({
        "mode": {
            "description": "What is quantized: `static` weights and activations, with ranges from \
                            samples; `dynamic` the same as `output_format: dynamic`; `weights` \
                            weights alone, even if there is `calibration_data`.",
            "enum": ["static", "dynamic", "weights"],
        },
        "calibration": {
            "description": "Options of calibration, which may also stand beside it.",
            "type": "object",
            "allOf": [{ "$ref": "#/$defs/options" }],
            "unevaluatedProperties": false,
        },
        "save_statistics": {
            "description": "Whether ranges are written to `statistics_path`.",
            "type": "boolean",
        },
        "accuracy_threshold": {
            "description": "The fraction of the accuracy that has to be kept: 0.99 is the same as \
                            `max_accuracy_drop: 0.01`.",
            "type": "number",
            "minimum": 0,
            "maximum": 1,
        },
    });
    if let Value::Object(own) = own {
        properties.extend(own);
    }
    properties
}

fn of_row(row: &OptionRow) -> Value {
    let mut schema = of_kind(&row.kind);
    schema["description"] = json!(row.paragraphs().join("\n\n"));
    let default = (row.default)();
    if !default.is_null() {
        schema["default"] = default;
    }
    for (key, bound) in [("minimum", row.range.0), ("maximum", row.range.1)] {
        if let Some(bound) = bound {
            let whole = bound.fract() == 0.0;
            // A whole number is written as one.
            let text = if whole { format!("{bound:.0}") } else { bound.to_string() };
            schema[key] = serde_json::from_str(&text).unwrap_or_default();
        }
    }
    schema
}

fn of_kind(kind: &Kind) -> Value {
    match kind {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Integer => json!({ "type": "integer" }),
        Kind::OneOf(numbers) => json!({ "enum": numbers }),
        Kind::Number => json!({ "type": "number" }),
        Kind::Fraction => json!({ "anyOf": [
            { "type": "number", "minimum": 0, "exclusiveMaximum": 1 },
            { "type": "string", "pattern": "^[0-9]*[.]?[0-9]+ *%?$" },
        ]}),
        Kind::Text | Kind::Path | Kind::Object => json!({ "type": "string" }),
        Kind::Choice(choices) => {
            let names = choices().into_iter().flat_map(|choice| {
                let aliases: Vec<String> =
                    choice.aliases.iter().map(|alias| (*alias).to_owned()).collect();
                std::iter::once(choice.name).chain(aliases)
            });
            json!({ "enum": names.collect::<Vec<_>>() })
        }
        Kind::Open(choices) => {
            let names: Vec<String> = choices().into_iter().map(|choice| choice.name).collect();
            json!({ "type": "string", "examples": names })
        }
        // One item stands for a list of one.
        Kind::List(inner) => {
            let item = of_kind(inner);
            json!({ "anyOf": [item.clone(), { "type": "array", "items": item }] })
        }
        Kind::ByName(inner) => json!({ "anyOf": [
            { "type": "object", "additionalProperties": of_kind(inner) },
            { "type": "array", "items": { "type": "string", "pattern": "=" } },
        ]}),
        Kind::AnyOf(kinds) => {
            json!({ "anyOf": kinds.iter().map(of_kind).collect::<Vec<_>>() })
        }
        Kind::Overrides => json!({ "type": "array", "items": { "$ref": "#/$defs/override" } }),
    }
}

fn of_override() -> Value {
    let kind = |name: &str| options::find(name).map_or(Value::Null, |row| of_kind(&row.kind));
    let text = |about: &str| json!({ "type": "string", "description": about });
    let widths = match options::find("layer_bits").map(|row| &row.kind) {
        Some(Kind::ByName(inner)) => of_kind(inner),
        _ => Value::Null,
    };
    json!({
        "type": "object",
        "properties": {
            "match": {
                "type": "object",
                "properties": {
                    "name": text("The name of a weight, activation or node."),
                    "pattern": text("A pattern of names, or a regular expression after `re:`."),
                    "op_type": text("A type of operator."),
                },
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": false,
            },
            "exclude": { "type": "boolean" },
            "weights": widths,
            "activations": kind("activations"),
            "symmetric": { "type": "boolean" },
            "per_channel": { "type": "boolean" },
            "block_size": { "type": "integer", "minimum": 16 },
        },
        "required": ["match"],
        "minProperties": 2,
        "additionalProperties": false,
    })
}
