//! Weights with NaN or infinity stay float, and the rest of the model is quantized.

use std::collections::{BTreeMap, BTreeSet};

use super::{Decision, KeepReason, Plan, Source};
use crate::graph::Graph;
use crate::graph::elements::to_f32;
use crate::graph::uses;
use crate::{DataType, QuantizeError, Ranges};

/// The number of names that the warning shows.
const MAX_NAMES: usize = 5;

impl Plan {
    /// The plan with all weights in float that hold NaN or infinity: tables of biases for attention
    /// hold −∞ by design; with the warning, which the plan has, too. `None` if there is no such
    /// weight, or if the caller named one of them.
    ///
    /// The elements of every weight are read, so this is for plans that could not be applied, and
    /// for those that are applied many times.
    pub(crate) fn without_non_finite(
        &self,
        graph: &Graph<'_>,
        ranges: Option<&Ranges>,
    ) -> Result<Option<(Plan, String)>, QuantizeError> {
        let names = self.non_finite(graph)?;
        let asked = self.config.include.iter().flatten();
        let asked = asked.chain(self.config.layer_bits.keys());
        let asked: BTreeSet<&String> = asked.chain(self.config.layer_types.keys()).collect();
        if names.is_empty() || names.keys().any(|name| asked.contains(name)) {
            return Ok(None);
        }
        let mut config = self.config.clone();
        config.layer_float.extend(names.keys().cloned());
        let mut plan = Plan::of(graph, config)?;
        if let Some(ranges) = ranges {
            // Next to float weights, values may be quantized that were not quantized before.
            plan = plan.without_unseen(ranges).into_owned();
        }
        plan.config = self.config.clone();
        plan.warnings.clone_from(&self.warnings);
        plan.steps.clone_from(&self.steps);
        plan.origin = self.origin.clone();
        for value in &mut plan.values {
            if let Some(found) = names.get(&value.name) {
                value.decision =
                    Decision::KeepFloat(KeepReason::NotFinite { found: found.clone() });
            }
        }
        let mut shown: Vec<String> = names
            .iter()
            .take(MAX_NAMES)
            .map(|(name, found)| format!("`{name}` ({found})"))
            .collect();
        if names.len() > MAX_NAMES {
            shown.push(format!("and {} more", names.len() - MAX_NAMES));
        }
        let warning =
            format!("weights stay float because they are not finite: {}", shown.join(", "));
        plan.warnings.push(warning.clone());
        Ok(Some((plan, warning)))
    }

    /// The quantized weights with elements that are not finite, and the first of these.
    fn non_finite(&self, graph: &Graph<'_>) -> Result<BTreeMap<String, String>, QuantizeError> {
        let quantized: BTreeSet<&str> = self
            .quantized()
            .filter(|(_, how)| how.source == Source::Weights)
            .map(|(value, _)| value.name.as_str())
            .collect();
        let mut found = BTreeMap::new();
        for constant in uses::constants(graph) {
            let name = graph.values[constant.anchor].name;
            if !quantized.contains(name) {
                continue;
            }
            let tensor = graph.model.tensor(constant.tensor)?;
            // Numbers of float64 that float32 does not hold are finite.
            let of_float = tensor.dtype != DataType::Double;
            let Some(elements) = to_f32(&tensor).filter(|_| of_float) else { continue };
            if let Some(index) = elements.iter().position(|element| !element.is_finite()) {
                found.insert(name.to_owned(), format!("element {index} is {}", elements[index]));
            }
        }
        Ok(found)
    }
}
