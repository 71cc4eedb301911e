//! The inputs and outputs of a model, which callers depend on.

use quantize_rs_onnx::{Model, Raw, ValueInfoProto};

use super::InputSpec;
use crate::QuantizeError;
use crate::error::QuantizeErrorKind;

/// Checks that two models have the same inputs and outputs.
pub(crate) fn same_interface(before: &Model, after: &Model) -> Result<(), QuantizeError> {
    let names = |infos: &[Raw<ValueInfoProto>]| {
        infos.iter().map(|info| info.name.clone()).collect::<Vec<_>>()
    };
    let inputs = |model: &Model| -> Vec<String> {
        InputSpec::of(model).into_iter().map(|input| input.name).collect()
    };
    if inputs(before) != inputs(after) {
        return Err(failed("the inputs of the model changed".to_owned()));
    }
    if names(&before.graph().output) != names(&after.graph().output) {
        return Err(failed("the outputs of the model changed".to_owned()));
    }
    Ok(())
}

fn failed(what: String) -> QuantizeError {
    QuantizeError::new(QuantizeErrorKind::Verify(what))
}
