//! From a plan to a quantized model and the report on it.
//!
//! In: a model, its plan and its ranges. Out: [`Quantized`]. Imports: the rooms up to `report`.

use std::path::Path;
use std::time::Instant;

use quantize_rs_onnx::Model;

use crate::check::postconditions;
use crate::encode::smooth_quant;
use crate::encode::smooth_quant::Smoothed;
use crate::encode::{WeightCache, encode_cached};
use crate::graph::Graph;
use crate::graph::fingerprint::fingerprint;
use crate::util::cpu;
use crate::{CalibrationError, CalibrationErrorKind};
use crate::{Plan, QuantizeError, Ranges, Report, rewrite};

/// What is said of a model for processors with VNNI where it is made on one without.
const SATURATES: &str = "this processor has no VNNI: ONNX Runtime's sums of uint8 × int8 saturate on \
    it, and the model is less accurate here than elsewhere; for processors like this one ask for \
    target x86-avx2, for others for target x86";

/// A quantized model and the report on it.
#[derive(Clone, Debug)]
pub struct Quantized {
    model: Model,
    report: Report,
}

/// A model, and the plan and the ranges for it, when all is decided.
pub(crate) struct Resolved {
    pub(crate) model: Model,
    pub(crate) plan: Plan,
    pub(crate) ranges: Option<Ranges>,
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
        self.apply_cached(model, ranges, None)
    }

    /// The same, where weights may be known already: many models are made of one to judge ranges by.
    pub(crate) fn apply_cached(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
        known: Option<&mut WeightCache>,
    ) -> Result<Quantized, QuantizeError> {
        let begun = Instant::now();
        let Resolved { model, plan, ranges } = self.resolve(model, ranges)?;
        let mut quantized = plan.write(&model, ranges.as_ref(), known)?;
        quantized.report.bytes_before = self.origin.bytes;
        quantized.report.steps.clone_from(&self.steps);
        quantized.report.warn_of_size();
        if plan.may_saturate() && cpu::sums_saturate() {
            quantized.report.warnings.push(SATURATES.to_owned());
        }
        quantized.report.seconds.apply = begun.elapsed().as_secs_f64();
        Ok(quantized)
    }

    /// Refuses a model that the plan was not made for.
    pub(crate) fn check_model(&self, model: &Model) -> Result<(), QuantizeError> {
        if self.model == fingerprint(model) {
            return Ok(());
        }
        Err(QuantizeError::option("plan", "was made for another model"))
    }

    /// What calibration teaches, learnt: the float model that is quantized, with large channels divided
    /// where that helps, and the plan and the ranges for it, without what no scale can be had for.
    pub(crate) fn resolve(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
    ) -> Result<Resolved, QuantizeError> {
        self.check_model(model)?;
        if ranges.is_none() && self.needs_calibration() {
            let reason =
                "the plan quantizes activations: calibrate it, and give the ranges".to_owned();
            return Err(CalibrationError::new(CalibrationErrorKind::NoSamples { reason }).into());
        }
        let Some(ranges) = ranges else {
            return Ok(Resolved { model: model.clone(), plan: self.clone(), ranges: None });
        };
        ranges.check(self)?;
        let ranges = ranges.for_plan(self)?;
        let (model, plan, ranges) = match smooth_quant::smoothed(&Graph::of(model)?, self, &ranges)?
        {
            Some(Smoothed { model, plan, ranges }) => (model, plan, ranges),
            None => (model.clone(), self.clone(), ranges.into_owned()),
        };
        let plan = plan.without_unscalable(&ranges).into_owned();
        Ok(Resolved { model, plan, ranges: Some(ranges) })
    }

    /// Does what the plan says, all of it.
    fn write(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
        known: Option<&mut WeightCache>,
    ) -> Result<Quantized, QuantizeError> {
        let graph = Graph::of(model)?;
        let encoded = encode_cached(&graph, self, ranges, known)?;
        let mut edits = rewrite::rewrite(&graph, self, &encoded);
        // As small as others make it, where there are scales and zero points of activations besides.
        if self.config.activations.is_some() {
            edits.extend(rewrite::share(&graph, self, &edits));
        }
        let mut report = Report::of(&graph, self, ranges, &encoded);
        drop(encoded);
        let mut quantized = model.clone();
        if !edits.is_empty() {
            quantized.apply(edits)?;
        }
        report.warnings.extend(postconditions::verify(model, &quantized, self)?);
        report.bytes_after = quantized.byte_len();
        Ok(Quantized { model: quantized, report })
    }
}

impl Quantized {
    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn report_mut(&mut self) -> &mut Report {
        &mut self.report
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
