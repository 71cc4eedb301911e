//! Facts about the flow, from a plan to a file, with an engine that needs no runtime.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use quantize_rs::{
    CalibrationError, CalibrationErrorKind, Config, Control, DataType, Decision, Engine, Graph,
    Kept, Method, Model, Plan, QType, QuantizeError, QuantizeErrorKind, Range, Ranges, Runner,
    Sample, Samples, Sink, Target, Tensor, calibrate,
};

fn fixture(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    Model::open(folder.join(format!("{name}.onnx"))).unwrap()
}

/// The failure of a calibration.
fn calibration(error: &QuantizeError) -> &CalibrationError {
    let QuantizeErrorKind::Calibration(error) = error.kind() else { panic!("{error}") };
    error
}

fn plan(model: &Model, config: Config) -> Plan {
    Plan::of(&Graph::of(model).unwrap(), config).unwrap()
}

fn per_channel() -> Config {
    Config { per_channel: true, symmetric: true, ..Config::default() }
}

fn with_activations() -> Config {
    Config { activations: Some(QType::UInt8), ..per_channel() }
}

/// Ranges as if every observed value had been seen in `[-1, 3]`.
fn ranges(model: &Model, plan: &Plan) -> Ranges {
    let mut samples = Ramp { left: 1 };
    let mut go_on = |_| true;
    let control = Control { threads: 1, progress: &mut go_on };
    let mut ranges =
        calibrate(model, plan, &Echo::default(), &mut samples, &Method::default(), control)
            .unwrap();
    ranges.values.values_mut().for_each(|range| *range = Range { min: -1.0, max: 3.0 });
    ranges
}

/// The tensor of the constant called `name`.
fn constant(model: &Model, name: &str) -> Tensor {
    let found = model.graph().initializer.iter().find(|tensor| tensor.name == name);
    model.tensor(found.unwrap_or_else(|| panic!("no constant `{name}`"))).unwrap()
}

fn scales(model: &Model, name: &str) -> Vec<f32> {
    constant(model, name).to_f32().unwrap()
}

/// Samples numbered from 0, each a scalar with its number.
struct Ramp {
    left: usize,
}

impl Samples for Ramp {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.left = self.left.checked_sub(1)?;
        let value = Tensor::from_f32(vec![1], &[f32::from(u16::try_from(self.left).unwrap())]);
        Some(Ok(Sample { inputs: vec![("x".to_owned(), value)] }))
    }
}

/// An engine whose every value is `[-sample, sample / 2]`; one sample may be spoilt.
#[derive(Clone, Default)]
struct Echo {
    taps: usize,
    spoilt: Option<(u16, f32)>,
    cancel_seen: std::sync::Arc<AtomicBool>,
}

impl Engine for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn prepare(
        &self,
        _: &Model,
        taps: &[String],
        _: &Sample,
    ) -> Result<Box<dyn Runner>, CalibrationError> {
        Ok(Box::new(Echo { taps: taps.len(), ..self.clone() }))
    }
}

impl Runner for Echo {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn Sink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let value = sample.get("x").and_then(Tensor::to_f32).unwrap()[0];
        let shown = match self.spoilt {
            Some((number, spoilt)) if f32::from(number) == value => spoilt,
            _ => value,
        };
        for tap in 0..self.taps {
            sink.observe(tap, &[2], &[-shown, shown / 2.0]);
        }
        self.cancel_seen.fetch_or(cancelled.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_weight_becomes_integers_a_scale_a_zero_point_and_a_node_of_its_name() {
    let model = fixture("conv2d_relu");
    let quantized = plan(&model, per_channel()).apply(&model, None).unwrap();
    let after = quantized.model();
    let node = after.graph().node.iter().find(|node| node.op_type == "DequantizeLinear").unwrap();
    let weight = &node.output[0];
    assert!(model.graph().initializer.iter().any(|tensor| tensor.name == *weight));
    let integers = constant(after, &format!("{weight}_quantized"));
    assert_eq!(
        (integers.dtype, &integers.shape),
        (DataType::Int8, &constant(&model, weight).shape)
    );
    assert_eq!(scales(after, &format!("{weight}_scale")).len(), integers.shape[0]);
    assert_eq!(constant(after, &format!("{weight}_zp")).data, vec![0; integers.shape[0]]);
    assert!(!after.graph().initializer.iter().any(|tensor| tensor.name == *weight));
    assert!(integers.data.iter().all(|byte| byte.cast_signed() > i8::MIN), "narrow range");
}

#[test]
fn what_is_planned_is_what_is_written_for_every_number_of_bits() {
    let model = fixture("opset26_conv");
    for (bits, dtype) in
        [(2, DataType::Int2), (4, DataType::Int4), (8, DataType::Int8), (16, DataType::Int16)]
    {
        let plan = plan(&model, Config { per_channel: true, ..Config::with_bits(bits).unwrap() });
        let quantized = plan.apply(&model, None).unwrap();
        let after = quantized.model();
        for (value, _) in plan.quantized() {
            let integers = constant(after, &format!("{}_quantized", value.name));
            assert_eq!(integers.dtype, dtype);
            assert_eq!(constant(after, &format!("{}_zp", value.name)).dtype, dtype);
        }
        assert!(after.proto().ir_version >= dtype.since_ir());
    }
    assert!(matches!(Config::with_bits(5).unwrap_err().kind(), QuantizeErrorKind::Option { .. }));
}

#[test]
fn four_bits_are_widened_only_on_request_and_with_a_warning() {
    let model = fixture("conv2d_relu");
    let config = Config { native_int4: Some(false), ..Config::with_bits(4).unwrap() };
    let quantized = plan(&model, config).apply(&model, None).unwrap();
    let name = quantized.report().quantized().next().unwrap().0.name.clone();
    let integers = constant(quantized.model(), &format!("{name}_quantized"));
    assert_eq!(integers.dtype, DataType::Int8);
    assert!(integers.data.iter().all(|byte| (-8..8).contains(&byte.cast_signed())));
    assert!(quantized.report().warnings.iter().any(|warning| warning.contains("native_int4")));
}

#[test]
fn blocks_go_along_what_is_summed_over() {
    let model = fixture("opset21_gemm");
    let config = Config { block_size: Some(16), ..per_channel() };
    let quantized = plan(&model, config).apply(&model, None).unwrap();
    let node =
        quantized.model().graph().node.iter().find(|node| node.op_type == "DequantizeLinear");
    assert_eq!(node.unwrap().int("block_size", 0), 16);
}

#[test]
fn a_bias_takes_the_product_of_its_input_scales() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let after = quantized.model();
    let conv = model.graph().node.iter().find(|node| node.op_type == "Conv").unwrap();
    let [input, weight, bias] = &conv.input[..] else { panic!("a Conv with a bias") };
    let input_scale = scales(after, &format!("{input}_scale"))[0];
    let expected: Vec<f32> =
        scales(after, &format!("{weight}_scale")).iter().map(|scale| input_scale * scale).collect();
    assert_eq!(scales(after, &format!("{bias}_scale")), expected);
    assert_eq!(constant(after, &format!("{bias}_quantized")).dtype, DataType::Int32);
}

#[test]
fn the_activation_function_stands_before_quantize_linear() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let nodes = &quantized.model().graph().node;
    let relu = nodes.iter().find(|node| node.op_type == "Relu").unwrap();
    let reads = |value: &str| {
        nodes
            .iter()
            .filter(|node| node.input.iter().any(|input| input == value))
            .collect::<Vec<_>>()
    };
    let conv = nodes.iter().find(|node| node.op_type == "Conv").unwrap();
    assert_eq!(reads(&conv.output[0])[0].op_type, "Relu");
    assert_eq!(reads(&relu.output[0])[0].op_type, "QuantizeLinear");
}

#[test]
fn a_bias_that_two_nodes_share_is_encoded_for_each() {
    let model = fixture("shared_bias_two_convs");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let biases = quantized
        .model()
        .graph()
        .initializer
        .iter()
        .filter(|tensor| tensor.dtype() == Some(DataType::Int32))
        .count();
    assert_eq!(biases, 2);
}

/// The bias of a channel whose weights are all zero would saturate, or lose all its bits, in the
/// scale that a zero weight has by itself.
#[test]
fn an_all_zero_channel_keeps_its_bias() {
    let model = fixture("zero_channel");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    for (row, how) in quantized.report().quantized() {
        if how.qtype == QType::Int32 {
            // Half a step of the other channels; the zero channel alone would be off by 0.008.
            assert!(how.error.unwrap().max_abs < 0.001, "{}: {:?}", row.name, how.error);
        }
    }
}

#[test]
fn names_that_are_taken_get_a_number() {
    let model = fixture("name_collisions");
    let quantized = plan(&model, per_channel()).apply(&model, None).unwrap();
    let names: Vec<&str> =
        quantized.model().graph().initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    assert!(names.iter().any(|name| name.ends_with("_1") || name.ends_with("_2")), "{names:?}");
}

#[test]
fn a_model_below_the_opset_is_refused_by_name() {
    for (name, config, feature) in [
        ("opset7_conv", Config::default(), "opset 10"),
        ("opset10_conv", per_channel(), "opset 13"),
        ("opset13", Config::with_bits(4).unwrap(), "opset 21"),
        ("opset21_gemm", Config::with_bits(2).unwrap(), "opset 25"),
    ] {
        let model = fixture(name);
        let error = Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err();
        match error.kind() {
            QuantizeErrorKind::Unsupported { feature: found, .. } => assert_eq!(found, feature),
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn a_name_that_is_not_in_the_model_is_refused_with_near_matches() {
    let model = fixture("mlp_relu");
    let weight = plan(&model, per_channel()).quantized().next().unwrap().0.name.clone();
    let mistyped = format!("{weight}x");
    for config in [
        Config { exclude: vec![mistyped.clone()], ..Config::default() },
        Config { layer_bits: BTreeMap::from([(mistyped.clone(), 8)]), ..Config::default() },
    ] {
        let error = Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err().to_string();
        assert!(error.contains(&mistyped) && error.contains(&format!("`{weight}`")), "{error}");
    }
    let config = Config { exclude: vec!["nothing*".to_owned()], ..Config::default() };
    assert!(Plan::of(&Graph::of(&model).unwrap(), config).is_err());
}

#[test]
fn what_is_excluded_stays_float_and_says_so() {
    let model = fixture("mlp_relu");
    let all = plan(&model, per_channel());
    let first = all.quantized().next().unwrap().0.name.clone();
    let config = Config { exclude: vec![first.clone()], ..per_channel() };
    let plan = plan(&model, config);
    assert_eq!(plan.quantized().count() + 1, all.quantized().count());
    let reason = Kept::Excluded { pattern: first.clone() };
    assert_eq!(plan.value(&first).unwrap().decision, quantize_rs::Decision::Keep(reason));
    let everything = Config { exclude: vec!["*".to_owned()], ..per_channel() };
    let untouched = self::plan(&model, everything).apply(&model, None).unwrap();
    assert_eq!(untouched.to_bytes().unwrap(), model.to_bytes().unwrap());
    assert_eq!(untouched.report().warnings.len(), 1);
}

#[test]
fn ranges_do_not_depend_on_threads() {
    let model = fixture("residual_add");
    let plan = plan(&model, with_activations());
    let run = |threads| {
        let mut go_on = |_| true;
        let control = Control { threads, progress: &mut go_on };
        calibrate(
            &model,
            &plan,
            &Echo::default(),
            &mut Ramp { left: 50 },
            &Method::default(),
            control,
        )
        .unwrap()
    };
    let one = run(1);
    assert_eq!(one, run(4));
    assert_eq!(one.samples, 50);
    assert!(one.values.values().all(|range| *range == Range { min: -49.0, max: 24.5 }));
    assert_eq!(Ranges::from_json(&one.to_json()).unwrap(), one);
    assert_eq!(one.merge(&one).unwrap().values, one.values);
}

#[test]
fn ranges_of_another_model_are_refused() {
    let (model, other) = (fixture("residual_add"), fixture("conv2d_relu"));
    let plan = plan(&other, with_activations());
    let ranges = ranges(&model, &self::plan(&model, with_activations()));
    let error = plan.apply(&other, Some(&ranges)).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
}

#[test]
fn a_value_that_is_not_finite_is_named_with_its_sample() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    // The ramp counts down, so that number 30 is sample 19 of 50.
    let engine = Echo { spoilt: Some((30, f32::NAN)), ..Echo::default() };
    let mut go_on = |_| true;
    let control = Control { threads: 2, progress: &mut go_on };
    let error =
        calibrate(&model, &plan, &engine, &mut Ramp { left: 50 }, &Method::default(), control)
            .unwrap_err();
    assert!(matches!(calibration(&error).kind(), CalibrationErrorKind::NonFinite(_)), "{error}");
    assert_eq!(calibration(&error).sample(), Some(19));
    assert!(plan.observed().contains(&calibration(&error).value().unwrap().to_owned()));
}

#[test]
fn a_caller_that_says_no_stops_the_run() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    let mut go_on = |progress: quantize_rs::Progress| progress.done < 5;
    let control = Control { threads: 2, progress: &mut go_on };
    let mut samples = Ramp { left: 60_000 };
    let error =
        calibrate(&model, &plan, &Echo::default(), &mut samples, &Method::default(), control)
            .unwrap_err();
    assert_eq!(calibration(&error).kind(), &CalibrationErrorKind::Cancelled);
    assert!(samples.left > 59_000, "it went on for {} samples", 60_000 - samples.left);
}

#[test]
fn no_samples_is_an_error() {
    let model = fixture("conv2d_relu");
    let plan = plan(&model, with_activations());
    let mut go_on = |_| true;
    let control = Control { threads: 1, progress: &mut go_on };
    let error = calibrate(
        &model,
        &plan,
        &Echo::default(),
        &mut Ramp { left: 0 },
        &Method::default(),
        control,
    )
    .unwrap_err();
    assert!(matches!(calibration(&error).kind(), CalibrationErrorKind::NoSamples(_)));
}

#[test]
fn a_weight_with_nan_is_refused_by_name_unless_excluded() {
    let path: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/attacks/files/nan_weight.onnx");
    let model = Model::open(path).unwrap();
    let refused = plan(&model, per_channel());
    let error = refused.apply(&model, None).unwrap_err();
    let QuantizeErrorKind::InvalidTensor { tensor, what } = error.kind() else {
        panic!("{error}");
    };
    assert!(what.contains("NaN"), "{what}");
    let config = Config { exclude: vec![tensor.clone()], ..per_channel() };
    plan(&model, config).apply(&model, None).unwrap();
}

#[test]
fn a_plan_with_activations_asks_for_ranges_of_its_own_model() {
    let (model, other) = (fixture("conv2d_relu"), fixture("residual_add"));
    let plan = plan(&model, with_activations());
    let error = plan.apply(&model, None).unwrap_err();
    assert!(matches!(error.kind(), QuantizeErrorKind::Calibration(_)), "{error}");
    let error = plan.apply(&other, None).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
}

#[test]
fn a_bias_or_a_node_can_be_excluded() {
    let model = fixture("conv2d_relu");
    let conv = model.graph().node.iter().find(|node| node.op_type == "Conv").unwrap();
    for name in [&conv.input[2], &conv.name] {
        let config = Config { exclude: vec![name.clone()], ..with_activations() };
        let plan = plan(&model, config);
        assert!(!plan.needs_calibration(), "{name}");
    }
}

#[test]
fn layer_bits_go_by_the_weight_or_by_its_node() {
    let model = fixture("opset21_gemm");
    let all = plan(&model, per_channel());
    let weight = all.quantized().next().unwrap().0.name.clone();
    let node = model.graph().node.iter().find(|node| node.input.contains(&weight)).unwrap();
    for name in [weight.clone(), node.name.clone()] {
        let layer_bits = BTreeMap::from([(name, 4)]);
        let plan = plan(&model, Config { layer_bits, ..per_channel() });
        let how = plan.quantized().find(|(value, _)| value.name == weight).unwrap().1;
        assert_eq!(how.spec.qtype, QType::Int4);
    }
    let layer_bits = BTreeMap::from([(node.input[2].clone(), 4)]);
    let config = Config { layer_bits, ..per_channel() };
    assert!(Plan::of(&Graph::of(&model).unwrap(), config).is_err(), "a bias has no bits to choose");
}

#[test]
fn weights_that_are_out_of_sight_are_spoken_of() {
    let model = fixture("if_subgraph");
    assert!(plan(&model, per_channel()).warnings[0].contains("If, Loop, Scan"));
    assert!(plan(&fixture("conv2d_relu"), per_channel()).warnings.is_empty());
}

#[test]
fn a_weight_that_eight_bits_cannot_hold_is_warned_of() {
    let model = fixture("denormal_weights");
    let quantized = plan(&model, per_channel()).apply(&model, None).unwrap();
    assert!(quantized.report().warnings.iter().any(|warning| warning.contains("dB is little")));
}

#[test]
fn only_operators_that_were_asked_for_are_quantized() {
    let model = fixture("maxpool_flatten_gemm");
    let only =
        |op_type: &str| Config { op_types: Some(vec![op_type.to_owned()]), ..with_activations() };
    let plan = plan(&model, only("Conv"));
    let kept = plan.values.iter().filter_map(|value| match &value.decision {
        Decision::Keep(Kept::OpType { op_type }) => Some(op_type.as_str()),
        _ => None,
    });
    assert_eq!(kept.collect::<Vec<_>>(), ["Gemm"]);
    let error = Plan::of(&Graph::of(&model).unwrap(), only("Cnov")).unwrap_err().to_string();
    assert!(error.contains("did you mean `Conv`"), "{error}");
}

#[test]
fn a_target_refuses_types_it_does_not_take() {
    let model = fixture("conv2d_relu");
    let config = Config { target: Some(Target::TensorRt), ..with_activations() };
    let error = Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err().to_string();
    assert_eq!(error, "activations is uint8, expected int8 for target tensorrt");
}

#[test]
fn a_name_goes_before_a_pattern_and_that_before_a_type_of_operator() {
    let model = fixture("opset21_gemm");
    let all = plan(&model, per_channel());
    let weights: Vec<String> = all.quantized().map(|(value, _)| value.name.clone()).collect();
    let [first, .., last] = &weights[..] else { panic!("several weights") };
    let types = |wishes: &[(&str, u8)]| {
        let layer_bits = wishes.iter().map(|(text, bits)| ((*text).to_owned(), *bits)).collect();
        let plan = plan(&model, Config { layer_bits, ..per_channel() });
        [first, last].map(|name| {
            let found = plan.quantized().find(|(value, _)| value.name == **name);
            found.unwrap().1.spec.qtype
        })
    };
    assert_eq!(types(&[("Gemm", 4)]), [QType::Int4; 2]);
    assert_eq!(types(&[("Gemm", 4), ("re:.*_w", 16)]), [QType::Int16; 2]);
    assert_eq!(types(&[("Gemm", 4), ("*", 16), (first, 8)]), [QType::Int8, QType::Int16]);
    let config = Config {
        layer_types: BTreeMap::from([(last.clone(), QType::UInt4)]),
        exclude: vec![format!("re:{first}")],
        ..per_channel()
    };
    let how = plan(&model, config);
    assert!(how.quantized().all(|(value, _)| value.name != *first));
    let last = how.quantized().find(|(value, _)| value.name == *last).unwrap();
    assert_eq!(last.1.spec.qtype, QType::UInt4);
}

#[test]
fn operators_can_be_excluded_by_type_and_patterns_must_be_sound() {
    let model = fixture("maxpool_flatten_gemm");
    let without = Config { exclude: vec!["Gemm".to_owned()], ..with_activations() };
    let quantized: Vec<String> =
        plan(&model, without).quantized().map(|(value, _)| value.name.clone()).collect();
    assert!(quantized.iter().all(|name| !name.contains("gemm")), "{quantized:?}");
    for wrong in ["re:(", "re:nothing.*", "[", "Gmem"] {
        let config = Config { exclude: vec![wrong.to_owned()], ..with_activations() };
        let error = Plan::of(&Graph::of(&model).unwrap(), config).unwrap_err();
        assert!(error.to_string().contains(wrong), "{error}");
    }
}

#[test]
fn activations_may_have_sixteen_bits_where_the_opset_knows_them() {
    let config = Config { activations: Some(QType::UInt16), ..per_channel() };
    let model = fixture("opset26_conv");
    let plan = plan(&model, config.clone());
    assert!(plan.warnings.iter().any(|warning| warning.contains("no integer kernels")));
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let sixteen = quantized.model().graph().initializer.iter();
    assert!(sixteen.clone().any(|tensor| tensor.dtype() == Some(DataType::UInt16)));
    let error = Plan::of(&Graph::of(&fixture("conv2d_relu")).unwrap(), config).unwrap_err();
    assert!(error.to_string().contains("uint16 needs opset 21"), "{error}");
}

#[test]
fn what_is_made_in_float_is_read_in_float_by_those_who_compute_so() {
    let model = fixture("transformer_block");
    let plan = plan(&model, with_activations());
    let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
    let (before, after) = (model.graph(), quantized.model().graph());
    let sums = |graph: &quantize_rs_onnx::GraphProto| -> Vec<Vec<String>> {
        let adds = graph.node.iter().filter(|node| node.op_type == "Add");
        adds.map(|node| node.input.clone()).collect()
    };
    // Residual sums, and those that add a bias to a product: all as they were.
    assert_eq!(sums(before), sums(after));
    let products = after.node.iter().filter(|node| node.op_type == "MatMul");
    for product in products {
        for input in &product.input {
            let maker = after.node.iter().find(|node| node.output.contains(input)).unwrap();
            assert_eq!(maker.op_type, "DequantizeLinear", "{input}");
        }
    }
}

#[test]
fn a_table_that_is_only_looked_up_is_looked_up_as_integers() {
    let model = fixture("gather_embedding");
    let table = model.graph().node.iter().find(|node| node.op_type == "Gather").unwrap();
    let table = &table.input[0];
    let integers = format!("{table}_quantized");
    let looked_up = |model: &Model| {
        let nodes = model.graph().node.iter().filter(|node| node.op_type == "Gather");
        nodes.filter(|node| node.input[0] == integers).count()
    };
    for per_channel in [false, true] {
        let config = Config { per_channel, ..with_activations() };
        let plan = plan(&model, config);
        let quantized = plan.apply(&model, Some(&ranges(&model, &plan))).unwrap();
        let after = quantized.model();
        assert_eq!(looked_up(after), 1);
        assert!(after.graph().node.iter().all(|node| !node.output.contains(table)));
        assert_eq!(constant(after, &integers).dtype, DataType::Int8);
    }
    // With weights alone the table keeps its name, for those who look for it.
    let quantized = plan(&model, per_channel()).apply(&model, None).unwrap();
    assert_eq!(looked_up(quantized.model()), 0);
    assert!(quantized.model().graph().node.iter().any(|node| node.output.contains(table)));
}
