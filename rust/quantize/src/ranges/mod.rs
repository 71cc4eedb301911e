//! Where activations live: the result of a calibration, to be saved, loaded, merged and compared.

mod diff;
pub mod tensorrt;

use std::collections::BTreeMap;
use std::hash::Hasher;

use quantize_rs_math::range::Degenerate;
use quantize_rs_math::stats::{ChannelStats, Masked, Sketch};
use quantize_rs_math::{QSpec, Range};
use quantize_rs_onnx::{Model, TensorProto};
use serde::{Deserialize, Serialize};

use crate::error::CalibrationErrorKind as Kind;
use crate::fnv::Fnv;
use crate::{CalibrationError, Method, Plan};

pub use diff::{Difference, RangesDiff};

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
    /// Things the caller should know: why this engine, which choice means nothing, what is a mask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What was seen, by ONNX name; empty for ranges that another tool found.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub statistics: BTreeMap<String, Seen>,
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
}

impl Seen {
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

impl Ranges {
    /// Statistics whose ranges are still to be found; see [`Ranges::using`].
    pub(crate) fn of(
        model: &Model,
        method: String,
        engine: &str,
        samples: usize,
        statistics: BTreeMap<String, Seen>,
    ) -> Ranges {
        Ranges {
            method,
            engine: engine.to_owned(),
            samples,
            model: fingerprint(model),
            values: BTreeMap::new(),
            chosen: BTreeMap::new(),
            notes: Vec::new(),
            statistics,
        }
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
        found.notes.retain(|note| !note.starts_with('`'));
        let mut degenerate: Vec<(Degenerate, Vec<&str>)> = Vec::new();
        for (name, seen) in &self.statistics {
            let (Some(spec), Some(sketch)) = (&seen.spec, &seen.sketch) else { continue };
            let range = finder.range(sketch, spec);
            found.values.insert(name.clone(), range.range);
            if let Some(mask) = sketch.mask() {
                found.notes.push(format!("`{name}` {}; it stays float", describe(&mask)));
            }
            if let Some(why) = range.note {
                match degenerate.iter_mut().find(|(other, _)| *other == why) {
                    Some((_, names)) => names.push(name),
                    None => degenerate.push((why, vec![name])),
                }
            }
        }
        let notes = degenerate.into_iter().map(|(why, names)| {
            let shown: Vec<String> = names.iter().take(3).map(|name| format!("`{name}`")).collect();
            let more = names.len() - shown.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{}{more}: {why}", shown.join(", "))
        });
        found.notes.extend(notes);
        Ok(found)
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
        serde_json::from_str(text).map_err(|error| {
            CalibrationError::new(Kind::Data(format!("not a file of ranges: {error}")))
                .caused_by(error)
        })
    }

    /// The ranges of both, exactly as if one calibration had seen all samples.
    ///
    /// Ranges of the method `auto` cannot be merged, since what it chose rests on the samples of
    /// one calibration: merge those of another method, which hold the same statistics.
    ///
    /// # Errors
    /// They belong to different models, methods or values, or lack the statistics.
    pub fn merge(&self, other: &Ranges) -> Result<Ranges, CalibrationError> {
        let data = |what: &str| CalibrationError::new(Kind::Data(what.to_owned()));
        let same = self.model == other.model
            && self.method == other.method
            && self.values.keys().eq(other.values.keys())
            && self.statistics.keys().eq(other.statistics.keys());
        if !same {
            return Err(data("these ranges belong to different models, methods or values"));
        }
        let method = self.method.parse::<Method>().map_err(|error| data(&error.to_string()))?;
        if matches!(method, Method::Auto) {
            return Err(data(
                "ranges that `auto` chose cannot be merged: merge those of one method, and let \
                 `auto` choose afterwards",
            ));
        }
        let mut merged = self.clone();
        merged.samples += other.samples;
        for note in &other.notes {
            if !merged.notes.contains(note) {
                merged.notes.push(note.clone());
            }
        }
        for (name, seen) in &mut merged.statistics {
            seen.merge(&other.statistics[name]);
        }
        merged.using(&method)
    }

    /// Refuses ranges that were made for another model.
    ///
    /// # Errors
    /// They were.
    pub fn check_model(&self, model: &Model) -> Result<(), CalibrationError> {
        if self.model == fingerprint(model) {
            return Ok(());
        }
        let what = "these ranges were made for another model".to_owned();
        Err(CalibrationError::new(Kind::Data(what)))
    }

    /// Refuses ranges that were made for another model, or lack a value of the plan.
    pub(crate) fn check(&self, model: &Model, plan: &Plan) -> Result<(), CalibrationError> {
        self.check_model(model)?;
        match plan.observed().into_iter().find(|name| !self.values.contains_key(name)) {
            None => Ok(()),
            Some(name) => {
                let what = "these ranges lack a value that the plan quantizes".to_owned();
                Err(CalibrationError::new(Kind::Data(what)).at_value(name))
            }
        }
    }

    /// Whether a value carries a mask: see [`Sketch::mask`].
    pub(crate) fn is_masked(&self, value: &str) -> bool {
        let seen = self.statistics.get(value);
        seen.and_then(|seen| seen.sketch.as_ref()).is_some_and(|sketch| sketch.mask().is_some())
    }
}

/// What kind of mask a value carries, in words.
fn describe(mask: &Masked) -> String {
    let Masked { count, range, infinite } = mask;
    let finite =
        (*count > 0).then(|| format!("{count} elements from {:?} to {:?}", range.min, range.max));
    let infinite = (*infinite > 0).then(|| format!("{infinite} elements of -inf"));
    let parts: Vec<String> = finite.into_iter().chain(infinite).collect();
    format!("carries an attention mask ({})", parts.join(", "))
}

/// Words of each constant that tell it apart from others.
const WORDS: usize = 16;

/// Tells models apart: by their structure, and by some words of each constant (FNV-1a, 64 bits).
pub(crate) fn fingerprint(model: &Model) -> String {
    let mut hash = Fnv::default();
    for node in &model.graph().node {
        hash.write(node.op_type.as_bytes());
        for name in node.input.iter().chain(&node.output) {
            hash.write(name.as_bytes());
            hash.write_u8(0);
        }
    }
    for tensor in &model.graph().initializer {
        hash.write(tensor.name.as_bytes());
        tensor.dims.iter().for_each(|dim| hash.write_i64(*dim));
        content(model, tensor, &mut hash);
    }
    format!("{:016x}", hash.finish())
}

/// Some words of a constant, spread over it: the weights of a model trained further differ.
fn content(model: &Model, tensor: &TensorProto, hash: &mut Fnv) {
    let Ok(tensor) = model.tensor(tensor) else { return };
    let (words, rest) = tensor.data.as_chunks::<8>();
    for word in words.iter().step_by(words.len() / WORDS + 1) {
        hash.word(u64::from_le_bytes(*word));
    }
    hash.write(rest);
}
