//! Calibration of a real model: the digits CNN on its own samples.
#![cfg(feature = "tract")]

use std::path::{Path, PathBuf};

use quantize_rs::{
    Config, Control, Graph, InputSpec, Method, MethodComparison, Model, Plan, QType, Ranges,
    calibrate, compare_methods,
};
use quantize_rs_runner::{Tract, samples};

fn digits(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").join(name)
}

fn planned(bias_correction: bool) -> (Model, Plan) {
    let model = Model::open(digits("digits_cnn.onnx")).unwrap();
    let config = Config {
        activations: Some(QType::UInt8),
        per_channel: Some(true),
        symmetric: Some(true),
        bias_correction,
        ..Config::default()
    };
    let plan = Plan::of(&Graph::of(&model).unwrap(), config).unwrap();
    (model, plan)
}

fn ranges(method: &str, threads: usize) -> Ranges {
    let (model, plan) = planned(true);
    let method: Method = method.parse().unwrap();
    let mut samples =
        samples::open(&digits("calibration.npy"), &InputSpec::of(&model), Some(160)).unwrap();
    let control = Control { threads, progress: &mut |_| true };
    calibrate(&model, &plan, &Tract, &mut *samples, &method, control).unwrap()
}

fn comparison(bias_correction: bool) -> MethodComparison {
    let (model, plan) = planned(bias_correction);
    let mut samples =
        samples::open(&digits("calibration.npy"), &InputSpec::of(&model), Some(160)).unwrap();
    let control = Control { threads: 2, progress: &mut |_| true };
    compare_methods(&model, &plan, &Tract, &mut *samples, control).unwrap()
}

#[test]
fn every_method_is_compared_and_the_best_is_no_worse_than_minmax_or_mse() {
    let compared = comparison(true);
    let names: Vec<String> = compared.methods.iter().map(|row| row.method.clone()).collect();
    assert_eq!(names, Method::all().map(|(name, _)| name.into_owned()).collect::<Vec<_>>());
    for row in &compared.methods {
        assert!(row.sqnr_db.unwrap() > 10.0, "{compared}");
    }
    assert!(compared.held_back > 0 && compared.samples == 160);
    assert_eq!(compared.evaluated, compared.held_back, "the model is small");
    let of = |name: &str| {
        compared.methods.iter().find(|row| row.method == name).and_then(|row| row.sqnr_db).unwrap()
    };
    assert!(of(&compared.best) >= of("minmax").max(of("mse")) - 0.1, "{compared}");
    let auto = ranges("auto", 2);
    assert_eq!(auto.chosen.len(), auto.values.len());
    assert_eq!(auto, ranges("auto", 1), "threads change nothing");
}

#[test]
fn bias_correction_makes_outputs_more_accurate() {
    let sqnr = |corrected| comparison(corrected).methods[0].sqnr_db.unwrap();
    assert!(sqnr(true) > sqnr(false) + 0.3, "{} {}", sqnr(true), sqnr(false));
}
