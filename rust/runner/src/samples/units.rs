//! The units of an input: what a graph subtracts from it and divides it by before anything else.

use quantize_rs::{Graph, ValueId};
use quantize_rs_onnx::{NodeProto, canonical_domain};

/// The maximum number of operators that are read at an input.
const DEPTH: usize = 6;

/// What an input is scaled by first, so that normal values in its units come out standard normal.
///
/// The graph computes `(x − offset) · scale`, with one element of each, or one for each position
/// along an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Units {
    /// The axis along which the elements lie, if there are several.
    axis: usize,
    offset: Vec<f64>,
    scale: Vec<f64>,
}

impl Units {
    /// The units of an input of this shape. None if the graph does not begin with them.
    pub(super) fn of(graph: &Graph<'_>, input: &str, shape: &[usize]) -> Option<Units> {
        let mut value = graph.value(input)?;
        let mut units = Units { axis: 0, offset: vec![0.0], scale: vec![1.0] };
        let mut found = false;
        for _ in 0..DEPTH {
            let [reader] = graph.values[value].consumers.as_slice() else { break };
            let node = graph.nodes[reader.node];
            let is_passed_on = node.is_onnx() && matches!(&*node.op_type, "Cast" | "Identity");
            if !is_passed_on {
                let step = Step::of(graph, reader.node, value, shape);
                let Some(next) = step.and_then(|step| units.then(&step)) else { break };
                (units, found) = (next, true);
            }
            let Some(output) = graph.output(reader.node, 0) else { break };
            value = output;
        }
        found.then_some(units)
    }

    /// The value at a flat position of an input of this shape that comes out as `normal`.
    #[expect(clippy::cast_possible_truncation, reason = "samples are float32")]
    pub(super) fn value(&self, shape: &[usize], position: usize, normal: f32) -> f32 {
        let after: usize = shape.iter().skip(self.axis + 1).product();
        let at = position / after.max(1) % shape.get(self.axis).copied().unwrap_or(1).max(1);
        let of = |all: &[f64]| all.get(at).copied().unwrap_or(all[0]);
        let scale = of(&self.scale);
        // A factor of 0 hides what it multiplies.
        let spread = if scale == 0.0 { 1.0 } else { scale.abs().recip() };
        spread.mul_add(f64::from(normal), of(&self.offset)) as f32
    }

    /// These units and another step. None if they have elements along different axes.
    fn then(&self, step: &Step) -> Option<Units> {
        let count = self.offset.len().max(step.factor.len()).max(step.shift.len());
        let of_step = step.factor.len().max(step.shift.len());
        let axis = if self.offset.len() > 1 { self.axis } else { step.axis };
        if self.offset.len() > 1 && of_step > 1 && (axis, count) != (step.axis, of_step) {
            return None;
        }
        let at = |all: &[f64], index: usize| all.get(index).copied().unwrap_or(all[0]);
        let elements = (0..count).map(|index| {
            let (offset, scale) = (at(&self.offset, index), at(&self.scale, index));
            let shift = at(&step.shift, index);
            let moved = if scale == 0.0 { 0.0 } else { shift / scale };
            (offset + moved, scale * at(&step.factor, index))
        });
        let (offset, scale): (Vec<f64>, Vec<f64>) = elements.unzip();
        let all = offset.iter().chain(&scale);
        all.into_iter().all(|x| x.is_finite()).then_some(Units { axis, offset, scale })
    }
}

/// An operator that computes `(y − shift) · factor`.
struct Step {
    axis: usize,
    shift: Vec<f64>,
    factor: Vec<f64>,
}

impl Step {
    fn of(graph: &Graph<'_>, index: usize, value: ValueId, shape: &[usize]) -> Option<Step> {
        let node = graph.nodes[index];
        match (canonical_domain(&node.domain), node.op_type.as_str()) {
            ("ai.onnx.ml", "Scaler") => scaler(node, shape),
            ("", "Sub" | "Div" | "Add" | "Mul") => {
                let swaps = matches!(&*node.op_type, "Add" | "Mul");
                let (first, second) = (graph.input(index, 0)?, graph.input(index, 1)?);
                let constant = match (first == value, second == value) {
                    (true, false) => second,
                    (false, true) if swaps => first,
                    _ => return None,
                };
                let (axis, elements) = along_one_axis(graph, constant, shape)?;
                let (shift, factor) = match node.op_type.as_str() {
                    "Sub" => (elements, vec![1.0]),
                    "Add" => (elements.iter().map(|x| -x).collect(), vec![1.0]),
                    "Mul" => (vec![0.0], elements),
                    _ => (vec![0.0], elements.iter().map(|x| x.recip()).collect()),
                };
                Some(Step { axis, shift, factor })
            }
            ("", "BatchNormalization") if graph.input(index, 0) == Some(value) => {
                let [mean, variance] =
                    [3, 4].map(|slot| along_one_axis(graph, graph.input(index, slot)?, &[]));
                let (mean, variance) = (mean?.1, variance?.1);
                let channels = *shape.get(1)?;
                let epsilon = node.attribute("epsilon").and_then(|found| found.f);
                let epsilon = f64::from(epsilon.unwrap_or(1e-5));
                let factor = variance.iter().map(|x| (x + epsilon).sqrt().recip()).collect();
                let fits = mean.len() == channels && variance.len() == channels;
                fits.then_some(Step { axis: 1, shift: mean, factor })
            }
            _ => None,
        }
    }
}

/// The step of a `Scaler`, whose elements are those of the last axis.
fn scaler(node: &NodeProto, shape: &[usize]) -> Option<Step> {
    let axis = shape.len().checked_sub(1)?;
    let of = |name: &str, otherwise: f64| {
        let found = node.attribute(name).filter(|found| !found.floats.is_empty());
        let all: Option<Vec<f64>> =
            found.map(|found| found.floats.iter().map(|x| f64::from(*x)).collect());
        let all = all.unwrap_or_else(|| vec![otherwise]);
        (all.len() == 1 || all.len() == shape[axis]).then_some(all)
    };
    Some(Step { axis, shift: of("offset", 0.0)?, factor: of("scale", 1.0)? })
}

/// The elements of a constant that has several along one axis of a shape at most, and that axis.
fn along_one_axis(
    graph: &Graph<'_>,
    constant: ValueId,
    shape: &[usize],
) -> Option<(usize, Vec<f64>)> {
    let tensor = graph.model.tensor(graph.constant(constant)?).ok()?;
    let elements = tensor.to_f32()?.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    if elements.is_empty() {
        return None;
    }
    let dims = &tensor.shape;
    let long: Vec<usize> = (0..dims.len()).filter(|axis| dims[*axis] != 1).collect();
    match long.as_slice() {
        [] => Some((0, elements)),
        // A vector of channels, not aligned with an input.
        [_] if shape.is_empty() => Some((0, elements)),
        [axis] => {
            let axis = (axis + shape.len()).checked_sub(dims.len())?;
            (shape.get(axis) == Some(&elements.len())).then_some((axis, elements))
        }
        _ => None,
    }
}
