//! Tests of bias correction.

mod common;

use common::{
    constant, fixture, is_quantized, plan, producer, quantized, read_by, with_activations,
};
use quantize_rs::{Config, DataType, Rule, Target, conformance};

#[test]
fn quantized_constants_of_an_add_are_corrected() {
    let model = fixture("matmul_2d");
    let config = Config::for_target(Target::Qnn);
    assert!(is_quantized(&plan(&model, config.clone()), "b"));
    let corrected = quantized(&model, config.clone());
    assert_eq!(corrected.report().corrected_biases, 1);
    let after = corrected.model();
    let sum = &read_by(after, "Add")[0];
    assert!(sum.iter().all(|name| producer(after, name) == "DequantizeLinear"), "{sum:?}");
    assert!(conformance(after, Target::Qnn).unwrap().is_empty());
    // The correction is included.
    let plain = quantized(&model, Config { bias_correction: false, ..config });
    assert_eq!(constant(after, "b_quantized").dtype, DataType::UInt8);
    assert_ne!(constant(after, "b_quantized"), constant(plain.model(), "b_quantized"));
}

#[test]
fn excluded_constants_are_not_corrected() {
    let same = |name: &str, config: Config, bias: &str| {
        let model = fixture(name);
        let after = quantized(&model, config);
        assert_eq!(constant(after.model(), bias), constant(&model, bias), "{name} {bias}");
    };
    let excluding = |target: Target, name: &str| Config {
        exclude: vec![name.to_owned()],
        ..Config::for_target(target)
    };
    same("matmul_2d", excluding(Target::X86, "add1"), "b");
    same("matmul_2d", excluding(Target::Qnn, "add1"), "b");
    for target in [Target::TensorRt, Target::OpenVino] {
        same("matmul_2d", excluding(target, "add1"), "b");
        same("conv2d_relu", excluding(target, "conv1_b"), "conv1_b");
        let changed = quantized(&fixture("conv2d_relu"), Config::for_target(target));
        assert_eq!(changed.report().corrected_biases, 1);
    }
}

/// A `Conv` has its channels on axis 1, a `MatMul` on the last axis. The means of one must not be
/// used for the other, even if their number is the same.
#[test]
fn means_along_another_axis_are_not_used() {
    let model = fixture("conv_and_matmul");
    let corrected = quantized(&model, with_activations());
    let plain = quantized(&model, Config { bias_correction: false, ..with_activations() });
    let bias = |name: &str| [&corrected, &plain].map(|done| constant(done.model(), name));
    let [with, without] = bias("conv2_b_quantized");
    assert_ne!(with, without);
    let [with, without] = bias("b_quantized");
    assert_eq!(with, without);
    assert!(
        conformance(corrected.model(), Target::X86)
            .unwrap()
            .iter()
            .all(|violation| violation.rule != Rule::Bias)
    );
}
