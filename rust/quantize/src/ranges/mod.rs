//! The ranges of activations: the result of a calibration, which can be saved, loaded, merged and
//! compared.
//!
//! Input: the statistics of a calibration, or a calibration table of TensorRT. Output: [`Ranges`].
//! This module imports the modules up to `graph`.

mod diff;
mod evidence;
mod few_samples;
mod file;
mod histogram;
mod merge;
mod moments;
mod moments_file;
mod rounded;
pub mod tensorrt;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quantize_rs_math::range::{Degenerate, FoundRange, RangeFinder};
use quantize_rs_math::stats::{ChannelStats, MaskedValues, Sketch};
use quantize_rs_math::{QSpec, Range};
use quantize_rs_onnx::Model;
use serde::{Deserialize, Serialize};

use crate::graph::fingerprint::fingerprint;
use crate::options::Shard;
use crate::{CalibrationError, Method};

pub use diff::{RangeDifference, RangesDiff};
pub use evidence::{InputEvidence, RANDOM_SAMPLES, SampleEvidence};
pub use few_samples::{ENOUGH_SAMPLES, MIN_SAMPLES, few_samples, rows_at_once};
pub use histogram::Histogram;
pub use moments::Moments;
pub(crate) use moments::{InputMoments, MAX_HELD_BACK, SEPARATOR};
pub(crate) use rounded::hash;
pub use rounded::{RoundedWeight, RoundedWeights, RoundingEvidence};

/// The range of each observed value of a model, and the statistics behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// The calibration method, for example `minmax`.
    pub method: String,
    /// The engine that ran the model.
    pub engine: String,
    /// The number of samples.
    pub samples: usize,
    /// The number of rows of each, if the model takes several at once.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rows: usize,
    /// The fingerprint of the model.
    pub model: String,
    /// The minimum and maximum of each value, by ONNX name.
    pub values: BTreeMap<String, Range>,
    /// For the method `auto`: the method selected for each value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub chosen: BTreeMap<String, String>,
    /// Remarks about the run, for example the reason for the choice of engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Remarks about values, for example those that carry a mask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Remarks about the samples, for example that there are few or that all are equal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What the samples show about themselves, from which the warnings of merged ranges follow.
    #[serde(default, skip_serializing_if = "SampleEvidence::is_clean")]
    pub evidence: SampleEvidence,
    /// The statistics of each value, by ONNX name. Empty for ranges of another tool. Shared by
    /// clones.
    #[serde(default, skip_serializing_if = "is_bare", with = "shared")]
    pub statistics: Arc<BTreeMap<String, ObservedRange>>,
    /// Weights that were rounded with the help of the samples. Shared by clones.
    #[serde(default, skip_serializing_if = "is_bare", with = "shared")]
    pub rounded: Arc<RoundedWeights>,
    /// The largest magnitude of each float, if the result computes in 16 bits. Shared by clones.
    #[serde(default, skip_serializing_if = "is_bare", with = "shared")]
    pub magnitudes: Arc<BTreeMap<String, f32>>,
    /// The largest magnitude of each channel of the present keys and values, head by head, if their
    /// cache is quantized. Shared by clones.
    #[serde(default, skip_serializing_if = "is_bare", with = "shared")]
    pub kv_cache: Arc<BTreeMap<String, Vec<f32>>>,
    /// The parts of the samples that they hold; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<Shard>,
    /// The second moments that weights can be rounded with later, in ranges of a shard or merged
    /// from shards.
    #[serde(skip)]
    pub moments: Option<Moments>,
}

const fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_one(rows: &usize) -> bool {
    *rows == 1
}

/// Whether a map is empty.
fn is_bare<T>(map: &Arc<BTreeMap<String, T>>) -> bool {
    map.is_empty()
}

/// Serializes a shared map as if it were not shared.
mod shared {
    use super::{Arc, BTreeMap, Deserialize, Serialize};

    pub(super) fn serialize<S: serde::Serializer, T: Serialize>(
        map: &Arc<BTreeMap<String, T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (**map).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
        deserializer: D,
    ) -> Result<Arc<BTreeMap<String, T>>, D::Error> {
        BTreeMap::deserialize(deserializer).map(Arc::new)
    }
}

/// The statistics of one value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObservedRange {
    /// How to quantize the value; `None` if only its channels are needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<QSpec>,
    /// Statistics over all elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sketch: Option<Sketch>,
    /// The shape. A dimension that varies between samples is null.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<Option<usize>>,
    /// Statistics of each channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<ChannelStats>,
    /// The channel axis, counted from the end if negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis: Option<isize>,
    /// The bounds of a `Clip`, if one produces the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Range>,
    /// The bounded range of the operator that produces the value, for example of probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Range>,
}

/// If samples cover at least this fraction of a bounded range, the whole range gets a scale.
const MIN_COVERAGE: f64 = 0.5;

impl ObservedRange {
    /// The range that a method selects for the type of `spec`, within the bounds; `None` without
    /// statistics.
    ///
    /// If the samples cover at least half of the bounds of the operator, the range is all of the
    /// bounds: other samples may reach them, and that costs one bit at most. With 16 bits, which
    /// are precise enough, the range is always all of the bounds.
    pub(crate) fn range(&self, finder: &dyn RangeFinder, spec: &QSpec) -> Option<FoundRange> {
        let sketch = self.sketch.as_ref()?;
        let filled = |bounds: &Range| spec.qtype.bits() >= 16 || covers(sketch.range(), *bounds);
        if let Some(range) = self.bounds.filter(filled) {
            return Some(FoundRange { range, note: None });
        }
        let found = finder.range(sketch, spec);
        let Some(limits) = self.limits.or(self.bounds).filter(|_| !found.range.is_empty()) else {
            return Some(found);
        };
        let Range { min, max } = found.range;
        let range = Range { min: min.max(limits.min), max: max.min(limits.max) };
        // Observed values lie within the limits, unless the file of ranges was edited.
        Some(if range.min <= range.max { FoundRange { range, ..found } } else { found })
    }

    /// Merges the shape of one sample.
    pub(crate) fn see_shape(&mut self, shape: &[Option<usize>]) {
        if self.shape.is_empty() {
            self.shape = shape.to_vec();
        } else if self.shape.len() == shape.len() {
            let lengths = self.shape.iter_mut().zip(shape);
            lengths.filter(|(seen, now)| *seen != *now).for_each(|(seen, _)| *seen = None);
        } else {
            // An unknown rank, for which any axis varies.
            self.shape = vec![None];
        }
    }

    pub(crate) fn merge(&mut self, other: &ObservedRange) {
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

/// Whether a range covers at least half of the bounds of an operator.
pub(crate) fn covers(range: Range, bounds: Range) -> bool {
    width(range) >= MIN_COVERAGE * width(bounds)
}

/// The width of a range that contains 0.
fn width(range: Range) -> f64 {
    f64::from(range.max.max(0.0)) - f64::from(range.min.min(0.0))
}

impl Ranges {
    /// Creates ranges from statistics, to be completed by [`Ranges::using`]. `model` is the
    /// fingerprint of the model before preprocessing.
    pub(crate) fn of(
        model: String,
        method: String,
        engine: &str,
        samples: usize,
        statistics: BTreeMap<String, ObservedRange>,
    ) -> Ranges {
        Ranges {
            method,
            engine: engine.to_owned(),
            samples,
            rows: 1,
            model,
            values: BTreeMap::new(),
            chosen: BTreeMap::new(),
            notes: Vec::new(),
            remarks: Vec::new(),
            warnings: Vec::new(),
            evidence: SampleEvidence::default(),
            statistics: Arc::new(statistics),
            rounded: Arc::default(),
            magnitudes: Arc::default(),
            kv_cache: Arc::default(),
            shards: Vec::new(),
            moments: None,
        }
    }

    /// All remarks: about the run, then about values.
    pub fn said(&self) -> Vec<String> {
        self.notes.iter().chain(&self.remarks).cloned().collect()
    }

    /// Whether the range of a value is from [`with_values`](Ranges::with_values).
    pub(crate) fn is_given(&self, name: &str) -> bool {
        let is_computed = self.statistics.get(name).is_some_and(|seen| seen.spec.is_some());
        self.values.contains_key(name) && !is_computed
    }

    /// Computes the ranges of `method` from the same statistics, which takes milliseconds. Those
    /// that [`with_values`](Ranges::with_values) gave stay.
    ///
    /// # Errors
    /// There are no statistics, or the method is `auto`, which needs the samples.
    pub fn using(&self, method: &Method) -> Result<Ranges, CalibrationError> {
        self.using_for(method, &BTreeSet::new(), method)
    }

    /// As [`using`](Ranges::using), with another method for some values, which is chosen for them.
    pub(crate) fn using_for(
        &self,
        method: &Method,
        values: &BTreeSet<String>,
        other: &Method,
    ) -> Result<Ranges, CalibrationError> {
        let data = |what: &str| CalibrationError::data(what);
        let (Method::Finder(finder), Method::Finder(other)) = (method, other) else {
            return Err(data("the method `auto` needs samples: calibrate again with `auto`"));
        };
        if self.statistics.is_empty() && !self.values.is_empty() {
            return Err(data("these ranges have no statistics: calibrate again"));
        }
        let mut found = self.clone();
        found.method = method.name();
        found.values.retain(|name, _| self.is_given(name));
        found.chosen.clear();
        found.remarks.clear();
        let mut degenerate: Vec<(Degenerate, Vec<&str>)> = Vec::new();
        for (name, seen) in &*self.statistics {
            let (Some(spec), Some(sketch)) = (&seen.spec, &seen.sketch) else { continue };
            let own = if values.contains(name) { other } else { finder };
            let Some(range) = seen.range(own.as_ref(), spec) else { continue };
            found.values.insert(name.clone(), range.range);
            if values.contains(name) {
                found.chosen.insert(name.clone(), other.name().into_owned());
            }
            if let Some(mask) = sketch.mask() {
                found.remarks.push(format!("`{name}` {}; it stays float", describe(&mask)));
            } else if is_all_zero(range.range) {
                found.remarks.push(format!("`{name}` was 0 in all samples; it stays float"));
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

    /// These ranges with other numbers for some values, which also stay with another method and
    /// where a plan quantizes the value to another type.
    ///
    /// # Errors
    /// A value that has no range here, or ends that are not finite or in the wrong order.
    pub fn with_values(
        &self,
        values: impl IntoIterator<Item = (String, Range)>,
    ) -> Result<Ranges, CalibrationError> {
        let mut found = self.clone();
        for (name, range) in values {
            let Some(own) = found.values.get_mut(&name) else {
                let what = "has no range: calibration observed no such value";
                return Err(CalibrationError::data(what).at_value(name));
            };
            if !(range.min.is_finite() && range.max.is_finite() && range.min <= range.max) {
                let what = format!("cannot have the range {} to {}", range.min, range.max);
                return Err(CalibrationError::data(what).at_value(name));
            }
            *own = range;
            found.chosen.remove(&name);
            if let Some(seen) = Arc::make_mut(&mut found.statistics).get_mut(&name) {
                seen.spec = None;
            }
        }
        Ok(found)
    }

    /// A coarse histogram of a value, for plots; `None` without statistics, or if all numbers are
    /// equal.
    pub fn histogram(&self, value: &str) -> Option<Histogram> {
        let sketch = self.statistics.get(value)?.sketch.as_ref()?;
        Histogram::of(&sketch.values(), *self.values.get(value)?)
    }

    /// Parses ranges from JSON.
    ///
    /// # Errors
    /// The text was not written by [`Ranges::to_json`].
    pub fn from_json(text: &str) -> Result<Ranges, CalibrationError> {
        // The fields alone, as a list, are not what was written.
        if text.trim_start().starts_with('[') {
            let what = "not a ranges file: it holds a list, expected an object";
            return Err(CalibrationError::data(what));
        }
        let ranges: Ranges = serde_json::from_str(text).map_err(|error| {
            CalibrationError::data(format!("not a ranges file: {error}")).caused_by(error)
        })?;
        let wrong = |what: String| CalibrationError::data(what);
        ranges.method.parse::<Method>().map_err(|error| wrong(format!("these ranges: {error}")))?;
        for (name, range) in &ranges.values {
            let Range { min, max } = *range;
            // A value without elements has no bounds.
            if !(*range == Range::EMPTY || min.is_finite() && max.is_finite() && min <= max) {
                let what = format!(
                    "its range is {min} to {max}: expected finite bounds in ascending order"
                );
                return Err(wrong(what).at_value(name));
            }
        }
        Ok(ranges)
    }

    /// Checks that the ranges belong to a model.
    ///
    /// # Errors
    /// The ranges belong to another model.
    pub fn check_model(&self, model: &Model) -> Result<(), CalibrationError> {
        self.check_print(&fingerprint(model))
    }

    pub(crate) fn check_print(&self, model: &str) -> Result<(), CalibrationError> {
        if self.model == model {
            return Ok(());
        }
        let what = "these ranges belong to another model".to_owned();
        Err(CalibrationError::data(what))
    }

    /// Why a value has no usable scale, if it has none: it carries a mask, or it was 0 in all
    /// samples, so that any scale would be a guess.
    pub(crate) fn unscalable(&self, value: &str) -> Option<Unscalable> {
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
