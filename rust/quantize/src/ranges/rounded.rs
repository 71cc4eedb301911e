//! Weights that were rounded with the help of samples: a result of calibration.

use std::collections::BTreeMap;
use std::hash::Hasher;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quantize_rs_math::{Algorithm, Params, QSpec};
use quantize_rs_onnx::Tensor;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::options::RoundedFor;
use crate::util::fnv::Fnv;

/// Weights that were rounded with the help of samples, by name.
pub type RoundedWeights = BTreeMap<String, RoundedWeight>;

/// The integers, scales and zero points of a weight that minimize the error of its layer's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundedWeight {
    /// The algorithm that won, and what each of them reached.
    #[serde(flatten)]
    pub evidence: RoundingEvidence,
    /// How the weight is quantized.
    pub spec: QSpec,
    /// The options that it was rounded for; `None` where the file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounded_for: Option<RoundedFor>,
    /// A hash of the float elements.
    pub floats: u64,
    /// The scale of each group, in the order of the scales in the file.
    pub scales: Vec<f32>,
    /// The zero point of each group.
    pub zero_points: Vec<i32>,
    /// A byte for each element, in C order; signed integers in two's complement.
    #[serde(with = "text")]
    pub integers: Vec<u8>,
}

/// Why an algorithm was chosen for a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundingEvidence {
    /// The algorithm with the least error; if it is `nearest`, the weight stays as without samples.
    pub algorithm: Algorithm,
    /// The squared error of the layer's output relative to its squared output, for each algorithm
    /// that was tried.
    pub errors: BTreeMap<String, f32>,
    /// Whether the errors were measured on samples that were held back. Otherwise there were too
    /// few samples, and they are those of the samples that the weight was rounded for.
    pub held_back: bool,
}

impl RoundingEvidence {
    /// The SQNR of the layer's output in dB, if it was measured.
    pub(crate) fn output_db(&self) -> Option<f64> {
        let error = self.errors.get(self.algorithm.name())?;
        error.is_finite().then(|| -10.0 * f64::from(*error).log10())
    }
}

impl RoundedWeight {
    /// The scales and zero points together.
    pub(crate) fn params(&self) -> Vec<Params> {
        let both = self.scales.iter().zip(&self.zero_points);
        both.map(|(&scale, &zero_point)| Params { scale, zero_point }).collect()
    }

    /// Whether a weight that this algorithm rounded is this one; `None` for rounding to nearest.
    pub(crate) fn is_stored_as(&self, algorithm: Option<Algorithm>) -> bool {
        self.evidence.algorithm == algorithm.unwrap_or(Algorithm::Nearest)
    }

    /// Whether the weight was rounded from these floats, to be quantized like this.
    pub(crate) fn fits(&self, spec: &QSpec, tensor: &Tensor) -> bool {
        self.spec == *spec
            && self.integers.len() == tensor.elements()
            && self.scales.len() == self.zero_points.len()
            && self.floats == hash(tensor)
    }
}

/// A hash of the elements of a tensor.
pub(crate) fn hash(tensor: &Tensor) -> u64 {
    let mut hash = Fnv::default();
    hash.bytes(&tensor.data);
    hash.finish()
}

/// Integers as base64.
mod text {
    use super::{Deserialize, Deserializer, Engine, STANDARD, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(de::Error::custom)
    }
}
