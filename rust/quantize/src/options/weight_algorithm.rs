//! How the integers of weights are chosen where there are samples.

use std::fmt;
use std::str::FromStr;

use quantize_rs_math::Algorithm;
use serde::{Deserialize, Serialize};

use crate::QuantizeError;

/// The most that is tried to round a weight with the help of samples.
///
/// ```
/// use quantize_rs::WeightAlgorithm;
/// assert_eq!("gptq".parse::<WeightAlgorithm>()?, WeightAlgorithm::Gptq);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WeightAlgorithm {
    /// All algorithms, unless other options say how weights are rounded.
    #[default]
    Auto,
    /// Samples are not used.
    Nearest,
    /// Scales of the least error weighted by the mean square of each input.
    Scales,
    /// Also GPTQ.
    Gptq,
    /// Also coordinate descent.
    Descent,
}

struct Row {
    value: WeightAlgorithm,
    name: &'static str,
    about: &'static str,
    /// The last algorithm that is tried.
    last: Algorithm,
}

const ROWS: &[Row] = &[
    Row {
        value: WeightAlgorithm::Auto,
        name: "auto",
        about: "all algorithms; the best of them for each weight",
        last: Algorithm::Descent,
    },
    Row {
        value: WeightAlgorithm::Nearest,
        name: "nearest",
        about: "as without samples",
        last: Algorithm::Nearest,
    },
    Row {
        value: WeightAlgorithm::Scales,
        name: "scales",
        about: "scales weighted by the mean square of each input",
        last: Algorithm::Scales,
    },
    Row {
        value: WeightAlgorithm::Gptq,
        name: "gptq",
        about: "also rounding errors made good in elements that are rounded later",
        last: Algorithm::Gptq,
    },
    Row {
        value: WeightAlgorithm::Descent,
        name: "descent",
        about: "also integers and scales changed in turn as long as the output error falls",
        last: Algorithm::Descent,
    },
];

impl WeightAlgorithm {
    /// All values.
    pub const ALL: &'static [WeightAlgorithm] = &[
        WeightAlgorithm::Auto,
        WeightAlgorithm::Nearest,
        WeightAlgorithm::Scales,
        WeightAlgorithm::Gptq,
        WeightAlgorithm::Descent,
    ];

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

    /// The last algorithm that is tried.
    pub(crate) fn last(self) -> Algorithm {
        self.row().last
    }
}

impl fmt::Display for WeightAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightAlgorithm {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<WeightAlgorithm, QuantizeError> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.value).ok_or_else(|| {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            let what = format!("is `{name}`, expected one of {}", names.join(", "));
            QuantizeError::option("weight_algorithm", what)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_row_and_a_name_that_is_read_back() {
        for value in WeightAlgorithm::ALL {
            assert_eq!(value.row().value, *value);
            assert_eq!(value.name().parse::<WeightAlgorithm>().unwrap(), *value);
            assert_eq!(serde_json::to_string(value).unwrap(), format!("\"{value}\""));
            assert!(!value.about().is_empty());
        }
        let error = "awq".parse::<WeightAlgorithm>().unwrap_err().to_string();
        assert!(error.contains("weight_algorithm") && error.contains("gptq"), "{error}");
    }
}
