//! Where activations live: the result of a calibration, to be saved, loaded, merged and compared.
//!
//! In: what calibration saw, or a calibration table of TensorRT. Out: [`Ranges`].
//! Imports: the rooms up to `graph`.

mod diff;
mod histogram;
pub mod tensorrt;

use std::collections::BTreeMap;
use std::sync::Arc;

use quantize_rs_math::range::{Degenerate, FoundRange, RangeFinder};
use quantize_rs_math::stats::{ChannelStats, MaskedValues, Sketch};
use quantize_rs_math::{QSpec, Range};
use quantize_rs_onnx::Model;
use serde::{Deserialize, Serialize};

use crate::error::CalibrationErrorKind as Kind;
use crate::graph::fingerprint::fingerprint;
use crate::{CalibrationError, Method};

pub use diff::{Difference, RangesDiff};
pub use histogram::Histogram;

/// The range of each observed value of a model, and what it follows from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// How ranges follow from what was seen: `minmax`.
    pub method: String,
    /// Who ran the model.
    pub engine: String,
    /// On how many samples.
    pub samples: usize,
    /// Fingerprint of the model they belong to.
    pub model: String,
    /// Smallest and largest value, by ONNX name.
    pub values: BTreeMap<String, Range>,
    /// With the method `auto`: what was chosen for each value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub chosen: BTreeMap<String, String>,
    /// What is to be said of the run: why this engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What is to be said of values: where the method had no choice, what it took, what carries a mask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// What is to be said of the samples: that they are few, or all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What was seen, by ONNX name; empty for ranges that another tool found. Copies share it.
    #[serde(default, skip_serializing_if = "is_bare", with = "shared")]
    pub statistics: Arc<BTreeMap<String, Seen>>,
}

/// Whether there are no statistics.
fn is_bare(statistics: &Arc<BTreeMap<String, Seen>>) -> bool {
    statistics.is_empty()
}

/// Shared statistics in JSON: as if they were not shared.
mod shared {
    use super::{Arc, BTreeMap, Deserialize, Seen, Serialize};

    type Statistics = BTreeMap<String, Seen>;

    pub(super) fn serialize<S: serde::Serializer>(
        statistics: &Arc<Statistics>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (**statistics).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<Statistics>, D::Error> {
        Statistics::deserialize(deserializer).map(Arc::new)
    }
}

/// What was seen of one value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// How it is to be quantized; `None` where only its channels matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<QSpec>,
    /// All its elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sketch: Option<Sketch>,
    /// Its shape; null for a length that varies from sample to sample.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<Option<usize>>,
    /// Its channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<ChannelStats>,
    /// The axis that they lie along, counted from the end when negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis: Option<isize>,
    /// Between which numbers it lies whatever the sample, where a `Clip` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Range>,
    /// What the operator that makes it can make, where that is not anything: probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Range>,
}

/// The part of what an operator can make that is worth having a scale for, once samples reach so far.
const FILLED: f64 = 0.5;

impl Seen {
    /// The range that a method finds for a grid of `spec`, within the limits; nothing where there is no sketch.
    ///
    /// Where samples fill half of what the operator can make, it is all of that: other samples may reach its end, and
    /// that costs a bit at most. So it is with 16 bits, which have bits to spare.
    pub(crate) fn range(&self, finder: &dyn RangeFinder, spec: &QSpec) -> Option<FoundRange> {
        let sketch = self.sketch.as_ref()?;
        let filled = |bounds: &Range| {
            spec.qtype.bits() >= 16 || width(sketch.range()) >= FILLED * width(*bounds)
        };
        if let Some(range) = self.bounds.filter(filled) {
            return Some(FoundRange { range, note: None });
        }
        let found = finder.range(sketch, spec);
        let Some(limits) = self.limits.or(self.bounds).filter(|_| !found.range.is_empty()) else {
            return Some(found);
        };
        let Range { min, max } = found.range;
        let range = Range { min: min.max(limits.min), max: max.min(limits.max) };
        // What was seen lies within the limits, unless somebody wrote others.
        Some(if range.min <= range.max { FoundRange { range, ..found } } else { found })
    }

    /// Takes note of the shape of one sample.
    pub(crate) fn see_shape(&mut self, shape: &[Option<usize>]) {
        if self.shape.is_empty() {
            self.shape = shape.to_vec();
        } else if self.shape.len() == shape.len() {
            let lengths = self.shape.iter_mut().zip(shape);
            lengths.filter(|(seen, now)| *seen != *now).for_each(|(seen, _)| *seen = None);
        } else {
            // No shape at all: whatever axis is asked for varies.
            self.shape = vec![None];
        }
    }

    pub(crate) fn merge(&mut self, other: &Seen) {
        if !other.shape.is_empty() {
            self.see_shape(&other.shape);
        }
        if let (Some(all), Some(one)) = (&mut self.sketch, &other.sketch) {
            all.merge(one);
        }
        let both = self.channels.as_mut().zip(other.channels.as_ref());
        let both = both.filter(|_| self.axis == other.axis);
        if both.is_none_or(|(all, one)| all.merge(one).is_err()) {
            self.channels = None;
        }
    }
}

/// How far it is from one end of a range that holds 0 to the other.
fn width(range: Range) -> f64 {
    f64::from(range.max.max(0.0)) - f64::from(range.min.min(0.0))
}

impl Ranges {
    /// Statistics whose ranges are still to be found; see [`Ranges::using`]. `model` is the
    /// fingerprint of the model before anything was done to it.
    pub(crate) fn of(
        model: String,
        method: String,
        engine: &str,
        samples: usize,
        statistics: BTreeMap<String, Seen>,
    ) -> Ranges {
        Ranges {
            method,
            engine: engine.to_owned(),
            samples,
            model,
            values: BTreeMap::new(),
            chosen: BTreeMap::new(),
            notes: Vec::new(),
            remarks: Vec::new(),
            warnings: Vec::new(),
            statistics: Arc::new(statistics),
        }
    }

    /// All that is to be said: of the run, then of values.
    pub fn said(&self) -> Vec<String> {
        self.notes.iter().chain(&self.remarks).cloned().collect()
    }

    /// The ranges that `method` finds in the same statistics, in milliseconds.
    ///
    /// # Errors
    /// There are no statistics to find them in, or the method is `auto`, which needs samples.
    pub fn using(&self, method: &Method) -> Result<Ranges, CalibrationError> {
        let data = |what: &str| CalibrationError::new(Kind::Data(what.to_owned()));
        let Method::Finder(finder) = method else {
            return Err(data("the method `auto` judges on samples: calibrate with it"));
        };
        if self.statistics.is_empty() && !self.values.is_empty() {
            return Err(data("these ranges come without statistics: calibrate anew"));
        }
        let mut found = self.clone();
        found.method = method.name();
        found.values.clear();
        found.chosen.clear();
        found.remarks.clear();
        let mut degenerate: Vec<(Degenerate, Vec<&str>)> = Vec::new();
        for (name, seen) in &*self.statistics {
            let (Some(spec), Some(sketch)) = (&seen.spec, &seen.sketch) else { continue };
            let Some(range) = seen.range(finder.as_ref(), spec) else { continue };
            found.values.insert(name.clone(), range.range);
            if let Some(mask) = sketch.mask() {
                found.remarks.push(format!("`{name}` {}; it stays float", describe(&mask)));
            } else if is_all_zero(range.range) {
                found.remarks.push(format!("`{name}` was never seen but as 0; it stays float"));
            } else if let Some(why) = range.note {
                match degenerate.iter_mut().find(|(other, _)| *other == why) {
                    Some((_, names)) => names.push(name),
                    None => degenerate.push((why, vec![name])),
                }
            }
        }
        let remarks = degenerate.into_iter().map(|(why, names)| {
            let shown: Vec<String> = names.iter().take(3).map(|name| format!("`{name}`")).collect();
            let more = names.len() - shown.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{}{more}: {why}", shown.join(", "))
        });
        found.remarks.extend(remarks);
        Ok(found)
    }

    /// What was seen of a value, coarse enough to be drawn; `None` where nothing was kept of it, or
    /// it was one number only.
    pub fn histogram(&self, value: &str) -> Option<Histogram> {
        let sketch = self.statistics.get(value)?.sketch.as_ref()?;
        Histogram::of(&sketch.values(), *self.values.get(value)?)
    }

    /// The ranges as JSON.
    pub fn to_json(&self) -> String {
        // Names, numbers and nothing else: this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Ranges out of JSON.
    ///
    /// # Errors
    /// The text is not what [`Ranges::to_json`] writes.
    pub fn from_json(text: &str) -> Result<Ranges, CalibrationError> {
        let ranges: Ranges = serde_json::from_str(text).map_err(|error| {
            CalibrationError::new(Kind::Data(format!("not a file of ranges: {error}")))
                .caused_by(error)
        })?;
        let wrong = |what: String| CalibrationError::new(Kind::Data(what));
        ranges.method.parse::<Method>().map_err(|error| wrong(format!("these ranges: {error}")))?;
        for (name, range) in &ranges.values {
            let Range { min, max } = *range;
            // A value that never had an element has no ends.
            if !(*range == Range::EMPTY || min.is_finite() && max.is_finite() && min <= max) {
                let what =
                    format!("its range is {min} to {max}: expected finite ends, the lower first");
                return Err(wrong(what).at_value(name));
            }
        }
        Ok(ranges)
    }

    /// The ranges of both, exactly as if one calibration had seen all samples.
    ///
    /// Ranges of the method `auto` cannot be merged, since what it chose rests on the samples of
    /// one calibration: merge those of another method, which hold the same statistics.
    ///
    /// # Errors
    /// They belong to different models, methods, values, types or engines, or lack the statistics.
    pub fn merge(&self, other: &Ranges) -> Result<Ranges, CalibrationError> {
        let data = |what: &str| CalibrationError::new(Kind::Data(what.to_owned()));
        let types = |ranges: &Ranges| -> Vec<(String, Option<QSpec>)> {
            ranges.statistics.iter().map(|(name, seen)| (name.clone(), seen.spec)).collect()
        };
        let same = self.model == other.model
            && self.method == other.method
            && self.values.keys().eq(other.values.keys())
            && types(self) == types(other);
        if !same {
            return Err(data("these ranges belong to different models, methods, values or types"));
        }
        if self.engine != other.engine {
            return Err(data("these ranges come from different engines: calibrate with one"));
        }
        let method = self.method.parse::<Method>().map_err(|error| data(&error.to_string()))?;
        if matches!(method, Method::Auto) {
            return Err(data(
                "ranges that `auto` chose cannot be merged: merge those of one method, and let \
                 `auto` choose afterwards",
            ));
        }
        let mut merged = self.clone();
        merged.samples = merged.samples.saturating_add(other.samples);
        merged.notes.extend_from_slice(&other.notes);
        merged.notes.sort();
        merged.notes.dedup();
        // What is said of few samples need not be true of them all.
        merged.warnings.clear();
        for (name, seen) in Arc::make_mut(&mut merged.statistics) {
            seen.merge(&other.statistics[name]);
        }
        merged.using(&method)
    }

    /// Refuses ranges that were made for another model.
    ///
    /// # Errors
    /// They were.
    pub fn check_model(&self, model: &Model) -> Result<(), CalibrationError> {
        self.check_print(&fingerprint(model))
    }

    pub(crate) fn check_print(&self, model: &str) -> Result<(), CalibrationError> {
        if self.model == model {
            return Ok(());
        }
        let what = "these ranges were made for another model".to_owned();
        Err(CalibrationError::new(Kind::Data(what)))
    }

    /// Why no scale can be had for a value, if none can: it carries a mask, or was never seen but
    /// as 0, so that any scale would be a guess.
    pub(crate) fn unfit(&self, value: &str) -> Option<Unfit> {
        let seen = self.statistics.get(value).and_then(|seen| seen.sketch.as_ref());
        if seen.is_some_and(|sketch| sketch.mask().is_some()) {
            return Some(Unscalable::AttentionMask);
        }
        let range = self.values.get(value)?;
        is_all_zero(*range).then_some(Unscalable::AllZero)
    }
}

/// Why no scale suits a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unscalable {
    /// It carries an attention mask: see [`Sketch::mask`].
    AttentionMask,
    /// It was 0 in all samples.
    AllZero,
}

/// Whether a range holds nothing but zeros.
fn is_all_zero(range: Range) -> bool {
    range.is_empty() || range.absmax() == 0.0
}

/// What kind of mask a value carries, in words.
fn describe(mask: &MaskedValues) -> String {
    let MaskedValues { count, range, infinite } = mask;
    let finite =
        (*count > 0).then(|| format!("{count} elements from {:?} to {:?}", range.min, range.max));
    let infinite = (*infinite > 0).then(|| format!("{infinite} elements of -inf"));
    let parts: Vec<String> = finite.into_iter().chain(infinite).collect();
    format!("carries an attention mask ({})", parts.join(", "))
}
