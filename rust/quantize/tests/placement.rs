//! Facts about what is quantized and what is not.

mod common;

use common::{
    fixture, is_quantized, kept, maker, per_channel, plan, quantized, read_by, with_activations,
};
use quantize_rs::{Config, Kept, Plan, QType, Readers, Target};

/// The configuration of every target.
fn targets() -> impl Iterator<Item = Config> {
    Target::ALL.iter().map(|target| Config::for_target(*target))
}

/// Why a node computes in float, as what flows into it says.
fn why(plan: &Plan, value: &str) -> &'static str {
    match kept(plan, value) {
        Kept::FloatNode { why, .. } => why,
        other => panic!("`{value}` {other}"),
    }
}

#[test]
fn only_products_of_float32_are_planned() {
    for name in ["fp16_attention", "double_attention"] {
        for config in targets() {
            let plan = plan(&fixture(name), config);
            assert_eq!(plan.quantized().count(), 0, "{name}: {plan}");
        }
    }
    for config in targets().filter(|config| config.target != Some(Target::Generic)) {
        let plan = plan(&fixture("matmul_activations"), config);
        assert!(is_quantized(&plan, "q") && is_quantized(&plan, "v"), "{plan}");
    }
}

#[test]
fn all_that_a_maximum_reads_is_quantized_for_qnn() {
    let model = fixture("max_of_one_and_three");
    let plan = plan(&model, Config::for_target(Target::Qnn));
    for reads in ["Max", "Min"].iter().flat_map(|op_type| read_by(&model, op_type)) {
        assert!(reads.iter().all(|name| is_quantized(&plan, name)), "{reads:?}");
    }
}

#[test]
fn what_is_moved_from_integers_is_quantized_already() {
    let weights = quantized(&fixture("weight_transpose"), per_channel());
    for config in targets() {
        let plan = plan(weights.model(), config);
        assert_eq!(plan.quantized().count(), 0, "{plan}");
    }
    let model = fixture("already_qdq_pooled");
    let pooled = &read_by(&model, "Conv")[0][0];
    for config in targets() {
        let after = quantized(&model, config);
        assert_eq!(maker(after.model(), pooled), "MaxPool");
        let quantizes = read_by(after.model(), "QuantizeLinear");
        assert!(quantizes.iter().all(|inputs| inputs[0] != *pooled), "{quantizes:?}");
    }
}

#[test]
fn constants_that_no_scale_can_hold_keep_their_node_in_float() {
    for (name, constant, reason) in [
        ("infinite_constant", "never", "a constant that it reads is not finite"),
        ("overridable_addend", "shift", "an input of the model may replace what it reads"),
    ] {
        let model = fixture(name);
        for config in targets() {
            assert!(!is_quantized(&plan(&model, config.clone()), constant));
            quantized(&model, config);
        }
        let plan = plan(&model, Config::for_target(Target::Qnn));
        assert_eq!(why(&plan, constant), reason);
    }
}

#[test]
fn a_bias_that_is_excluded_keeps_its_normalization_in_float() {
    let model = fixture("transformer_block");
    let exclude = vec!["norm1_b".to_owned()];
    let plan = plan(&model, Config { exclude, ..Config::for_target(Target::Qnn) });
    assert!(matches!(kept(&plan, "norm1_b"), Kept::Excluded { .. }));
    assert!(!is_quantized(&plan, "norm1_scale"));
    assert!(is_quantized(&plan, "norm2_b") && is_quantized(&plan, "norm2_scale"));
}

#[test]
fn the_sum_that_holds_a_bias_belongs_to_the_product() {
    let planned = common::plan;
    let only = Config { op_types: Some(vec!["MatMul".to_owned()]), ..with_activations() };
    let plan = planned(&fixture("matmul_2d"), only);
    let bias = plan.quantized().find(|(value, _)| value.name == "b").unwrap().1;
    assert_eq!(bias.spec.qtype, QType::Int32);
    let excluding = Config { exclude: vec!["add1".to_owned()], ..with_activations() };
    assert!(!is_quantized(&planned(&fixture("matmul_2d"), excluding), "b"));
}

#[test]
fn what_joins_two_layers_with_a_bias_joins_in() {
    let model = fixture("two_towers");
    let joined = read_by(&model, "Concat").remove(0);
    let plan = plan(&model, with_activations());
    assert!(joined.iter().all(|name| is_quantized(&plan, name)), "{plan}");
    let made = &read_by(&model, "MatMul")[2][0];
    let how = plan.quantized().find(|(value, _)| value.name == *made).unwrap().1;
    assert_eq!(how.readers, Readers::All, "it comes out of an integer kernel");
}
