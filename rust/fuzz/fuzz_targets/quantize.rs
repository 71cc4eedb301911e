//! Any model is quantized to a model that can be read again, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quantize_rs::{Config, Graph, Model, Plan};

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = Model::from_bytes(bytes.to_vec()) else { return };
    let Ok(graph) = Graph::of(&model) else { return };
    let Ok(plan) = Plan::of(&graph, Config { per_channel: true, ..Config::default() }) else {
        return;
    };
    if let Ok(quantized) = plan.apply(&model, None)
        && let Ok(bytes) = quantized.to_bytes()
    {
        Model::from_bytes(bytes).expect("what we write can be read");
    }
});
