//! Accuracy criteria: a model that misses them is reverted to float layer by layer, or refused.

use std::path::PathBuf;

use quantize_rs::{
    AccuracyControl, AccuracyCriteria, CalibrationError, CompareOptions, Config, Control, Engine,
    InputSpec, LatencyOptions, Method, Model, PreprocessedModel, QType, QuantizeError,
    QuantizeErrorKind, Quantized, Ranges, Sample, Samples, Session, Tensor, TimedSession,
    WeightAlgorithm, calibrate, compare, quantize_with_accuracy_control,
};
use quantize_rs_onnx::{Edit, TensorProto};
use quantize_rs_runner::{Tract, samples};

fn digits(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits")).join(name)
}

fn model() -> Model {
    Model::open(digits("digits_cnn.onnx")).unwrap()
}

fn some(count: usize) -> Box<dyn Samples + Send> {
    samples::open(&digits("calibration.npy"), &InputSpec::of(&model()), Some(count)).unwrap()
}

/// The model with one element of a weight so large that a single scale leaves no precision for the
/// others.
fn spoilt(name: &str) -> Model {
    let mut spoilt = model();
    let proto = spoilt.graph().initializer.iter().find(|tensor| tensor.name == name).unwrap();
    let tensor = spoilt.tensor(proto).unwrap();
    let mut values = tensor.to_f32().unwrap();
    values[0] *= 300.0;
    let tensor = TensorProto::new(name, &Tensor::from_f32(tensor.shape, &values));
    spoilt.apply(vec![Edit::ReplaceInitializer(tensor)]).unwrap();
    spoilt
}

/// Names of the weights that are quantized without criteria.
fn weights() -> Vec<String> {
    let plan = PreprocessedModel::of(&model(), per_tensor()).unwrap().plan();
    plan.quantized().map(|(value, _)| value.name.clone()).collect()
}

/// One scale per weight: a planted large element spoils all others.
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

fn least(min_sqnr: f64) -> AccuracyControl {
    let criteria = AccuracyCriteria { min_sqnr: Some(min_sqnr), ..AccuracyCriteria::default() };
    AccuracyControl { criteria, ..AccuracyControl::default() }
}

fn held(
    model: &Model,
    config: &Config,
    ranges: Option<&Ranges>,
    options: &AccuracyControl,
    threads: usize,
) -> Result<Quantized, QuantizeError> {
    let control = Control { threads, progress: &mut |_| true };
    quantize_with_accuracy_control(model, config, ranges, &Tract, &mut *some(12), options, control)
}

fn sqnr(model: &Model, quantized: &Model, engine: &dyn Engine) -> f64 {
    let control = Control { threads: 2, progress: &mut |_| true };
    let options = CompareOptions::default();
    let found = compare(model, quantized, engine, &mut *some(12), &options, control).unwrap();
    found.sqnr_db().unwrap()
}

/// The SQNR of the model with all weights quantized.
fn plain(model: &Model) -> f64 {
    let prepared = PreprocessedModel::of(model, per_tensor()).unwrap();
    let quantized = prepared.plan().apply(&prepared.model, None).unwrap();
    sqnr(model, quantized.model(), &Tract)
}

/// The criteria in the error: option, measured value and expected value.
fn missed(error: &QuantizeError) -> (&str, Option<f64>, Option<f64>) {
    match error.kind() {
        QuantizeErrorKind::BelowCriteria { criterion, measured, expected, .. } => {
            (criterion, *measured, *expected)
        }
        kind => panic!("{kind}"),
    }
}

#[test]
fn only_a_bad_layer_is_reverted_to_float() {
    let names = weights();
    assert!(names.len() > 2);
    for name in &names {
        let bad = spoilt(name);
        let required = plain(&bad) + 2.0;
        let made = held(&bad, &per_tensor(), None, &least(required), 2).unwrap();
        let report = made.report();
        let verified = report.verified.as_ref().unwrap();
        let float: Vec<&String> = verified.float_layers.iter().map(|layer| &layer.name).collect();
        assert_eq!(float, [name], "{report}");
        let [first, last] = &verified.attempts[..] else { panic!("{report}") };
        assert!(
            !first.holds && first.float_layers.is_empty() && first.sqnr_db().unwrap() < required
        );
        assert!(last.holds && last.float_layers == [name.clone()]);
        // The result has the reported value, and equals that of the same options without criteria.
        let measured = sqnr(&bad, made.model(), &Tract);
        assert_eq!(last.sqnr_db(), Some(measured));
        assert!(measured >= required);
        let asked = report.config.clone();
        assert!(asked.exclude.contains(name));
        let prepared = PreprocessedModel::of(&bad, asked).unwrap();
        let again = prepared.plan().apply(&prepared.model, None).unwrap();
        assert_eq!(again.to_bytes().unwrap(), made.to_bytes().unwrap());
        let row = report.values.iter().find(|row| row.name == *name).unwrap();
        assert_eq!(row.why, "not quantized: left float to meet min_sqnr");
        assert!(report.to_string().contains(&format!("`{name}` left float: SQNR")), "{report}");
        assert!(report.html().contains("Accuracy control"));
    }
}

#[test]
fn as_few_layers_as_necessary_are_reverted_with_activations_too() {
    let original = model();
    let config = with_activations();
    let prepared = PreprocessedModel::of(&original, config.clone()).unwrap();
    let control = Control { threads: 2, progress: &mut |_| true };
    let method = Method::default();
    let plan = prepared.plan();
    let ranges =
        calibrate(&prepared.model, &plan, &Tract, &mut *some(40), &method, control).unwrap();
    let without = plan.apply(&prepared.model, Some(&ranges)).unwrap();
    let base = sqnr(&original, without.model(), &Tract);
    let mut counts = Vec::new();
    for more in [-1.0, 1.0, 3.0, 6.0, 9.0] {
        let Ok(made) = held(&original, &config, Some(&ranges), &least(base + more), 1) else {
            break;
        };
        let verified = made.report().verified.clone().unwrap();
        assert!(sqnr(&original, made.model(), &Tract) >= base + more);
        // One layer less was tried and was not enough.
        let count = verified.float_layers.len();
        let before = &verified.attempts[verified.attempts.len().saturating_sub(2)];
        assert!(count == 0 || (!before.holds && before.float_layers.len() + 1 == count));
        counts.push(count);
        // The bytes do not depend on the number of threads.
        let other = held(&original, &config, Some(&ranges), &least(base + more), 3).unwrap();
        assert_eq!(other.to_bytes().unwrap(), made.to_bytes().unwrap());
        assert_eq!(other.report().verified, made.report().verified);
    }
    assert!(counts.len() > 1 && counts[0] == 0 && counts[1] > 0, "{counts:?} above {base}");
    assert!(counts.is_sorted(), "{counts:?}");
}

#[test]
fn missed_criteria_are_reported_with_the_measured_value() {
    let bad = spoilt(&weights()[1]);
    let measured = plain(&bad);
    let options = AccuracyControl { fall_back: false, ..least(60.0) };
    let error = held(&bad, &per_tensor(), None, &options, 2).err().unwrap();
    assert_eq!(missed(&error), ("min_sqnr", Some(measured), Some(60.0)));
    for said in [&format!("SQNR is {measured:.2} dB, expected 60"), "fall_back", "per_channel"] {
        assert!(error.to_string().contains(said), "{error}");
    }

    // Not even with only the last layer quantized.
    let error = held(&bad, &per_tensor(), None, &least(190.0), 2).err().unwrap();
    let (criterion, measured, expected) = missed(&error);
    assert!(criterion == "min_sqnr" && measured.unwrap() < 190.0 && expected == Some(190.0));
    let said = format!("even with one of {} layers quantized", weights().len());
    assert!(error.to_string().contains(&said), "{error}");
}

#[test]
fn accuracy_criteria_need_labels_and_have_bounds() {
    let bad = spoilt(&weights()[1]);
    let control = Control { threads: 2, progress: &mut |_| true };
    // The outputs of the float model are the expected ones.
    let float = compare(
        &bad,
        &bad,
        &Tract,
        &mut *some(12),
        &CompareOptions { labels: Some(vec![0; 12]), ..CompareOptions::default() },
        control,
    )
    .unwrap();
    assert_eq!(float.accuracy.unwrap().drop, 0.0);
    let criteria = AccuracyCriteria { max_accuracy_drop: Some(0.1), ..AccuracyCriteria::default() };
    let options = AccuracyControl { criteria, ..AccuracyControl::default() };
    let error = held(&bad, &per_tensor(), None, &options, 2).err().unwrap();
    let QuantizeErrorKind::Option { option, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(option, "max_accuracy_drop");
    for (criteria, wrong) in [
        (AccuracyCriteria { min_sqnr: Some(f64::NAN), ..AccuracyCriteria::default() }, "min_sqnr"),
        (
            AccuracyCriteria { max_accuracy_drop: Some(1.5), ..AccuracyCriteria::default() },
            "max_accuracy_drop",
        ),
    ] {
        let options =
            AccuracyControl { criteria, labels: Some(vec![0; 12]), ..AccuracyControl::default() };
        let error = held(&bad, &per_tensor(), None, &options, 2).err().unwrap();
        let QuantizeErrorKind::Option { option, .. } = error.kind() else { panic!("{error}") };
        assert_eq!(option, wrong);
    }
}

/// Runs models with tract; when timed, the smaller of two takes this many milliseconds.
struct Timely {
    small: u64,
}

struct Sleeping(u64);

impl TimedSession for Sleeping {
    fn run(&mut self) -> Result<(), CalibrationError> {
        std::thread::sleep(std::time::Duration::from_millis(self.0));
        Ok(())
    }
}

impl Engine for Timely {
    fn name(&self) -> &'static str {
        "timely"
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
        quantized: &Model,
        _: &Sample,
        _: usize,
    ) -> Result<Option<Box<dyn TimedSession>>, CalibrationError> {
        let is_float = quantized.byte_len() == model().byte_len();
        Ok(Some(Box::new(Sleeping(if is_float { 4 } else { self.small }))))
    }
}

#[test]
fn slower_models_are_refused_and_faster_ones_report_it() {
    let latency = LatencyOptions { runs: 5, ..LatencyOptions::default() };
    let criteria = AccuracyCriteria {
        require_faster: true,
        min_sqnr: Some(10.0),
        ..AccuracyCriteria::default()
    };
    let options = AccuracyControl { criteria, latency, ..AccuracyControl::default() };
    let (original, config) = (model(), per_tensor());
    let held = |small| {
        let control = Control { threads: 1, progress: &mut |_| true };
        let engine = Timely { small };
        quantize_with_accuracy_control(
            &original,
            &config,
            None,
            &engine,
            &mut *some(4),
            &options,
            control,
        )
    };
    let made = held(1).unwrap();
    let speed = made.report().verified.as_ref().unwrap().speed.clone().unwrap();
    assert!(speed.speedup > 1.0, "{}", made.report());
    assert!(made.report().to_string().contains("times as fast"));
    let error = held(16).err().unwrap();
    let (criterion, measured, expected) = missed(&error);
    assert!(criterion == "require_faster" && measured > expected, "{error}");
    assert!(error.to_string().contains("calibrate, so that activations are quantized"), "{error}");
}

#[test]
fn without_criteria_the_result_is_measured_and_can_be_cancelled() {
    let original = model();
    let made = held(&original, &per_tensor(), None, &AccuracyControl::default(), 2).unwrap();
    let verified = made.report().verified.clone().unwrap();
    let [only] = &verified.attempts[..] else { panic!("{verified}") };
    assert_eq!(only.sqnr_db(), Some(sqnr(&original, made.model(), &Tract)));
    assert!(only.holds && verified.held_out && verified.samples == 12);
    let control = Control { threads: 1, progress: &mut |_| false };
    let config = per_tensor();
    let options = least(10.0);
    let stopped = quantize_with_accuracy_control(
        &original,
        &config,
        None,
        &Tract,
        &mut *some(12),
        &options,
        control,
    );
    assert!(matches!(stopped.err().unwrap().kind(), QuantizeErrorKind::Calibration(_)));
}
