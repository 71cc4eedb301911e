//! Applies a plan: produces the quantized model and its report.

mod conversions;

use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

use quantize_rs_onnx::{Model, Span};

use crate::calibrate::{Control, with_rounded_weights};
use crate::check::postconditions;
use crate::encode::smooth_quant;
use crate::encode::smooth_quant::{KnownGains, Smoothed};
use crate::encode::{WeightCache, encode_cached};
use crate::error::{QuantizeErrorKind, while_unchanged};
use crate::graph::Graph;
use crate::graph::fingerprint::fingerprint;
use crate::plan::Consumers;
use crate::util::cpu;
use crate::util::text;
use crate::{CalibrationError, CalibrationErrorKind};
use crate::{Format, Plan, QuantizeError, Ranges, Report, rewrite};

/// The warning about a model for processors with VNNI on a processor without.
pub(crate) const SATURATING: &str = "this processor has no VNNI, and ONNX Runtime's sums of uint8 \
    × int8 saturate on it: the model is less accurate here than elsewhere; use target x86-avx2 for \
    processors like this one, and target x86 for others";

/// A result that is larger than the model by more is an error. Below this, a model is so small that
/// its size seldom matters, and quantizing it may have another purpose.
const TOLERATED_GROWTH_BYTES: u64 = 64 << 10;

/// The number of weights that an error names.
const NAMES_SHOWN: usize = 3;

/// A quantized model and the report on it.
#[derive(Clone, Debug)]
pub struct Quantized {
    model: Model,
    report: Report,
    /// Whether channels of some values were scaled down: see [`Config::smooth`](crate::Config).
    is_smoothed: bool,
    /// Whether sums may saturate on this processor, and not on others.
    saturates_here: bool,
    /// The weights that are stored in float, too, because operators need them in float.
    stored_twice: Vec<String>,
}

/// A model with its final plan and ranges.
pub(crate) struct Resolved {
    pub(crate) model: Model,
    pub(crate) plan: Plan,
    pub(crate) ranges: Option<Ranges>,
    /// The number of smoothed values.
    pub(crate) smoothed: usize,
}

impl Plan {
    /// Applies the plan to a copy of `model`, which shares its weights.
    ///
    /// If the ranges hold second moments, as those of shards do, weights are rounded with them
    /// first: see [`round_weights`](crate::round_weights).
    ///
    /// # Errors
    /// NaN or infinity in a weight that an option names (others stay float); ranges that are
    /// missing or belong to another model; a result that is larger than the model by more than 64
    /// KiB, unless `allow_larger` is true.
    pub fn apply(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
    ) -> Result<Quantized, QuantizeError> {
        while_unchanged(&[model], || {
            let control = Control { threads: usize::MAX, progress: &mut |_| true };
            let ranges = with_rounded_weights(model, self, ranges, control)?;
            let quantized = self.apply_cached(model, ranges.as_deref(), None)?;
            quantized.refuse_larger()?;
            Ok(quantized)
        })
    }

    /// As [`Plan::apply`], with a cache of encoded weights for comparisons that quantize one model
    /// many times, and of any size.
    pub(crate) fn apply_cached(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
        mut known: Option<&mut WeightCache>,
    ) -> Result<Quantized, QuantizeError> {
        let begun = Instant::now();
        let (plan, mut quantized) =
            match self.resolved_and_written(model, ranges, known.as_deref_mut()) {
                Err(error) if matches!(error.kind(), QuantizeErrorKind::InvalidTensor { .. }) => {
                    let finite = self.without_unheld(&Graph::of(model)?, ranges)?;
                    finite.ok_or(error)?.0.resolved_and_written(model, ranges, known)?
                }
                found => found?,
            };
        quantized.report.bytes_before = self.origin.bytes;
        quantized.report.steps.clone_from(&self.steps);
        quantized.report.warn_of_size();
        if plan.may_saturate() && cpu::sums_saturate() {
            quantized.report.warnings.push(SATURATING.to_owned());
        }
        quantized.saturates_here = plan.saturates_without_vnni() && cpu::sums_saturate();
        quantized.report.seconds.apply = begun.elapsed().as_secs_f64();
        Ok(quantized)
    }

    fn resolved_and_written(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
        mut known: Option<&mut WeightCache>,
    ) -> Result<(Plan, Quantized), QuantizeError> {
        let gains = known.as_deref_mut().map(|known| &mut known.gains);
        let Resolved { model, plan, ranges, smoothed } = self.resolve(model, ranges, gains)?;
        let mut quantized = plan.write(&model, ranges.as_ref(), known)?;
        if smoothed > 0 {
            quantized.is_smoothed = true;
            quantized.report.notes.push(format!(
                "smoothed {smoothed} values: their channels are divided by factors, and the \
                 weights multiplied by them"
            ));
        }
        quantized.convert(ranges.as_ref(), &model)?;
        Ok((plan, quantized))
    }

    /// Rejects a model that the plan was not made for.
    pub(crate) fn check_model(&self, model: &Model) -> Result<(), QuantizeError> {
        if self.model == fingerprint(model) {
            return Ok(());
        }
        Err(QuantizeError::option("plan", "was made for another model"))
    }

    /// The final model, plan and ranges after calibration: large channels are smoothed where that
    /// helps, and values without a usable range are left out of the plan.
    pub(crate) fn resolve(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
        gains: Option<&mut KnownGains>,
    ) -> Result<Resolved, QuantizeError> {
        self.check_model(model)?;
        if ranges.is_none() && self.needs_calibration() {
            let reason =
                "the plan quantizes activations: calibrate, and pass the ranges".to_owned();
            return Err(CalibrationError::new(CalibrationErrorKind::NoSamples { reason }).into());
        }
        let ranges = match ranges {
            Some(ranges) => {
                ranges.check(self)?;
                Some(ranges.for_plan(self)?)
            }
            None => None,
        };
        let graph = Graph::of(model)?;
        let (model, mut plan, ranges, smoothed) =
            match smooth_quant::smoothed(&graph, self, ranges.as_deref(), gains)? {
                Some(Smoothed { model, plan, ranges, count }) => (model, plan, ranges, count),
                None => (model.clone(), self.clone(), ranges.map(Cow::into_owned), 0),
            };
        if let Some(ranges) = &ranges {
            let rewritten = (smoothed > 0).then(|| Graph::of(&model)).transpose()?;
            let graph = rewritten.as_ref().unwrap_or(&graph);
            plan = plan
                .without_unscalable(ranges)
                .without_lost_inputs(graph, ranges)
                .without_open_probabilities(graph, ranges);
        }
        Ok(Resolved { model, plan, ranges, smoothed })
    }

    /// Encodes the weights, rewrites the graph, checks the result and reports.
    fn write(
        &self,
        model: &Model,
        ranges: Option<&Ranges>,
        known: Option<&mut WeightCache>,
    ) -> Result<Quantized, QuantizeError> {
        let graph = Graph::of(model)?;
        let encoded = encode_cached(&graph, self, ranges, known)?;
        let span = Span::stage("rewrite");
        let mut edits = rewrite::rewrite(&graph, self, &encoded);
        // Equal scales and zero points of activations are stored once.
        if self.config.activations.is_some() {
            edits.extend(rewrite::share(&graph, self, &edits));
        }
        let mut report = Report::of(&graph, self, ranges, &encoded);
        drop(encoded);
        let mut quantized = model.clone();
        if !edits.is_empty() {
            quantized.apply(edits)?;
        }
        drop(span);
        let span = Span::stage("check the graph");
        report.warnings.extend(postconditions::verify(&graph, &quantized, self)?);
        drop(span);
        report.bytes_after = quantized.byte_len();
        let twice = self.quantized().filter(|(_, how)| how.consumers == Consumers::AsWeight);
        let stored_twice = twice.map(|(value, _)| value.name.clone()).collect();
        Ok(Quantized {
            model: quantized,
            report,
            is_smoothed: false,
            saturates_here: false,
            stored_twice,
        })
    }
}

impl Quantized {
    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The same report with another model, for a model that was edited.
    #[must_use]
    pub fn with_model(&self, model: Model) -> Quantized {
        Quantized { model, ..self.clone() }
    }

    pub(crate) fn saturates_here(&self) -> bool {
        self.saturates_here
    }

    pub(crate) fn is_smoothed(&self) -> bool {
        self.is_smoothed
    }

    pub(crate) fn report_mut(&mut self) -> &mut Report {
        &mut self.report
    }

    /// The report without the output path.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Refuses a result that is larger than the model, unless the options allow it.
    pub(crate) fn refuse_larger(&self) -> Result<(), QuantizeError> {
        let Report { bytes_before: before, bytes_after: after, config, .. } = &self.report;
        let idle = self.report.quantized().next().is_none();
        let trained = config.output_format == Format::FakeQuant;
        if idle || trained || config.allow_larger || *after <= before + TOLERATED_GROWTH_BYTES {
            return Ok(());
        }
        let twice = &self.stored_twice;
        let exclusion = if twice.is_empty() {
            String::new()
        } else {
            let more = if twice.len() > NAMES_SHOWN { ", …" } else { "" };
            let names = twice.iter().take(NAMES_SHOWN).map(|name| format!("\"{name}\""));
            let names = names.collect::<Vec<_>>().join(", ");
            format!("exclude=[{names}{more}] keeps weights float that would be stored twice, and ")
        };
        let what = format!(
            "the result would be larger than the model: {} instead of {}; {exclusion}\
             allow_larger=True writes it nevertheless",
            text::size(*after),
            text::size(*before),
        );
        let (before, after) = (*before, *after);
        Err(QuantizeError::new(QuantizeErrorKind::Larger { before, after, what }))
    }

    /// Writes the model atomically and completes the report.
    ///
    /// # Errors
    /// See [`Model::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Report, QuantizeError> {
        self.save_within(path, u64::MAX)
    }

    /// As [`save`](Quantized::save), but weights become external data if the file would have
    /// `limit` bytes or more.
    ///
    /// # Errors
    /// See [`Model::save`].
    pub fn save_within(&self, path: impl AsRef<Path>, limit: u64) -> Result<Report, QuantizeError> {
        let begun = Instant::now();
        let saved = self.model.save_within(path.as_ref(), limit)?;
        let mut report = self.report.clone();
        report.output = Some(path.as_ref().display().to_string());
        report.bytes_after = saved.bytes;
        report.seconds.save = begun.elapsed().as_secs_f64();
        Ok(report)
    }

    /// The model as the bytes of one file.
    ///
    /// # Errors
    /// See [`Model::to_bytes`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, QuantizeError> {
        Ok(self.model.to_bytes()?)
    }
}
