//! A model with an older opset is converted to the minimum opset that its plan needs.

mod common;

use common::{fixture, per_channel};
use quantize_rs::{
    Config, Granularity, Graph, Model, OpsetConversion, Plan, PreprocessedModel, QType,
    QuantizeErrorKind, convert_opset,
};
use quantize_rs_onnx::{Edit, NodeProto};

/// A copy of the model with a node of this operator, which takes an existing output and produces a
/// new one.
fn with_node(model: &Model, op_type: &str) -> Model {
    let mut model = model.clone();
    let output = model.graph().output[0].name.clone();
    let node = NodeProto::new("odd", op_type, vec![output], vec!["made".to_owned()], Vec::new());
    model.apply(vec![Edit::AddNode(node), Edit::AddOutput("made".to_owned())]).unwrap();
    model
}

fn granularity(prepared: &PreprocessedModel) -> Granularity {
    prepared.plan().quantized().next().unwrap().1.spec.granularity
}

#[test]
fn a_model_is_converted_to_the_opset_that_its_plan_needs() {
    let int4 = || Config::with_bits(4).unwrap();
    for (name, config, from, to) in [
        ("opset7_conv", common::per_tensor(), 7, 10),
        ("opset7_conv", Config::default(), 7, 13),
        ("opset7_conv", per_channel(), 7, 13),
        ("opset9_conv", int4(), 9, 21),
        ("opset13", Config { weights: QType::Int2.into(), ..Config::default() }, 13, 25),
    ] {
        let model = fixture(name);
        let prepared = PreprocessedModel::of(&model, config).unwrap();
        assert_eq!(prepared.model.opset(""), Some(to), "{name}");
        let plan = prepared.plan();
        let conversions = plan.steps.iter().filter(|step| step.pass.starts_with("opset"));
        let conversions: Vec<_> = conversions.collect();
        let [step] = conversions[..] else { panic!("{name}: {:?}", plan.steps) };
        assert_eq!(step.pass, format!("opset {from} → {to}"));
        assert!(!step.did.is_empty());
        let report = plan.apply(&prepared.model, None).unwrap().report().clone();
        assert_eq!(report.steps, plan.steps);
        assert_eq!(report.bytes_before, model.byte_len());
    }
    let prepared = PreprocessedModel::of(&fixture("opset13"), per_channel()).unwrap();
    assert_eq!((prepared.model.opset(""), prepared.steps.len()), (Some(13), 0));
}

#[test]
fn the_opset_of_the_result_can_be_selected() {
    let asked = |opset, config| Config { opset: Some(opset), ..config };
    let prepared = |config| PreprocessedModel::of(&fixture("opset9_conv"), config);
    let newer = prepared(asked(17, Config::default())).unwrap();
    assert_eq!(newer.model.opset(""), Some(17));
    assert_eq!(newer.plan().steps.last().unwrap().pass, "opset 9 → 17");
    for (config, said) in [
        (asked(13, Config::with_bits(4).unwrap()), "is 13, but `"),
        (asked(10, per_channel()), "as per-channel int8 needs opset 13"),
        (asked(7, Config::default()), "needs opset 10"),
        (asked(99, Config::default()), "is 99, expected 1 to"),
    ] {
        let refused = prepared(config).unwrap_err();
        assert!(
            matches!(refused.kind(), QuantizeErrorKind::Option { option, .. } if option == "opset")
        );
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let refused =
        PreprocessedModel::of(&fixture("opset13"), asked(10, Config::default())).unwrap_err();
    assert!(refused.to_string().contains("only convert to a newer opset"), "{refused}");
    let model = fixture("opset13");
    let refused = Plan::of(&Graph::of(&model).unwrap(), asked(17, Config::default())).unwrap_err();
    assert!(refused.to_string().contains("is 17, the model has 13"), "{refused}");
}

#[test]
fn a_model_that_cannot_be_converted_is_quantized_per_tensor() {
    let prepared =
        PreprocessedModel::of(&with_node(&fixture("opset12"), "Warp"), per_channel()).unwrap();
    assert_eq!(prepared.model.opset(""), Some(12));
    assert_eq!(granularity(&prepared), Granularity::PerTensor);
    let warning = &prepared.plan().warnings[0];
    for part in ["instead of per channel", "node `odd` (Warp)", "needs opset 13", "has no operator"]
    {
        assert!(warning.contains(part), "{warning}");
    }
}

#[test]
fn a_model_that_fits_no_plan_is_rejected_by_name() {
    let int4 = Config { per_channel: Some(true), ..Config::with_bits(4).unwrap() };
    for (name, config, needed) in [
        ("opset9_conv", Config::default(), 10),
        ("opset9_conv", per_channel(), 13),
        ("opset12", int4, 21),
    ] {
        let error = PreprocessedModel::of(&with_node(&fixture(name), "Warp"), config).unwrap_err();
        match error.kind() {
            QuantizeErrorKind::Convert { place, op_type, to, what, .. } => {
                assert_eq!((place.as_str(), op_type.as_str()), ("node `odd` (Warp)", "Warp"));
                assert_eq!(*to, needed);
                assert!(what.contains(&format!("needs opset {needed}")), "{what}");
            }
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn a_conversion_reports_what_changed() {
    let model = fixture("opset9_conv");
    let (converted, conversion) = convert_opset(&model, 13).unwrap();
    assert_eq!(conversion.to_string(), "opset 9 → 13: 5 nodes changed");
    assert_eq!(converted.proto().ir_version, 7);
    let (same, nothing) = convert_opset(&converted, 13).unwrap();
    assert_eq!(nothing, OpsetConversion { from: 13, to: 13, ..OpsetConversion::default() });
    assert_eq!(same.to_bytes().unwrap(), converted.to_bytes().unwrap());
    assert!(convert_opset(&converted, 9).is_err());
    assert!(convert_opset(&converted, 29).is_err());
}
