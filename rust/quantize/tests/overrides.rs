//! Facts about overrides: of the entries that match, the first that answers a question decides it.

mod common;

use common::{fixture, per_channel, plan};
use quantize_rs::options::{Given, Override, Verb};
use quantize_rs::{Config, Decision, Granularity, Graph, Model, Plan, QType};
use serde_json::{Value, json};

fn entries(value: Value) -> Vec<Override> {
    serde_json::from_value(value).expect("overrides")
}

fn with(overrides: Value) -> Config {
    Config { overrides: entries(overrides), ..per_channel() }
}

/// The weights of a model and the nodes that read them.
fn weights(model: &Model) -> Vec<(String, String)> {
    let graph = Graph::of(model).expect("a graph");
    let all = plan(model, per_channel());
    let reader = |weight: &str| {
        let mut nodes = graph.nodes.iter();
        let node = nodes.find(|node| node.input.iter().any(|input| input == weight));
        node.expect("a node").name.clone()
    };
    all.quantized().map(|(value, _)| (value.name.clone(), reader(&value.name))).collect()
}

fn spec(plan: &Plan, name: &str) -> (QType, Granularity) {
    match &plan.value(name).expect("a value").decision {
        Decision::Quantize(how) => (how.spec.qtype, how.spec.granularity),
        Decision::KeepFloat(_) => panic!("{name} is float"),
    }
}

#[test]
fn the_first_entry_that_matches_and_answers_decides() {
    let model = fixture("mlp_relu");
    let weights = weights(&model);
    let (first, node) = &weights[0];
    let (second, _) = &weights[1];
    let config = with(json!([
        { "match": { "name": node }, "per_channel": false },
        { "match": { "name": first }, "weights": "uint8", "per_channel": true },
        { "match": { "pattern": "*" }, "weights": 8 },
        { "match": { "op_type": "Gemm" }, "weights": "uint8" },
    ]));
    let plan = plan(&model, config);
    assert_eq!(spec(&plan, first), (QType::UInt8, Granularity::PerTensor));
    assert_eq!(spec(&plan, second).0, QType::Int8);
    assert!(matches!(spec(&plan, second).1, Granularity::PerAxis { .. }));
    let by = [format!("overrides[1]: {first}"), format!("overrides[0]: {node}")];
    assert_eq!(plan.overrides[first], by);
    assert_eq!(plan.overrides[second], ["overrides[2]: *"]);
    assert!(plan.to_string().contains(&format!("by {}", by.join(", "))), "{plan}");
}

#[test]
fn the_older_selectors_mean_entries_of_the_list() {
    let model = fixture("mlp_relu");
    let weights = weights(&model);
    let (first, node) = &weights[0];
    let bytes = |config: Config| {
        plan(&model, config).apply(&model, None).expect("applied").to_bytes().expect("bytes")
    };
    let given = |name: &'static str, value: Value| {
        let given = Given::from([("per_channel", true.into()), (name, value)]);
        let config = Config::from_options(&given, Verb::Quantize).expect("options");
        Config { symmetric: per_channel().symmetric, ..config }
    };
    for (older, overrides) in [
        (
            given("exclude", json!([first])),
            json!([{ "match": { "name": first }, "exclude": true }]),
        ),
        (
            given("include", json!([node])),
            json!([
                { "match": { "name": node }, "exclude": false },
                { "match": { "pattern": "*" }, "exclude": true },
            ]),
        ),
        (
            given("layer_bits", json!({ first.as_str(): 8, "*": "uint8" })),
            json!([
                { "match": { "name": first }, "weights": 8 },
                { "match": { "pattern": "*" }, "weights": "uint8" },
            ]),
        ),
        (
            given("layer_types", json!({ first.as_str(): "float32" })),
            json!([{ "match": { "name": first }, "weights": "float32" }]),
        ),
    ] {
        assert!(bytes(older) == bytes(with(overrides.clone())), "{overrides}");
    }
}

#[test]
fn what_an_entry_keeps_the_older_selectors_do_not_exclude() {
    let model = fixture("mlp_relu");
    let (first, _) = &weights(&model)[0];
    let kept = with(json!([{ "match": { "name": first }, "exclude": false }]));
    let config = Config { exclude: vec!["*".to_owned()], ..kept };
    let names: Vec<String> =
        plan(&model, config).quantized().map(|(value, _)| value.name.clone()).collect();
    assert_eq!(names, std::slice::from_ref(first));
}

#[test]
fn entries_that_cannot_be_met_are_refused_by_position() {
    let model = fixture("mlp_relu");
    let graph = Graph::of(&model).expect("a graph");
    for (overrides, expected) in [
        (json!([{ "match": { "pattern": "*" } }]), "[0] answers nothing"),
        (json!([{ "match": {}, "exclude": true }]), "one of name, pattern and op_type"),
        (json!([{ "match": { "name": "nothing" }, "exclude": true }]), "names `nothing`"),
        (json!([{ "match": { "pattern": "plain" }, "exclude": true }]), "the pattern `plain`"),
        (json!([{ "match": { "op_type": "Gem" }, "exclude": true }]), "did you mean"),
        (
            json!([{ "match": { "pattern": "*" }, "activations": "uint16" }]),
            "no activations are quantized",
        ),
        (json!([{ "match": { "pattern": "*" }, "weights": "mxfp4" }]), "[0] cannot be met"),
        (json!([{ "match": { "pattern": "*" }, "block_size": 7 }]), "[0] cannot be met"),
    ] {
        let error = Plan::of(&graph, with(overrides.clone())).expect_err("refused").to_string();
        assert!(error.starts_with("overrides") && error.contains(expected), "{error}");
    }
    for wrong in [
        json!([{ "match": { "name": "a" }, "wieghts": 4 }]),
        json!([{ "match": { "nam": "a" }, "weights": 4 }]),
        json!([{ "match": { "name": "a" }, "weights": 7 }]),
        json!({ "match": { "name": "a" } }),
    ] {
        let given = Given::from([("overrides", wrong)]);
        let error = Config::from_options(&given, Verb::Quantize).expect_err("refused").to_string();
        assert!(error.starts_with("overrides"), "{error}");
    }
}

#[test]
fn a_configuration_without_overrides_is_written_as_before() {
    let config = serde_json::to_value(Config::default()).expect("JSON");
    assert!(config.get("overrides").is_none(), "{config}");
    let config = with(json!([{ "match": { "pattern": "*" }, "weights": 8 }]));
    let text = serde_json::to_string(&config).expect("JSON");
    assert_eq!(serde_json::from_str::<Config>(&text).expect("read"), config);
}
