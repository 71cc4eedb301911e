//! Rounds weights with second moments that an earlier calibration collected.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use quantize_rs_onnx::{Model, Span};

use super::layers::{LayerInput, Layers};
use super::work::operations;
use super::{StateFile, layers, round};
use crate::calibrate::run::Control;
use crate::error::while_unchanged;
use crate::ranges::{InputMoments, Moments};
use crate::{CalibrationError, Config, Plan, QuantizeError, Ranges};

/// The note of a rounding that would run samples again.
const ONCE: &str = "weights are not rounded layer after layer: that runs the samples again";

/// Why an option of rounding has no effect.
const NOTHING_TO_ROUND: &str = "has no effect with ranges that hold no second moments: give \
    samples, or the merged ranges of shards";

/// The second moments of the inputs of layers, which ranges hold.
struct Stored<'a> {
    moments: &'a Moments,
    layers: &'a Layers,
}

impl Stored<'_> {
    /// The moments of an input; `None` if there were too many samples.
    fn read(&self, at: usize) -> Result<Option<InputMoments>, CalibrationError> {
        let input = &self.layers.inputs[at];
        let spans: Vec<usize> = input.spans().map(|span| span.len()).collect();
        let found = self.moments.input(&input.name(self.layers.diagonal))?;
        match found {
            Some(found) if !found.is_of(input.groups, &spans, self.layers.diagonal) => {
                let what = "its second moments are damaged: calibrate again";
                Err(CalibrationError::data(what).at_value(&input.value))
            }
            found => Ok(found),
        }
    }

    /// Drops the weights whose moments were not collected, and returns how many there were.
    fn known(layers: &mut Layers, moments: &Moments) -> usize {
        let names = moments.inputs();
        let known = |input: &LayerInput| names.contains(input.name(layers.diagonal).as_str());
        let known: Vec<bool> = layers.inputs.iter().map(known).collect();
        let before = layers.weights.len();
        layers.weights.retain(|weight| weight.inputs.iter().all(|at| known[*at]));
        before - layers.weights.len()
    }
}

/// Rounds the weights of `plan` with the second moments that `ranges` hold, as the calibration
/// would have done. Returns the ranges with these weights, and without moments; ranges that hold
/// none are returned as they are.
///
/// `control` says how many threads round a weight.
///
/// With `only`, only weights of these names are rounded; the ranges of several such calls are put
/// together by [`Ranges::with_rounded`].
///
/// # Errors
/// The ranges belong to another model, or are those of some shards alone; they hold no moments,
/// although the options say how it is done; a file of moments cannot be read or is damaged;
/// a weight cannot be quantized; or the caller cancels.
pub fn round_weights(
    model: &Model,
    plan: &Plan,
    ranges: &Ranges,
    only: Option<&[String]>,
    mut control: Control<'_>,
) -> Result<Ranges, QuantizeError> {
    let Some(moments) = &ranges.moments else {
        let usual = Config::default();
        let unused = [
            ("resume_rounding", plan.config.resume_rounding.is_some()),
            ("memory_limit", plan.config.memory_limit != usual.memory_limit),
        ];
        if let Some((option, _)) = unused.into_iter().find(|(_, given)| *given) {
            return Err(QuantizeError::option(option, NOTHING_TO_ROUND));
        }
        return Ok(ranges.clone());
    };
    while_unchanged(&[model], || {
        ranges.check_print(&plan.origin.fingerprint)?;
        ranges.check_complete()?;
        let mut found = Ranges { moments: None, ..ranges.clone() };
        let mut layers = layers(model, plan)?;
        let lost = Stored::known(&mut layers, moments);
        if lost > 0 {
            found.notes.push(format!(
                "{lost} weights are rounded without samples: their second moments were collected \
                 for other options, or not at all"
            ));
        }
        if layers.weights.is_empty() {
            return Ok(found);
        }
        if layers.repeats(plan) {
            found.notes.push(ONCE.to_owned());
        }
        if let Some(only) = only {
            layers.weights.retain(|weight| only.contains(&weight.name));
        }
        let _span = Span::stage("round weights");
        let state = StateFile::open(plan.config.resume_rounding.as_deref())?;
        let stored = Stored { moments, layers: &layers };
        let mut read = |at| stored.read(at);
        let with = (None, state, control.threads);
        round(model, plan, &mut found, &layers, &mut read, with, &mut control)?;
        Ok(found)
    })
}

/// As [`round_weights`], of all weights; nothing is copied if there are no moments.
pub(crate) fn with_rounded_weights<'r>(
    model: &Model,
    plan: &Plan,
    ranges: Option<&'r Ranges>,
    control: Control<'_>,
) -> Result<Option<Cow<'r, Ranges>>, QuantizeError> {
    Ok(match ranges {
        Some(ranges) if ranges.moments.is_some() => {
            Some(Cow::Owned(round_weights(model, plan, ranges, None, control)?))
        }
        ranges => ranges.map(Cow::Borrowed),
    })
}

impl Plan {
    /// The weights that are rounded with the help of samples, and the expected time of each as a
    /// fraction of that of all.
    ///
    /// # Errors
    /// The graph is not well-formed.
    pub fn rounding_work(&self, model: &Model) -> Result<Vec<(String, f64)>, QuantizeError> {
        let layers = layers(model, self)?;
        let each = layers.weights.iter().map(|weight| operations(weight, &layers.inputs));
        let each: Vec<f64> = each.collect();
        let all: f64 = each.iter().sum();
        let share = |operations: f64| if all > 0.0 { operations / all } else { 0.0 };
        let names = layers.weights.iter().map(|weight| weight.name.clone());
        Ok(names.zip(each.iter().map(|operations| share(*operations))).collect())
    }
}

impl Ranges {
    /// These ranges with the weights that were rounded in several calls of [`round_weights`].
    #[must_use]
    pub fn with_rounded<'r>(&self, parts: impl IntoIterator<Item = &'r Ranges>) -> Ranges {
        let mut found = Ranges { moments: None, ..self.clone() };
        let mut all = BTreeMap::new();
        for part in parts {
            all.extend(part.rounded.iter().map(|(name, weight)| (name.clone(), weight.clone())));
            let new = part.notes.iter().filter(|note| !found.notes.contains(note));
            found.notes.extend(new.cloned().collect::<Vec<_>>());
        }
        found.rounded = Arc::new(all);
        found
    }
}
