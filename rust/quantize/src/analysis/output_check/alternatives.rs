//! Other ways to quantize a model that are tried because of what the check measured.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Check, MARGIN_DB, POOR_DB, is_cancelled};
use crate::apply::Quantized;
use crate::calibrate::pair::SliceSamples;
use crate::calibrate::{Control, calibrate};
use crate::encode::rounded_otherwise;
use crate::graph::ops::is_convolution;
use crate::options::config;
use crate::plan::Role;
use crate::report::OutputCheck;
use crate::transform::EQUALIZE;
use crate::{Config, Graph, Method, Model, Plan, PreprocessedModel, QuantizeError, Ranges};

/// The bits that convolutions get where fewer are measured to be too few, which make them much less
/// accurate than matrix multiplications.
const ENOUGH_BITS: u8 = 8;

/// The least gain for twice the bytes: half the power of the error. Where bits are what lacks, the
/// four that are added gain much more.
const GAIN_DB: f64 = 3.0;

/// Another result, and what was measured of it.
type Tried = (Quantized, OutputCheck);

impl Check<'_> {
    /// A result that is measured to be better than this one, if there is a reason to try another.
    /// Where sums saturate on this processor and not on others, as those of ONNX Runtime do, that
    /// says nothing of the options.
    pub(super) fn better(
        &mut self,
        quantized: &Quantized,
        ranges: Option<&Ranges>,
        measured: &OutputCheck,
    ) -> Result<Option<(Quantized, OutputCheck)>, QuantizeError> {
        if quantized.saturates_here() && measured.engine == "onnxruntime" {
            return Ok(None);
        }
        let apart = self.without_equalization(quantized, ranges, measured)?;
        let ranges = apart.as_ref().map_or(ranges, |(_, ranges)| ranges.as_ref());
        let apart = apart.as_ref().map(|(apart, _)| apart);
        let (quantized, measured) = apart.map_or((quantized, measured), |(it, found)| (it, found));
        let plain = self.without_smoothing(quantized, ranges, measured)?;
        let (quantized, measured) =
            plain.as_ref().map_or((quantized, measured), |(plain, found)| (plain, found));
        let wider = self.with_wider_convolutions(quantized, ranges, measured)?;
        let (quantized, measured) =
            wider.as_ref().map_or((quantized, measured), |(wider, found)| (wider, found));
        let float = self.with_float_layers(quantized, ranges, measured)?;
        Ok(float.or(wider).or(plain).or_else(|| apart.cloned()))
    }

    /// The result without equalized channels, if it is better, with its ranges. Channels are
    /// equalized by what weights let expect.
    ///
    /// The values of the model without have other ranges, which are found on the samples of the
    /// check: they fit these samples better than others, so that the result has to be better by
    /// more.
    fn without_equalization(
        &mut self,
        quantized: &Quantized,
        ranges: Option<&Ranges>,
        equalized: &OutputCheck,
    ) -> Result<Option<(Tried, Option<Ranges>)>, QuantizeError> {
        let report = quantized.report();
        let did = report.steps.iter().any(|step| step.pass == EQUALIZE);
        if !did || report.config.passes.is_some() {
            return Ok(None);
        }
        let config = Config { equalize: false, ..report.config.clone() };
        let margin = if ranges.is_some() { MARGIN_DB } else { 0.0 };
        let found = self.calibrated(&config, ranges).and_then(|ranges| {
            let other = made(self.model, config, &[], ranges.as_ref())?;
            let measured = self.measured(&other)?;
            Ok(((other, measured), ranges))
        });
        match found {
            Ok(((other, measured), ranges))
                if measured.sqnr_db() > equalized.sqnr_db().map(|db| db + margin) =>
            {
                Ok(Some(((other, measured), ranges)))
            }
            Err(error) if is_cancelled(&error) => Err(error),
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
    fn without_smoothing(
        &mut self,
        quantized: &Quantized,
        ranges: Option<&Ranges>,
        smoothed: &OutputCheck,
    ) -> Result<Option<(Quantized, OutputCheck)>, QuantizeError> {
        if !quantized.is_smoothed() || !self.given.inputs.are_real() {
            return Ok(None);
        }
        let config = Config { smooth: false, ..quantized.report().config.clone() };
        self.tried(config, ranges, smoothed, 0.0)
    }

    /// The result with more bits for convolutions, if the error is large, they have few bits that
    /// no option sets for them by name or operator, and more bits make it much smaller.
    fn with_wider_convolutions(
        &mut self,
        quantized: &Quantized,
        ranges: Option<&Ranges>,
        measured: &OutputCheck,
    ) -> Result<Option<(Quantized, OutputCheck)>, QuantizeError> {
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
        let Some((mut better, found)) = self.tried(wider, ranges, measured, GAIN_DB)? else {
            return Ok(None);
        };
        let count = |report: &crate::Report| {
            let weights = report.quantized().filter(|(row, _)| row.role == Role::Weight);
            weights.filter(|(_, how)| how.bits() == u32::from(ENOUGH_BITS)).count()
        };
        let names: Vec<&str> = op_types.into_iter().collect();
        let more = count(better.report()) - count(report);
        let blocks = if config.block_size.is_none() {
            format!("block_size=32 of `quantize` makes {few} bits more accurate, and ")
        } else {
            String::new()
        };
        better.report_mut().warnings.push(format!(
            "{more} weights of {} get {ENOUGH_BITS} bits: with {few} bits an output had an SQNR of \
             {:.1} dB. {blocks}layer_bits={{\"{}\": {few}}} asks for them all the same",
            names.join(" and "),
            measured.sqnr_db().unwrap_or(f64::NAN),
            names[0],
        ));
        Ok(Some((better, found)))
    }

    /// The model quantized with other options, if its SQNR is measured to be higher by more than
    /// `margin`, in decibels.
    fn tried(
        &mut self,
        config: Config,
        ranges: Option<&Ranges>,
        before: &OutputCheck,
        margin: f64,
    ) -> Result<Option<(Quantized, OutputCheck)>, QuantizeError> {
        self.tried_leaving((config, &[]), ranges, before, margin)
    }

    /// As [`Self::tried`], with some layers left in float.
    pub(super) fn tried_leaving(
        &mut self,
        (config, float): (Config, &[String]),
        ranges: Option<&Ranges>,
        before: &OutputCheck,
        margin: f64,
    ) -> Result<Option<(Quantized, OutputCheck)>, QuantizeError> {
        let found = made(self.model, config, float, ranges)
            .and_then(|other| self.measured(&other).map(|measured| (other, measured)));
        match found {
            Ok((other, measured))
                if measured.sqnr_db() > before.sqnr_db().map(|db| db + margin) =>
            {
                Ok(Some((other, measured)))
            }
            Err(error) if is_cancelled(&error) => Err(error),
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

/// The ranges without weights that were rounded for another type than they get now; `None` if there
/// are none. The nearest codes of more bits are as good.
fn with_fitting_weights(plan: &Plan, ranges: &Ranges) -> Option<Ranges> {
    let others = rounded_otherwise(plan, ranges);
    if others.is_empty() {
        return None;
    }
    let mut fitting = ranges.clone();
    let rounded = Arc::make_mut(&mut fitting.rounded);
    for name in others {
        rounded.remove(name);
    }
    Some(fitting)
}

/// Whether an option names weights of an operator by its type.
fn is_named(config: &Config, op_type: &str) -> bool {
    config.layer_types.contains_key(op_type) || config.layer_bits.contains_key(op_type)
}
