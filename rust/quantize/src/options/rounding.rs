//! Which of the two integers around a weight it becomes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::QuantizeError;

/// How a weight goes to an integer of its grid.
///
/// ```
/// use quantize_rs::Rounding;
/// assert_eq!("nearest".parse::<Rounding>()?, Rounding::Nearest);
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rounding {
    /// To the nearest integer, except for a few that go to the next one so that the weights of a
    /// kernel and of an output channel keep their sum.
    #[serde(alias = "sums")]
    PreserveSums,
    /// To the nearest, as `QuantizeLinear` does.
    Nearest,
}

/// What is known of a way of rounding.
struct Row {
    rounding: Rounding,
    name: &'static str,
    aliases: &'static [&'static str],
    about: &'static str,
}

const ROWS: &[Row] = &[
    Row {
        rounding: Rounding::PreserveSums,
        name: "preserve_sums",
        aliases: &["sums"],
        about: "to the nearest, except for a few that preserve the sum of a kernel or channel",
    },
    Row {
        rounding: Rounding::Nearest,
        name: "nearest",
        aliases: &[],
        about: "to the nearest, each by itself",
    },
];

impl Rounding {
    /// Every way there is.
    pub const ALL: &'static [Rounding] = &[Rounding::PreserveSums, Rounding::Nearest];

    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.rounding == self).unwrap_or(&ROWS[0])
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Other names that are read.
    pub fn aliases(self) -> &'static [&'static str] {
        self.row().aliases
    }

    /// One line about it, for help texts.
    pub fn about(self) -> &'static str {
        self.row().about
    }
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rounding {
    type Err = QuantizeError;

    fn from_str(name: &str) -> Result<Rounding, QuantizeError> {
        let called = |row: &&Row| row.name == name || row.aliases.contains(&name);
        ROWS.iter().find(called).map(|row| row.rounding).ok_or_else(|| {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            let what = format!("is `{name}`, expected one of {}", names.join(", "));
            QuantizeError::option("rounding", what)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_row_and_a_name_that_is_read_back() {
        assert_eq!(Rounding::ALL.len(), ROWS.len());
        for rounding in Rounding::ALL {
            assert_eq!(rounding.row().rounding, *rounding);
            for name in [rounding.name()].iter().chain(rounding.aliases()) {
                assert_eq!(name.parse::<Rounding>().unwrap(), *rounding);
                let json = format!("\"{name}\"");
                assert_eq!(serde_json::from_str::<Rounding>(&json).unwrap(), *rounding);
            }
            assert!(!rounding.about().is_empty());
            assert_eq!(serde_json::to_string(rounding).unwrap(), format!("\"{rounding}\""));
        }
        let error = "up".parse::<Rounding>().unwrap_err().to_string();
        assert!(error.contains("rounding") && error.contains("preserve_sums, nearest"), "{error}");
    }
}
