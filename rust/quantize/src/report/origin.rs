//! Where a result comes from: models, samples, command, version and date.

use std::time::{SystemTime, UNIX_EPOCH};

use quantize_rs_onnx::Model;
use serde::{Deserialize, Serialize};

use crate::options::as_flags;

/// Where a result comes from.
///
/// Two results of equal models are equal whenever they were found: the date does not count.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The version of this library.
    pub version: String,
    /// When the result was found, in UTC: `2026-11-26T03:04:05Z`.
    pub date: String,
    /// The paths of the models, the float model first; `model in memory` for bytes.
    pub models: Vec<String>,
    /// What the samples were read from, if there were any.
    #[serde(default)]
    pub samples: Option<String>,
    /// The command line, or the call, if it is known.
    #[serde(default)]
    pub command: Option<String>,
    /// Whether it comes from the command line: messages name options as flags.
    #[serde(default)]
    pub command_line: bool,
}

impl Default for Origin {
    fn default() -> Origin {
        Origin {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: utc(SystemTime::now()),
            models: Vec::new(),
            samples: None,
            command: None,
            command_line: false,
        }
    }
}

impl PartialEq for Origin {
    fn eq(&self, other: &Origin) -> bool {
        (&self.models, &self.samples) == (&other.models, &other.samples)
    }
}

impl Origin {
    /// The origin of a result about these models, found now.
    pub(crate) fn of(models: &[&Model]) -> Origin {
        let name = |model: &&Model| match model.path() {
            Some(path) => path.display().to_string(),
            None => "model in memory".to_owned(),
        };
        Origin { models: models.iter().map(name).collect(), ..Origin::default() }
    }

    /// A message with options as they are written where the result was asked for.
    pub(crate) fn said(&self, message: &str) -> String {
        if self.command_line { as_flags(message) } else { message.to_owned() }
    }

    /// The name of a model without its folder.
    pub(crate) fn model(&self, index: usize) -> &str {
        let path = self.models.get(index).map_or("model in memory", String::as_str);
        path.rsplit(['/', '\\']).next().unwrap_or(path)
    }
}

/// A time as ISO 8601, by the algorithm `civil_from_days` of Howard Hinnant.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Counted from 0000-03-01, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
