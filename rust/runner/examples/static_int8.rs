//! Quantizes the weights and activations of a model from samples.

use std::path::Path;

use quantize_rs::{Config, Control, InputSpec, Model, PreprocessedModel, QType, calibrate};
use quantize_rs_runner::{Tract, samples};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open("examples/digits/digits_cnn.onnx")?;
    let config = Config { activations: Some(QType::UInt8), ..Config::default() };
    let prepared = PreprocessedModel::of(&model, config)?;
    let (model, plan) = (&prepared.model, prepared.plan());

    let data = Path::new("examples/digits/calibration.npy");
    let mut samples = samples::open(data, &InputSpec::of(model), None)?;
    let control = Control { threads: 2, progress: &mut |_| true };
    let ranges = calibrate(model, &plan, &Tract, &mut *samples, &"mse".parse()?, control)?;

    let report = plan.apply(model, Some(&ranges))?.save("digits.int8.onnx")?;
    print!("{report}");
    Ok(())
}
