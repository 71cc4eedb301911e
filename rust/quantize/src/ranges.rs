//! Where activations live: the result of a calibration, to be saved, loaded and merged.

use std::collections::BTreeMap;
use std::hash::Hasher;

use quantize_rs_math::Range;
use quantize_rs_onnx::Model;
use serde::{Deserialize, Serialize};

use crate::error::CalibrationErrorKind as Kind;
use crate::{CalibrationError, Plan};

/// The range of each observed value of a model.
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
}

impl Ranges {
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

    /// The ranges of both, as if one calibration had seen all samples.
    ///
    /// # Errors
    /// They belong to different models, methods or values.
    pub fn merge(&self, other: &Ranges) -> Result<Ranges, CalibrationError> {
        let same = self.model == other.model
            && self.method == other.method
            && self.values.keys().eq(other.values.keys());
        if !same {
            let what = "these ranges belong to different models, methods or values".to_owned();
            return Err(CalibrationError::new(Kind::Data(what)));
        }
        let mut merged = self.clone();
        merged.samples += other.samples;
        for (name, range) in &mut merged.values {
            *range = range.merge(other.values[name]);
        }
        Ok(merged)
    }

    /// Refuses ranges that were made for another model, or lack a value of the plan.
    pub(crate) fn check(&self, model: &Model, plan: &Plan) -> Result<(), CalibrationError> {
        if self.model != fingerprint(model) {
            let what = "these ranges were made for another model".to_owned();
            return Err(CalibrationError::new(Kind::Data(what)));
        }
        match plan.observed().into_iter().find(|name| !self.values.contains_key(name)) {
            None => Ok(()),
            Some(name) => {
                let what = "these ranges lack a value that the plan quantizes".to_owned();
                Err(CalibrationError::new(Kind::Data(what)).at_value(name))
            }
        }
    }
}

/// Tells models apart by their structure: operators, names, shapes of constants (FNV-1a, 64 bits).
pub(crate) fn fingerprint(model: &Model) -> String {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
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
    }
    format!("{:016x}", hash.finish())
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
