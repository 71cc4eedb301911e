//! Opens arbitrary bytes as a model. An unedited model must be written back as the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quantize_rs::Model;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Model::from_bytes(bytes.to_vec()) {
        assert_eq!(model.to_bytes().ok().as_deref(), Some(bytes));
    }
});
