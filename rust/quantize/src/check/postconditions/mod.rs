//! Checks a quantized model against its plan before it is written.

mod dynamic;
mod experts;
mod fake_quant;
pub(super) mod matmul_bnb4;
pub(super) mod matmul_nbits;
mod qdq;

use quantize_rs_onnx::{Model, TensorProto};

use super::conformance;
use crate::error::QuantizeErrorKind;
use crate::graph::interface::same_interface;
use crate::graph::{Graph, ModelInfo};
use crate::plan::{Plan, Planned, ValuePlan};
use crate::{Format, QuantizeError, Target, Violation};

/// The graphs of a model before and after quantization.
struct Models<'g, 'm> {
    before: &'g Graph<'m>,
    after: &'g Graph<'m>,
}

/// The postconditions of an output format.
struct FormatCheck {
    format: Format,
    /// The first node of the model that is wrong, if this is its output format, and the reason.
    fault: fn(before: &Graph<'_>, after: &Graph<'_>) -> Option<(String, String)>,
    /// Checks a value that the plan quantizes in this format.
    value: fn(&Models<'_, '_>, &Planned, &ValuePlan) -> Result<(), QuantizeError>,
}

/// The checks of all output formats.
const CHECKS: &[FormatCheck] = &[
    FormatCheck { format: Format::Qdq, fault: |_, _| None, value: qdq::value },
    // Checked as QDQ, before the conversion.
    FormatCheck { format: Format::QOperator, fault: |_, _| None, value: qdq::value },
    FormatCheck {
        format: Format::MatMulNBits,
        fault: matmul_nbits::fault,
        value: |_, _, _| Ok(()),
    },
    FormatCheck { format: Format::MatMulBnb4, fault: matmul_bnb4::fault, value: |_, _, _| Ok(()) },
    FormatCheck { format: Format::Dynamic, fault: |_, _| None, value: dynamic::value },
    FormatCheck { format: Format::FakeQuant, fault: |_, _| None, value: fake_quant::value },
];

/// Checks that every quantized value is written as its format requires, and that the inputs and
/// outputs of the model are unchanged. Returns a warning if the model was quantized before in a
/// form that the target does not accept.
pub(crate) fn verify(
    before: &Graph<'_>,
    after: &Model,
    plan: &Plan,
) -> Result<Option<String>, QuantizeError> {
    same_interface(before.model, after)?;
    let models = Models { before, after: &Graph::of(after)? };
    for check in CHECKS.iter().filter(|check| check.format == plan.config.output_format) {
        if let Some((node, what)) = (check.fault)(models.before, models.after) {
            return Err(failed(format!("`{node}`: {what}")));
        }
    }
    for (value, how) in plan.quantized() {
        for check in CHECKS.iter().filter(|check| check.format == how.format) {
            (check.value)(&models, value, how)?;
        }
    }
    match plan.config.target {
        // A model for training is not deployed yet.
        Some(target) if plan.config.activations.is_some() && !plan.trains() => {
            conforms(before.model, after, target)
        }
        _ => Ok(None),
    }
}

/// Checks that the target accepts the model. If the original was quantized already, this cannot be
/// guaranteed: beside new integers, old ones may violate a rule that they did not violate alone.
/// Then one of the violations and their number are returned as a warning.
fn conforms(
    before: &Model,
    after: &Model,
    target: Target,
) -> Result<Option<String>, QuantizeError> {
    let mut after: Vec<Violation> = conformance(after, target)?;
    after.retain(|violation| violation.rule.is_strict());
    match after.first() {
        Some(violation) if !ModelInfo::of(before).quantized => {
            Err(failed(format!("not supported by {target}: {violation}")))
        }
        Some(violation) => {
            let others = match after.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            Ok(Some(format!(
                "the model was quantized before in a form that {target} does not support: \
                    {violation}{others}"
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
