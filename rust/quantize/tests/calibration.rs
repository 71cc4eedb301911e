//! Tests of calibration, with an engine that makes up its values.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Even, Numbers, fixture, upgraded, with_activations};

use quantize_rs::{
    CalibrationError, Config, Control, Decision, Engine, KeepReason, Method, Model, Plan, Ranges,
    RoundingEffort, Sample, Session, Tensor, ValueSink, calibrate,
};

fn planned(model: &Model) -> Plan {
    common::plan(model, with_activations())
}

/// An engine whose values are noise with a long tail that depends on the number of the sample. If
/// `mask` is set, the first observed output carries a mask.
#[derive(Clone, Default)]
struct Noise {
    outputs: usize,
    mask: Option<f32>,
}

impl Engine for Noise {
    fn name(&self) -> &'static str {
        "noise"
    }

    fn prepare(
        &self,
        _: &Model,
        observed: &[String],
        _: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        Ok(Box::new(Noise { outputs: observed.len(), ..self.clone() }))
    }
}

impl Session for Noise {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        _: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let number = sample.get("x").and_then(Tensor::to_f32).unwrap()[0];
        for index in 0..self.outputs {
            let mut state = u64::from(number.to_bits()) + 7919 * index as u64 + 1;
            let mut values: Vec<f32> = (0..4 * 999)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let uniform = f32::from((state >> 48) as u16) / f32::from(u16::MAX) - 0.5;
                    // To the ninth power: most values are near zero, few are far out.
                    (uniform * 2.0).powi(9) * (1.0 + number)
                })
                .collect();
            if let (0, Some(mask)) = (index, self.mask) {
                values.iter_mut().step_by(5).for_each(|value| *value = mask);
            }
            sink.observe(index, &[1, 4, 27, 37], &values);
        }
        Ok(())
    }
}

fn run(engine: &Noise, numbers: &[u16], method: &str, threads: usize) -> Ranges {
    let model = fixture("conv2d_relu");
    let plan = planned(&model);
    let control = Control { threads, progress: &mut |_| true };
    let mut samples = Numbers(numbers.to_vec());
    let method = method.parse().unwrap();
    calibrate(&model, &plan, engine, &mut samples, &method, control).unwrap()
}

#[test]
fn threads_order_and_shards_do_not_change_the_ranges() {
    let numbers: Vec<u16> = (0..40).collect();
    let backwards: Vec<u16> = (0..40).rev().collect();
    let engine = Noise::default();
    for (method, _) in Method::all().filter(|(name, _)| name != "auto") {
        let whole = run(&engine, &numbers, &method, 1);
        assert_eq!(whole.to_json(), run(&engine, &numbers, &method, 3).to_json(), "{method}");
        assert_eq!(whole.to_json(), run(&engine, &backwards, &method, 2).to_json(), "{method}");
        let shards = numbers.chunks(7).map(|shard| run(&engine, shard, &method, 2));
        let merged = shards.reduce(|all, shard| shard.merge(&all).unwrap()).unwrap();
        assert_eq!(whole.to_json(), merged.to_json(), "{method}");
        let loaded = Ranges::from_json(&whole.to_json()).unwrap();
        assert_eq!(loaded, whole);
        assert_eq!(
            run(&engine, &numbers, "minmax", 1).using(&method.parse().unwrap()).unwrap(),
            whole
        );
    }
}

#[test]
fn methods_differ_for_long_tails() {
    let numbers: Vec<u16> = (0..40).collect();
    let engine = Noise::default();
    let minmax = run(&engine, &numbers, "minmax", 2);
    for method in ["moving_average", "percentile:99.9", "entropy", "mse"] {
        let other = run(&engine, &numbers, method, 2);
        let diff = minmax.diff(&other);
        assert_eq!(diff.differences.len(), minmax.values.len(), "{method}: {diff}");
        for (name, range) in &other.values {
            // Room for values that these samples did not show.
            let room = if method == "mse" { 2.0 } else { 1.0 };
            let widest = minmax.values[name];
            assert!(range.min >= widest.min * room, "{method} {name}");
            assert!(range.max <= widest.max * room, "{method} {name}");
        }
    }
    assert!(minmax.diff(&minmax).is_empty());
}

#[test]
fn a_value_with_a_mask_stays_float_and_is_noted() {
    let model = fixture("conv2d_relu");
    let plan = planned(&model);
    for mask in [-1e4, -65504.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
        let engine = Noise { mask: Some(mask), ..Noise::default() };
        let ranges = run(&engine, &[1, 2, 3], "minmax", 1);
        assert!(ranges.values.values().all(|range| range.absmax() < 100.0), "{mask}: {ranges:?}");
        let report = plan.apply(&model, Some(&ranges)).unwrap().report().clone();
        let masked = plan.observed().into_iter().min().unwrap();
        let row = report.values.iter().find(|row| row.name == masked).unwrap();
        assert_eq!(row.quantized, None, "{mask}");
        assert!(row.why.contains("mask"), "{}", row.why);
        assert!(report.notes.iter().any(|note| note.contains(&masked)), "{:?}", report.notes);
    }
    let kept = plan
        .values
        .iter()
        .any(|value| value.decision == Decision::KeepFloat(KeepReason::AttentionMask));
    assert!(!kept, "the plan itself has no mask");
}

#[test]
fn ranges_of_auto_cannot_be_merged() {
    let mut ranges = run(&Noise::default(), &[1], "minmax", 1);
    ranges.method = "auto".to_owned();
    assert!(
        ranges
            .merge(&ranges)
            .unwrap_err()
            .to_string()
            .contains("calibrate the parts with another method")
    );
    assert!(ranges.using(&Method::Auto).is_err());
}

#[test]
fn ranges_of_a_retrained_model_are_rejected() {
    let model = fixture("conv2d_relu");
    let mut bytes = model.to_bytes().unwrap();
    let weight = model.tensor(&model.graph().initializer[0]).unwrap().data;
    let at = bytes.windows(weight.len()).position(|window| window == &weight[..]).unwrap();
    bytes[at..at + weight.len()].chunks_mut(4).for_each(|element| element[1] ^= 1);
    let other = Model::from_bytes(bytes).unwrap();
    let ranges = run(&Noise::default(), &[1], "minmax", 1);
    assert!(planned(&model).apply(&model, Some(&ranges)).is_ok());
    let error = planned(&other).apply(&other, Some(&ranges)).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
}

#[test]
fn a_tensorrt_cache_round_trips() {
    let model = fixture("conv2d_relu");
    let ranges = run(&Noise::default(), &[1, 2], "minmax", 1);
    let cache = ranges.to_tensorrt("8601");
    assert!(cache.starts_with("TRT-8601-MinMaxCalibration\n"), "{cache}");
    let read = Ranges::from_tensorrt(&cache, &model).unwrap();
    assert_eq!(read.to_tensorrt("8601"), cache);
    assert!(planned(&model).apply(&model, Some(&read)).is_ok());
    for (text, what) in [
        ("", "line 1"),
        ("TRT-1-EntropyCalibration2\nx 3c010204\n", "line 2"),
        ("TRT-1-EntropyCalibration2\nx: zz\n", "line 2"),
        ("TRT-1-EntropyCalibration2\nx: 7f800000\n", "not finite"),
    ] {
        let error = Ranges::from_tensorrt(text, &model).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

/// An engine whose sessions run the model that was prepared last, whichever they were made for.
#[derive(Default)]
struct OneModel(Arc<AtomicUsize>);

impl Engine for OneModel {
    fn name(&self) -> &'static str {
        "one model"
    }

    fn runs_several_models(&self) -> bool {
        false
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let own = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let session = Even::default().prepare(model, observed, sample)?;
        Ok(Box::new(OneModelSession { session, own, last: Arc::clone(&self.0) }))
    }
}

struct OneModelSession {
    session: Box<dyn Session>,
    own: usize,
    last: Arc<AtomicUsize>,
}

impl Session for OneModelSession {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        assert_eq!(self.own, self.last.load(Ordering::Relaxed), "another model runs");
        self.session.run(sample, sink, cancelled)
    }

    fn any_shape(&self) -> bool {
        true
    }
}

#[test]
fn an_engine_of_one_model_is_not_compared_with_itself() {
    let model = upgraded("matmul_2d");
    let ranges = |rounding_effort, engine: &dyn Engine| {
        let weights = "int4".parse().unwrap();
        let config = Config { weights, allow_larger: true, rounding_effort, ..Config::default() };
        let plan = common::plan(&model, config);
        let control = Control { threads: 1, progress: &mut |_| true };
        let method = Method::full_range();
        calibrate(&model, &plan, engine, &mut Numbers(vec![0, 1]), &method, control).unwrap()
    };
    let noted = |ranges: &Ranges| ranges.notes.iter().any(|note| note.contains("runs only"));
    let one = OneModel::default();
    let best = ranges(RoundingEffort::Best, &one);
    assert!(noted(&best), "{:?}", best.notes);
    assert!(!best.rounded.is_empty());
    assert!(!noted(&ranges(RoundingEffort::Balanced, &one)));
    assert!(!noted(&ranges(RoundingEffort::Best, &Even::default())));
}
