//! Magnitude pruning: sets small weights to exactly 0.
//!
//! Zeros compress well, and some kernels skip them. Pruning does not reduce the range of a weight,
//! which its largest elements determine. Zeros stay exact in all quantized types, since zero points
//! are integers.

mod cut;

use bytes::Bytes;
use quantize_rs_math::{Granularity, Layout};
use quantize_rs_onnx::{
    AttributeProto, Buffer, DataType, Edit, Model, Raw as Message, Tensor, TensorProto,
};
use serde::Serialize;

use super::floats::floats;
use super::{ALL, Pass, Step};
use crate::QuantizeError;
use crate::error::{QuantizeErrorKind, while_unchanged};
use crate::graph::names::Names;
use crate::graph::uses;
use crate::graph::uses::{Along, Constant, Use};
use crate::graph::{Graph, Producer};
use crate::options::{Below, Config};
use crate::plan::{self, KeepReason};
use cut::Zeroed;

/// Which weights to prune.
#[derive(Clone, Debug, PartialEq)]
pub struct Prune {
    /// The criterion.
    pub below: Below,
    /// Whether to apply the criterion to each output channel instead of the whole weight.
    pub per_channel: bool,
    /// Weights and nodes to exclude, as in [`Config::exclude`].
    pub exclude: Vec<String>,
}

/// What pruning did to a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pruning {
    /// The number of elements of all weights.
    pub elements: usize,
    /// The number of zeros before.
    pub zeros_before: usize,
    /// The number of zeros after.
    pub zeros: usize,
    /// The result for each weight.
    pub weights: Vec<PrunedWeight>,
}

/// The result of pruning one weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrunedWeight {
    /// The name of the weight.
    pub name: String,
    /// The element type.
    pub dtype: Option<DataType>,
    /// The shape.
    pub shape: Vec<usize>,
    /// The axis of output channels, if the criterion was applied to each channel.
    pub axis: Option<usize>,
    /// The number of elements.
    pub elements: usize,
    /// The number of zeros before.
    pub zeros_before: usize,
    /// The number of zeros after.
    pub zeros: usize,
    /// The reason why the weight was not pruned; `None` if it was.
    pub kept: Option<String>,
}

/// The passes that move all weights into the main graph.
const LIFT: [&str; 2] = [super::INLINE_FUNCTIONS, super::LIFT_WEIGHTS];

/// Sets small weights to 0 in a copy of the model. Weights in subgraphs are moved into the main
/// graph first, and functions that hold weights are inlined.
///
/// Magnitudes are compared in the type of the weight, as `NumPy` does for `abs(w) < threshold`.
///
/// ```
/// use quantize_rs::{Below, Model, Prune, prune};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let how = Prune { below: Below::Sparsity(0.5), per_channel: false, exclude: Vec::new() };
/// let (_, report) = prune(&Model::open(path)?, &how)?;
/// assert!(report.zeros * 2 >= report.elements - report.weights.len());
/// # Ok::<(), quantize_rs::QuantizeError>(())
/// ```
///
/// # Errors
/// A threshold is negative or NaN, a sparsity is outside of 0 to 1, a name is not in the model, or
/// a weight holds NaN or infinity.
pub fn prune(model: &Model, how: &Prune) -> Result<(Model, Pruning), QuantizeError> {
    while_unchanged(&[model], || prune_only(model, how, None))
}

/// As [`prune`], of the weights and nodes that are included as in [`Config::include`].
pub(crate) fn prune_only(
    model: &Model,
    how: &Prune,
    include: Option<&Vec<String>>,
) -> Result<(Model, Pruning), QuantizeError> {
    how.below.check("threshold")?;
    let lifted = lifted(model)?;
    let graph = Graph::of(&lifted)?;
    let constants = uses::constants(&graph);
    let (exclude, include) = (how.exclude.clone(), include.cloned());
    let config = Config { exclude, include, ..Config::default() };
    let kept = plan::reserved(&graph, &constants, &config)?;
    let mut report = Pruning::default();
    let (mut edits, mut names) = (Vec::new(), Names::of(&graph));
    for (constant, kept) in constants.iter().zip(kept) {
        if constant.is_weight() {
            let (weight, zeroed) = weight(&graph, constant, kept, how)?;
            if let Some(tensor) = zeroed {
                replace(&graph, constant, &tensor, &mut names, &mut edits);
            }
            report.elements += weight.elements;
            report.zeros_before += weight.zeros_before;
            report.zeros += weight.zeros;
            report.weights.push(weight);
        }
    }
    // If nothing was pruned, the model is returned unchanged.
    let mut pruned = if edits.is_empty() { model.clone() } else { lifted.clone() };
    if !edits.is_empty() {
        pruned.apply(edits)?;
    }
    Ok((pruned, report))
}

/// The model with all its weights in the main graph.
pub(crate) fn lifted(model: &Model) -> Result<Model, QuantizeError> {
    let lift: Vec<&Pass> = ALL.iter().filter(|pass| LIFT.contains(&pass.name)).collect();
    Ok(super::run(model, &lift, super::Purpose::Planning { per_tensor: false, attention: false })?
        .0)
}

/// The exact elements of a tensor; `None` if it is not a floating-point tensor.
///
/// # Errors
/// Returns the index of a non-finite element.
pub(crate) fn finite_floats(tensor: &Tensor) -> Result<Option<Vec<f64>>, usize> {
    let values = floats(tensor);
    match values.as_ref().and_then(|values| values.iter().position(|x| !x.is_finite())) {
        Some(index) => Err(index),
        None => Ok(values),
    }
}

/// Prunes one weight, unless it is excluded. Returns the result and the new elements if any
/// changed.
fn weight(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    kept: Option<KeepReason>,
    how: &Prune,
) -> Result<(PrunedWeight, Option<Tensor>), QuantizeError> {
    let name = graph.values[constant.anchor].name;
    let tensor = graph.model.tensor(constant.tensor)?;
    let (layout, axis) = channels(name, constant, how.per_channel)?;
    let integers =
        (!tensor.dtype.is_float()).then_some(KeepReason::NotFloat32 { dtype: Some(tensor.dtype) });
    let kept = integers.or(kept);
    let mut found = PrunedWeight {
        name: name.to_owned(),
        dtype: Some(tensor.dtype),
        shape: tensor.shape.clone(),
        axis,
        elements: tensor.elements(),
        zeros_before: 0,
        zeros: 0,
        kept: kept.map(|kept| kept.to_string()),
    };
    if found.kept.is_some() {
        found.zeros_before = cut::zeros(&tensor);
        found.zeros = found.zeros_before;
        return Ok((found, None));
    }
    let zeroed = cut::zeroed(&tensor, &layout, how.below)
        .map_err(|index| invalid(name, format!("element {index} is not finite")))?;
    let Some(Zeroed { before, after, elements }) = zeroed else {
        found.kept = Some(KeepReason::NotFloat32 { dtype: found.dtype }.to_string());
        return Ok((found, None));
    };
    (found.zeros_before, found.zeros) = (before, after);
    Ok((found, (after > before).then(|| Tensor { data: elements, ..tensor })))
}

/// The groups of elements to which the criterion applies: output channels, if requested and known.
pub(crate) fn channels(
    name: &str,
    constant: &Constant<'_>,
    per_channel: bool,
) -> Result<(Layout, Option<usize>), QuantizeError> {
    let layout = |shape: &[usize], granularity| {
        Layout::of(shape, granularity).map_err(|error| invalid(name, error))
    };
    let mut found = constant.uses.iter().filter_map(|usage| match usage {
        Use::Weight { channels, .. } | Use::Inside { channels, .. } => Some(*channels),
        _ => None,
    });
    let first = found.next().flatten().filter(|_| per_channel);
    let along = first.filter(|first| found.all(|other| other == Some(*first)));
    Ok(match along {
        Some(Along::Axis(axis)) => {
            (layout(&constant.shape, Granularity::PerAxis { axis })?, Some(axis))
        }
        Some(Along::Rows(rows)) => {
            let columns = constant.shape.iter().product::<usize>() / rows.max(1);
            (layout(&[rows, columns], Granularity::PerAxis { axis: 0 })?, None)
        }
        None => (layout(&constant.shape, Granularity::PerTensor)?, None),
    })
}

/// Replaces the elements of a constant.
fn replace(
    graph: &Graph<'_>,
    constant: &Constant<'_>,
    tensor: &Tensor,
    names: &mut Names<'_>,
    edits: &mut Vec<Edit>,
) {
    let mut source = constant.anchor;
    if let Producer::Node { node, .. } = graph.values[source].producer
        && graph.constant(source).is_none()
        && let Some(before) = graph.input(node, 0)
    {
        // The input of a cast is pruned. If it has other uses, it is copied.
        let value = &graph.values[before];
        if value.consumers.len() > 1 || value.is_read_outside() {
            let copy = names.fresh(value.name, "pruned");
            edits.push(Edit::AddInitializer(TensorProto::new(&copy, tensor)));
            edits.push(Edit::SetInput { node, input: 0, value: copy });
            return;
        }
        source = before;
    }
    let made = TensorProto::new(&constant.tensor.name, tensor);
    edits.push(match graph.values[source].producer {
        Producer::Node { node, .. } => {
            let mut with = graph.nodes[node].clone();
            for attribute in &mut with.attribute {
                if attribute.name == "value" {
                    let mut value: AttributeProto = (**attribute).clone();
                    value.t = Some(Message::new(made.clone()));
                    *attribute = Message::new(value);
                }
            }
            Edit::ReplaceNode { node, with }
        }
        _ => Edit::ReplaceInitializer(made),
    });
}

fn invalid(tensor: &str, what: impl std::fmt::Display) -> QuantizeError {
    let what = format!("{what}; fix the weight, or skip it with `exclude`");
    QuantizeError::new(QuantizeErrorKind::InvalidTensor { tensor: tensor.to_owned(), what })
}

impl Pruning {
    /// What was done, a line for each weight that changed.
    pub(crate) fn step(&self) -> Step {
        let changed = self.weights.iter().filter(|weight| weight.zeros > weight.zeros_before);
        let line = |PrunedWeight { name, zeros, zeros_before, elements, .. }: &PrunedWeight| {
            format!("`{name}`: {zeros} of {elements} are 0, {zeros_before} before")
        };
        Step { pass: "prune".to_owned(), did: changed.map(line).collect() }
    }

    /// The fraction of elements that are 0.
    #[allow(clippy::cast_precision_loss)] // displayed with few digits
    pub fn sparsity(&self) -> f64 {
        self.zeros as f64 / self.elements.max(1) as f64
    }
}

impl std::fmt::Display for Pruning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Pruning { zeros, zeros_before, elements, .. } = self;
        let percent = 100.0 * self.sparsity();
        writeln!(f, "{zeros} of {elements} weights are 0 ({percent:.1} %), {zeros_before} before")?;
        for weight in &self.weights {
            let PrunedWeight { name, zeros, elements, .. } = weight;
            match &weight.kept {
                None => writeln!(f, "  {name}: {zeros} of {elements}")?,
                Some(why) => writeln!(f, "  {name}: skipped, {why}")?,
            }
        }
        Ok(())
    }
}

/// A buffer that holds a copy of the elements of a weight.
fn buffer(data: &Bytes) -> Buffer {
    let mut buffer = Buffer::zeroed(data.len());
    buffer.as_mut().copy_from_slice(data);
    buffer
}
