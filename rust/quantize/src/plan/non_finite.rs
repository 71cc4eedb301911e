//! Weights with elements that their type cannot hold stay float, and the rest of the model is
//! quantized: NaN and infinity, and large numbers where the type is a float without a scale. So do
//! values that the model itself fills with NaN or infinity.

use std::collections::{BTreeMap, BTreeSet};

use super::{Decision, KeepReason, Plan, Source};
use crate::graph::elements::to_f32;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};
use crate::{DataType, QType, QuantizeError, Ranges};

/// The number of names that the warning shows.
const MAX_NAMES: usize = 5;

impl Plan {
    /// The plan with all weights in float that hold NaN, infinity or numbers beyond their type:
    /// tables of biases for attention hold −∞ or the smallest float32 by design; with the warnings,
    /// which the plan has, too. `None` if there is no such weight, or if the caller named one of
    /// them.
    ///
    /// The elements of every weight are read, so this is for plans that could not be applied, and
    /// for those that are applied many times.
    pub(crate) fn without_unheld(
        &self,
        graph: &Graph<'_>,
        ranges: Option<&Ranges>,
    ) -> Result<Option<(Plan, Vec<String>)>, QuantizeError> {
        let names = self.unheld(graph)?;
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
            plan = plan.without_unseen(ranges);
        }
        plan.config = self.config.clone();
        plan.warnings.clone_from(&self.warnings);
        plan.steps.clone_from(&self.steps);
        plan.origin = self.origin.clone();
        for value in &mut plan.values {
            if let Some(reason) = names.get(&value.name) {
                value.decision = Decision::KeepFloat(reason.clone());
            }
        }
        let warnings = warnings("weights", &names);
        plan.warnings.extend(warnings.iter().cloned());
        Ok(Some((plan, warnings)))
    }

    /// The plan without values that the model itself fills with NaN or infinity, whatever the
    /// samples are, and without those that depend on them; with a warning. Of −∞, which masks use,
    /// calibration takes care.
    pub(super) fn without_filled(self, graph: &Graph<'_>) -> Plan {
        let filled = |name: String| {
            let elements = filled_with(graph, graph.value(&name)?)?;
            let found = first(&elements, |number| number.is_nan() || number == f32::INFINITY)?;
            Some((name, KeepReason::NotFinite { found }))
        };
        let names: BTreeMap<String, KeepReason> =
            self.observed().into_iter().filter_map(filled).collect();
        let warnings = warnings("values", &names);
        let mut plan = self.without(names.into_iter().collect());
        plan.warnings.extend(warnings);
        plan
    }

    /// The quantized weights with elements that their type cannot hold, and the first of these.
    fn unheld(&self, graph: &Graph<'_>) -> Result<BTreeMap<String, KeepReason>, QuantizeError> {
        let quantized: BTreeMap<&str, QType> = self
            .quantized()
            .filter(|(_, how)| how.source == Source::Weights)
            .map(|(value, how)| (value.name.as_str(), how.spec.qtype))
            .collect();
        let mut found = BTreeMap::new();
        for constant in uses::constants(graph) {
            let name = graph.values[constant.anchor].name;
            let Some(qtype) = quantized.get(name).copied() else { continue };
            let tensor = graph.model.tensor(constant.tensor)?;
            // Numbers of float64 that float32 does not hold are finite.
            let of_float = tensor.dtype != DataType::Double;
            let Some(elements) = to_f32(&tensor).filter(|_| of_float) else { continue };
            if let Some(element) = first(&elements, |number| !number.is_finite()) {
                found.insert(name.to_owned(), KeepReason::NotFinite { found: element });
            } else if let Some(largest) = qtype.largest_unscaled()
                && let Some(element) = first(&elements, |number| number.abs() > largest)
            {
                found.insert(name.to_owned(), KeepReason::TooLarge { found: element, qtype });
            }
        }
        Ok(found)
    }
}

/// What a `ConstantOfShape` fills a value with.
fn filled_with(graph: &Graph<'_>, value: ValueId) -> Option<Vec<f32>> {
    let Producer::Node { node, .. } = graph.values[value].producer else { return None };
    let node = graph.nodes[node];
    let element = node.attribute("value")?.t.as_deref()?;
    let fills = node.is_onnx() && node.op_type == "ConstantOfShape";
    to_f32(&graph.model.tensor(element).ok().filter(|_| fills)?)
}

/// The first element of a kind, in words.
fn first(elements: &[f32], is_wrong: impl Fn(f32) -> bool) -> Option<String> {
    let index = elements.iter().position(|element| is_wrong(*element))?;
    Some(format!("element {index} is {:?}", elements[index]))
}

/// A warning for each reason, with the names of the weights or other values.
fn warnings(what: &str, names: &BTreeMap<String, KeepReason>) -> Vec<String> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, reason) in names {
        let (said, found) = match reason {
            KeepReason::NotFinite { found } => {
                (format!("{what} stay float because they are not finite: "), found)
            }
            KeepReason::TooLarge { found, qtype } => {
                let said =
                    format!("{what} stay float because {qtype} does not hold their numbers: ");
                (said, found)
            }
            _ => continue,
        };
        groups.entry(said).or_default().push(format!("`{name}` ({found})"));
    }
    let warning = |(said, mut shown): (String, Vec<String>)| {
        let more = shown.len().saturating_sub(MAX_NAMES);
        shown.truncate(MAX_NAMES);
        if more > 0 {
            shown.push(format!("and {more} more"));
        }
        said + &shown.join(", ")
    };
    groups.into_iter().map(warning).collect()
}
