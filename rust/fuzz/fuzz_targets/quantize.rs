//! Quantizes arbitrary models: the weights, and everything for every target. The result must be
//! readable, or quantization must be refused.
#![no_main]

#[path = "../../quantize/tests/common/mod.rs"]
mod common;

use common::{Even, Numbers, per_channel};
use libfuzzer_sys::fuzz_target;
use quantize_rs::{Config, Control, Method, Model, PreprocessedModel, Target, calibrate};

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = Model::from_bytes(bytes.to_vec()) else { return };
    let of_target = |target: &Target| Config::for_target(*target);
    for config in std::iter::once(per_channel()).chain(Target::ALL.iter().map(of_target)) {
        let Ok(prepared) = PreprocessedModel::of(&model, config) else { continue };
        let (model, plan) = (&prepared.model, prepared.plan());
        let control = Control { threads: 1, progress: &mut |_| true };
        let (engine, mut samples) = (Even::default(), Numbers(vec![0]));
        let ranges = calibrate(model, &plan, &engine, &mut samples, &Method::default(), control);
        if let Ok(quantized) = ranges.and_then(|ranges| plan.apply(model, Some(&ranges)))
            && let Ok(bytes) = quantized.to_bytes()
        {
            Model::from_bytes(bytes).expect("what we write can be read");
        }
    }
});
