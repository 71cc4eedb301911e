//! Equalization of channels between weights: which are scaled, and that nothing else changes.

mod common;

use common::{fixture, per_channel};
use quantize_rs::{Config, Model, PreprocessedModel, Tensor, validate};
use quantize_rs_onnx::{Edit, TensorProto};

/// A fixture in which a channel between two weights is as much larger as the weights that read it
/// are smaller. The first weight lies along axis 0 of `written`, the second along axis 1 of `read`.
fn skewed(name: &str, written: &[&str], read: &str, octaves: i32) -> Model {
    let mut model = fixture(name);
    let factor = |channel: usize| 2f32.powi((i32::try_from(channel).unwrap() % 3 - 1) * octaves);
    let scaled = |model: &mut Model, name: &str, axis: usize, inverse: bool| {
        let proto = model.graph().initializer.iter().find(|it| it.name == name).unwrap();
        let tensor = model.tensor(proto).unwrap();
        let inner: usize = tensor.shape[axis + 1..].iter().product();
        let length = tensor.shape[axis];
        let values = tensor.to_f32().unwrap();
        let values: Vec<f32> = values
            .iter()
            .enumerate()
            .map(|(at, value)| {
                let by = factor(at / inner % length);
                if inverse { value / by } else { value * by }
            })
            .collect();
        let tensor = TensorProto::new(name, &Tensor::from_f32(tensor.shape, &values));
        model.apply(vec![Edit::ReplaceInitializer(tensor)]).unwrap();
    };
    for name in written {
        scaled(&mut model, name, 0, false);
    }
    scaled(&mut model, read, 1, true);
    model
}

fn steps(prepared: &PreprocessedModel) -> Vec<&str> {
    prepared.steps.iter().map(|step| step.pass.as_str()).collect()
}

fn initializer(model: &Model, name: &str) -> Vec<f32> {
    let proto = model.graph().initializer.iter().find(|it| it.name == name).unwrap();
    model.tensor(proto).unwrap().to_f32().unwrap()
}

#[test]
fn a_skewed_pair_is_equalized_by_powers_of_two() {
    let model = skewed("noncanonical_wire", &["conv1_w", "conv1_b"], "conv2_w", 6);
    let prepared = PreprocessedModel::of(&model, per_channel()).unwrap();
    assert!(steps(&prepared).contains(&"equalize"), "{:?}", prepared.steps);
    let (before, after) = (initializer(&model, "conv1_b"), initializer(&prepared.model, "conv1_b"));
    let exponents: Vec<f32> = before
        .iter()
        .zip(&after)
        .filter(|(before, _)| **before != 0.0)
        .map(|(before, after)| (before / after).log2())
        .collect();
    assert!(exponents.iter().all(|by| by.fract() == 0.0), "{exponents:?}");
    assert!(exponents.iter().any(|by| by.abs() >= 4.0), "{exponents:?}");
    // Nothing is left to do.
    let again = PreprocessedModel::of(&prepared.model, per_channel()).unwrap();
    assert!(!steps(&again).contains(&"equalize"), "{:?}", again.steps);
    let quantized = prepared.plan().apply(&prepared.model, None).unwrap();
    let found = validate(&model, quantized.model(), None).unwrap();
    assert!(found.passed(), "{found}");
}

#[test]
fn the_option_and_names_of_values_leave_channels_alone() {
    let model = skewed("noncanonical_wire", &["conv1_w", "conv1_b"], "conv2_w", 6);
    let off = Config { equalize: false, ..per_channel() };
    assert!(!steps(&PreprocessedModel::of(&model, off).unwrap()).contains(&"equalize"));
    let plain = PreprocessedModel::of(&fixture("noncanonical_wire"), per_channel()).unwrap();
    assert!(!steps(&plain).contains(&"equalize"), "{:?}", plain.steps);
    let named = Config {
        activations: Some(quantize_rs::QType::UInt8),
        activation_types: [("relu1_y".to_owned(), quantize_rs::QType::UInt8)].into(),
        ..per_channel()
    };
    let named = PreprocessedModel::of(&model, named).unwrap();
    assert!(!steps(&named).contains(&"equalize"), "{:?}", named.steps);
}

#[test]
fn ranges_of_the_values_as_they_were_are_refused() {
    let model = skewed("noncanonical_wire", &["conv1_w", "conv1_b"], "conv2_w", 6);
    let with = |equalize| Config { equalize, ..common::with_activations() };
    let plain = PreprocessedModel::of(&model, with(false)).unwrap();
    let mut ranges = common::ranges(&plain.model, &plain.plan());
    let equalized = PreprocessedModel::of(&model, with(true)).unwrap();
    ranges.model = common::ranges(&equalized.model, &equalized.plan()).model;
    assert!(equalized.plan().apply(&equalized.model, Some(&ranges)).is_err());
}
