//! The error of the outputs of a result, measured on a few samples.

use serde::{Deserialize, Serialize};

use super::output_row::worst_sqnr;
use super::{IntegerOutputRow, OutputRow, Speed};
use crate::QuantizeError;

/// Where the samples of an output check come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckedInputs {
    /// They are some of the calibration samples.
    Calibration,
    /// They are made from the declared inputs of the model, without any data.
    Synthetic,
}

impl CheckedInputs {
    /// Whether they come from data.
    pub fn are_real(self) -> bool {
        self == CheckedInputs::Calibration
    }

    fn name(self) -> &'static str {
        match self {
            CheckedInputs::Calibration => "calibration",
            CheckedInputs::Synthetic => "synthetic",
        }
    }
}

/// The error of each output of a result against the float model, on a few samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputCheck {
    /// Where the samples come from.
    pub inputs: CheckedInputs,
    /// The number of samples that were run.
    pub samples: usize,
    /// The engine that ran them; empty if nothing was measured.
    pub engine: String,
    /// The error of each float output.
    pub outputs: Vec<OutputRow>,
    /// How far each output of integers or booleans is that of the float model.
    #[serde(default)]
    pub integer_outputs: Vec<IntegerOutputRow>,
    /// The latency of both models, if it was measured.
    #[serde(default)]
    pub speed: Option<Speed>,
    /// Why nothing was measured, if nothing was.
    pub failure: Option<String>,
    /// Whether ONNX Runtime refuses the result, and runs the float model on the same sample.
    #[serde(default)]
    pub refused: bool,
}

impl OutputCheck {
    pub(crate) fn failed(inputs: CheckedInputs, error: &QuantizeError) -> OutputCheck {
        let failure = Some(error.to_string());
        OutputCheck {
            inputs,
            samples: 0,
            engine: String::new(),
            outputs: Vec::new(),
            integer_outputs: Vec::new(),
            speed: None,
            failure,
            refused: false,
        }
    }

    /// The SQNR of the worst output, in decibels.
    pub fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }

    /// `16 calibration samples`
    pub(crate) fn on(&self) -> String {
        let plural = if self.samples == 1 { "" } else { "s" };
        format!("{} {} sample{plural}", self.samples, self.inputs.name())
    }

    /// `SQNR 31.2 dB on 16 calibration samples (onnxruntime)`
    pub fn summary(&self) -> String {
        if let Some(failure) = &self.failure {
            return format!("not measured: {failure}");
        }
        let worst = self.outputs.iter().find(|row| Some(row.error.sqnr_db) == self.sqnr_db());
        let of = match worst {
            Some(row) if self.outputs.len() > 1 => format!(" of `{}`, the worst output,", row.name),
            _ => String::new(),
        };
        let measured = match self.sqnr_db() {
            None => "no float output".to_owned(),
            Some(f64::INFINITY) => "no difference".to_owned(),
            Some(db) => format!("SQNR {db:.1} dB{of}"),
        };
        let speed = self
            .speed
            .as_ref()
            .map_or_else(String::new, |speed| format!(", {:.2} times as fast", speed.speedup));
        let integers = self.integer_outputs.iter().map(IntegerOutputRow::text);
        let measured: Vec<String> = std::iter::once(measured).chain(integers).collect();
        let measured = measured.join(", ");
        format!("{measured} on {} ({}){speed}", self.on(), self.engine)
    }
}
