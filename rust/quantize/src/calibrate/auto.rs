//! The method `auto`: the nearest method for all values, and for single ones what is surely nearer.

use std::collections::BTreeMap;

use quantize_rs_math::range::{self, Clipping, RangeFinder};
use quantize_rs_onnx::Model;

use super::collect::{Gathered, KEPT};
use super::compare_methods::{Extent, compare};
use super::engine::Engine;
use super::run::Control;
use crate::{Method, Plan, QuantizeError, Ranges};

/// With fewer samples methods are not judged. What a few show of methods seldom holds for others; and each method is judged
/// by an eighth of the samples at most.
const ENOUGH: usize = 8 * KEPT;

/// Nor by fewer than this: of large samples not as many are kept, of equal ones only one.
const ENOUGH_KEPT: usize = KEPT / 2;

/// With fewer samples no value has a method of its own, unless the model has no outputs of floats and nothing else can be
/// judged: to judge these takes as much again as to judge methods, and gains less.
const ENOUGH_FOR_SINGLE: usize = 4 * ENOUGH;

/// Compares every method and takes the nearest for all values, or, where the outputs of the whole model surely come
/// nearer so, others for those whose products with matrices are nearer. Of few samples, what needs no judging.
pub(super) fn choose(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    mut gathered: Gathered,
    control: &mut Control<'_>,
) -> Result<Ranges, QuantizeError> {
    let kept = gathered.kept.len();
    if gathered.samples < ENOUGH || kept < ENOUGH_KEPT {
        let method: Method = unjudged(kept).name().parse()?;
        let (_, all) = gathered.ranges(plan);
        let why = if gathered.samples < ENOUGH {
            format!(
                "fewer than {ENOUGH} samples seldom show which method is nearer (a comparison of methods judges by any number)"
            )
        } else {
            format!(
                "too few samples to judge by are kept ({kept}): equal ones count once, and large ones are not all kept"
            )
        };
        return Ok(for_all(all.using(&method)?, &why));
    }
    // What cuts off a part of most samples is hardly ever the best, and costs as much to try.
    let extent = Extent { blunt: false, single: gathered.samples >= ENOUGH_FOR_SINGLE };
    let comparison = compare(model, plan, engine, gathered, control, extent)?;
    let position = comparison.methods.iter().position(|row| row.method == comparison.best);
    let mut ranges = comparison.ranges[position.unwrap_or(0)].clone();
    if ranges.chosen.is_empty() {
        ranges = for_all(ranges, "none is surely nearer");
    }
    for row in comparison.methods.iter().filter(|row| row.method != Method::Auto.name()) {
        if let Some(same) = &row.same_as {
            ranges.remarks.push(format!("`{}` finds the same ranges as `{same}` here", row.method));
        }
    }
    Ok(ranges)
}

/// What is taken where so few samples could judge: the last of all methods, which leaves room for what they do not
/// show; of one, which shows nothing of others, what clips nothing.
fn unjudged(samples: usize) -> &'static dyn RangeFinder {
    let is_taken =
        |finder: &&dyn RangeFinder| samples > 1 || finder.clipping() == Clipping::Nothing;
    range::ALL.iter().copied().rfind(is_taken).unwrap_or(range::ALL[0])
}

/// Ranges of one method as what `auto` takes for every value, and why.
fn for_all(mut ranges: Ranges, why: &str) -> Ranges {
    let method = std::mem::replace(&mut ranges.method, Method::Auto.name());
    ranges.remarks.push(format!("`auto` takes `{method}` for every value: {why}"));
    let chosen = ranges.values.keys().map(|name| (name.clone(), method.clone()));
    ranges.chosen = chosen.collect::<BTreeMap<_, _>>();
    ranges
}
