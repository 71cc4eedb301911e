//! Merges the ranges of calibrations on parts of the samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use quantize_rs_math::QSpec;

use super::Ranges;
use super::file::NO_MOMENTS;
use super::moments::value_of;
use crate::options::Shard;
use crate::{CalibrationError, Method};

/// The note of merged ranges.
const NOT_ROUNDED: &str = "weights are rounded without samples: not all merged ranges hold second \
    moments, which those of shards do, and their saved files";

/// The number of missing shards that an error names.
const SHOWN: usize = 8;

impl Ranges {
    /// Merges the ranges of two calibrations. The result is exactly that of one calibration with
    /// all samples. Weights are rounded with the help of samples only if both hold second moments,
    /// as those of shards do, and not layer after layer.
    ///
    /// Ranges of the method `auto` cannot be merged, since its selection depends on the samples.
    /// Merge ranges of another method instead; they hold the same statistics.
    ///
    /// # Errors
    /// The ranges differ in model, method, values, types or engine, have no statistics, or hold the
    /// same shard or shards of different divisions.
    pub fn merge(&self, other: &Ranges) -> Result<Ranges, CalibrationError> {
        let data = |what: &str| CalibrationError::data(what);
        self.check_same(other)?;
        let shards = both(&self.shards, &other.shards)?;
        let method = self.method.parse::<Method>().map_err(|error| data(&error.to_string()))?;
        if matches!(method, Method::Auto) {
            return Err(data(
                "ranges of the method `auto`, which depends on the samples, cannot be merged: \
                 calibrate the parts with another method, such as `mse`, and merge these",
            ));
        }
        let mut merged = self.clone();
        merged.samples = merged.samples.saturating_add(other.samples);
        merged.notes.extend_from_slice(&other.notes);
        let both = self.moments.as_ref().zip(other.moments.as_ref());
        merged.moments = both.map(|(one, other)| one.with(other));
        let lost = self.moments.is_some() || other.moments.is_some();
        // Weights that were rounded for a part of the samples were not rounded for all of them.
        let rounded = !merged.rounded.is_empty() || !other.rounded.is_empty();
        merged.rounded = Arc::default();
        if merged.moments.is_none() && (lost || rounded) {
            merged.notes.push(NOT_ROUNDED.to_owned());
        }
        merged.notes.sort();
        merged.notes.dedup();
        // The remarks about the samples of a part may not hold for all of them.
        merged.evidence.merge(&other.evidence);
        merged.warnings = merged.evidence.warnings(merged.samples, merged.rows);
        merged.shards = shards;
        for (name, seen) in Arc::make_mut(&mut merged.statistics) {
            seen.merge(&other.statistics[name]);
        }
        largest(Arc::make_mut(&mut merged.magnitudes), &other.magnitudes, |all, one| {
            *all = all.max(*one);
        });
        largest(Arc::make_mut(&mut merged.kv_cache), &other.kv_cache, |all, one| {
            all.iter_mut().zip(one).for_each(|(all, one)| *all = all.max(*one));
        });
        merged.using(&method)
    }

    /// Merges the ranges of all parts of a calibration.
    ///
    /// # Errors
    /// There are none, a shard is missing, or as [`Ranges::merge`].
    pub fn merge_all(parts: &[Ranges]) -> Result<Ranges, CalibrationError> {
        let Some((first, others)) = parts.split_first() else {
            return Err(CalibrationError::data("there are no ranges to merge"));
        };
        let mut seen = Vec::new();
        for shard in parts.iter().flat_map(|part| &part.shards) {
            if seen.contains(shard) {
                return Err(CalibrationError::data(format!("shard {shard} is given twice")));
            }
            seen.push(*shard);
        }
        let merged = others.iter().try_fold(first.clone(), |all, one| all.merge(one))?;
        merged.check_complete()?;
        Ok(merged)
    }

    /// Rejects ranges of some shards alone.
    pub(crate) fn check_complete(&self) -> Result<(), CalibrationError> {
        let Some(Shard { count, .. }) = self.shards.first() else { return Ok(()) };
        let lacks = |index: &usize| !self.shards.iter().any(|shard| shard.index == *index);
        // As many as there are shards cannot be missing before the first that is shown.
        let mut missing: Vec<String> = (1..=*count)
            .filter(lacks)
            .take(SHOWN + 1)
            .map(|index| format!("{index}/{count}"))
            .collect();
        if missing.len() > SHOWN {
            missing.truncate(SHOWN);
            let more = count.saturating_sub(self.shards.len()).saturating_sub(SHOWN);
            missing.push(format!("and {more} more"));
        }
        let what = format!("these ranges lack shard {}: merge all of them", missing.join(", "));
        Err(CalibrationError::data(what))
    }

    /// Rejects ranges of another calibration, by what differs.
    fn check_same(&self, other: &Ranges) -> Result<(), CalibrationError> {
        let types = |ranges: &Ranges| -> Vec<(String, Option<QSpec>)> {
            ranges.statistics.iter().map(|(name, seen)| (name.clone(), seen.spec)).collect()
        };
        let differs = |what: String| Err(CalibrationError::data(what));
        if self.model != other.model {
            return differs("these ranges belong to different models".to_owned());
        }
        if self.method != other.method {
            let (one, two) = (&self.method, &other.method);
            return differs(format!("these ranges have different methods, {one} and {two}"));
        }
        let names = self.values.keys().chain(other.values.keys());
        let both =
            |name: &&String| self.values.contains_key(*name) == other.values.contains_key(*name);
        if let Some(name) = names.clone().find(|name| !both(name)) {
            return differs(format!(
                "only one of these ranges has `{name}`: they come from different plans"
            ));
        }
        let same_given = |name: &&String| {
            let (one, two) = (self.is_given(name), other.is_given(name));
            one == two && (!one || self.values.get(*name) == other.values.get(*name))
        };
        if let Some(name) = self.values.keys().find(|name| !same_given(name)) {
            return differs(format!(
                "the range of `{name}` was given, and not the same in all of these ranges: merge \
                 them first, and give it then"
            ));
        }
        let pairs = types(self).into_iter().zip(types(other));
        if let Some(((name, _), _)) = pairs.clone().find(|(one, two)| one != two)
            && self.statistics.len() == other.statistics.len()
        {
            return differs(format!("`{name}` has different types in these ranges"));
        }
        if self.statistics.len() != other.statistics.len() {
            return differs("these ranges have statistics of different values".to_owned());
        }
        let axes = self.statistics.iter().zip(other.statistics.values());
        if let Some(((name, _), _)) = axes.into_iter().find(|((_, one), two)| one.axis != two.axis)
        {
            return differs(format!(
                "only one of these ranges has statistics of the channels of `{name}`: they come \
                 from plans with other options, such as smooth or bias_correction"
            ));
        }
        for (what, one, two) in [
            (
                "largest magnitudes of floats",
                self.magnitudes.is_empty(),
                other.magnitudes.is_empty(),
            ),
            ("largest keys and values", self.kv_cache.is_empty(), other.kv_cache.is_empty()),
        ] {
            if one != two {
                return differs(format!(
                    "only one of these ranges has the {what}: they come from different plans"
                ));
            }
        }
        if let (Some(one), Some(other)) = (&self.moments, &other.moments)
            && let Some(name) = one.inputs().symmetric_difference(&other.inputs()).next()
        {
            return differs(format!(
                "only one of these ranges has second moments of `{}`: they come from different \
                 plans",
                value_of(name)
            ));
        }
        let lacks = |ranges: &Ranges| {
            let dropped = |note: &String| [NO_MOMENTS, NOT_ROUNDED].contains(&note.as_str());
            ranges.moments.is_none() && !ranges.notes.iter().any(dropped)
        };
        let are_shards = !self.shards.is_empty() && !other.shards.is_empty();
        if are_shards && lacks(self) != lacks(other) {
            return differs(
                "only one of these shards has second moments: they come from plans with other \
                 options, such as weight_algorithm"
                    .to_owned(),
            );
        }
        if self.engine != other.engine {
            return differs(
                "these ranges come from different engines: use one engine for all calibrations"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// The shards of both; none if these are all.
fn both(one: &[Shard], other: &[Shard]) -> Result<Vec<Shard>, CalibrationError> {
    let differ = |what: String| Err(CalibrationError::data(what));
    let (Some(first), Some(second)) = (one.first(), other.first()) else {
        return match one.first().or(other.first()) {
            None => Ok(Vec::new()),
            Some(shard) => differ(format!(
                "one of these ranges is shard {shard}, and the other of all samples, or merged \
                 already"
            )),
        };
    };
    if first.count != second.count {
        return differ(format!("shards {first} and {second} are of different divisions"));
    }
    if let Some(twice) = one.iter().find(|shard| other.contains(shard)) {
        return differ(format!("shard {twice} is given twice"));
    }
    let mut all = [one, other].concat();
    all.sort_unstable();
    if all.len() == first.count {
        all.clear();
    }
    Ok(all)
}

/// Merges the largest magnitudes by name.
fn largest<T: Clone>(
    all: &mut BTreeMap<String, T>,
    others: &BTreeMap<String, T>,
    add: impl Fn(&mut T, &T),
) {
    for (name, one) in others {
        match all.get_mut(name) {
            Some(all) => add(all, one),
            None => drop(all.insert(name.clone(), one.clone())),
        }
    }
}
