//! Checks that ranges belong to a plan, and adapts them to its types.

use std::borrow::Cow;

use super::Plan;
use crate::{CalibrationError, Ranges};

impl Ranges {
    /// These ranges for the types of `plan`. If it quantizes a value in another way than the plan
    /// that the ranges were computed for, the range of the value is computed again by the same
    /// method.
    ///
    /// # Errors
    /// The method of the ranges is unknown.
    pub(crate) fn for_plan(&self, plan: &Plan) -> Result<Cow<'_, Ranges>, CalibrationError> {
        let mut ranges = Cow::Borrowed(self);
        for (value, how) in plan.quantized() {
            let seen = self.statistics.get(&value.name);
            let Some(seen) = seen.filter(|seen| seen.spec.is_some_and(|spec| spec != how.spec))
            else {
                continue;
            };
            let name = self.chosen.get(&value.name).unwrap_or(&self.method);
            let finder = quantize_rs_math::range::find(name)
                .map_err(|error| CalibrationError::data(error.to_string()))?;
            if let Some(found) = seen.range(finder.as_ref(), &how.spec) {
                ranges.to_mut().values.insert(value.name.clone(), found.range);
            }
        }
        Ok(ranges)
    }

    /// Rejects ranges of another model, and ranges that lack a value of the plan.
    pub(crate) fn check(&self, plan: &Plan) -> Result<(), CalibrationError> {
        match self.missing(plan)?.into_iter().next() {
            None => Ok(()),
            Some(name) => {
                let what = "these ranges lack a value that the plan quantizes".to_owned();
                Err(CalibrationError::data(what).at_value(name))
            }
        }
    }

    /// The values whose ranges a plan needs and that have none here.
    ///
    /// # Errors
    /// The ranges are those of another model, or of a part of the samples.
    pub fn missing(&self, plan: &Plan) -> Result<Vec<String>, CalibrationError> {
        self.check_print(&plan.origin.fingerprint)?;
        self.check_complete()?;
        let mut names = plan.observed();
        names.retain(|name| !self.values.contains_key(name));
        Ok(names)
    }
}
