//! Analysis of a real model with ONNX Runtime: the digits CNN on its own samples.
#![cfg(feature = "onnxruntime")]

mod installed;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use quantize_rs::{
    CalibrationError, CompareOptions, Comparison, Config, Control, Engine, InputSpec, Method,
    Metric, Model, Plan, PreprocessedModel, QType, QuantizeErrorKind, Ranges, Sample, Samples,
    Sensitivity, SensitivityOptions, Session, Tensor, ValueSink, WeightAlgorithm, calibrate,
    compare, layer_errors, sensitivity, weight_sensitivity,
};
use quantize_rs_onnx::{Edit, TensorProto};
use quantize_rs_runner::{OnnxRuntime, samples};

fn digits(name: &str) -> PathBuf {
    installed::repository().join("examples/digits").join(name)
}

fn model() -> Model {
    Model::open(digits("digits_cnn.onnx")).unwrap()
}

fn some(count: usize, model: &Model) -> Box<dyn Samples + Send> {
    samples::open(&digits("calibration.npy"), &InputSpec::of(model), Some(count)).unwrap()
}

/// An engine, if one is installed.
fn engine() -> Option<Counting> {
    let runtime = OnnxRuntime::open(&installed::library()?).unwrap();
    Some(Counting { runtime, nodes: AtomicUsize::new(0), slow: AtomicBool::new(false) })
}

/// Counts how often each node of each model runs.
struct Counting {
    runtime: OnnxRuntime,
    nodes: AtomicUsize,
    /// Whether a run takes longer than it takes to notice that it is cancelled.
    slow: AtomicBool,
}

struct CountingRunner<'a> {
    runner: Box<dyn Session>,
    nodes: usize,
    engine: &'a Counting,
}

impl Engine for &'static Counting {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let runner = self.runtime.prepare(model, observed, sample)?;
        let nodes = model.graph().node.len();
        Ok(Box::new(CountingRunner { runner, nodes, engine: self }))
    }
}

impl Session for CountingRunner<'static> {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        self.engine.nodes.fetch_add(self.nodes, Ordering::Relaxed);
        if self.engine.slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(150));
        }
        self.runner.run(sample, sink, cancelled)
    }

    fn any_shape(&self) -> bool {
        self.runner.any_shape()
    }
}

/// A counter that lives as long as the tests.
fn counting() -> Option<&'static Counting> {
    engine().map(|engine| &*Box::leak(Box::new(engine)))
}

fn control(ask: &mut dyn FnMut(quantize_rs::Progress) -> bool) -> Control<'_> {
    Control { threads: 2, progress: ask }
}

fn planned(model: &Model, config: Config) -> (Model, Plan) {
    let prepared = PreprocessedModel::of(model, config).unwrap();
    (prepared.model.clone(), prepared.plan())
}

/// One scale per weight. Equalization would share a planted error, and rounding with samples would
/// make good a part of it.
fn per_tensor() -> Config {
    Config {
        per_channel: Some(false),
        symmetric: Some(false),
        equalize: false,
        weight_algorithm: WeightAlgorithm::Nearest,
        // Named, so that none gets 16 bits because it is small.
        include: Some(vec!["*".to_owned()]),
        ..Config::default()
    }
}

fn with_activations() -> Config {
    Config { activations: Some(QType::UInt8), symmetric: Some(true), ..per_tensor() }
}

fn ranges(model: &Model, plan: &Plan, engine: &dyn Engine) -> Ranges {
    let method = Method::default();
    calibrate(model, plan, engine, &mut *some(16, model), &method, control(&mut |_| true)).unwrap()
}

fn found(
    (model, plan): &(Model, Plan),
    ranges: Option<&Ranges>,
    engine: &dyn Engine,
    options: &SensitivityOptions,
) -> Sensitivity {
    let samples = &mut *some(16, model);
    sensitivity(model, plan, ranges, engine, samples, options, control(&mut |_| true)).unwrap()
}

fn compared(original: &Model, quantized: &Model, engine: &dyn Engine) -> Comparison {
    let samples = &mut *some(16, original);
    let options = CompareOptions::default();
    compare(original, quantized, engine, samples, &options, control(&mut |_| true)).unwrap()
}

/// The model with one element of a weight so large that a single scale leaves no precision for the
/// others.
fn spoilt(model: &Model, name: &str) -> Model {
    let proto = model.graph().initializer.iter().find(|tensor| tensor.name == name).unwrap();
    let tensor = model.tensor(proto).unwrap();
    let mut values = tensor.to_f32().unwrap();
    values[0] *= 300.0;
    let mut spoilt = model.clone();
    let tensor = TensorProto::new(name, &Tensor::from_f32(tensor.shape, &values));
    spoilt.apply(vec![Edit::ReplaceInitializer(tensor)]).unwrap();
    spoilt
}

#[test]
fn a_planted_bad_layer_is_the_first_with_and_without_data() {
    let Some(engine) = counting() else { return };
    let layers =
        found(&planned(&model(), per_tensor()), None, &engine, &SensitivityOptions::default());
    assert!(layers.layers.len() > 2);
    for layer in &layers.layers {
        let bad = planned(&spoilt(&model(), &layer.name), per_tensor());
        assert_eq!(weight_sensitivity(&bad.0, &bad.1).unwrap().layers[0].name, layer.name);
        for metric in [Metric::Sqnr, Metric::Mse, Metric::MaxAbs, Metric::Cosine] {
            for all_but_one in [false, true] {
                let options =
                    SensitivityOptions { metric, all_but_one, ..SensitivityOptions::default() };
                let found = found(&bad, None, &engine, &options);
                assert_eq!(found.layers[0].name, layer.name, "{metric} {found}");
            }
        }
    }
}

#[test]
fn running_only_the_dependents_of_a_layer_equals_running_the_model() {
    let Some(engine) = counting() else { return };
    let original = model();
    let subject = planned(&original, per_tensor());
    for all_but_one in [false, true] {
        let options = SensitivityOptions { all_but_one, ..SensitivityOptions::default() };
        let found = found(&subject, None, &engine, &options);
        let names: Vec<String> = found.layers.iter().map(|row| row.name.clone()).collect();
        for row in &found.layers {
            let float = |name: &&String| (**name == row.name) == all_but_one;
            let exclude = names.iter().filter(float).cloned().collect();
            let whole = planned(&original, Config { exclude, ..per_tensor() });
            let whole = whole.1.apply(&whole.0, None).unwrap();
            let whole = compared(&original, whole.model(), &engine);
            let (part, whole) = (row.outputs[0].error.sqnr_db, whole.outputs[0].error.sqnr_db);
            assert!((part - whole).abs() < 1e-3, "{}: {part} and {whole}", row.name);
        }
    }
}

#[test]
fn a_layer_with_its_activations_is_close_to_the_model_without_the_others() {
    let Some(engine) = counting() else { return };
    let original = model();
    let subject = planned(&original, with_activations());
    let ranges = ranges(&subject.0, &subject.1, &engine);
    let found = found(&subject, Some(&ranges), &engine, &SensitivityOptions::default());
    let all = subject.1.apply(&subject.0, Some(&ranges)).unwrap();
    let all = compared(&original, all.model(), &engine).sqnr_db().unwrap();
    for row in &found.layers {
        assert!(row.score.is_finite() && row.score > all - 1.0, "{found} {all}");
        assert!(row.weight_error.is_some() && row.kind.starts_with("int8"));
    }
}

#[test]
fn only_the_dependents_of_a_layer_run() {
    let Some(engine) = counting() else { return };
    let subject = planned(&model(), per_tensor());
    engine.nodes.store(0, Ordering::Relaxed);
    let found = found(&subject, None, &engine, &SensitivityOptions::default());
    let ran = engine.nodes.load(Ordering::Relaxed);
    let nodes = subject.0.graph().node.len();
    // The float model: once for its outputs, once for its values, and once to measure their size.
    let parts = ran - nodes * (2 * found.samples + 1);
    // A quantized model has one more node, which dequantizes the weight.
    let whole = (nodes + 1) * found.samples * found.layers.len();
    assert!(parts * 3 < whole * 2, "{parts} of {whole}");
}

#[test]
fn values_from_calibration_are_reused() {
    let Some(engine) = counting() else { return };
    let subject = planned(&model(), with_activations());
    let known = ranges(&subject.0, &subject.1, &engine);
    engine.nodes.store(0, Ordering::Relaxed);
    let calibrated = found(&subject, Some(&known), &engine, &SensitivityOptions::default());
    let beside_calibration = engine.nodes.swap(0, Ordering::Relaxed);
    let alone = found(&subject, None, &engine, &SensitivityOptions::default());
    assert_eq!(engine.nodes.load(Ordering::Relaxed), beside_calibration);
    assert_eq!(alone.engine, calibrated.engine);
    for (one, other) in alone.layers.iter().zip(&calibrated.layers) {
        assert_eq!(one.name, other.name);
        assert!((one.score - other.score).abs() < 1e-3, "{one:?} {other:?}");
    }
    // Of two equal samples one is kept: the float model runs once more.
    let mut first = some(1, &subject.0);
    let sample = first.next_sample().unwrap().unwrap();
    let samples = &mut Given(vec![sample; 2]);
    let options = SensitivityOptions::default();
    let ask = &mut |_| true;
    let found = sensitivity(&subject.0, &subject.1, None, &engine, samples, &options, control(ask))
        .unwrap();
    assert_eq!(found.samples, 2);
}

#[test]
fn values_that_are_joined_later_are_kept_during_calibration() {
    let Some(engine) = counting() else { return };
    for name in ["residual_add", "two_towers", "transformer_block"] {
        let path = installed::repository().join(format!("tests/fixtures/models/{name}.onnx"));
        let (model, plan) = planned(&Model::open(path).unwrap(), with_activations());
        let some = || samples::random(&InputSpec::of(&model), 4, None, 1).unwrap();
        let method = Method::default();
        let known =
            calibrate(&model, &plan, &engine, &mut *some(), &method, control(&mut |_| true));
        let nodes = |ranges: Option<&Ranges>| {
            engine.nodes.store(0, Ordering::Relaxed);
            let (samples, options) = (&mut *some(), SensitivityOptions::default());
            let ask = &mut |_| true;
            sensitivity(&model, &plan, ranges, &engine, samples, &options, control(ask)).unwrap();
            engine.nodes.load(Ordering::Relaxed)
        };
        assert_eq!(nodes(None), nodes(Some(&known.unwrap())), "{name}");
    }
}

/// Samples in memory.
struct Given(Vec<Sample>);

impl Samples for Given {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.0.pop().map(Ok)
    }
}

#[test]
fn interrupted_work_resumes() {
    let Some(engine) = counting() else { return };
    let subject = planned(&model(), per_tensor());
    let whole = found(&subject, None, &engine, &SensitivityOptions::default());
    let folder = tempfile::tempdir().unwrap();
    let resume = Some(folder.path().join("known.json"));
    let options = SensitivityOptions { resume, ..SensitivityOptions::default() };
    // Cancelled after the first layers, with several left, one of which may already run.
    let mut until = |progress: quantize_rs::Progress| progress.done < 16 * 2;
    let control = Control { threads: 1, progress: &mut until };
    let samples = &mut *some(16, &subject.0);
    engine.slow.store(true, Ordering::Relaxed);
    let outcome = sensitivity(&subject.0, &subject.1, None, &engine, samples, &options, control);
    engine.slow.store(false, Ordering::Relaxed);
    assert!(matches!(outcome.unwrap_err().kind(), QuantizeErrorKind::Calibration(_)));
    let kept = std::fs::read_to_string(options.resume.as_ref().unwrap()).unwrap();
    assert!(kept.contains("sqnr_db"));

    engine.nodes.store(0, Ordering::Relaxed);
    let rest = found(&subject, None, &engine, &options);
    let of_rest = engine.nodes.swap(0, Ordering::Relaxed);
    let again = found(&subject, None, &engine, &options);
    let of_none = engine.nodes.load(Ordering::Relaxed);
    for known in [&rest, &again] {
        let pairs = known.layers.iter().zip(&whole.layers);
        // Text has all digits of a number except the last.
        let mut alike = pairs.map(|(a, b)| a.name == b.name && (a.score - b.score).abs() < 1e-9);
        assert!(known.layers.len() == whole.layers.len() && alike.all(|alike| alike));
    }
    assert!(of_none < of_rest);

    let other = planned(&model(), Config { per_channel: Some(true), ..per_tensor() });
    let samples = &mut *some(16, &other.0);
    let control = Control { threads: 1, progress: &mut |_| true };
    let outcome = sensitivity(&other.0, &other.1, None, &engine, samples, &options, control);
    assert!(outcome.unwrap_err().to_string().contains("belongs to another model"));
}

#[test]
fn an_error_is_attributed_to_the_layer_that_causes_it() {
    let Some(engine) = counting() else { return };
    let original = model();
    let subject = planned(&original, with_activations());
    let ranges = ranges(&subject.0, &subject.1, &engine);
    let quantized = subject.1.apply(&subject.0, Some(&ranges)).unwrap();
    let quantized = quantized.model();
    let samples = &mut *some(8, &original);
    let sound =
        layer_errors(&original, quantized, &engine, samples, control(&mut |_| true)).unwrap();
    let of = |errors: &quantize_rs::LayerErrors| -> BTreeMap<String, (f64, f64)> {
        let rows = errors.values.iter();
        rows.map(|row| (row.name.clone(), (row.own.sqnr_db, row.accumulated.sqnr_db))).collect()
    };
    let before = of(&sound);
    assert!(before.values().all(|(own, _)| *own > 25.0), "{sound}");

    // One scale of the weights of the second convolution, multiplied by one and a half.
    let convolutions = quantized.graph().node.iter().filter(|node| node.op_type == "Conv");
    let weight = &convolutions.map(|node| &node.input[1]).nth(1).unwrap().clone();
    let scale = quantized.graph().node.iter().find(|node| node.output[0] == *weight).unwrap();
    let scale = scale.input[1].clone();
    let proto = quantized.graph().initializer.iter().find(|tensor| tensor.name == scale).unwrap();
    let tensor = quantized.tensor(proto).unwrap();
    let values: Vec<f32> = tensor.to_f32().unwrap().iter().map(|scale| scale * 1.5).collect();
    let mut broken = quantized.clone();
    let tensor = TensorProto::new(&scale, &Tensor::from_f32(tensor.shape, &values));
    broken.apply(vec![Edit::ReplaceInitializer(tensor)]).unwrap();

    let samples = &mut *some(8, &original);
    let found = layer_errors(&original, &broken, &engine, samples, control(&mut |_| true)).unwrap();
    let after = of(&found);
    let worse: Vec<&String> = after
        .iter()
        .filter(|(name, (own, _))| *own < before[*name].0 - 1.0)
        .map(|(n, _)| n)
        .collect();
    let made: Vec<&str> = found.worst().iter().take(worse.len()).map(|row| &*row.name).collect();
    assert!(!worse.is_empty() && worse.iter().all(|name| made.contains(&name.as_str())));
    let output = &original.graph().output[0].name;
    assert!(after[output].1 < before[output].1 - 3.0, "it arrives");
    assert!((after[output].0 - before[output].0).abs() < 1e-9, "it is not made there");
}
