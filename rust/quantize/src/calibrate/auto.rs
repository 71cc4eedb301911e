//! The method `auto`: the nearest method for all values, and for single ones what is surely nearer.

use std::collections::BTreeMap;

use quantize_rs_math::range::Clips;
use quantize_rs_onnx::Model;

use super::compare::compare;
use super::run::Control;
use crate::sample::{Engine, Samples};
use crate::{Method, Plan, QuantizeError, Ranges};

/// Compares every method and takes the nearest for all values, or, where the outputs of the whole model surely come
/// nearer so, others for those whose products with matrices are nearer.
pub(super) fn choose(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: &mut Control<'_>,
) -> Result<Ranges, QuantizeError> {
    // What cuts off a part of most samples is hardly ever the best, and costs as much to try.
    let blunt = |clips| clips == Clips::MostSamples;
    let comparison = compare(model, plan, engine, samples, control, blunt)?;
    let position = comparison.methods.iter().position(|row| row.method == comparison.best);
    let mut ranges = comparison.ranges[position.unwrap_or(0)].clone();
    if ranges.chosen.is_empty() {
        let method = std::mem::replace(&mut ranges.method, Method::Auto.name());
        ranges
            .remarks
            .push(format!("`auto` takes `{method}` for every value: none is surely nearer"));
        ranges.chosen = ranges
            .values
            .keys()
            .map(|name| (name.clone(), method.clone()))
            .collect::<BTreeMap<_, _>>();
    }
    for row in comparison.methods.iter().filter(|row| row.method != Method::Auto.name()) {
        if let Some(same) = &row.same_as {
            ranges.remarks.push(format!("`{}` finds the same ranges as `{same}` here", row.method));
        }
    }
    Ok(ranges)
}
