//! Tests specific to tract: observed values before fusion, one shape per runner, cancellation
//! between nodes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use quantize_rs::{CalibrationError, CalibrationErrorKind, Engine, Sample, Session, ValueSink};
use quantize_rs_onnx::{DataType, Model, Tensor};
use quantize_rs_runner::Tract;

/// Everything that was shown: index and values, in order.
#[derive(Debug, Default, PartialEq)]
struct Seen(Vec<(usize, Vec<f32>)>);

impl ValueSink for Seen {
    fn observe(&mut self, index: usize, _shape: &[usize], values: &[f32]) {
        self.0.push((index, values.to_vec()));
    }
}

impl Seen {
    /// The values of an observed value, which must have been shown once.
    fn values(&self, index: usize) -> &[f32] {
        let mut shown = self.0.iter().filter(|(seen, _)| *seen == index);
        let values = &shown.next().expect("the observed value was shown").1;
        assert!(shown.next().is_none(), "value {index} was shown twice");
        values
    }
}

fn fixture(name: &str) -> Model {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    Model::open(models.join(format!("{name}.onnx"))).expect(name)
}

/// Irregular values between -1 and 1.
fn floats(shape: &[usize]) -> Tensor {
    let values: Vec<f32> =
        (0_u16..).take(shape.iter().product()).map(|i| (f32::from(i) * 0.7).sin()).collect();
    Tensor::from_f32(shape.to_vec(), &values)
}

fn sample(inputs: &[(&str, Tensor)]) -> Sample {
    let inputs = inputs.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    Sample { inputs: inputs.collect() }
}

fn image(batch: usize) -> Sample {
    sample(&[("x", floats(&[batch, 3, 12, 12]))])
}

fn prepare(
    model: &str,
    observed: &[&str],
    sample: &Sample,
) -> Result<Box<dyn Session>, CalibrationError> {
    let observed: Vec<String> = observed.iter().map(|name| (*name).to_owned()).collect();
    Tract.prepare(&fixture(model), &observed, sample)
}

fn refusal(model: &str, observed: &[&str], sample: &Sample) -> CalibrationError {
    prepare(model, observed, sample).err().expect("a refusal")
}

fn seen(runner: &dyn Session, sample: &Sample) -> Seen {
    let mut seen = Seen::default();
    runner.run(sample, &mut seen, &AtomicBool::new(false)).expect("runs");
    seen
}

fn show(model: &str, observed: &[&str], sample: &Sample) -> Seen {
    seen(&*prepare(model, observed, sample).expect("prepared"), sample)
}

#[test]
fn observed_values_are_those_before_any_fusion() {
    let sample = image(1);
    let x = sample.get("x").and_then(Tensor::to_f32).expect("float32");
    let observed = ["x", "conv1_y", "relu1_y", "conv2_y", "add1_y", "relu2_y", "conv3_y"];
    let seen = show("residual_add", &observed, &sample);
    assert_eq!(seen.values(0), x);
    let relu = |values: &[f32]| values.iter().map(|value| value.max(0.0)).collect::<Vec<f32>>();
    assert_eq!(seen.values(2), relu(seen.values(1)));
    let sum: Vec<f32> = seen.values(3).iter().zip(seen.values(2)).map(|(a, b)| a + b).collect();
    assert_eq!(seen.values(4), sum);
    assert_eq!(seen.values(5), relu(seen.values(4)));
}

#[test]
fn an_observed_value_changes_nothing_for_the_others() {
    let sample = image(2);
    let observed = ["conv1_y", "relu1_y", "conv2_y", "add1_y", "relu2_y", "conv3_y"];
    let all = show("residual_add", &observed, &sample);
    for (index, name) in observed.iter().enumerate() {
        let alone = show("residual_add", &[name], &sample);
        // Fused sums are added in another order.
        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5;
        assert!(alone.values(0).iter().zip(all.values(index)).all(close), "{name}");
    }
}

#[test]
fn float16_is_shown_as_float32() {
    let halves = floats(&[1, 3, 12, 12]).to_f32().expect("float32");
    let halves: Vec<half::f16> = halves.into_iter().map(half::f16::from_f32).collect();
    let data = halves.iter().flat_map(|value| value.to_le_bytes()).collect();
    let x = Tensor { dtype: DataType::Float16, shape: vec![1, 3, 12, 12], data };
    let seen = show("fp16_model", &["x", "relu1_y"], &sample(&[("x", x)]));
    let wide: Vec<f32> = halves.into_iter().map(half::f16::to_f32).collect();
    assert_eq!(seen.values(0), wide);
    assert!(seen.values(1).iter().all(|value| *value >= 0.0));
}

#[test]
fn a_sample_of_another_shape_is_refused_before_it_runs() {
    let error = refusal("conv2d_relu", &[], &sample(&[("x", floats(&[1, 12, 12, 3]))]));
    let message = "input `x`: expected float32 [?, 3, 12, 12], got float32 [1, 12, 12, 3]";
    assert_eq!(error.kind().to_string(), message);

    let runner = prepare("conv2d_relu", &[], &image(1)).expect("prepared");
    let error = runner.run(&image(2), &mut Seen::default(), &AtomicBool::new(false));
    let message = "input `x`: expected float32 [1, 3, 12, 12], got float32 [2, 3, 12, 12]";
    assert_eq!(error.expect_err("another shape").kind().to_string(), message);
}

#[test]
fn a_cancelled_run_stops_before_its_next_node() {
    /// Cancels as soon as it gets a value.
    struct Cancels<'a>(&'a AtomicBool, usize);
    impl ValueSink for Cancels<'_> {
        fn observe(&mut self, _index: usize, _shape: &[usize], _values: &[f32]) {
            self.0.store(true, Ordering::Relaxed);
            self.1 += 1;
        }
    }
    let runner = prepare("residual_add", &["x", "relu1_y", "conv3_y"], &image(1));
    let cancelled = AtomicBool::new(false);
    let mut sink = Cancels(&cancelled, 0);
    let error = runner.expect("prepared").run(&image(1), &mut sink, &cancelled);
    assert_eq!(error.expect_err("cancelled").kind(), &CalibrationErrorKind::Cancelled);
    assert_eq!(sink.1, 1);
}
