//! Tests of recommendations: the strategy for each kind of model, and that it works.

mod common;

use common::{fixture, fixtures, ranges};
use quantize_rs::recommend::ALL;
use quantize_rs::{
    Model, PreprocessedModel, Recommendation, Request, SampleSource, Strategy, Target, recommend,
    validate,
};

const EXPECTED: &[(&str, &str, Strategy)] = &[
    ("conv2d_relu", "convolutions", Strategy::Static),
    ("conv_bn_relu", "convolutions", Strategy::Static),
    ("conv_transpose", "mixed", Strategy::Weights),
    ("conv_and_matmul", "convolutions", Strategy::Static),
    ("opset9_conv", "convolutions", Strategy::Static),
    ("lstm", "recurrent", Strategy::Dynamic),
    ("gru", "recurrent", Strategy::Dynamic),
    ("transformer_block", "attention", Strategy::Dynamic),
    ("fp16_model", "convolutions", Strategy::Static),
    ("double_model", "doubles", Strategy::Weights),
    ("mlp_relu", "products", Strategy::Dynamic),
    ("gemm_plain", "products", Strategy::Dynamic),
    ("gather_embedding", "tables", Strategy::Weights),
    ("if_subgraph", "convolutions", Strategy::Static),
    ("no_weights", "no_weights", Strategy::Nothing),
    ("already_qdq", "quantized", Strategy::Nothing),
];

fn recommended(model: &Model, target: Option<Target>, samples: Option<&str>) -> Recommendation {
    recommend(model, Request { target, samples: samples.map(SampleSource::File) }).unwrap()
}

#[test]
fn each_kind_of_model_gets_its_strategy() {
    for (name, rule, way) in EXPECTED {
        let found = recommended(&fixture(name), None, None);
        assert_eq!((found.rule, found.choice.way), (*rule, *way), "{name}: {found}");
        assert_eq!(found.reasons[0].rule, *rule);
    }
}

#[test]
fn attention_with_samples_is_static_and_the_target_decides_the_block_format() {
    let model = fixture("transformer_block");
    let found = recommended(&model, None, Some("my samples.npz"));
    assert_eq!((found.rule, found.choice.way), ("attention_sampled", Strategy::Static), "{found}");
    assert_eq!(found.samples.as_deref(), Some("my samples.npz"));
    assert!(found.command.contains("--data 'my samples.npz'"), "{found}");
    assert!(found.python.contains("\"my samples.npz\""), "{found}");
    let table = fixture("gather_embedding");
    let blocks = |target| recommended(&table, Some(target), None).choice.format.row().name;
    assert_eq!((blocks(Target::Arm), blocks(Target::Generic)), ("matmul_nbits", "qdq"));
    let found = recommended(&model, Some(Target::Qnn), None);
    assert_eq!((found.rule, found.choice.way), ("static_runtime", Strategy::Static), "{found}");
}

#[test]
fn reasons_name_facts_of_the_model() {
    let found = recommended(&fixture("opset9_conv"), None, None).to_string();
    assert!(found.contains("2 Conv do") && found.contains("converted from 9"), "{found}");
    let found = recommended(&fixture("transformer_block"), None, None).to_string();
    assert!(found.contains("2 MatMul multiply two activations"), "{found}");
    let found = recommended(&fixture("lstm"), None, None).to_string();
    assert!(found.contains("1 LSTM do 100 % of the work"), "{found}");
    let found = recommended(&fixture("conv2d_relu"), None, None);
    let largest = found.facts.largest.as_ref().unwrap();
    assert!(found.to_string().contains(&format!("`{}` (Conv", largest.name)), "{found}");
    assert!(found.to_string().contains("--data SAMPLES "), "{found}");
}

#[test]
fn small_lstms_and_other_operators_stay_float() {
    for (name, target) in [("lstm", None), ("lstm", Some(Target::Generic)), ("gru", None)] {
        let found = recommended(&fixture(name), target, None);
        assert_eq!(
            (found.choice.way, found.choice.dynamic_lstm),
            (Strategy::Dynamic, false),
            "{name}"
        );
        assert_eq!(found.otherwise.len(), 1, "{name}: {found}");
    }
}

#[test]
fn a_strategy_that_quantizes_nothing_is_skipped() {
    let found = recommended(&fixture("weight_is_graph_output"), Some(Target::Qnn), None);
    // Its integers alone would make the file larger, and the target has no dynamic format.
    assert_eq!((found.rule, found.choice.way), ("none", Strategy::Nothing), "{found}");
}

/// Quantizes as recommended, and validates the result.
fn made(name: &str, model: &Model, found: &Recommendation) {
    let prepared = PreprocessedModel::of(model, found.config().unwrap());
    let prepared = prepared.unwrap_or_else(|error| panic!("{name}: {found}: {error}"));
    let plan = prepared.plan();
    let ranges = plan.needs_calibration().then(|| ranges(&prepared.model, &plan));
    let quantized = plan.apply(&prepared.model, ranges.as_ref());
    let quantized = quantized.unwrap_or_else(|error| panic!("{name}: {found}: {error}"));
    assert!(plan.quantized().next().is_some(), "{name}: nothing is quantized: {found}");
    let checked = validate(model, quantized.model(), None).unwrap();
    assert!(checked.passed(), "{name}: {found}: {checked}");
}

#[test]
fn recommendations_work_for_every_target() {
    let mut rules = std::collections::BTreeSet::new();
    let targets = Target::ALL.iter().map(|target| Some(*target));
    for target in targets.chain([None]) {
        for (name, model) in fixtures() {
            let Ok(found) = recommend(&model, Request { target, samples: None }) else { continue };
            if found.rule != "none" {
                rules.insert(found.rule);
            }
            if found.choice.way != Strategy::Nothing {
                made(&name, &model, &found);
            }
        }
    }
    assert!(rules.len() >= 8, "{rules:?}");
    assert!(ALL.iter().filter(|rule| rules.contains(rule.name)).count() == rules.len());
}
