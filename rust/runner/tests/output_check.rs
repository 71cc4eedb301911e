//! The check of the outputs of a result: what it measures, and when it warns.

use std::path::PathBuf;
use std::time::Duration;

use quantize_rs::{
    CalibrationError, CalibrationErrorKind, CheckSamples, CheckedInputs, Config, Control, Engine,
    Grade, InputSpec, Method, Model, OutputCheck, PreprocessedModel, QType, QuantizeErrorKind,
    Quantized, RetainingSamples, Sample, Samples, Session, Target, Tensor, TimedSession,
    WeightAlgorithm, WeightType, calibrate,
};
use quantize_rs_onnx::{Edit, TensorProto};
use quantize_rs_runner::Tract;
use quantize_rs_runner::samples::{self, for_check, synthetic};

fn digits(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits")).join(name)
}

fn model() -> Model {
    Model::open(digits("digits_cnn.onnx")).unwrap()
}

/// The model with one element of a weight so large that a single scale leaves no precision for the
/// others.
fn spoilt(name: &str) -> Model {
    let mut spoilt = model();
    let proto = spoilt.graph().initializer.iter().find(|tensor| tensor.name == name).unwrap();
    let tensor = spoilt.tensor(proto).unwrap();
    let mut values = tensor.to_f32().unwrap();
    values[0] *= 3000.0;
    let tensor = TensorProto::new(name, &Tensor::from_f32(tensor.shape, &values));
    spoilt.apply(vec![Edit::ReplaceInitializer(tensor)]).unwrap();
    spoilt
}

fn kept() -> Vec<Sample> {
    let inputs = InputSpec::of(&model());
    let mut all = samples::open(&digits("calibration.npy"), &inputs, Some(40)).unwrap();
    let mut retaining = RetainingSamples::new(&mut *all);
    while retaining.next_sample().is_some() {}
    retaining.kept()
}

fn checked(model: &Model, config: Config, samples: &[Sample], inputs: CheckedInputs) -> Quantized {
    let prepared = PreprocessedModel::of(model, config).unwrap();
    let mut made = prepared.plan().apply(&prepared.model, None).unwrap();
    let given = CheckSamples { samples, inputs, calibrated: 0.0 };
    let control = Control { threads: 2, progress: &mut |_| true };
    made.check_outputs(model, None, &Tract, given, control).unwrap();
    made
}

fn per_tensor() -> Config {
    Config {
        per_channel: Some(false),
        symmetric: Some(false),
        equalize: false,
        weight_algorithm: WeightAlgorithm::Nearest,
        ..Config::default()
    }
}

#[test]
fn what_is_near_the_float_model_is_measured_without_a_warning() {
    let kept = kept();
    assert_eq!(kept.len(), 16);
    let made = checked(&model(), Config::default(), &kept, CheckedInputs::Calibration);
    let check = made.report().output_check.as_ref().expect("a check");
    assert_eq!((check.samples, check.engine.as_str()), (16, "tract"));
    assert!(check.sqnr_db().is_some_and(|db| db > 30.0), "{}", check.summary());
    assert!(check.summary().ends_with("dB on 16 calibration samples (tract)"), "{check:?}");
    assert_eq!(made.report().warnings, Vec::<String>::new());
}

#[test]
fn a_large_error_is_a_warning_with_the_layer_that_causes_it() {
    let made = checked(&spoilt("conv2.weight"), per_tensor(), &kept(), CheckedInputs::Calibration);
    let check = made.report().output_check.as_ref().expect("a check");
    assert!(check.sqnr_db().is_some_and(|db| db < 10.0), "{}", check.summary());
    let warning = made.report().warnings.iter().find(|text| text.contains("`logits` is far"));
    let warning = warning.unwrap_or_else(|| panic!("{:?}", made.report().warnings));
    let (_, layers) = warning.split_once("most of it comes from ").expect("layers");
    assert!(layers.starts_with("`conv2.weight` ("), "{warning}");
    assert!(warning.ends_with("min_sqnr=20 leaves such layers in float"), "{warning}");
}

#[test]
fn layers_that_make_a_static_result_poor_stay_float() {
    let (model, kept) = (spoilt("conv1.weight"), kept());
    let statically = Config { activations: Some(QType::UInt8), ..per_tensor() };
    let float = |config: Config| {
        let prepared = PreprocessedModel::of(&model, config).unwrap();
        let plan = prepared.plan();
        let control = Control { threads: 2, progress: &mut |_| true };
        let few = &mut SliceOf(kept.iter());
        let ranges =
            calibrate(&prepared.model, &plan, &Tract, few, &Method::default(), control).unwrap();
        let mut made = plan.apply(&prepared.model, Some(&ranges)).unwrap();
        let given =
            CheckSamples { samples: &kept, inputs: CheckedInputs::Calibration, calibrated: 0.0 };
        let control = Control { threads: 2, progress: &mut |_| true };
        made.check_outputs(&model, Some(&ranges), &Tract, given, control).unwrap();
        let report = made.report();
        let db = report.output_check.as_ref().and_then(OutputCheck::sqnr_db);
        let warnings = report.warnings.iter().filter(|text| !text.contains("no VNNI"));
        (report.config.exclude.clone(), warnings.cloned().collect::<Vec<_>>(), db.unwrap())
    };
    let (layers, warnings, db) = float(statically.clone());
    assert_eq!(layers, ["conv1.weight"]);
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.starts_with("`conv1.weight` stays float: with it quantized, "), "{warning}");
    assert!(warning.ends_with(" dB. check=\"none\" quantizes every layer"), "{warning}");
    assert!(db > 30.0, "{db}");

    // Layers that an option names are quantized as it says.
    let bits = [("conv1.weight".to_owned(), WeightType::from(QType::Int8))].into();
    let named = Config { layer_types: bits, ..statically.clone() };
    let included = Config { include: Some(vec!["*".to_owned()]), ..statically };
    for config in [named, included] {
        let (layers, warnings, db) = float(config);
        assert_eq!(layers, Vec::<String>::new());
        assert!(warnings.iter().any(|text| text.contains("`logits` is far")), "{warnings:?}");
        assert!(db < 10.0, "{db}");
    }
}

#[test]
fn without_samples_inputs_are_made_from_the_graph() {
    let model = model();
    let (inputs, made) = for_check(&model, &[]);
    let made = made.unwrap();
    assert_eq!(inputs, CheckedInputs::Synthetic);
    assert_eq!(made, synthetic(&model, 4).unwrap(), "the same for every call");
    let report = checked(&model, Config::default(), &made, inputs);
    let check = report.report().output_check.clone().expect("a check");
    assert_eq!(check.samples, 4);
    assert!(check.summary().contains("4 synthetic samples"), "{}", check.summary());
    // Ranges of data say nothing about noise.
    let config = Config { activations: Some(QType::UInt8), ..Config::default() };
    let prepared = PreprocessedModel::of(&model, config).unwrap();
    assert!(prepared.plan().needs_calibration());
}

#[test]
fn a_failure_is_reported_and_ctrl_c_is_an_error() {
    let (model, kept) = (model(), kept());
    let prepared = PreprocessedModel::of(&model, Config::default()).unwrap();
    let mut made = prepared.plan().apply(&prepared.model, None).unwrap();
    let bad = [Sample { inputs: vec![("image".into(), Tensor::from_f32(vec![2], &[0.0, 1.0]))] }];
    let inputs = CheckedInputs::Calibration;
    let given = CheckSamples { samples: &bad, inputs, calibrated: 0.0 };
    let control = Control { threads: 1, progress: &mut |_| true };
    made.check_outputs(&model, None, &Tract, given, control).unwrap();
    let check = made.report().output_check.clone().expect("a check");
    assert!(check.summary().starts_with("not measured: "), "{}", check.summary());

    let given = CheckSamples { samples: &kept, inputs, calibrated: 0.0 };
    let control = Control { threads: 1, progress: &mut |_| false };
    let error = made.check_outputs(&model, None, &Tract, given, control).unwrap_err();
    assert!(matches!(error.kind(), QuantizeErrorKind::Calibration(_)), "{error}");
}

/// tract under the name of ONNX Runtime, which refuses some models.
struct Refusing {
    refuses: fn(&Model) -> bool,
    unsupported: bool,
}

impl Engine for Refusing {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        if !(self.refuses)(model) {
            return Tract.prepare(model, observed, sample);
        }
        let (engine, problem) = ("onnxruntime", "This is an invalid model.\nIt has 9 nodes.");
        Err(if self.unsupported {
            let (problem, remedy) = (problem.to_owned(), "a newer version may");
            CalibrationError::new(CalibrationErrorKind::Unsupported { engine, problem, remedy })
        } else {
            CalibrationError::engine(Some(engine), format!("{engine}: {problem}"))
        })
    }
}

#[test]
fn a_result_that_onnxruntime_refuses_is_a_warning_if_it_runs_the_float_model() {
    fn is_quantized(model: &Model) -> bool {
        model.graph().node.iter().any(|node| node.op_type == "DequantizeLinear")
    }
    let (model, kept) = (model(), kept());
    let (synthetic, made) = for_check(&model, &[]);
    let samples = [(CheckedInputs::Calibration, kept), (synthetic, made.unwrap())];
    for (inputs, samples) in &samples {
        for (refuses, unsupported, target, warned) in [
            (is_quantized as fn(&Model) -> bool, false, None, true),
            (is_quantized, false, Some(Target::TensorRt), true),
            (is_quantized, true, None, true),
            // The kernels of another runtime.
            (is_quantized, true, Some(Target::TensorRt), false),
            (|_| true, false, None, false),
        ] {
            let config = Config { target, ..Config::default() };
            let prepared = PreprocessedModel::of(&model, config).unwrap();
            let mut made = prepared.plan().apply(&prepared.model, None).unwrap();
            let given = CheckSamples { samples, inputs: *inputs, calibrated: 0.0 };
            let control = Control { threads: 1, progress: &mut |_| true };
            let engine = Refusing { refuses, unsupported };
            made.check_outputs(&model, None, &engine, given, control).unwrap();
            let report = made.report();
            let check = report.output_check.as_ref().expect("a check");
            assert!(check.failure.is_some());
            assert_eq!(check.refused, warned);
            let said = report.warnings.iter().find(|text| text.contains("does not load"));
            assert_eq!(said.is_some(), warned, "{:?}", report.warnings);
            let assessment = report.assessment();
            assert_eq!(assessment.sentence.starts_with("Not usable"), warned);
            assert_eq!(assessment.grade == Grade::Poor, warned);
            if let Some(said) = said.filter(|_| !unsupported) {
                assert_eq!(
                    said,
                    "the result does not load in onnxruntime: This is an invalid model."
                );
            }
        }
    }
}

#[test]
fn indices_are_rows_of_their_table() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models");
    let mut looked_up = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "onnx") {
            continue;
        }
        let model = Model::open(&path).unwrap();
        let Ok(made) = synthetic(&model, 2) else { continue };
        let prepared = PreprocessedModel::of(&model, Config::default()).unwrap();
        let mut quantized = prepared.plan().apply(&prepared.model, None).unwrap();
        let inputs = CheckedInputs::Synthetic;
        let given = CheckSamples { samples: &made, inputs, calibrated: 0.0 };
        let control = Control { threads: 1, progress: &mut |_| true };
        quantized.check_outputs(&model, None, &Tract, given, control).unwrap();
        let Some(check) = &quantized.report().output_check else { continue };
        let summary = check.summary();
        assert!(!summary.contains("out of range"), "{}: {summary}", path.display());
        looked_up += usize::from(model.graph().node.iter().any(|node| node.op_type == "Gather"));
    }
    assert!(looked_up > 0);
}

struct SliceOf<'a>(std::slice::Iter<'a, Sample>);

impl Samples for SliceOf<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.0.next().cloned().map(Ok)
    }
}

/// Runs models with tract, and takes the times of another engine for them.
struct Clock {
    name: &'static str,
    /// The time of a quantized model, in milliseconds; the float model takes 1.
    quantized: u64,
}

struct Sleep(Duration);

impl TimedSession for Sleep {
    fn run(&mut self) -> Result<(), CalibrationError> {
        std::thread::sleep(self.0);
        Ok(())
    }
}

impl Engine for Clock {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        Tract.prepare(model, observed, sample)
    }

    fn timed(
        &self,
        model: &Model,
        _: &Sample,
        _: usize,
    ) -> Result<Option<Box<dyn TimedSession>>, CalibrationError> {
        let quantized = model.graph().node.iter().any(|node| node.op_type == "DequantizeLinear");
        let time = if quantized { self.quantized } else { 1 };
        Ok(Some(Box::new(Sleep(Duration::from_millis(time)))))
    }
}

#[test]
fn a_result_that_is_measured_to_be_slower_says_by_how_much() {
    let said = |engine: Clock, target: Option<Target>| {
        let (model, kept) = (model(), kept());
        let config = Config { activations: Some(QType::UInt8), target, ..Config::default() };
        let prepared = PreprocessedModel::of(&model, config).unwrap();
        let plan = prepared.plan();
        let control = Control { threads: 1, progress: &mut |_| true };
        let mut few = SliceOf(kept.iter());
        let ranges =
            calibrate(&prepared.model, &plan, &Tract, &mut few, &Method::default(), control)
                .unwrap();
        let mut made = plan.apply(&prepared.model, Some(&ranges)).unwrap();
        let inputs = CheckedInputs::Calibration;
        let given = CheckSamples { samples: &kept[..2], inputs, calibrated: 0.0 };
        let control = Control { threads: 1, progress: &mut |_| true };
        made.check_outputs(&model, Some(&ranges), &engine, given, control).unwrap();
        let warnings = made.report().warnings.clone();
        warnings.into_iter().find(|text| text.starts_with("slower than the float model: "))
    };
    let ort = |quantized| Clock { name: "onnxruntime", quantized };
    let warning = said(ort(4), None).expect("a warning");
    assert!(warning.contains(" times its time, "), "{warning}");
    assert_eq!(said(ort(0), None), None);
    // Times say nothing about another engine or target.
    assert_eq!(said(Clock { name: "tract", quantized: 4 }, None), None);
    assert_eq!(said(ort(4), Some(Target::Generic)), None);
}
