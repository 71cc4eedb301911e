//! The method `auto`: the most accurate method for all values, and another one for single values
//! where it is significantly more accurate.

use std::collections::{BTreeMap, BTreeSet};

use quantize_rs_math::range::{self, Clipping, RangeFinder};
use quantize_rs_onnx::Model;

use super::collect::Collected;
use super::compare_methods::{ComparisonScope, compare, last_method, wide_values};
use super::engine::Engine;
use super::retained::MAX_RETAINED;
use super::run::Control;
use crate::graph::Graph;
use crate::graph::ops::is_convolution;
use crate::plan::{IntegerNode, Source};
use crate::ranges::ENOUGH_SAMPLES;
use crate::{Method, Plan, QuantizeError, Ranges};

/// With fewer samples methods are not compared: what a few samples show seldom holds for others.
const MIN_SAMPLES: usize = ENOUGH_SAMPLES;

/// The minimum number of retained samples: large samples are not all retained, and equal samples
/// are retained once.
const MIN_RETAINED: usize = MAX_RETAINED / 2;

/// With fewer samples no value gets a method of its own, unless the model has no float output and
/// nothing else can be evaluated. Evaluating single values takes as long again as evaluating
/// methods, and gains less.
const MIN_SAMPLES_FOR_SINGLE_VALUES: usize = 4 * MIN_SAMPLES;

/// The method for inputs of convolutions with fewer samples: clipping counts twice. On networks of
/// large images, whose outputs show where few values are large, that gains up to 1.3 dB on new
/// images, and it costs at most 0.2 dB on others.
const CONVOLUTION_METHOD: &str = "mse:2";

/// Compares all methods and takes the most accurate one for all values. Single values get another
/// method where their matrix multiplications are more accurate with it, if that makes the outputs
/// of the whole model significantly more accurate. With few samples nothing is compared.
pub(super) fn choose(
    model: &Model,
    plan: &Plan,
    engine: &dyn Engine,
    mut collected: Collected,
    control: &mut Control<'_>,
) -> Result<Ranges, QuantizeError> {
    let (kept, evaluates) = (collected.kept.len(), engine.runs_any_model());
    let wide = wide_values(plan);
    let observed = plan.quantized().filter(|(_, how)| how.source == Source::Observed).count();
    let only_wide = observed > 0 && wide.len() == observed;
    let (learnt, all) = collected.ranges(plan);
    let uncompared = |why: &str| {
        let differ = if evaluates { kept } else { collected.samples };
        let method: Method = without_comparison(differ).name().parse()?;
        let of_convolutions: Method = CONVOLUTION_METHOD.parse()?;
        let inputs =
            if differ > 1 { convolution_inputs(&Graph::of(model)?, plan) } else { BTreeSet::new() };
        Ok(for_all(all.using_for(&method, &inputs, &of_convolutions)?, "every value", why))
    };
    if collected.samples < MIN_SAMPLES || kept < MIN_RETAINED || !evaluates || only_wide {
        let why = if collected.samples < MIN_SAMPLES {
            format!(
                "fewer than {MIN_SAMPLES} samples seldom show which method is more accurate (a \
                 comparison of methods accepts any number)"
            )
        } else if !evaluates {
            "the engine runs no quantized model (it has no `prepare`)".to_owned()
        } else if only_wide {
            "with 16 bits it costs nothing to leave room for values that no sample shows".to_owned()
        } else {
            format!(
                "only {kept} samples could be kept to evaluate methods: equal samples count once, \
                 and large ones are not all kept"
            )
        };
        return uncompared(&why);
    }
    // A method that clips most samples is hardly ever the best, and takes as long to evaluate.
    let extent =
        ComparisonScope { all: false, single: collected.samples >= MIN_SAMPLES_FOR_SINGLE_VALUES };
    let given = (&collected, [&learnt, &all]);
    let comparison = match compare(model, plan, engine, given, control, extent) {
        Err(error) if error.is_of_engine() => {
            let engine = engine.name();
            return uncompared(&format!("{engine} does not run the quantized model"));
        }
        comparison => comparison?,
    };
    let position = comparison.methods.iter().position(|row| row.method == comparison.best);
    let mut ranges = comparison.ranges[position.unwrap_or(0)].clone();
    for name in &wide {
        ranges.chosen.remove(name);
    }
    if ranges.chosen.is_empty() {
        let values = if wide.is_empty() { "every value" } else { "every 8-bit value" };
        ranges = for_all(ranges, values, "no other method is significantly more accurate");
    }
    if !wide.is_empty() {
        let method = last_method().name();
        let text = "which leaves room for values that no sample shows";
        ranges.remarks.push(format!("`auto` takes `{method}` for 16-bit values, {text}"));
        ranges.chosen.extend(wide.into_iter().map(|name| (name, method.to_string())));
    }
    for row in comparison.methods.iter().filter(|row| row.method != Method::Auto.name()) {
        if let Some(same) = &row.same_as {
            ranges.remarks.push(format!("`{}` finds the same ranges as `{same}` here", row.method));
        }
    }
    Ok(ranges)
}

/// The method that is taken if only `samples` samples are available. The last method leaves room
/// for values that the samples do not show. A single sample shows nothing of others: there the
/// method that clips nothing is taken.
fn without_comparison(samples: usize) -> &'static dyn RangeFinder {
    let is_taken =
        |finder: &&dyn RangeFinder| samples > 1 || finder.clipping() == Clipping::Nothing;
    range::ALL.iter().copied().rfind(is_taken).unwrap_or(range::ALL[0])
}

/// The inputs of convolutions that the quantized model computes on integers; if they have the scale
/// of another value, as behind a `MaxPool`, that one.
fn convolution_inputs(graph: &Graph<'_>, plan: &Plan) -> BTreeSet<String> {
    let sources: BTreeMap<&str, &str> = plan
        .quantized()
        .filter_map(|(value, how)| match &how.source {
            Source::SameAs(source) => Some((&*value.name, &**source)),
            _ => None,
        })
        .collect();
    let convolves = |integer: &IntegerNode| is_convolution(graph.nodes[integer.node]);
    let nodes = plan.integer_nodes().into_iter().filter(convolves);
    let scaled = |integer: IntegerNode| {
        let mut name = graph.values[integer.input].name;
        while let Some(source) = sources.get(name) {
            name = source;
        }
        name.to_owned()
    };
    nodes.map(scaled).collect()
}

/// The ranges of one method as the choice of `auto` for these `values`, with the reason: for every
/// value that has no choice yet.
fn for_all(mut ranges: Ranges, values: &str, why: &str) -> Ranges {
    let method = std::mem::replace(&mut ranges.method, Method::Auto.name());
    let others: BTreeSet<&String> = ranges.chosen.values().collect();
    let others = others.into_iter().map(|other| format!("`{other}`")).collect::<Vec<_>>();
    ranges.remarks.push(if others.is_empty() {
        format!("`auto` takes `{method}` for {values}: {why}")
    } else {
        format!(
            "`auto` takes `{method}`, and {} for the inputs of convolutions ({}), where clipping \
             counts twice: {why}",
            others.join(" and "),
            ranges.chosen.len(),
        )
    });
    for name in ranges.values.keys() {
        ranges.chosen.entry(name.clone()).or_insert_with(|| method.clone());
    }
    ranges
}
