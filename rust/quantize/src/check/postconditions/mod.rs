//! The last look before anything is written: is the model what the plan said?

mod dynamic;
mod fake_quant;
pub(super) mod matmul_nbits;
mod qdq;

use quantize_rs_onnx::{Model, TensorProto};

use super::conformance;
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::graph::interface::same_interface;
use crate::plan::{Plan, Planned, ValuePlan};
use crate::{Format, QuantizeError, Target, Violation};

/// The graphs of a model before and after it was quantized.
struct Models<'g, 'm> {
    before: &'g Graph<'m>,
    after: &'g Graph<'m>,
}

/// What an output format promises of a model that was written in it.
struct FormatCheck {
    format: Format,
    /// Checks the model, where it is the output format of all of it.
    model: fn(&Models<'_, '_>) -> Result<(), QuantizeError>,
    /// Checks a value that the plan quantizes in it.
    value: fn(&Models<'_, '_>, &Planned, &ValuePlan) -> Result<(), QuantizeError>,
}

/// The checks of all output formats.
const CHECKS: &[FormatCheck] = &[
    FormatCheck { format: Format::Qdq, model: |_| Ok(()), value: qdq::value },
    FormatCheck {
        format: Format::MatMulNBits,
        model: matmul_nbits::model,
        value: |_, _, _| Ok(()),
    },
    FormatCheck { format: Format::Dynamic, model: |_| Ok(()), value: dynamic::value },
    FormatCheck { format: Format::FakeQuant, model: |_| Ok(()), value: fake_quant::value },
];

/// Checks that every value the plan quantizes is written as its format says, and that every input
/// and output of the model is where it was. What the caller should know of what was quantized
/// before.
pub(crate) fn verify(
    before: &Model,
    after: &Model,
    plan: &Plan,
) -> Result<Option<String>, QuantizeError> {
    same_interface(before, after)?;
    let (original, graph) = (Graph::of(before)?, Graph::of(after)?);
    let models = Models { before: &original, after: &graph };
    for check in CHECKS.iter().filter(|check| check.format == plan.config.output_format) {
        (check.model)(&models)?;
    }
    for (value, how) in plan.quantized() {
        for check in CHECKS.iter().filter(|check| check.format == how.format) {
            (check.value)(&models, value, how)?;
        }
    }
    match plan.config.target {
        // What is trained on is no runtime's yet.
        Some(target) if plan.config.activations.is_some() && !plan.trains() => {
            conforms(before, after, target)
        }
        _ => Ok(None),
    }
}

/// Checks that the target takes what was written. Of a model in which it did not take something before, this cannot be
/// promised: one such place, and how many there are.
fn conforms(
    before: &Model,
    after: &Model,
    target: Target,
) -> Result<Option<String>, QuantizeError> {
    let strict = |model: &Model| -> Result<Vec<Violation>, QuantizeError> {
        let mut found = conformance(model, target)?;
        found.retain(|violation| violation.rule.is_strict());
        Ok(found)
    };
    let (before, after) = (strict(before)?, strict(after)?);
    match after.first() {
        Some(violation) if before.is_empty() => {
            Err(failed(format!("not what {target} takes: {violation}")))
        }
        Some(violation) => {
            let others = match after.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            Ok(Some(format!(
                "the model was quantized before, and not as {target} takes it: {violation}{others}"
            )))
        }
        None => Ok(None),
    }
}

fn shape(tensor: &TensorProto) -> Vec<usize> {
    tensor.dims.iter().filter_map(|dim| usize::try_from(*dim).ok()).collect()
}

fn failed(what: String) -> QuantizeError {
    QuantizeError::new(QuantizeErrorKind::Verify(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_one_check() {
        for format in Format::ALL {
            let count = CHECKS.iter().filter(|check| check.format == *format).count();
            assert_eq!(count, 1, "{format}");
        }
        assert_eq!(CHECKS.len(), Format::ALL.len());
    }
}
