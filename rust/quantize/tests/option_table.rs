//! The table of options is complete, and the files generated from it are current.

use std::fs;

use quantize_rs::options::{self, Given, OptionRow, Surface, Verb};
use quantize_rs::{Config, Format, HalfType};
use serde_json::{Value, json};

/// `QUANTIZE_RS_WRITE=1 cargo test -p quantize-rs --test option_table` writes the files.
fn assert_current(path: &str, text: &str) {
    let file = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("QUANTIZE_RS_WRITE").is_some() {
        fs::write(&file, text).expect("written");
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == text, "{path} is not what the table says: write it again");
}

#[test]
fn the_table_as_data_is_current() {
    let text = serde_json::to_string_pretty(&options::to_json()).expect("JSON") + "\n";
    assert_current("docs/options.json", &text);
}

#[test]
fn the_reference_is_current() {
    assert_current("docs/options.md", &options::reference());
}

#[test]
fn names_and_aliases_are_unique() {
    let rows = options::rows();
    let mut names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    names.extend(rows.iter().flat_map(|row| row.aliases));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "a name or alias stands for two options");
    for row in rows {
        assert_eq!(options::find(row.name).map(|found| found.name), Some(row.name));
        for alias in row.aliases {
            assert_eq!(options::find(alias).map(|found| found.name), Some(row.name));
        }
    }
}

#[test]
fn every_option_says_what_it_is() {
    for row in options::rows() {
        let OptionRow { name, .. } = row;
        assert!(row.summary().ends_with('.'), "{name}: {}", row.summary());
        assert!(row.help.lines().all(|line| line.len() <= 100), "{name}");
        assert!(!row.verbs.is_empty(), "{name} belongs to no verb");
        let in_python = row.is_on(Surface::Python);
        assert_eq!(in_python, row.example.starts_with(&format!("{name}=")), "{name}: its example");
        let named = row.conflicts.iter().copied().chain(
            row.only_with
                .and_then(|condition| condition.given())
                .unwrap_or_default()
                .iter()
                .copied(),
        );
        for other in named {
            assert!(options::find(other).is_some_and(|row| row.name == other), "{name}: {other}");
        }
        for other in row.conflicts {
            let other = options::find(other).expect(other);
            assert!(other.conflicts.contains(name) || *name == "ranges_out", "{name}");
        }
    }
}

#[test]
fn no_options_are_the_defaults() {
    let config = Config::from_options(&Given::new(), Verb::Quantize).expect("defaults");
    assert_eq!(config, Config::default());
    for row in options::rows().into_iter().filter(|row| row.set.is_some()) {
        let given = Given::from([(row.name, (row.default)())]);
        let config = Config::from_options(&given, Verb::Quantize).expect(row.name);
        assert_eq!(config, Config::default(), "{}", row.name);
    }
}

#[test]
fn an_option_that_needs_a_value_of_another_has_an_effect_where_that_is_the_default() {
    let float16 = ("float_type", json!("float16"));
    for (format, unused) in [(Value::Null, false), (json!("qdq"), false), (json!("dynamic"), true)]
    {
        let given = Given::from([float16.clone(), ("output_format", format)]);
        assert_eq!(!options::unused(&given, &[Verb::Quantize]).is_empty(), unused, "{given:?}");
    }
    assert!(options::unused(&Given::from([float16]), &[Verb::Quantize]).is_empty());
    let unused = options::unused(&Given::from([("seed", json!(1))]), &[Verb::Quantize]);
    assert_eq!(unused[0].why, "without calibration_data=random");
}

#[test]
fn options_about_rounding_have_an_effect_with_samples_or_by_themselves() {
    let why = |name: &'static str, value: Value, verb: Verb| {
        let unused = options::unused(&Given::from([(name, value)]), &[verb]);
        unused.into_iter().next().map(|unused| unused.why)
    };
    let effort = |verb| why("rounding_effort", json!("best"), verb);
    assert_eq!(effort(Verb::Quantize).as_deref(), Some("without calibration_data"));
    assert_eq!(effort(Verb::Calibrate).as_deref(), Some("without calibration_data or ranges"));
    assert!(why("weight_algorithm", json!("gptq"), Verb::Quantize).is_some());
    assert_eq!(why("weight_algorithm", json!("nearest"), Verb::Quantize), None);
}

#[test]
fn a_configuration_with_an_option_without_effect_is_refused() {
    let dynamic = Config { output_format: Format::Dynamic, ..Config::default() };
    let refused = [
        Config { float_type: Some(HalfType::Float16), ..dynamic.clone() },
        Config { narrow_range: Some(true), ..dynamic.clone() },
        Config { dedicated_qdq_pairs: true, ..dynamic.clone() },
        Config { dynamic_lstm: true, ..Config::default() },
    ];
    assert!(dynamic.check().is_ok());
    for config in refused {
        let error = config.check().expect_err("no effect").to_string();
        assert!(error.contains("has no effect without output_format="), "{error}");
    }
}

#[test]
fn a_value_of_another_type_is_refused_by_name() {
    for row in options::rows().into_iter().filter(|row| row.set.is_some()) {
        for wrong in [json!({"a": {"b": 1}}), json!(["x", {"a": 1}]), json!({"a": [1.5]})] {
            let given = Given::from([(row.name, wrong.clone())]);
            let error = Config::from_options(&given, Verb::Calibrate).expect_err(row.name);
            assert!(error.to_string().contains(row.name), "{error}");
        }
    }
}

#[test]
fn every_name_that_an_option_had_is_read() {
    let given = [
        ("excluded_layers", json!(["a"])),
        ("included_layers", json!(["b"])),
        ("layer_dtype", json!({"c": "uint4"})),
        ("optimize", Value::Bool(false)),
        ("precision", json!("uint8")),
        ("rounding", json!("sums")),
    ];
    let given = given.map(|(name, value)| (name.to_owned(), value));
    let given = options::canonical(given).expect("known names");
    let config = Config::from_options(&given, Verb::Quantize).expect("a configuration");
    assert_eq!(config.exclude, ["a"]);
    assert_eq!(config.include, Some(vec!["b".to_owned()]));
    assert_eq!(config.layer_types["c"].name(), "uint4");
    assert_eq!(config.passes, Some(Vec::new()));
    assert_eq!(config.weights.name(), "uint8");
    assert_eq!(config.rounding.map(quantize_rs::Rounding::name), Some("preserve_sums"));
}

#[test]
fn the_fraction_that_accuracy_may_lose_is_one_number_on_every_surface() {
    use quantize_rs::options::{Fraction, OptionType};
    let read = |value| Fraction::from_json("max_accuracy_drop", &value);
    for value in [json!(0.01), json!("0.01"), json!("1%"), json!("1 %")] {
        assert_eq!(read(value).expect("a fraction"), Fraction(0.01));
    }
    for value in [json!(1), json!(1.0), json!(-0.1), json!("100%"), json!("much")] {
        let error = read(value).expect_err("refused").to_string();
        assert!(error.starts_with("max_accuracy_drop is "), "{error}");
        assert!(
            error.ends_with("expected a fraction below 1 or a percentage such as \"1%\""),
            "{error}"
        );
    }
}
