//! The options that weights were rounded for, which ranges keep.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Config, RoundingEffort, WeightAlgorithm};

/// The options that say how weights are rounded with samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundedFor {
    /// The last algorithm that was tried.
    pub algorithm: WeightAlgorithm,
    /// How long it could take.
    pub effort: RoundingEffort,
}

impl RoundedFor {
    /// What these options say.
    pub(crate) fn of(config: &Config) -> RoundedFor {
        RoundedFor { algorithm: config.weight_algorithm, effort: config.rounding_effort }
    }
}

impl fmt::Display for RoundedFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight_algorithm={}, rounding_effort={}", self.algorithm, self.effort)
    }
}
