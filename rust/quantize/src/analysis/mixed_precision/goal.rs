//! What a choice of widths has to meet.

use std::collections::BTreeSet;

use quantize_rs_onnx::Model;

use super::MixedOptions;
use crate::options::config;
use crate::{Config, Format, QuantizeError};

/// The goal.
pub(super) enum Goal {
    Bytes(u64),
    Sqnr(f64),
    Drop(f64),
}

impl MixedOptions {
    /// The goal.
    ///
    /// # Errors
    /// Options that do not fit together.
    pub(super) fn goal(
        &self,
        model: &Model,
        config: &Config,
        data: bool,
    ) -> Result<Goal, QuantizeError> {
        let refused = |option: &str, what: &str| Err(QuantizeError::option(option, what));
        if config.activations.is_some() {
            return self.activations_goal(config, data);
        }
        let named = !config.layer_bits.is_empty() || !config.layer_types.is_empty();
        if named || !config.layer_float.is_empty() {
            return refused("layer_bits", "is the result of this function: omit it");
        }
        if self.bits.is_empty() {
            return refused("bits", "is empty, expected some of 2, 4, 8 and 16");
        }
        self.bits.iter().try_for_each(|bits| writable(*bits, config.output_format))?;
        if self.metric.is_some() && !data {
            return refused("metric", "needs data to compute the outputs on");
        }
        match (self.target_size, self.min_sqnr) {
            (None, None) if self.max_accuracy_drop.is_some() => self.drop(),
            _ if self.max_accuracy_drop.is_some() => {
                refused("max_accuracy_drop", "is a goal of its own: omit target_size and min_sqnr")
            }
            (Some(target), None) if target > 0.0 && target.is_finite() => {
                let whole = model.byte_len();
                Ok(Goal::Bytes(if target <= 1.0 { part(whole, target) } else { part(1, target) }))
            }
            (Some(target), None) => {
                let what =
                    format!("is {target}, expected a number of bytes, or a fraction up to 1");
                refused("target_size", &what)
            }
            (None, Some(least)) if !least.is_finite() => {
                refused("min_sqnr", &format!("is {least}, expected a number of decibels"))
            }
            (None, Some(_)) if !data => refused("min_sqnr", "needs data to compare the outputs on"),
            (None, Some(least)) => Ok(Goal::Sqnr(least)),
            _ => {
                refused("target_size", "or min_sqnr or max_accuracy_drop is required, but not two")
            }
        }
    }

    /// The goal of a choice of activations.
    fn activations_goal(&self, config: &Config, data: bool) -> Result<Goal, QuantizeError> {
        let refused = |option: &str, what: &str| Err(QuantizeError::option(option, what));
        if !data {
            return refused("activations", "need data to find their ranges on");
        }
        if self.target_size.is_some() {
            let what = "has no effect on activations: give min_sqnr, or max_accuracy_drop";
            return refused("target_size", what);
        }
        if !config.activation_types.is_empty() {
            return refused("activation_types", "is the result of this function: omit it");
        }
        match (self.min_sqnr, self.max_accuracy_drop) {
            (Some(least), None) if least.is_finite() => Ok(Goal::Sqnr(least)),
            (Some(least), None) => {
                refused("min_sqnr", &format!("is {least}, expected a number of decibels"))
            }
            (None, Some(_)) => self.drop(),
            _ => refused("min_sqnr", "or max_accuracy_drop is required, but not both"),
        }
    }

    fn drop(&self) -> Result<Goal, QuantizeError> {
        let refused = |what: String| Err(QuantizeError::option("max_accuracy_drop", what));
        match self.max_accuracy_drop {
            Some(most) if !(most >= 0.0 && most.is_finite()) => {
                refused(format!("is {most}, expected a number from 0 on"))
            }
            Some(most) if self.metric.is_some() => Ok(Goal::Drop(most)),
            _ => refused("needs a metric".to_owned()),
        }
    }
}

/// Rejects bit widths that a format has no type for.
fn writable(bits: u8, format: Format) -> Result<(), QuantizeError> {
    let qtype = config::signed("bits", bits)?.qtype();
    let Some(known) = format.row().weights.types().filter(|known| !known.contains(&qtype)) else {
        return Ok(());
    };
    let known: BTreeSet<u32> = known.iter().map(|qtype| qtype.bits()).collect();
    let known: Vec<String> = known.iter().map(u32::to_string).collect();
    let known = known.join(", ");
    let what = format!("has {bits}, but output_format {format} supports weights of {known} bits");
    Err(QuantizeError::option("bits", what))
}

/// The product, rounded down.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn part(bytes: u64, times: f64) -> u64 {
    (bytes as f64 * times) as u64
}
