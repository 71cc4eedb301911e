//! Options of rounding with samples that have no effect beside other options.

use serde_json::Value;

use super::table::{Given, Unused, find};
use super::{Config, RoundingEffort, WeightAlgorithm};

/// The options that say how weights are rounded with samples.
pub const ROUNDING: [&str; 4] =
    ["weight_algorithm", "rounding_effort", "memory_limit", "resume_rounding"];

/// The option about rounding with samples that has no effect without any. `nearest` needs none.
///
/// ```
/// use quantize_rs::options::{self, Given};
/// let given = Given::from([("weight_algorithm", "gptq".into())]);
/// assert_eq!(options::unused_without_samples(&given), Some("weight_algorithm"));
/// let given = Given::from([("weight_algorithm", "nearest".into())]);
/// assert_eq!(options::unused_without_samples(&given), None);
/// ```
pub fn unused_without_samples(given: &Given) -> Option<&'static str> {
    given_of(given, &ROUNDING).find(|name| {
        let nearest = WeightAlgorithm::Nearest.name();
        given.get(name).and_then(Value::as_str) != Some(nearest)
    })
}

/// The first option about rounding with samples that has no effect beside others.
pub(super) fn unused(given: &Given, config: &Config) -> Option<Unused> {
    let Config { weight_algorithm: algorithm, rounding_effort: effort, .. } = config;
    if *effort == RoundingEffort::Fast && config.last_algorithm() < algorithm.last() {
        let name = given_of(given, &ROUNDING[..1]).next()?;
        return Some(Unused { name, why: format!("with rounding_effort={effort}") });
    }
    if config.rounds_with_samples() {
        return None;
    }
    let name = given_of(given, &ROUNDING[1..]).next()?;
    let why = if *algorithm == WeightAlgorithm::Nearest {
        format!("with weight_algorithm={algorithm}")
    } else {
        let other = if config.rounding.is_some() { "rounding" } else { "weight_method" };
        format!("with {other}, unless weight_algorithm is given too")
    };
    Some(Unused { name, why })
}

/// The options of these that were given with another value than their default.
fn given_of<'g>(given: &'g Given, names: &'g [&'static str]) -> impl Iterator<Item = &'static str> {
    let differs = |name: &str, value: &Value| {
        !value.is_null() && find(name).is_some_and(|row| *value != (row.default)())
    };
    let is_given = move |name: &&str| given.get(*name).is_some_and(|value| differs(name, value));
    names.iter().copied().filter(is_given)
}
