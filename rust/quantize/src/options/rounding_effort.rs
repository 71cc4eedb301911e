//! How long rounding with the help of samples may take.

use quantize_rs_math::Effort;
use serde::{Deserialize, Serialize};

use super::named::named;

/// How long rounding with the help of samples may take.
///
/// ```
/// use quantize_rs::RoundingEffort;
/// assert_eq!("best".parse::<RoundingEffort>()?, RoundingEffort::Best);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoundingEffort {
    /// The mean square of each input alone.
    Fast,
    /// All second moments, and a few rounds of descent.
    #[default]
    Balanced,
    /// More rounds, until little changes, and layer after layer: each is rounded for the inputs
    /// that the quantized layers before it make.
    Best,
}

struct Row {
    value: RoundingEffort,
    name: &'static str,
    about: &'static str,
    effort: Effort,
}

const ROWS: &[Row] = &[
    Row {
        value: RoundingEffort::Fast,
        name: "fast",
        about: "scales alone, from the mean square of each input",
        effort: Effort { rounds: 0, passes: 0 },
    },
    Row {
        value: RoundingEffort::Balanced,
        name: "balanced",
        about: "all algorithms, with a few rounds of descent",
        effort: Effort { rounds: 3, passes: 2 },
    },
    Row {
        value: RoundingEffort::Best,
        name: "best",
        about: "rounds of descent until little changes, and layer after layer, with up to 128 \
                samples run again for each",
        effort: Effort { rounds: 20, passes: 3 },
    },
];

impl RoundingEffort {
    /// All values.
    pub const ALL: &'static [RoundingEffort] =
        &[RoundingEffort::Fast, RoundingEffort::Balanced, RoundingEffort::Best];

    /// The rounds of descent.
    pub(crate) fn effort(self) -> Effort {
        self.row().effort
    }
}

named!(RoundingEffort, "rounding_effort");
