//! Any bytes are a model or an error; a model nobody touched comes back as its bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quantize_rs::Model;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Model::from_bytes(bytes.to_vec()) {
        assert_eq!(model.to_bytes().ok().as_deref(), Some(bytes));
    }
});
