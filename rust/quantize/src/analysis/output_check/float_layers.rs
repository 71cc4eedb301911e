//! The layers that cause the largest error of a result, and the result with these in float.

// Counts of samples, layers and elements.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use std::time::Instant;

use super::alternatives::{Better, Current};
use super::{Check, POOR_DB, is_poor, lowest};
use crate::analysis::{sensitivity, weight_sensitivity};
use crate::calibrate::Control;
use crate::calibrate::pair::SliceSamples;
use crate::plan::Role;
use crate::{
    Config, LayerRow, Metric, PreprocessedModel, Progress, QuantizeError, Sensitivity,
    SensitivityOptions,
};

/// The SQNR that is to be expected with layers in float, in decibels: the errors that all others
/// cause alone, added up.
const WANTED_DB: f64 = 20.0;

/// Layers in float have at most this fraction of the elements of all quantized weights. With more,
/// the result is hardly quantized.
const MOST_ELEMENTS: f64 = 0.5;

/// The layers are measured on as many samples as fit into the time of the check, which preparing
/// sessions is no part of: it may take this many times as long before they are given up.
const PATIENCE: u32 = 4;

/// How much higher the SQNR with layers in float has to be, in decibels.
const GAIN_DB: f64 = 6.0;

impl Check<'_> {
    /// The error that each layer causes alone, the largest first. It is measured once, on as many
    /// samples of the check as the time allows.
    pub(super) fn layer_errors(
        &mut self,
        current: Current<'_>,
    ) -> Result<Vec<LayerRow>, QuantizeError> {
        if self.layers.is_none() {
            self.layers = Some(self.measured_layers(current)?);
        }
        let layers = self.layers.iter().flat_map(|found| &found.layers);
        Ok(layers.filter(|layer| layer.score.is_finite()).cloned().collect())
    }

    fn measured_layers(&mut self, current: Current<'_>) -> Result<Sensitivity, QuantizeError> {
        let Current { quantized, ranges, measured } = current;
        let prepared = PreprocessedModel::of(self.model, quantized.report().config.clone())?;
        let plan = prepared.plan();
        let budget = self.budget();
        // For each layer the part of the model after it runs once more.
        let layers = quantized.report().quantized().filter(|(row, _)| row.role == Role::Weight);
        let layers = layers.count().max(1) as f64;
        let affordable = budget.as_secs_f64() / (self.seconds_per_sample * layers).max(1e-9);
        let count = (affordable as usize).clamp(1, measured.samples.max(1));
        let some = &self.given.samples[..self.given.samples.len().min(count)];
        let end = Instant::now() + PATIENCE * budget;
        let mut out_of_time = false;
        let mut go_on = |progress: Progress| {
            out_of_time = Instant::now() >= end;
            (self.progress)(progress) && !out_of_time
        };
        let control = Control { threads: self.threads, progress: &mut go_on };
        let (options, samples) = (SensitivityOptions::default(), &mut SliceSamples(some.iter()));
        match sensitivity(&prepared.model, &plan, ranges, self.engine, samples, &options, control) {
            Err(error) if error.is_cancelled() && !out_of_time => Err(error),
            // Without a run, the error of the weights themselves is all there is.
            Err(_) => weight_sensitivity(&prepared.model, &plan),
            found => found,
        }
    }

    /// The result with a few layers in float, if it is poor because of them and good enough without
    /// them. Weights alone are left as they are: more bits help them, and the report says so.
    pub(super) fn with_float_layers(
        &mut self,
        current: Current<'_>,
    ) -> Result<Option<Better>, QuantizeError> {
        let Current { quantized, measured, .. } = current;
        let config = &quantized.report().config;
        let computes = config.activations.is_some() && self.given.inputs.are_real();
        let applies = computes && !chooses_layers(config);
        let before = lowest(&measured.outputs).filter(|_| applies && is_poor(measured));
        let Some(before) = before else { return Ok(None) };
        let layers = match self.layer_errors(current) {
            Err(error) if error.is_cancelled() => return Err(error),
            Err(_) => return Ok(None),
            Ok(layers) => layers,
        };
        let is_measured = self.layers.as_ref().is_some_and(|found| found.metric == Metric::Sqnr);
        let Some(worst) = worst(&layers).filter(|_| is_measured) else { return Ok(None) };
        let config = config.clone();
        let Some(mut better) = self.tried_leaving((config, &worst), current, GAIN_DB)? else {
            return Ok(None);
        };
        let found = &better.measured;
        let after = lowest(&found.outputs).unwrap_or(f64::NAN);
        if after < POOR_DB || is_poor(found) {
            return Ok(None);
        }
        let names: Vec<String> = worst.iter().map(|name| format!("`{name}`")).collect();
        let (stay, them) = if names.len() == 1 { ("stays", "it") } else { ("stay", "them") };
        let warning = format!(
            "{} {stay} float: with {them} quantized, an output had an SQNR of {before:.1} dB on \
             {}, now {after:.1} dB. check=\"none\" quantizes every layer",
            names.join(", "),
            found.on(),
        );
        better.quantized.report_mut().warnings.push(warning);
        Ok(Some(better))
    }
}

/// The fewest layers without which the errors of all others let expect enough.
fn worst(layers: &[LayerRow]) -> Option<Vec<String>> {
    let total: usize = layers.iter().map(|layer| layer.elements).sum();
    let power = |db: f64| 10_f64.powf(-db / 10.0);
    let mut left: f64 = layers.iter().map(|layer| power(layer.score)).sum();
    let (mut names, mut elements) = (Vec::new(), 0);
    for layer in layers {
        if left <= power(WANTED_DB) {
            break;
        }
        left -= power(layer.score);
        elements += layer.elements;
        names.push(layer.name.clone());
    }
    let few = elements as f64 <= MOST_ELEMENTS * total as f64 && names.len() < layers.len();
    (few && !names.is_empty()).then_some(names)
}

/// Whether options choose the types of some layers: then others are as they are on purpose, too.
fn chooses_layers(config: &Config) -> bool {
    let Config { include, layer_types, layer_bits, activation_types, overrides, .. } = config;
    let named = [layer_types.is_empty(), layer_bits.is_empty(), activation_types.is_empty()];
    include.is_some() || !overrides.is_empty() || named.contains(&false)
}
