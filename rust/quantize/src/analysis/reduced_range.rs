//! Weights of 7 bits, where sums of 8 bits saturate on the processor that a result is measured on.

use std::sync::Arc;

use quantize_rs_onnx::Model;

use crate::analysis::SliceSamples;
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample};
use crate::calibrate::{Control, calibrate};
use crate::encode::with_fitting_weights;
use crate::options::Target;
use crate::plan::reduced_warning;
use crate::{Config, Method, OutputRow, PreprocessedModel, QuantizeError, Ranges, Report, report};

/// The target without VNNI.
const REDUCED: Target = Target::X86Avx2;

/// The least gain of weights that are less accurate on other processors, in decibels: half the
/// power of the error.
pub(super) const GAIN_DB: f64 = 3.0;

/// Whether sums of the engine that ran a result saturate on this processor and not on others. What
/// is measured then says little of any option but the width of the weights.
pub(super) fn saturates(quantized: &Quantized, engine: &str) -> bool {
    quantized.saturates_here() && engine == "onnxruntime"
}

/// The options with weights of 7 bits for a result whose sums saturate here, unless a target was
/// named.
pub(super) fn reduced(quantized: &Quantized, engine: &str) -> Option<Config> {
    let config = &quantized.report().config;
    (saturates(quantized, engine) && config.target.is_none())
        .then(|| Config { target: Some(REDUCED), ..config.clone() })
}

/// The ranges with weights that are rounded for these options on calibration samples, if they were
/// rounded for others.
pub(super) fn rounded_again(
    model: &Model,
    config: &Config,
    ranges: &Ranges,
    (engine, samples): (&dyn Engine, &[Sample]),
    control: Control<'_>,
) -> Result<Option<Ranges>, QuantizeError> {
    // Options that the target does not take, such as activations of 16 bits.
    let Ok(prepared) = PreprocessedModel::of(model, config.clone()) else { return Ok(None) };
    let plan = prepared.plan();
    let Some(mut fitting) = with_fitting_weights(&plan, ranges) else { return Ok(None) };
    let method: Method = ranges.method.parse()?;
    let samples = &mut SliceSamples(samples.iter());
    match calibrate(&prepared.model, &plan, engine, samples, &method, control) {
        Ok(again) => {
            let rounded = Arc::make_mut(&mut fitting.rounded);
            for (name, found) in again.rounded.iter() {
                rounded.entry(name.clone()).or_insert_with(|| found.clone());
            }
        }
        Err(error) if error.is_cancelled() => return Err(error),
        // The nearest codes serve as well.
        Err(_) => {}
    }
    Ok(Some(fitting))
}

/// Says in the report of a result with weights of 7 bits that they were not asked for, with the
/// outputs before and now.
pub(super) fn warn(report: &mut Report, before: &[OutputRow], now: &[OutputRow]) {
    let of_target = reduced_warning(REDUCED.name());
    report.warnings.retain(|warning| *warning != of_target);
    let measured = match [before, now].map(report::worst_sqnr) {
        [Some(before), Some(now)] => {
            format!(", with which an output has an SQNR of {now:.1} dB instead of {before:.1}")
        }
        _ => String::new(),
    };
    report.warnings.push(format!(
        "weights use 7 of their 8 bits{measured}: this processor has no VNNI, and ONNX Runtime's \
         sums of uint8 × int8 saturate on it; target x86 keeps 8 bits, for processors with VNNI"
    ));
}
