//! Scales channels between two products by constant weights, so that no channel is much larger or
//! smaller than the others: a scale that covers the largest is too coarse for the smallest.
//!
//! Dividing a channel by a positive factor where it is written and multiplying the weights that
//! read it by the factor changes no output, if everything between passes the factor on. Factors are
//! powers of two, so that no element is rounded.
//!
//! The pass changes a model where the expected noise of 8 bits becomes half as large or less; the
//! check of outputs measures both. Scaled values get other names, since ranges and options that
//! name them mean the values as they were.

mod factors;
mod groups;
mod magnitudes;
mod sets;

use quantize_rs_onnx::{Edit, NodeProto, Tensor, ValueInfoProto};

use super::Changes;
use super::floats::{floats, rounded};
use super::pass_edits::PassEdits;
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::constants::fixed;
use factors::{Exponents, Measure, Network};
use groups::{Clip, Groups};

/// The end of the names of scaled values.
pub(crate) const EQUALIZED: &str = "equalized";

/// The fraction of the expected noise that may be left.
const MOST_NOISE: f64 = 0.5;

/// Models with less expected noise are left as they are: 28 dB below the signal, or 17 dB with one
/// scale for a weight, for which the noise is overestimated.
const LEAST_NOISE: [f64; 2] = [1.5e-3, 2e-2];

/// Equalizes for weights with a scale for each output channel.
#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    Ok(equalize(graph, false).unwrap_or_default())
}

/// Equalizes for weights with one scale.
#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn per_tensor(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    Ok(equalize(graph, true).unwrap_or_default())
}

fn equalize(graph: &Graph<'_>, per_tensor: bool) -> Option<Changes> {
    let mut found: Option<(f64, Changes)> = None;
    // A `Clip` becomes nodes that runtimes do not fuse, which has to be worth as much again.
    for with_clips in [false, true] {
        let groups = Groups::of(graph, with_clips);
        if groups.channels.is_empty() || with_clips && groups.clips.is_empty() {
            continue;
        }
        let Some(network) = Network::of(graph, &groups) else { continue };
        let before = match &found {
            Some((noise, _)) => *noise,
            None => network.noise(None, per_tensor),
        };
        if found.is_none() && before < LEAST_NOISE[usize::from(per_tensor)] {
            continue;
        }
        let measures = [Measure::Largest, Measure::Energy].into_iter();
        let tried = measures.filter_map(|measure| network.exponents(measure));
        let tried = tried.map(|it| (network.noise(Some(&it), per_tensor), it));
        let Some((after, exponents)) = tried.min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        if after <= before * MOST_NOISE
            && let Some(changes) = changes(graph, &groups, &exponents)
        {
            found = Some((after, changes));
        }
    }
    found.map(|(_, changes)| changes)
}

/// The edits that scale all channels; `None` if a number would leave its type.
fn changes(graph: &Graph<'_>, groups: &Groups<'_>, exponents: &Exponents) -> Option<Changes> {
    let mut pass = PassEdits::of(graph);
    let is_scaled = |group: &usize| exponents[*group].iter().any(|by| *by != 0);
    let power = |by: &i32| f64::from(*by).exp2();
    for linked in &groups.products {
        let (from, to) = (linked.from.filter(is_scaled), linked.to.filter(is_scaled));
        if from.is_none() && to.is_none() {
            continue;
        }
        let product = &linked.product;
        let reads = product.input_channels()?.count;
        let inputs = match from {
            Some(group) => {
                let run = (reads / exponents[group].len()).max(1);
                exponents[group].iter().flat_map(|by| vec![power(by); run]).collect()
            }
            None => vec![1.0; reads],
        };
        let outputs = match to {
            Some(group) => exponents[group].iter().map(|by| power(&-by)).collect(),
            None => vec![1.0; product.channels.count],
        };
        product.rescaled(&inputs, &outputs)?.put(&mut pass, graph, product);
    }
    for beside in &groups.beside {
        let Some(group) = groups.of[beside.value].filter(is_scaled) else { continue };
        let old = fixed(graph, beside.constant)?;
        let values = floats(&old)?;
        let values: Vec<f64> =
            values.iter().zip(&exponents[group]).map(|(old, by)| old * power(&-by)).collect();
        let (scaled, _) = rounded(old.dtype, old.shape.clone(), &values)?;
        pass.replace_constant((beside.node, beside.input), beside.constant, EQUALIZED, &scaled);
    }
    let mut scaled = 0;
    for (value, group) in groups.of.iter().enumerate() {
        if !group.as_ref().is_some_and(is_scaled) {
            continue;
        }
        let found = &graph.values[value];
        let crate::graph::Producer::Node { node, output } = found.producer else { return None };
        let name = pass.fresh(found.name, EQUALIZED);
        if let Some(info) = found.info {
            let mut info: ValueInfoProto = info.clone();
            info.name.clone_from(&name);
            pass.edit(Edit::SetValueInfo(info));
        }
        let clip = groups.clips.iter().find(|clip| clip.node == node);
        if !pass.replace_uses(value, &name) {
            return None;
        }
        match (clip, group) {
            (Some(clip), Some(group)) => {
                replace_clip(&mut pass, graph, groups, clip, &exponents[*group], &name)?;
            }
            _ => pass.edit(Edit::RenameOutput { node, output, value: name }),
        }
        scaled += 1;
    }
    let products = groups.products.iter().filter(|it| it.to.is_some_and(|to| is_scaled(&to)));
    for linked in products {
        let Some(group) = linked.to else { continue };
        let by = &exponents[group];
        pass.did(format!(
            "divided the channels of `{}` by powers of two from 2^{} to 2^{}, and multiplied what \
             reads them",
            graph.values[linked.output].name,
            by.iter().min().copied().unwrap_or(0),
            by.iter().max().copied().unwrap_or(0),
        ));
    }
    (scaled > 0).then(|| pass.finish())
}

/// Replaces a `Clip` by nodes with a bound for each channel.
fn replace_clip(
    pass: &mut PassEdits<'_, '_>,
    graph: &Graph<'_>,
    groups: &Groups<'_>,
    clip: &Clip,
    exponents: &[i32],
    output: &str,
) -> Option<()> {
    let layout = groups.layouts[clip.input]?;
    let mut shape = vec![1; layout.rank - layout.axis];
    shape[0] = layout.channels;
    let proto = graph.nodes[clip.node];
    let mut reads = pass.current_name(&proto.input[0]).to_owned();
    let [low, high] = clip.bounds;
    let steps = [("Max", low), ("Min", high)];
    let mut left = steps.iter().filter(|(_, bound)| bound.is_some()).count();
    for (op_type, bound) in steps {
        let Some(bound) = bound else { continue };
        left -= 1;
        let made = if left == 0 { output.to_owned() } else { pass.fresh(output, "bounded") };
        let name = if left == 0 { proto.name.clone() } else { String::new() };
        let mut inputs = vec![reads];
        let is_relu = op_type == "Max" && bound == 0.0;
        if !is_relu {
            #[allow(clippy::cast_possible_truncation)] // a float32 times a power of two
            let bounds: Vec<f32> =
                exponents.iter().map(|by| (bound * f64::from(-by).exp2()) as f32).collect();
            let tensor = Tensor::from_f32(shape.clone(), &bounds);
            inputs.push(pass.add_constant(output, op_type, &tensor));
        }
        let op_type = if is_relu { "Relu" } else { op_type };
        pass.add_node(NodeProto::new(name, op_type, inputs, vec![made.clone()], Vec::new()));
        reads = made;
    }
    pass.remove(clip.node);
    Some(())
}
