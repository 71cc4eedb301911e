//! From a plan to a quantized model and the report on it.

use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

use quantize_rs_onnx::Model;

use crate::fingerprint::fingerprint;
use crate::graph::Graph;
use crate::smooth::{self, Smoothed};
use crate::{CalibrationError, CalibrationErrorKind};
use crate::{Plan, QuantizeError, Ranges, Report, encode, rewrite, verify};

/// A quantized model and the report on it.
#[derive(Clone, Debug)]
pub struct Quantized {
    model: Model,
    report: Report,
}

impl Plan {
    /// Does what the plan says to a copy of `model`, which shares its weights.
    ///
    /// # Errors
    /// NaN or infinity in a weight; ranges that are missing or belong to another model.
    pub fn apply(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
    ) -> Result<Quantized, QuantizeError> {
        let begun = Instant::now();
        if self.model != fingerprint(model) {
            return Err(QuantizeError::option("plan", "was made for another model"));
        }
        if ranges.is_none() && self.needs_calibration() {
            let what =
                "the plan quantizes activations: calibrate it, and give the ranges".to_owned();
            return Err(CalibrationError::new(CalibrationErrorKind::NoSamples(what)).into());
        }
        let graph = Graph::of(model)?;
        let ranges = match ranges {
            Some(ranges) => {
                ranges.check(self)?;
                Some(ranges.for_plan(self)?)
            }
            None => None,
        };
        let ranges = ranges.as_deref();
        let smoothed = match ranges {
            Some(ranges) => smooth::smoothed(&graph, self, ranges)?,
            None => None,
        };
        let mut quantized = match &smoothed {
            Some(Smoothed { model, plan, ranges }) => plan.write(model, Some(ranges))?,
            None => self.write(model, ranges)?,
        };
        quantized.report.bytes_before = self.origin.bytes;
        quantized.report.steps.clone_from(&self.steps);
        quantized.report.seconds.apply = begun.elapsed().as_secs_f64();
        Ok(quantized)
    }

    /// Does what the plan says, but for what no scale can be had for.
    fn write(&self, model: &Model, ranges: Option<&Ranges>) -> Result<Quantized, QuantizeError> {
        let graph = Graph::of(model)?;
        let plan = ranges.map_or(Cow::Borrowed(self), |ranges| self.without_unfit(ranges));
        let plan = plan.as_ref();
        let encoded = encode(&graph, plan, ranges)?;
        let edits = rewrite::qdq(&graph, plan, &encoded);
        let mut report = Report::of(&graph, plan, ranges, &encoded);
        drop(encoded);
        let mut quantized = model.clone();
        if !edits.is_empty() {
            quantized.apply(edits)?;
            verify::verify(model, &quantized, plan)?;
        }
        report.bytes_after = quantized.byte_len();
        Ok(Quantized { model: quantized, report })
    }
}

impl Quantized {
    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The report so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Writes the model, complete or not at all, and completes the report.
    ///
    /// # Errors
    /// As [`Model::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Report, QuantizeError> {
        let begun = Instant::now();
        let saved = self.model.save(path.as_ref())?;
        let mut report = self.report.clone();
        report.output = Some(path.as_ref().display().to_string());
        report.bytes_after = saved.bytes;
        report.seconds.save = begun.elapsed().as_secs_f64();
        Ok(report)
    }

    /// The model as the bytes of one file.
    ///
    /// # Errors
    /// As [`Model::to_bytes`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, QuantizeError> {
        Ok(self.model.to_bytes()?)
    }
}
