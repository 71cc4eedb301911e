//! Which weights become 0.

use serde::{Deserialize, Serialize};

use crate::QuantizeError;

/// How small weights are that become 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Below {
    /// Of a smaller magnitude than this.
    Absolute(f64),
    /// Of a smaller magnitude than this part of the largest.
    Relative(f64),
    /// The smallest, until this part of all is 0, to the nearest element; of equal ones those that
    /// stand first.
    Sparsity(f64),
}

impl Below {
    /// By the name of the option or mode it is asked for with.
    ///
    /// # Errors
    /// There is no such.
    pub fn parse(name: &str, number: f64) -> Result<Below, QuantizeError> {
        match name {
            "absolute" => Ok(Below::Absolute(number)),
            "relative" => Ok(Below::Relative(number)),
            "sparsity" => Ok(Below::Sparsity(number)),
            _ => {
                let what = format!("is `{name}`, expected absolute or relative");
                Err(QuantizeError::option("mode", what))
            }
        }
    }

    /// Refuses a number that cannot be; `threshold` is the option that a threshold is given with.
    pub(crate) fn check(self, threshold: &'static str) -> Result<(), QuantizeError> {
        let (option, number, fits, expected) = match self {
            Below::Absolute(x) => (threshold, x, x >= 0.0 && x.is_finite(), "0 or more"),
            Below::Relative(x) => (threshold, x, (0.0..=1.0).contains(&x), "a part, 0 to 1"),
            Below::Sparsity(x) => ("sparsity", x, (0.0..=1.0).contains(&x), "a part, 0 to 1"),
        };
        if fits {
            return Ok(());
        }
        Err(QuantizeError::option(option, format!("is {number}, expected {expected}")))
    }
}
