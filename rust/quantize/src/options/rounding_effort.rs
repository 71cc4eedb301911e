//! How long rounding with the help of samples may take.

use std::fmt;
use std::str::FromStr;

use quantize_rs_math::Effort;
use serde::{Deserialize, Serialize};

use crate::QuantizeError;

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
    /// More rounds, until little changes.
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
        about: "all algorithms, with rounds of descent until little changes",
        effort: Effort { rounds: 20, passes: 3 },
    },
];

impl RoundingEffort {
    /// All values.
    pub const ALL: &'static [RoundingEffort] =
        &[RoundingEffort::Fast, RoundingEffort::Balanced, RoundingEffort::Best];

    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.value == self).unwrap_or(&ROWS[0])
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// One line about it, for help texts.
    pub fn about(self) -> &'static str {
        self.row().about
    }

    /// The rounds of descent.
    pub(crate) fn effort(self) -> Effort {
        self.row().effort
    }
}

impl fmt::Display for RoundingEffort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RoundingEffort {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<RoundingEffort, QuantizeError> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.value).ok_or_else(|| {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            let what = format!("is `{name}`, expected one of {}", names.join(", "));
            QuantizeError::option("rounding_effort", what)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_row_and_a_name_that_is_read_back() {
        for value in RoundingEffort::ALL {
            assert_eq!(value.row().value, *value);
            assert_eq!(value.name().parse::<RoundingEffort>().unwrap(), *value);
            assert_eq!(serde_json::to_string(value).unwrap(), format!("\"{value}\""));
            assert!(!value.about().is_empty());
        }
        let error = "slow".parse::<RoundingEffort>().unwrap_err().to_string();
        assert!(error.contains("rounding_effort") && error.contains("balanced"), "{error}");
    }
}
