//! Measures the output error of a result for which no accuracy criterion is given.

use quantize_rs::{CheckSamples, Control, Model, QuantizeError, Quantized, Ranges, Sample};
use quantize_rs_runner::samples::for_check;

use crate::engine::EngineArguments;
use crate::failure::Failure;
use crate::interrupt;

/// What a calibration leaves for the check.
#[derive(Default)]
pub(crate) struct Calibrated {
    pub(crate) ranges: Option<Ranges>,
    /// Some of its samples.
    pub(crate) kept: Vec<Sample>,
    /// Wall-clock seconds that it took.
    pub(crate) seconds: f64,
}

/// Adds the output error of the result to its report.
pub(crate) fn check(
    model: &Model,
    made: &mut Quantized,
    calibrated: &Calibrated,
    engine: &EngineArguments,
) -> Result<(), Failure> {
    let (inputs, samples) = for_check(model, &calibrated.kept);
    let samples = match samples {
        Ok(samples) => samples,
        Err(error) => {
            made.outputs_not_checked(inputs, &QuantizeError::from(error));
            return Ok(());
        }
    };
    let engine_opened = engine.open_deployed()?;
    let mut go_on = |_| !interrupt::is_pressed();
    let control = Control { threads: engine.threads(), progress: &mut go_on };
    let given = CheckSamples { samples: &samples, inputs, calibrated: calibrated.seconds };
    made.check_outputs(model, calibrated.ranges.as_ref(), &*engine_opened, given, control)?;
    Ok(())
}
