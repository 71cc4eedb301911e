//! From what a caller gave to a [`Config`]: the one place where options meet the target's needs.

use serde_json::Value;

use super::row::Verb;
use super::table::{Given, find, unused_in_config};
use super::value::Width;
use super::{Config, Target, unused_rounding};
use crate::QuantizeError;
use crate::options::value::OptionType;

impl Config {
    /// The configuration that these options mean. The target's types are used unless others are
    /// given; its symmetry cannot be turned off. Options of other stages are ignored.
    ///
    /// ```
    /// use quantize_rs::options::{Given, Verb};
    /// use quantize_rs::{Config, QType};
    /// let given = Given::from([("bits", 4.into()), ("per_channel", true.into())]);
    /// let config = Config::from_options(&given, Verb::Quantize)?;
    /// assert_eq!((config.weights.qtype(), config.per_channel), (QType::Int4, Some(true)));
    /// # Ok::<(), quantize_rs::QuantizeError>(())
    /// ```
    ///
    /// # Errors
    /// A value that its option cannot have, or two options that contradict each other.
    pub fn from_options(given: &Given, verb: Verb) -> Result<Config, QuantizeError> {
        let target: Option<Target> = match given.get("target") {
            Some(value) => OptionType::from_json("target", value)?,
            None => None,
        };
        let mut config = target.map_or_else(Config::default, Config::for_target);
        let preferred = config.profile().activations.first().copied();
        config.activations = preferred.filter(|_| verb == Verb::Calibrate);
        for row in Config::ROWS {
            let value = given.get(row.name).filter(|value| !value.is_null());
            if let (Some(set), Some(value)) = (row.set, value) {
                row.check_range(value)?;
                set(&mut config, value)?;
            }
        }
        check_bits(given, &config)?;
        // Options that this verb does not take are for its command to refuse.
        let unused = || unused_rounding::unused(given, &config);
        match unused_in_config(given).or_else(unused) {
            Some(unused) => Err(unused.into()),
            None => Ok(config),
        }
    }

    /// Adds bits or types for some weights, by name.
    pub(super) fn add_widths(
        &mut self,
        option: &'static str,
        widths: impl IntoIterator<Item = (String, Width)>,
    ) -> Result<(), QuantizeError> {
        for (name, width) in widths {
            let bits = self.layer_bits.get(&name).copied().map(Width::Bits);
            let found = bits.or_else(|| self.layer_types.get(&name).copied().map(Width::Type));
            let found = found.or_else(|| self.layer_float.contains(&name).then_some(Width::Float));
            if let Some(other) = found.filter(|other| *other != width) {
                let what = format!("gives `{name}` {width}, layer_bits {other}");
                return Err(QuantizeError::option(option, what));
            }
            match width {
                Width::Bits(bits) => drop(self.layer_bits.insert(name, bits)),
                Width::Type(found) => drop(self.layer_types.insert(name, found)),
                Width::Float => drop(self.layer_float.insert(name)),
            }
        }
        Ok(())
    }
}

/// The given options by canonical name, whatever names the caller used.
///
/// # Errors
/// A name that no option has, or two names of one option.
pub fn canonical(given: impl IntoIterator<Item = (String, Value)>) -> Result<Given, QuantizeError> {
    let mut found = Given::new();
    for (name, value) in given {
        let Some(row) = find(&name) else {
            return Err(QuantizeError::option(name, "is no option"));
        };
        if found.insert(row.name, value).is_some() {
            let what = format!("is given twice: `{name}` is another name of it");
            return Err(QuantizeError::option(row.name, what));
        }
    }
    Ok(found)
}

/// Refuses bits that contradict a type.
fn check_bits(given: &Given, config: &Config) -> Result<(), QuantizeError> {
    let is_given = |name: &str| given.get(name).is_some_and(|value| !value.is_null());
    if !is_given("bits") || !is_given("weights") {
        return Ok(());
    }
    match given["bits"].as_u64() {
        Some(bits) if bits != u64::from(config.weights.bits()) => {
            let what = format!("is {bits}, but weights is {}: give one of them", config.weights);
            Err(QuantizeError::option("bits", what))
        }
        _ => Ok(()),
    }
}
