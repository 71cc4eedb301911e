//! Makes a `Resize` with an `axes` attribute list all axes.
//!
//! ONNX Runtime 1.31 may run a `Resize` in channels-last layout, but then expects one scale per
//! axis. A model with a `Resize` between two integer convolutions fails otherwise.

use quantize_rs_onnx::{Edit, NodeProto, Tensor, TensorProto};

use super::Changes;
use crate::QuantizeError;
use crate::graph::constants::of_ints;
use crate::graph::names::Names;
use crate::graph::{Graph, Producer};
use crate::util::axes::axis_of;

/// The inputs of `Resize` that hold the scale of each axis, and the output dimension of each axis.
const SCALES: usize = 2;
const SIZES: usize = 3;

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn all_axes(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut names = Names::of(graph);
    let mut changes = Changes::default();
    for (node, proto) in graph.nodes.iter().enumerate() {
        if proto.op_type != "Resize" || !proto.is_onnx() {
            continue;
        }
        let Some((given, input, tensor)) = complete(graph, node, proto) else { continue };
        let name = names.fresh(&proto.output[0], if input == SCALES { "scales" } else { "sizes" });
        let mut with = (*proto).clone();
        with.attribute.retain(|attribute| attribute.name != "axes");
        with.input[given].clear();
        with.input[input].clone_from(&name);
        changes.did.push(format!("{} lists all axes", proto.label()));
        changes.edits.push(Edit::AddInitializer(TensorProto::new(&name, &tensor)));
        changes.edits.push(Edit::ReplaceNode { node, with });
        let before = graph.input(node, given);
        if let Some(before) = before.filter(|before| graph.is_only_consumer(node, *before)) {
            let value = &graph.values[before];
            match value.producer {
                Producer::Initializer { overridable: false, .. } => {
                    changes.edits.push(Edit::RemoveInitializer(value.name.to_owned()));
                }
                Producer::Node { node, .. } => changes.edits.push(Edit::RemoveNode(node)),
                _ => {}
            }
        }
    }
    Ok(changes)
}

/// The input to remove from a node with an `axes` attribute, the one to set, and its value; `None`
/// if it is unknown.
fn complete(graph: &Graph<'_>, node: usize, proto: &NodeProto) -> Option<(usize, usize, Tensor)> {
    let axes = &proto.attribute("axes")?.ints;
    let text = |name: &str| proto.attribute(name).and_then(|found| found.s.as_deref());
    let crops = text("coordinate_transformation_mode") == Some(b"tf_crop_and_resize");
    if crops || axes.is_empty() {
        return None;
    }
    let shape = graph.shape(graph.input(node, 0)?)?;
    let given = |input: usize| {
        let tensor = graph.model.tensor(graph.fixed_constant(graph.input(node, input)?)?).ok()?;
        (tensor.shape == [axes.len()]).then_some(tensor)
    };
    let places = axes.iter().map(|axis| axis_of(*axis, shape.len()));
    let places: Vec<usize> = places.collect::<Option<_>>()?;
    if let Some(scales) = given(SCALES) {
        let mut all = vec![1.0; shape.len()];
        places.iter().zip(scales.to_f32()?).for_each(|(place, scale)| all[*place] = scale);
        return Some((SCALES, SCALES, Tensor::from_f32(vec![all.len()], &all)));
    }
    let stretches = text("keep_aspect_ratio_policy").is_none_or(|policy| policy == b"stretch");
    let sizes = given(SIZES).filter(|_| stretches)?;
    let (words, _) = sizes.data.as_chunks::<8>();
    let lengths = words.iter().map(|word| usize::try_from(i64::from_le_bytes(*word)).ok());
    let lengths: Vec<usize> = lengths.collect::<Option<_>>()?;
    let mut all = shape.clone();
    places.iter().zip(&lengths).for_each(|(place, length)| all[*place] = Some(*length));
    let Some(all) = all.into_iter().collect::<Option<Vec<usize>>>() else {
        let scales = stretched(&shape, &places, &lengths)?;
        return Some((SIZES, SCALES, Tensor::from_f32(vec![scales.len()], &scales)));
    };
    let all = all.iter().map(|length| i64::try_from(*length).ok());
    let all: Vec<i64> = all.collect::<Option<_>>()?;
    Some((SIZES, SIZES, of_ints(vec![all.len()], &all)))
}

/// The scales that make these axes as long as `lengths`, where other axes have an unknown length;
/// `None` if rounding would give another length.
#[allow(clippy::cast_precision_loss)] // as runtimes compute it
fn stretched(shape: &[Option<usize>], places: &[usize], lengths: &[usize]) -> Option<Vec<f32>> {
    let mut scales = vec![1.0; shape.len()];
    for (place, length) in places.iter().zip(lengths) {
        let (before, after) = (shape[*place]? as f32, *length as f32);
        scales[*place] = after / before;
        if (scales[*place] * before).floor().to_bits() != after.to_bits() {
            return None;
        }
    }
    Some(scales)
}
