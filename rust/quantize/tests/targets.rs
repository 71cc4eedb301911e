//! What is written for a target is what the target takes, and what is not is found.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use quantize_rs::{
    CalibrationError, Config, Control, DataType, Engine, Graph, Method, Model, Plan, QType,
    QuantizeErrorKind, Ranges, Rule, Runner, Sample, Samples, Sink, Source, Target, Tensor,
    calibrate, conformance,
};

fn fixtures() -> BTreeMap<String, Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "onnx"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, Model::open(path).unwrap())
        })
        .collect()
}

/// One sample, of which no engine here wants to know more.
struct Once(bool);

impl Samples for Once {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let value = Tensor::from_f32(vec![1], &[0.0]);
        std::mem::take(&mut self.0).then(|| Ok(Sample { inputs: vec![("x".to_owned(), value)] }))
    }
}

/// An engine whose every value lies in `[-1, 3]`, a range that no two types share.
#[derive(Clone)]
struct Even(usize);

impl Engine for Even {
    fn name(&self) -> &'static str {
        "even"
    }

    fn prepare(
        &self,
        _: &Model,
        taps: &[String],
        _: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        Ok(Box::new(Even(taps.len())))
    }
}

impl Runner for Even {
    fn run(&self, _: &Sample, sink: &mut dyn Sink, _: &AtomicBool) -> Result<(), CalibrationError> {
        (0..self.0).for_each(|tap| sink.observe(tap, &[2], &[-1.0, 3.0]));
        Ok(())
    }
}

fn ranges(model: &Model, plan: &Plan) -> Ranges {
    let mut go_on = |_| true;
    let control = Control { threads: 1, progress: &mut go_on };
    calibrate(model, plan, &Even(0), &mut Once(true), &Method::default(), control).unwrap()
}

/// The model for a target; `None` where its opset is too old or its weights are no numbers.
fn quantized(model: &Model, target: Target, per_channel: bool) -> Option<Model> {
    quantized_as(model, Config { per_channel, ..Config::for_target(target) })
}

fn quantized_as(model: &Model, config: Config) -> Option<Model> {
    let plan = Plan::of(&Graph::of(model).unwrap(), config).ok()?;
    match plan.apply(model, Some(&ranges(model, &plan))) {
        Ok(quantized) => Some(quantized.model().clone()),
        Err(error) => {
            let ours = matches!(error.kind(), QuantizeErrorKind::Verify(_));
            assert!(!ours, "{error}");
            None
        }
    }
}

#[test]
fn every_fixture_conforms_to_every_target_it_is_made_for() {
    let mut made = 0;
    for (name, model) in fixtures() {
        for (target, per_channel) in Target::ALL.iter().flat_map(|t| [(t, false), (t, true)]) {
            let Some(after) = quantized(&model, *target, per_channel) else { continue };
            let before = conformance(&model, *target).unwrap();
            let found = conformance(&after, *target).unwrap();
            // The model that was quantized before it came here.
            let new = found.iter().filter(|violation| violation.rule.is_strict()).count();
            let old = before.iter().filter(|violation| violation.rule.is_strict()).count();
            assert!(new <= old, "{name} for {target}: {found:?}");
            made += 1;
        }
    }
    assert!(made > 1000, "{made}");
}

/// Types of weights and activations, floats of 8 bits among them, and who takes them.
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
fn floats_of_8_bits_conform_where_they_are_taken() {
    let takes: BTreeSet<&str> = floats().map(|(.., target)| target.name()).collect();
    assert_eq!(takes, BTreeSet::from(["tensorrt", "generic"]));
    let mut made = 0;
    for (name, model) in fixtures() {
        for (weights, activations, target) in floats() {
            let activations = Some(activations);
            let base = Config { per_channel: true, ..Config::for_target(target) };
            let Some(after) = quantized_as(&model, Config { weights, activations, ..base }) else {
                continue;
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
fn wrong_combinations_with_floats_of_8_bits_are_refused() {
    use QType::{Float8E4M3FN as E4M3, Float8E5M2 as E5M2, Int8, UInt8};
    let models = fixtures();
    let refused = |model: &str, target, activations, weights| {
        let config =
            Config { target, activations: Some(activations), weights, ..Config::default() };
        Plan::of(&Graph::of(&models[model]).unwrap(), config).unwrap_err().to_string()
    };
    let default = refused("opset26_conv", None, E4M3, E4M3);
    assert_eq!(
        default,
        "activations is float8e4m3fn, expected uint8 or int8 or uint16 or int16; float8e4m3fn is \
         for target tensorrt or generic"
    );
    let avx2 = refused("opset26_conv", Some(Target::X86Avx2), E4M3, Int8);
    assert_eq!(avx2, "activations is float8e4m3fn, expected uint8 or int8 for target x86-avx2");
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
fn floats_of_8_bits_keep_what_only_moves_data_in_float() {
    let models = fixtures();
    let config = Config {
        weights: QType::Float8E4M3FN,
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
fn what_is_made_for_one_target_is_refused_by_another_with_the_reason() {
    use Target::{Generic, OpenVino, Qnn, TensorRt, X86, X86Avx2};
    let models = fixtures();
    let rules = |name: &str, made: Target, asked: Target| -> BTreeSet<String> {
        let model = quantized(&models[name], made, true).unwrap();
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
fn what_is_quantized_twice_is_found() {
    let models = fixtures();
    let once = quantized(&models["residual_add"], Target::X86, true).unwrap();
    // Another pair on a value that came from integers.
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
