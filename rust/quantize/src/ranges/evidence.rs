//! What samples show about themselves: whether they are few, alike, constant or noise.

use std::collections::BTreeSet;
use std::hash::Hasher;

use quantize_rs_onnx::Tensor;
use serde::{Deserialize, Serialize};

use super::few_samples::{MIN_SAMPLES, few_samples};
use crate::util::fnv::Fnv;

/// The warning about ranges of random values.
pub const RANDOM_SAMPLES: &str = "calibrated with random values: the ranges of noise are not those \
    of data, and the result is less accurate than with real samples";

/// The evidence that samples are not representative of production inputs. It has a bounded size,
/// does not depend on the order of the samples, and that of two parts can be merged. The default
/// shows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleEvidence {
    /// Whether some of the samples are random values that were asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub random: bool,
    /// Warnings about the types that samples were converted from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversions: Vec<String>,
    /// Hashes of the distinct samples; `None` for enough of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    distinct: Option<BTreeSet<u64>>,
    /// The inputs that are constant or look like noise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputEvidence>,
}

/// The evidence about one input, which holds for all samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputEvidence {
    /// The name of the input.
    pub name: String,
    /// The bytes of the single value that all elements have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant: Option<Vec<u8>>,
    /// Whether these are images whose neighbouring pixels are uncorrelated.
    #[serde(default)]
    pub noise: bool,
}

impl InputEvidence {
    /// Whether there is anything to remark.
    pub fn is_suspect(&self) -> bool {
        self.constant.is_some() || self.noise
    }
}

impl SampleEvidence {
    /// The evidence before the first sample.
    pub fn new() -> SampleEvidence {
        SampleEvidence { distinct: Some(BTreeSet::new()), ..SampleEvidence::default() }
    }

    /// The evidence about random values: nothing else about them is worth a warning.
    pub fn of_random() -> SampleEvidence {
        SampleEvidence { random: true, ..SampleEvidence::default() }
    }

    /// Counts the inputs of a sample, if they are not those of one before. Whether they are
    /// constant or noise is for the caller to find.
    pub fn add(&mut self, inputs: &[(String, Tensor)]) {
        if let Some(distinct) = &mut self.distinct {
            distinct.insert(hash(inputs));
        }
        self.forget_enough();
    }

    /// Adds what other samples show.
    pub(crate) fn merge(&mut self, other: &SampleEvidence) {
        self.random |= other.random;
        self.conversions.extend_from_slice(&other.conversions);
        self.distinct = match (self.distinct.take(), &other.distinct) {
            (Some(one), Some(other)) => Some(one.union(other).copied().collect()),
            _ => None,
        };
        self.forget_enough();
        self.inputs.retain_mut(|input| {
            let Some(other) = other.inputs.iter().find(|other| other.name == input.name) else {
                return false;
            };
            if input.constant != other.constant {
                input.constant = None;
            }
            input.noise &= other.noise;
            input.is_suspect()
        });
        self.sort();
    }

    /// Puts the evidence in the order that it has however the samples are divided.
    pub fn sort(&mut self) {
        self.conversions.sort();
        self.conversions.dedup();
        self.inputs.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// The warnings about `count` samples of `rows` rows each, as sentences without a full stop.
    pub fn warnings(&self, count: usize, rows: usize) -> Vec<String> {
        let mut warnings: Vec<String> = Vec::new();
        warnings.extend(self.random.then(|| RANDOM_SAMPLES.to_owned()));
        warnings.extend_from_slice(&self.conversions);
        if let Some(distinct) = &self.distinct {
            warnings.extend(few_samples(count, rows));
            let distinct = distinct.len();
            if count > 1 && distinct == 1 {
                warnings.push(format!("all {count} samples are identical"));
            } else if distinct < count.min(MIN_SAMPLES) {
                warnings.push(format!("only {distinct} of {count} samples are distinct"));
            }
        }
        for InputEvidence { name, constant, noise } in &self.inputs {
            if constant.is_some() {
                warnings.push(format!("all values of input `{name}` are the same in all samples"));
            } else if *noise {
                warnings.push(format!(
                    "input `{name}` looks like noise: neighbouring pixels are uncorrelated, and \
                     ranges from noise do not hold for images"
                ));
            }
        }
        warnings
    }

    /// Whether there is nothing to remark, however many samples are added.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == SampleEvidence::default()
    }

    fn forget_enough(&mut self) {
        if self.distinct.as_ref().is_some_and(|distinct| distinct.len() >= MIN_SAMPLES) {
            self.distinct = None;
        }
    }
}

/// A hash that is the same on every machine: ranges of several machines are merged.
fn hash(inputs: &[(String, Tensor)]) -> u64 {
    let mut hash = Fnv::default();
    for (name, value) in inputs {
        hash.bytes(name.as_bytes());
        for length in &value.shape {
            hash.word(*length as u64);
        }
        hash.bytes(&value.data);
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_evidence_does_not_depend_on_the_order() {
        let of = |conversions: &[&str], names: &[&str], sample: u8| {
            let constant = |name: &&str| InputEvidence {
                name: (*name).to_owned(),
                constant: Some(vec![1]),
                noise: false,
            };
            let mut evidence = SampleEvidence {
                conversions: conversions.iter().map(|&said| said.to_owned()).collect(),
                inputs: names.iter().map(constant).collect(),
                ..SampleEvidence::new()
            };
            let data = vec![sample].into();
            let dtype = quantize_rs_onnx::DataType::UInt8;
            evidence.add(&[("x".to_owned(), Tensor { dtype, shape: vec![1], data })]);
            evidence.sort();
            evidence
        };
        let (one, other) = (of(&["b", "a"], &["z", "y"], 1), of(&["c", "b"], &["y", "z"], 2));
        let merged = |first: &SampleEvidence, second: &SampleEvidence| {
            let mut all = first.clone();
            all.merge(second);
            all
        };
        assert_eq!(merged(&one, &other), merged(&other, &one));
        let all = merged(&one, &other);
        assert_eq!(all.conversions, ["a", "b", "c"]);
        assert_eq!(
            all.warnings(2, 1)[3..],
            [
                "only 2 samples: give at least 128, as varied as production inputs",
                "all values of input `y` are the same in all samples",
                "all values of input `z` are the same in all samples",
            ]
        );
        assert_eq!(merged(&one, &one).warnings(2, 1)[3], "all 2 samples are identical");
        let random = SampleEvidence::of_random();
        assert_eq!(merged(&random, &random).warnings(2, 1), [RANDOM_SAMPLES]);
        for all in [merged(&one, &random), merged(&random, &one)] {
            assert_eq!(all.warnings(2, 1)[..2], [RANDOM_SAMPLES, "a"]);
        }
    }
}
