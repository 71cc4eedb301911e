//! Other ways to quantize a model that are tried because of what the check measured.

use std::collections::BTreeSet;

use super::{Check, MARGIN_DB, POOR_DB, is_poor};
use crate::analysis::reduced_range::{self, reduced, rounded_again, saturates};
use crate::apply::Quantized;
use crate::calibrate::pair::SliceSamples;
use crate::calibrate::{Control, calibrate};
use crate::encode::with_fitting_weights;
use crate::graph::ops::is_convolution;
use crate::options::config;
use crate::plan::Role;
use crate::report::OutputCheck;
use crate::transform::EQUALIZE;
use crate::{Config, Graph, Method, Model, PreprocessedModel, QuantizeError, Ranges};

/// The bits that convolutions get where fewer are measured to be too few, which make them much less
/// accurate than matrix multiplications.
const ENOUGH_BITS: u8 = 8;

/// The least gain for twice the bytes: half the power of the error. Where bits are what lacks, the
/// four that are added gain much more.
const GAIN_DB: f64 = 3.0;

/// A result, its ranges, and what was measured of it.
#[derive(Clone, Copy)]
pub(super) struct Current<'r> {
    pub(super) quantized: &'r Quantized,
    pub(super) ranges: Option<&'r Ranges>,
    pub(super) measured: &'r OutputCheck,
}

/// Another result, what was measured of it, and its ranges, if it has others.
pub(super) struct Better {
    pub(super) quantized: Quantized,
    pub(super) measured: OutputCheck,
    pub(super) ranges: Option<Ranges>,
}

/// Tries one change of a result.
type Step<'a> = fn(&mut Check<'a>, Current<'_>) -> Result<Option<Better>, QuantizeError>;

impl Better {
    /// This result in place of another one.
    pub(super) fn after<'r>(&'r self, current: Current<'r>) -> Current<'r> {
        let ranges = self.ranges.as_ref().or(current.ranges);
        Current { quantized: &self.quantized, ranges, measured: &self.measured }
    }
}

impl<'a> Check<'a> {
    /// A result that is measured to be better than this one, if there is a reason to try another.
    /// Where sums of ONNX Runtime saturate on this processor alone, the measured error says nothing
    /// of any option but the width of the weights.
    pub(super) fn better(&mut self, current: Current<'_>) -> Result<Option<Better>, QuantizeError> {
        let least = current.measured.sqnr_db().map(|db| db + reduced_range::GAIN_DB);
        let gains = |found: &Better| found.measured.sqnr_db() > least;
        // With weights of 7 bits, the rest tells which layers make a result poor.
        let reduced = self.with_reduced_range(current)?;
        let mut best = reduced.filter(|found| gains(found) || is_poor(&found.measured));
        if best.is_none() && saturates(current.quantized, &current.measured.engine) {
            return Ok(None);
        }
        let steps: [Step<'a>; 4] = [
            Check::without_equalization,
            Check::without_smoothing,
            Check::with_wider_convolutions,
            Check::with_float_layers,
        ];
        for step in steps {
            let current = best.as_ref().map_or(current, |best| best.after(current));
            if let Some(better) = step(self, current)? {
                let ranges = best.and_then(|best| best.ranges);
                best = Some(Better { ranges: better.ranges.or(ranges), ..better });
            }
        }
        let target = current.quantized.report().config.target;
        let is_reduced = |found: &Better| found.quantized.report().config.target != target;
        if best.as_ref().is_some_and(|found| is_reduced(found) && !gains(found)) {
            self.layers = None; // those of weights of 7 bits
            return Ok(None);
        }
        if let Some(found) = best.as_mut().filter(|found| is_reduced(found)) {
            let before = &current.measured.outputs;
            reduced_range::warn(found.quantized.report_mut(), before, &found.measured.outputs);
        }
        Ok(best)
    }

    /// The result with weights of 7 bits, if it is better or this one is poor, where sums of 8 bits
    /// saturate on this processor and no target is named.
    fn with_reduced_range(
        &mut self,
        current: Current<'_>,
    ) -> Result<Option<Better>, QuantizeError> {
        let Current { quantized, ranges, measured } = current;
        let Some(config) = reduced(quantized, &measured.engine) else { return Ok(None) };
        let fitting = match ranges {
            None => None,
            Some(ranges) => {
                let samples = self.given.samples;
                let control = Control { threads: self.threads, progress: &mut *self.progress };
                rounded_again(self.model, &config, ranges, (self.engine, samples), control)?
            }
        };
        let ranges = fitting.as_ref().or(ranges);
        let margin = if is_poor(measured) { f64::NEG_INFINITY } else { 0.0 };
        let found = self.tried(config, Current { ranges, ..current }, margin)?;
        let is_better = |found: &Better| found.measured.sqnr_db() > measured.sqnr_db();
        self.reduced_is_no_better = !found.as_ref().is_some_and(is_better);
        Ok(found.map(|better| Better { ranges: fitting, ..better }))
    }

    /// The result without equalized channels, if it is better, with its ranges. Channels are
    /// equalized by what weights let expect.
    ///
    /// The values of the model without have other ranges, which are found on the samples of the
    /// check: they fit these samples better than others, so that the result has to be better by
    /// more.
    fn without_equalization(
        &mut self,
        current: Current<'_>,
    ) -> Result<Option<Better>, QuantizeError> {
        let Current { quantized, ranges, measured: equalized } = current;
        let report = quantized.report();
        let did = report.steps.iter().any(|step| step.pass == EQUALIZE);
        if !did || report.config.passes.is_some() {
            return Ok(None);
        }
        let config = Config { equalize: false, ..report.config.clone() };
        let margin = if ranges.is_some() { MARGIN_DB } else { 0.0 };
        let found = self.calibrated(&config, ranges).and_then(|ranges| {
            let quantized = made(self.model, config, &[], ranges.as_ref())?;
            let measured = self.measured(&quantized)?;
            Ok(Better { quantized, measured, ranges })
        });
        match found {
            Ok(better) if better.measured.sqnr_db() > equalized.sqnr_db().map(|db| db + margin) => {
                Ok(Some(better))
            }
            Err(error) if error.is_cancelled() => Err(error),
            _ => Ok(None),
        }
    }

    /// The ranges of a model with these options, by the method of others, on the samples of the
    /// check.
    fn calibrated(
        &mut self,
        config: &Config,
        ranges: Option<&Ranges>,
    ) -> Result<Option<Ranges>, QuantizeError> {
        let Some(ranges) = ranges else { return Ok(None) };
        let prepared = PreprocessedModel::of(self.model, config.clone())?;
        let method: Method = ranges.method.parse()?;
        let samples = &mut SliceSamples(self.given.samples.iter());
        let control = Control { threads: self.threads, progress: &mut *self.progress };
        let plan = prepared.plan();
        calibrate(&prepared.model, &plan, self.engine, samples, &method, control).map(Some)
    }

    /// The result without smoothing, if it is better. Smoothing is chosen by the expected error of
    /// the smoothed products alone.
    fn without_smoothing(&mut self, current: Current<'_>) -> Result<Option<Better>, QuantizeError> {
        if !current.quantized.is_smoothed() || !self.given.inputs.are_real() {
            return Ok(None);
        }
        let config = Config { smooth: false, ..current.quantized.report().config.clone() };
        self.tried(config, current, 0.0)
    }

    /// The result with more bits for convolutions, if the error is large, they have few bits that
    /// no option sets for them by name or operator, and more bits make it much smaller.
    fn with_wider_convolutions(
        &mut self,
        current: Current<'_>,
    ) -> Result<Option<Better>, QuantizeError> {
        let Current { quantized, measured, .. } = current;
        let report = quantized.report();
        let config = &report.config;
        let few = config.weights.bits();
        let is_poor = measured.sqnr_db().is_some_and(|db| db < POOR_DB);
        if !is_poor || few >= u32::from(ENOUGH_BITS) {
            return Ok(None);
        }
        let graph = Graph::of(self.model)?;
        let op_types: BTreeSet<&str> = graph
            .nodes
            .iter()
            .filter(|node| is_convolution(node))
            .map(|node| node.op_type.as_str())
            .filter(|op_type| !is_named(config, op_type))
            .collect();
        if op_types.is_empty() {
            return Ok(None);
        }
        let mut wider = config.clone();
        let wide = config::signed("bits", ENOUGH_BITS)?;
        wider.layer_types.extend(op_types.iter().map(|it| ((*it).to_owned(), wide)));
        let Some(mut better) = self.tried(wider, current, GAIN_DB)? else {
            return Ok(None);
        };
        let count = |report: &crate::Report| {
            let weights = report.quantized().filter(|(row, _)| row.role == Role::Weight);
            weights.filter(|(_, how)| how.bits() == u32::from(ENOUGH_BITS)).count()
        };
        let names: Vec<&str> = op_types.into_iter().collect();
        let more = count(better.quantized.report()) - count(report);
        let blocks = if config.block_size.is_none() {
            format!("block_size=32 of `quantize` makes {few} bits more accurate, and ")
        } else {
            String::new()
        };
        better.quantized.report_mut().warnings.push(format!(
            "{more} weights of {} get {ENOUGH_BITS} bits: with {few} bits an output had an SQNR of \
             {:.1} dB. {blocks}layer_bits={{\"{}\": {few}}} asks for them all the same",
            names.join(" and "),
            measured.sqnr_db().unwrap_or(f64::NAN),
            names[0],
        ));
        Ok(Some(better))
    }

    /// The model quantized with other options, if its SQNR is measured to be higher by more than
    /// `margin`, in decibels.
    fn tried(
        &mut self,
        config: Config,
        current: Current<'_>,
        margin: f64,
    ) -> Result<Option<Better>, QuantizeError> {
        self.tried_leaving((config, &[]), current, margin)
    }

    /// As [`Self::tried`], with some layers left in float.
    pub(super) fn tried_leaving(
        &mut self,
        (config, float): (Config, &[String]),
        current: Current<'_>,
        margin: f64,
    ) -> Result<Option<Better>, QuantizeError> {
        let Current { ranges, measured: before, .. } = current;
        let found = made(self.model, config, float, ranges).and_then(|quantized| {
            let measured = self.measured(&quantized)?;
            Ok(Better { quantized, measured, ranges: None })
        });
        match found {
            Ok(better) if better.measured.sqnr_db() > before.sqnr_db().map(|db| db + margin) => {
                Ok(Some(better))
            }
            Err(error) if error.is_cancelled() => Err(error),
            // The first result stands, whatever keeps the other one from being made.
            _ => Ok(None),
        }
    }
}

fn made(
    model: &Model,
    config: Config,
    float: &[String],
    ranges: Option<&Ranges>,
) -> Result<Quantized, QuantizeError> {
    let prepared = PreprocessedModel::leaving(model, config, float)?;
    let mut plan = prepared.plan();
    if let Some(ranges) = ranges {
        plan = plan.without_unseen(ranges);
    }
    let fitting = ranges.and_then(|ranges| with_fitting_weights(&plan, ranges));
    plan.apply(&prepared.model, fitting.as_ref().or(ranges))
}

/// Whether an option names weights of an operator by its type.
fn is_named(config: &Config, op_type: &str) -> bool {
    config.layer_types.contains_key(op_type) || config.layer_bits.contains_key(op_type)
}
