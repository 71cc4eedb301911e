//! Nodes that scale and shift each channel of their input.

use quantize_rs_onnx::{DataType, Tensor};

use crate::graph::Graph;
use crate::graph::constants::{fixed, is_read};
use crate::transform::floats::floats;

/// The scale and shift of each channel: `channel * factor + shift`.
pub(in crate::transform) struct Affine {
    pub(super) factor: Vec<f64>,
    pub(super) shift: Vec<f64>,
}

/// The position of the channels of a value.
#[derive(Clone, Copy)]
pub(in crate::transform) struct Channels {
    pub(in crate::transform) count: usize,
    /// The minimum rank of the value.
    pub(super) least_rank: usize,
    /// The axis of the channels, counted from the end, where the last axis is 1.
    pub(super) from_last: usize,
    /// Whether the channels are on axis 1.
    pub(super) second: bool,
    /// The type of the value.
    pub(super) dtype: DataType,
}

/// The operators that only scale and shift.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    BatchNormalization,
    Add,
    Sub,
    /// Subtracts the input from a constant.
    SubFrom,
    Mul,
    Div,
}

/// Whether a node scales and shifts an input by constants, and which input that is.
pub(super) fn kind(graph: &Graph<'_>, index: usize) -> Option<(usize, Kind)> {
    let node = graph.nodes[index];
    // Before opset 7, attributes controlled broadcasting, and training was the default.
    if !node.is_onnx() || graph.model.opset("").unwrap_or(1) < 7 {
        return None;
    }
    let constant = |input| graph.input(index, input).is_some_and(|value| is_constant(graph, value));
    match (node.op_type.as_str(), constant(0), constant(1)) {
        ("BatchNormalization", ..) => {
            let mut others =
                (1..node.output.len()).filter_map(|output| graph.output(index, output));
            let fixed = !trains(graph, index) && node.int("spatial", 1) != 0;
            let unread = !others.any(|value| is_read(graph, value));
            (fixed && unread).then_some((0, Kind::BatchNormalization))
        }
        ("Add", false, true) => Some((0, Kind::Add)),
        ("Add", true, false) => Some((1, Kind::Add)),
        ("Sub", false, true) => Some((0, Kind::Sub)),
        ("Sub", true, false) => Some((1, Kind::SubFrom)),
        ("Mul", false, true) => Some((0, Kind::Mul)),
        ("Mul", true, false) => Some((1, Kind::Mul)),
        ("Div", false, true) => Some((0, Kind::Div)),
        _ => None,
    }
}

/// Whether a node is a `BatchNormalization` that computes statistics of its input: before opset 14,
/// any that has more outputs than one, whether they are read or not.
pub(in crate::transform) fn trains(graph: &Graph<'_>, index: usize) -> bool {
    let node = graph.nodes[index];
    let by_outputs = graph.model.opset("").unwrap_or(1) < 14 && node.output.len() > 1;
    node.is_onnx()
        && node.op_type == "BatchNormalization"
        && (by_outputs || node.int("training_mode", 0) != 0)
}

fn is_constant(graph: &Graph<'_>, value: usize) -> bool {
    use crate::graph::Producer;
    match graph.values[value].producer {
        Producer::Initializer { overridable, .. } => !overridable,
        Producer::Node { node, .. } => {
            graph.nodes[node].op_type == "Constant" && graph.nodes[node].is_onnx()
        }
        _ => false,
    }
}

impl Affine {
    /// The scales and shifts that a node applies to these channels.
    pub(super) fn of(
        graph: &Graph<'_>,
        index: usize,
        input: usize,
        kind: Kind,
        channels: Channels,
    ) -> Option<Affine> {
        if kind == Kind::BatchNormalization {
            return batch_normalization(graph, index, channels);
        }
        let tensor = fixed(graph, graph.input(index, 1 - input)?)?;
        if tensor.dtype != channels.dtype {
            return None;
        }
        let numbers = per_channel(&tensor, channels)?;
        let (ones, zeros) = (vec![1.0; channels.count], vec![0.0; channels.count]);
        Some(match kind {
            Kind::Add => Affine { factor: ones, shift: numbers },
            Kind::Sub => Affine { factor: ones, shift: numbers.iter().map(|it| -it).collect() },
            Kind::SubFrom => Affine { factor: vec![-1.0; channels.count], shift: numbers },
            Kind::Mul => Affine { factor: numbers, shift: zeros },
            Kind::Div => {
                Affine { factor: numbers.iter().map(|it| 1.0 / it).collect(), shift: zeros }
            }
            Kind::BatchNormalization => return None,
        })
        .filter(Affine::is_finite)
    }

    /// Whether all channels have the same scale and shift.
    pub(super) fn is_even(&self) -> bool {
        let even = |numbers: &[f64]| numbers.windows(2).all(|pair| pair[0] == pair[1]);
        even(&self.factor) && even(&self.shift)
    }

    fn is_finite(&self) -> bool {
        self.factor.iter().chain(&self.shift).all(|number| number.is_finite())
    }

    /// Whether any channel is scaled.
    pub(super) fn scales(&self) -> bool {
        self.factor.iter().any(|factor| *factor != 1.0)
    }

    /// Whether any channel is shifted.
    pub(super) fn shifts(&self) -> bool {
        self.shift.iter().any(|shift| *shift != 0.0)
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * scale + bias`.
fn batch_normalization(graph: &Graph<'_>, index: usize, channels: Channels) -> Option<Affine> {
    if !channels.second {
        return None;
    }
    let read = |input| -> Option<Vec<f64>> {
        let tensor = fixed(graph, graph.input(index, input)?)?;
        let fits = tensor.dtype == channels.dtype && tensor.shape == [channels.count];
        fits.then(|| floats(&tensor)).flatten()
    };
    let (scale, bias, mean, variance) = (read(1)?, read(2)?, read(3)?, read(4)?);
    let epsilon = f64::from(graph.nodes[index].float("epsilon", 1e-5));
    let factor: Vec<f64> = scale
        .iter()
        .zip(&variance)
        .map(|(scale, variance)| scale / (variance + epsilon).sqrt())
        .collect();
    let shift = bias.iter().zip(&mean).zip(&factor).map(|((bias, mean), by)| bias - mean * by);
    let affine = Affine { shift: shift.collect(), factor };
    let sound = variance.iter().all(|variance| variance + epsilon > 0.0);
    (sound && affine.is_finite()).then_some(affine)
}

/// The elements of a constant per channel, if it has one per channel or a single one, and
/// broadcasting keeps the shape of the value.
fn per_channel(tensor: &Tensor, channels: Channels) -> Option<Vec<f64>> {
    let numbers = floats(tensor)?;
    let rank = tensor.shape.len();
    if rank > channels.least_rank {
        return None;
    }
    if let [number] = numbers[..] {
        return Some(vec![number; channels.count]);
    }
    // Axes are aligned at the end.
    let axis = rank.checked_sub(channels.from_last)?;
    let lies = tensor
        .shape
        .iter()
        .enumerate()
        .all(|(at, length)| *length == if at == axis { channels.count } else { 1 });
    lies.then_some(numbers)
}
