//! Tests of targets: results conform to their target, and violations are found.

mod common;

use std::collections::BTreeSet;

use common::{fixtures, ranges};
use quantize_rs::{
    Config, DataType, Graph, Model, Plan, QType, QuantizeError, QuantizeErrorKind, Rule, Source,
    Target, conformance,
};

/// The model quantized for a target.
fn made(model: &Model, target: Target, per_channel: bool) -> Result<Model, QuantizeError> {
    made_as(model, Config { per_channel: Some(per_channel), ..Config::for_target(target) })
}

fn made_as(model: &Model, config: Config) -> Result<Model, QuantizeError> {
    let plan = Plan::of(&Graph::of(model)?, config)?;
    Ok(plan.apply(model, Some(&ranges(model, &plan)))?.model().clone())
}

/// Fixtures with weights that no scale can represent.
const REFUSED: &[&str] = &[];

/// Fixtures in which a node for qnn reads quantized values and computes in float: its weight is
/// computed or reshaped at run time, is sparse, or is the left operand; or a constant that it reads
/// fits no scale.
const PARTS_IN_FLOAT: &[&str] = &[
    "conv_dynamic_weight",
    "infinite_constant",
    "opset11_conv_relu",
    "overridable_addend",
    "sparse_initializer",
    "tied_embedding",
    "weight_identity",
    "weight_reshape",
    "weight_transpose",
];

#[test]
fn every_fixture_conforms_to_its_target() {
    let mut refused = BTreeSet::new();
    for (name, model) in fixtures() {
        for (target, per_channel) in Target::ALL.iter().flat_map(|t| [(*t, false), (*t, true)]) {
            let after = match made(&model, target, per_channel) {
                Ok(after) => after,
                Err(error) => {
                    let old = matches!(error.kind(), QuantizeErrorKind::Unsupported { .. });
                    // A float bias next to integers needs a newer opset than the integers do.
                    let needed = if per_channel { 13 } else { 11 };
                    if !old || model.opset("").unwrap_or(0) >= needed {
                        refused.insert(format!("{name}: {error}"));
                    }
                    continue;
                }
            };
            // A model that was already quantized may violate rules itself.
            let before = conformance(&model, target).unwrap();
            let mut found = conformance(&after, target).unwrap();
            found.retain(|violation| !before.contains(violation));
            let whole = matches!(target, Target::X86 | Target::Qnn)
                && !PARTS_IN_FLOAT.contains(&name.as_str());
            let asked = |rule: Rule| {
                rule.is_strict() || whole && matches!(rule, Rule::FloatNode | Rule::FloatOutput)
            };
            found.retain(|violation| asked(violation.rule));
            assert!(found.is_empty(), "{name} for {target}: {found:?}");
        }
    }
    let names: BTreeSet<&str> =
        refused.iter().filter_map(|text| Some(text.split_once(':')?.0)).collect();
    assert!(names.iter().eq(REFUSED), "{refused:#?}");
}

/// Types of weights and activations with 8-bit floats, and a target that supports them.
fn floats() -> impl Iterator<Item = (QType, QType, Target)> {
    let all = |target: &'static Target| {
        let activations = target.profile().activations.iter().filter(|qtype| qtype.is_float());
        activations.flat_map(move |activations| {
            let weights = target.profile().weights_beside(*activations);
            weights.map(move |weights| (weights, *activations, *target))
        })
    };
    Target::ALL.iter().flat_map(all)
}

#[test]
fn float8_conforms_where_it_is_supported() {
    let takes: BTreeSet<&str> = floats().map(|(.., target)| target.name()).collect();
    assert_eq!(takes, BTreeSet::from(["tensorrt", "generic"]));
    let mut made = 0;
    for (name, model) in fixtures() {
        for (weights, activations, target) in floats() {
            let activations = Some(activations);
            let base = Config { per_channel: Some(true), ..Config::for_target(target) };
            let after =
                match made_as(&model, Config { weights: weights.into(), activations, ..base }) {
                    Ok(after) => after,
                    Err(error) => {
                        let old = matches!(error.kind(), QuantizeErrorKind::Unsupported { .. });
                        assert!(old, "{name}: {error}");
                        continue;
                    }
                };
            let types: BTreeSet<_> =
                after.graph().initializer.iter().filter_map(|tensor| tensor.dtype()).collect();
            if types.is_disjoint(&[DataType::Float8E4M3FN, DataType::Float8E5M2].into()) {
                // Nothing in it was quantized.
                continue;
            }
            let found = conformance(&after, target).unwrap();
            assert_eq!(found, [], "{name} for {target} with {weights} and {activations:?}");
            assert!(after.proto().ir_version >= 9);
            made += 1;
        }
    }
    assert!(made > 30, "{made}");
}

#[test]
fn invalid_combinations_with_float8_are_rejected() {
    use QType::{Float8E4M3FN as E4M3, Float8E5M2 as E5M2, Int8, UInt8};
    let models = fixtures();
    let refused = |model: &str, target, activations, weights: QType| {
        let config = Config {
            target,
            activations: Some(activations),
            weights: weights.into(),
            ..Config::default()
        };
        Plan::of(&Graph::of(&models[model]).unwrap(), config).unwrap_err().to_string()
    };
    let default = refused("opset26_conv", None, E4M3, E4M3);
    assert_eq!(
        default,
        "activations is float8e4m3fn, expected uint8 or int8 or uint16 or int16; float8e4m3fn is \
         for target tensorrt or generic"
    );
    let avx2 = refused("opset26_conv", Some(Target::X86Avx2), E4M3, Int8);
    assert_eq!(
        avx2,
        "activations is float8e4m3fn, expected uint8 or int8 or uint16 or int16 for target x86-avx2"
    );
    let e5m2 = refused("opset26_conv", Some(Target::TensorRt), E5M2, E5M2);
    assert_eq!(
        e5m2,
        "activations is float8e5m2, expected int8 or float8e4m3fn for target tensorrt"
    );
    let mixed = refused("opset26_conv", Some(Target::TensorRt), E4M3, Int8);
    let expected = "expected float8e4m3fn beside float8e4m3fn activations for target tensorrt";
    assert_eq!(mixed, format!("weights is int8, {expected}"));
    let mixed = refused("opset26_conv", None, UInt8, E4M3);
    assert_eq!(mixed, "weights is float8e4m3fn, expected int8 or uint8 beside uint8 activations");
    let old = refused("conv2d_relu", Some(Target::Generic), E4M3, E4M3);
    assert!(old.contains("float8e4m3fn needs opset 19"), "{old}");
}

#[test]
fn float8_keeps_data_movement_in_float() {
    let models = fixtures();
    let config = Config {
        weights: QType::Float8E4M3FN.into(),
        activations: Some(QType::Float8E4M3FN),
        target: Some(Target::Generic),
        ..Config::default()
    };
    let plan = Plan::of(&Graph::of(&models["opset26_conv"]).unwrap(), config).unwrap();
    assert!(plan.warnings.iter().any(|warning| warning.contains("ORT_ENABLE_BASIC")));
    let sources: Vec<&Source> = plan.quantized().map(|(_, how)| &how.source).collect();
    assert!(sources.iter().all(|source| matches!(source, Source::Weights | Source::Observed)));
}

#[test]
fn models_for_one_target_violate_rules_of_another() {
    use Target::{Generic, OpenVino, Qnn, TensorRt, X86, X86Avx2};
    let models = fixtures();
    let rules = |name: &str, made: Target, asked: Target| -> BTreeSet<String> {
        let model = self::made(&models[name], made, true).unwrap();
        let found = conformance(&model, asked).unwrap();
        found.iter().map(|violation| format!("{:?}", violation.rule)).collect()
    };
    let found = |name, made, asked, rule: Rule| {
        let rules = rules(name, made, asked);
        assert!(rules.contains(&format!("{rule:?}")), "{name} {made} {asked}: {rules:?}");
    };
    found("residual_add", X86, TensorRt, Rule::ActivationType);
    found("residual_add", X86, TensorRt, Rule::ZeroPoint);
    found("residual_add", X86, TensorRt, Rule::Bias);
    found("residual_add", X86, X86Avx2, Rule::Saturation);
    found("residual_add", OpenVino, X86, Rule::FloatBias);
    found("residual_add", OpenVino, X86, Rule::FloatOutput);
    found("residual_add", Generic, OpenVino, Rule::Bias);
    found("transformer_block", X86, Qnn, Rule::PerChannel);
    found("transformer_block", X86, Qnn, Rule::FloatNode);
    assert!(rules("residual_add", X86, X86).is_empty());
    assert!(rules("residual_add", Qnn, Qnn).is_empty());
}

#[test]
fn double_quantization_is_found() {
    let models = fixtures();
    let once = made(&models["residual_add"], Target::X86, true).unwrap();
    // Another pair on a value that is already dequantized.
    let mut twice = once.clone();
    let node = once.graph().node.iter().find(|node| node.op_type == "QuantizeLinear").unwrap();
    let pair = node.output[0].clone();
    let again = once.graph().node.iter().find(|node| node.input.contains(&pair)).unwrap();
    let [scale, zero] = [&node.input[1], &node.input[2]];
    let input = vec![again.output[0].clone(), scale.clone(), zero.clone()];
    let quantize = quantize_rs_onnx::NodeProto::new(
        "again",
        "QuantizeLinear",
        input,
        vec!["again".to_owned()],
        vec![],
    );
    twice.apply(vec![quantize_rs_onnx::Edit::AddNode(quantize)]).unwrap();
    let found = conformance(&twice, Target::X86).unwrap();
    assert!(found.iter().any(|violation| violation.rule == Rule::DoublePair), "{found:?}");
    assert!(found.iter().any(|violation| violation.to_string().contains("again")), "{found:?}");
}
