//! Options of rounding with samples that have no effect beside other options.

use super::config::ROUNDED_WITH;
use super::row::Verb;
use super::table::{self, Given, Unused, find};
use super::{Config, OptionRow, RoundingEffort, WeightAlgorithm};

/// Whether an option says how weights are rounded with samples.
///
/// ```
/// use quantize_rs::options::is_for_rounding;
/// assert!(is_for_rounding("weight_algorithm") && !is_for_rounding("rounding"));
/// ```
pub fn is_for_rounding(name: &str) -> bool {
    let row = find(name).filter(|row| row.set.is_some());
    let condition = row.and_then(|row| row.only_with);
    condition.is_some_and(|condition| condition.given() == Some(ROUNDED_WITH))
}

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
    let mut unused = table::unused(given, &Verb::ALL).into_iter().map(|unused| unused.name);
    unused.find(|name| is_for_rounding(name))
}

/// The first option about rounding with samples that has no effect beside others.
pub(super) fn unused(given: &Given, config: &Config) -> Option<Unused> {
    let Config { weight_algorithm: algorithm, rounding_effort: effort, .. } = config;
    if *effort == RoundingEffort::Fast && config.last_algorithm() < algorithm.last() {
        let name = changed(given).find(|name| *name == "weight_algorithm")?;
        return Some(Unused { name, why: format!("with rounding_effort={effort}") });
    }
    if config.rounds_with_samples() {
        return None;
    }
    let name = changed(given).find(|name| *name != "weight_algorithm")?;
    let why = if *algorithm == WeightAlgorithm::Nearest {
        format!("with weight_algorithm={algorithm}")
    } else {
        let other = if config.rounding.is_some() { "rounding" } else { "weight_method" };
        format!("with {other}, unless weight_algorithm is given too")
    };
    Some(Unused { name, why })
}

/// The options about rounding with samples that were given with another value than their default.
fn changed(given: &Given) -> impl Iterator<Item = &'static str> {
    let rows = Config::ROWS.iter().filter(|row| is_for_rounding(row.name));
    let changed = |row: &&OptionRow| {
        let value = given.get(row.name).filter(|value| !value.is_null());
        value.is_some_and(|value| *value != (row.default)())
    };
    rows.filter(changed).map(|row| row.name)
}
