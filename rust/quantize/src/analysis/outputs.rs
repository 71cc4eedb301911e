//! Which outputs of two models are compared.

use quantize_rs_onnx::{DataType, Model};

use super::compare::CompareOptions;
use super::scores::look_like_classes;
use crate::QuantizeError;
use crate::graph::{Graph, InputSpec};

/// Rejects models with different inputs.
pub(super) fn same_inputs(original: &Model, quantized: &Model) -> Result<(), QuantizeError> {
    let names = |model: &Model| -> Vec<String> {
        InputSpec::of(model).into_iter().map(|input| input.name).collect()
    };
    let (wanted, found) = (names(original), names(quantized));
    if wanted == found {
        return Ok(());
    }
    let what = format!(
        "has the inputs {}, but the original has {}: the models cannot be compared",
        listed(&found),
        listed(&wanted)
    );
    Err(QuantizeError::option("quantized", what))
}

/// The float outputs, and the names of the others.
pub(crate) fn outputs(
    original: &Model,
    quantized: &Model,
) -> Result<(Vec<String>, Vec<String>), QuantizeError> {
    let theirs: Vec<&str> =
        quantized.graph().output.iter().map(|output| output.name.as_str()).collect();
    let (mut floats, mut others) = (Vec::new(), Vec::new());
    for output in &original.graph().output {
        let name = output.name.clone();
        if !theirs.contains(&name.as_str()) {
            let what = format!("has no output `{name}`, which the original has");
            return Err(QuantizeError::option("quantized", what));
        }
        // An undeclared type is mostly float; the engine finds out.
        let dtype = output.tensor_type().map(|tensor| DataType::from_number(tensor.elem_type));
        match dtype {
            Some(Some(dtype)) if !dtype.is_float() => others.push(name),
            None if output.value_type.is_some() => others.push(name),
            _ => floats.push(name),
        }
    }
    Ok((floats, others))
}

/// Refuses a required SQNR for a model without a float output.
pub(crate) fn needs_float_output(model: &Model) -> Result<(), QuantizeError> {
    if !outputs(model, model)?.0.is_empty() {
        return Ok(());
    }
    let what = "needs a float output, and the model has none: give a metric and max_accuracy_drop";
    Err(QuantizeError::option("min_sqnr", what))
}

/// For each output: whether its highest scores are compared.
pub(super) fn scored(
    original: &Model,
    observed: &[String],
    options: &CompareOptions,
) -> Result<Vec<bool>, QuantizeError> {
    let graph = Graph::of(original)?;
    let looks =
        |name: &String| graph.value(name).is_some_and(|output| look_like_classes(&graph, output));
    let mut scored: Vec<bool> = observed.iter().map(looks).collect();
    if let Some(wanted) = &options.scores {
        let Some(index) = observed.iter().position(|name| name == wanted) else {
            let what = format!("is `{wanted}`, expected a float output: {}", listed(observed));
            return Err(QuantizeError::option("scores", what));
        };
        scored[index] = true;
    }
    if options.labels.is_some() && !scored.contains(&true) {
        let what = format!(
            "were given, but no output looks like class scores: name one with `scores`, one of {}",
            listed(observed)
        );
        return Err(QuantizeError::option("labels", what));
    }
    Ok(scored)
}

/// Names for a message.
pub(super) fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
