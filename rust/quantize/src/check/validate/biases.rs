//! Compares biases: they equal those of the original, except for bias correction, which may not
//! exceed the error that quantized weights can cause.

// Bounds, whose digits matter little.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use std::collections::HashMap;

use quantize_rs_math::{Params, QSpec};
use quantize_rs_onnx::{NodeProto, TensorProto};

use super::stored::{base_of, qtype_of};
use super::weights::WeightComparison;
use super::wiring::{Counterparts, before_quantization, bias_input};
use super::{Check, Validation};
use crate::encode::dequantize::points;
use crate::graph::elements::to_f32;
use crate::graph::qlinear::{Slot, qlinear_of};
use crate::graph::{Consumer, Graph, Producer, ValueId};
use crate::options::HalfType;
use crate::transform::half_precision::is_clipped;
use crate::{Granularity, QuantizeError, encode};

/// The tolerance of the product of two scales, in float32.
const SLACK: f64 = 1e-6;

pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    compared: &WeightComparison,
    counterparts: &Counterparts,
    half: Option<HalfType>,
    found: &mut Validation,
) -> Result<(), QuantizeError> {
    let work = Work { before, after, shifts: &compared.shifts, biases: biases(before)?, half };
    let mut nodes: Vec<(usize, usize)> =
        counterparts.iter().map(|(here, there)| (*here, *there)).collect();
    nodes.sort_unstable();
    for (here, there) in nodes {
        for input in inputs(after.nodes[here]) {
            work.bias(here, there, input, found)?;
        }
    }
    Ok(())
}

/// For each node that multiplies: the elements of its int32 bias that leave no room for a scale
/// half as large. Either int32 would not hold them, including the value that they are added to, or
/// the scale would not be a normal number.
pub(super) fn full(
    after: &Graph<'_>,
    found: &mut Validation,
) -> Result<HashMap<usize, Vec<bool>>, QuantizeError> {
    let mut full = HashMap::new();
    for (node, proto) in after.nodes.iter().enumerate() {
        for input in inputs(proto) {
            let (bias, product) = (decode(after, node, input, found)?, product(after, node, input));
            let Some((mut bias, product)) = bias.zip(product) else { continue };
            // ONNX Runtime quantizes float biases beside integers itself.
            if bias.scales.is_empty() {
                bias.scales = scales_of_product(after, product).unwrap_or_default();
            }
            let largest = encode::bias::LARGEST / 2.0;
            let is_full = |(index, float): (usize, &f32)| {
                bias.scale_of(index).is_some_and(|scale| {
                    (f64::from(*float) / scale).abs() >= largest
                        || scale.abs() <= 2.0 * f64::from(f32::MIN_POSITIVE)
                })
            };
            full.insert(product, bias.floats.iter().enumerate().map(is_full).collect());
        }
    }
    Ok(full)
}

/// The biases of the original, with their names.
fn biases<'m>(before: &Graph<'m>) -> Result<Vec<(&'m str, Vec<f32>)>, QuantizeError> {
    let mut all = Vec::new();
    for (id, value) in before.values.iter().enumerate() {
        let bias = |consumer: &Consumer| bias_input(before.nodes[consumer.node], consumer.input);
        let vector = before.constant(id).filter(|tensor| tensor.dims.len() <= 1);
        if let Some(tensor) = vector.filter(|_| value.consumers.iter().any(bias)) {
            let floats = to_f32(&before.model.tensor(tensor)?);
            all.extend(floats.map(|floats| (value.name, floats)));
        }
    }
    Ok(all)
}

/// The input of a node with its bias.
fn inputs(node: &NodeProto) -> Vec<usize> {
    match qlinear_of(node) {
        Some(twin) => twin.bias().into_iter().collect(),
        None if node.is_onnx() => {
            (0..node.input.len()).filter(|input| bias_input(node, *input)).collect()
        }
        None => Vec::new(),
    }
}

struct Work<'a, 'm> {
    before: &'a Graph<'m>,
    after: &'a Graph<'m>,
    /// The total error of the weights of each node, for each output channel.
    shifts: &'a HashMap<usize, Vec<f64>>,
    /// The biases of the original.
    biases: Vec<(&'m str, Vec<f32>)>,
    /// The type that the quantized model computes in, where the original computes in float32.
    half: Option<HalfType>,
}

/// A bias of the quantized model, dequantized.
struct Bias {
    /// The constant with its elements.
    name: String,
    floats: Vec<f32>,
    /// Its scales; none if it is float.
    scales: Vec<f32>,
    /// The constant with the scales, if there is one.
    scale: Option<String>,
}

impl Bias {
    fn scale_of(&self, index: usize) -> Option<f64> {
        at(&self.scales, index)
    }
}

/// How an element of a bias compares with the original.
enum Element {
    Same,
    Corrected,
    /// It differs by more than bias correction changes; the reason.
    Wrong(String),
}

/// An element; a single element stands for all.
fn at(values: &[f32], index: usize) -> Option<f64> {
    match values {
        [one] => Some(f64::from(*one)),
        values => values.get(index).map(|x| f64::from(*x)),
    }
}

impl Work<'_, '_> {
    fn bias(
        &self,
        here: usize,
        there: usize,
        input: usize,
        found: &mut Validation,
    ) -> Result<(), QuantizeError> {
        let Some(bias) = decode(self.after, here, input, found)? else {
            // The original may compute its scale at run time too.
            let known = unknown(self.before, there, input).is_none();
            let unknown = unknown(self.after, here, input).filter(|_| known);
            if let Some((name, why)) = unknown {
                found.problem(Check::Scale, name, why);
            }
            return Ok(());
        };
        let Some(original) = self.original_bias(here, there, input, bias.floats.len())? else {
            return Ok(());
        };
        let product = product(self.after, here, input);
        if let (Some(product), Some(scale)) = (product, &bias.scale) {
            self.scales(product, &bias, scale, found);
        }
        let bound = product.and_then(|product| self.bound(product));
        // If the input stays float, its range is unknown.
        let unbounded = bound.is_none() && self.is_new(&bias.name, self.before.nodes[there]);
        let bound = bound.or_else(|| unbounded.then(|| vec![f64::INFINITY]));
        let mut corrected = false;
        for index in 0..bias.floats.len().max(original.len()) {
            let (Some(is), Some(was)) = (at(&bias.floats, index), at(&original, index)) else {
                let (is, was) = (bias.floats.len(), original.len());
                let what = format!("{is} elements, the bias of the original has {was}");
                found.problem(Check::Weights, bias.name, what);
                return Ok(());
            };
            let rounding = bias.scale_of(index).unwrap_or(0.0).abs() / 2.0;
            let most = bound.as_ref().and_then(|bound| match bound[..] {
                [one] => Some(one),
                _ => bound.get(index).copied(),
            });
            match self.element(is, was, rounding, most) {
                Element::Same => {}
                Element::Corrected => corrected = true,
                Element::Wrong(why) => {
                    let what = format!("element {index} is {is}, the original {was}, and {why}");
                    found.problem(Check::Weights, bias.name, what);
                    return Ok(());
                }
            }
        }
        if corrected {
            self.report_corrected(&bias, &original, unbounded, found);
        }
        Ok(())
    }

    /// The bias of a node of the original, times its factor; `None` if it is no constant of floats.
    /// A node without a bias has this many zeros.
    fn original_bias(
        &self,
        here: usize,
        there: usize,
        input: usize,
        count: usize,
    ) -> Result<Option<Vec<f32>>, QuantizeError> {
        let twin = qlinear_of(self.after.nodes[here]);
        let Some(id) = self.before.input(there, twin.map_or(input, |_| 2)) else {
            return Ok(Some(vec![0.0; count]));
        };
        let Some(proto) = self.before.constant_behind(id) else { return Ok(None) };
        let floats = to_f32(&self.before.model.tensor(proto)?);
        // Operators with scales as inputs have no factor for the bias.
        let factor = twin.map_or(1.0, |_| self.before.nodes[there].float("beta", 1.0));
        Ok(floats.map(|floats| floats.into_iter().map(|x| x * factor).collect()))
    }

    /// Compares an element with the original. `rounding` is half a step, and `most` is the largest
    /// change that bias correction makes.
    fn element(&self, is: f64, was: f64, rounding: f64, most: Option<f64>) -> Element {
        let distance = (is - was).abs();
        let exact = rounding * (1.0 + 1e-3) + was.abs() * SLACK;
        // A bias that is not quantized has the type that the model computes in.
        let to = self.half.filter(|_| rounding == 0.0);
        let rounded = to.is_some_and(|half| {
            let (was, is) = (was as f32, is as f32);
            is == half.rounded(was) || is_clipped(was, is, half)
        });
        // The difference of two infinities is NaN.
        if distance <= exact || is.to_bits() == was.to_bits() || rounded {
            return Element::Same;
        }
        let Some(most) = most else {
            return Element::Wrong(format!("half a step is {rounding:.3e}"));
        };
        if !is.is_finite() || distance > exact + most * 1.01 {
            let why = format!("the error of its weights causes at most {most:.3e}");
            return Element::Wrong(why);
        }
        Element::Corrected
    }

    /// Reports a corrected bias: as a problem if it is that of another node.
    fn report_corrected(
        &self,
        bias: &Bias,
        original: &[f32],
        unbounded: bool,
        found: &mut Validation,
    ) {
        if let Some(other) = self.other(&bias.floats, original) {
            let what = format!("it is much closer to {other} than to the bias of the original");
            found.problem(Check::Weights, &bias.name, what);
            return;
        }
        let why = if unbounded {
            "bias correction changed it: the maximum change is unknown, since the input of its \
             node stays float"
        } else {
            "bias correction changed it: the comparison only shows that it was corrected by at \
             most the error of the weights"
        };
        found.skip(&bias.name, why);
    }

    /// Whether a constant has the name of a corrected bias of this node that the original does not
    /// have.
    fn is_new(&self, name: &str, was: &NodeProto) -> bool {
        let base = base_of(name, "corrected").filter(|_| self.before.value(name).is_none());
        base.is_some_and(|base| was.input.contains(&base))
    }

    /// Another bias of the original, or 0, that is much closer than the right one. A correction
    /// would not match it so closely.
    fn other(&self, is: &[f32], was: &[f32]) -> Option<String> {
        const MANY: usize = 4;
        const NEARER: f64 = 16.0;
        let apart = |floats: &[f32]| -> f64 {
            let apart = |index: usize| Some(at(is, index)? - at(floats, index)?);
            (0..is.len()).filter_map(apart).map(|apart| apart * apart).sum()
        };
        let far = apart(was);
        let nearer = |floats: &[f32]| apart(floats) * NEARER < far;
        if is.len() < MANY || was.iter().all(|x| *x == 0.0) {
            return None;
        }
        let mut biases = self.biases.iter().filter(|(_, floats)| floats.len() == is.len());
        let name = biases.find(|(_, floats)| nearer(floats)).map(|(name, _)| format!("`{name}`"));
        name.or_else(|| nearer(&[0.0]).then(|| "nothing".to_owned()))
    }

    /// The maximum correction: the error of the weights times the largest input.
    fn bound(&self, product: usize) -> Option<Vec<f64>> {
        let (_, largest) = comes_back(self.after, product, 0)?;
        let shifts = self.shifts.get(&product)?;
        Some(shifts.iter().map(|shift| shift * largest).collect())
    }

    /// Checks that the scale of a bias is the product of the scales of the input and the weight.
    fn scales(&self, product: usize, bias: &Bias, name: &str, found: &mut Validation) {
        let (Some((input, _)), Some((weight, _))) =
            (comes_back(self.after, product, 0), comes_back(self.after, product, 1))
        else {
            return;
        };
        let ([input], true) = (&input[..], weight.len() == bias.scales.len()) else { return };
        for (at, (scale, weight)) in bias.scales.iter().zip(&weight).enumerate() {
            let expected = f64::from(*input) * f64::from(*weight);
            // Float32 keeps few digits of subnormal numbers.
            let slack = expected.abs() * SLACK + f64::from(f32::MIN_POSITIVE);
            if (f64::from(*scale) - expected).abs() > slack {
                let what = format!(
                    "scale {at} is {scale}, expected {expected:e}: the scale of the input, \
                     {input}, times that of the weight, {weight}"
                );
                found.problem(Check::Scale, name, what);
                return;
            }
        }
    }
}

/// The constant that a node adds, dequantized if it is stored as integers.
fn decode(
    after: &Graph<'_>,
    node: usize,
    input: usize,
    found: &mut Validation,
) -> Result<Option<Bias>, QuantizeError> {
    let Some(id) = after.input(node, input) else { return Ok(None) };
    if qlinear_of(after.nodes[node]).is_some() {
        return Ok(integer_bias(after, node, id));
    }
    let float = |proto: &TensorProto| -> Result<_, QuantizeError> {
        Ok(to_f32(&after.model.tensor(proto)?))
    };
    if let Some(proto) = after.constant_behind(id) {
        let name = after.values[id].name.to_owned();
        let floats = float(proto)?;
        return Ok(floats.map(|floats| Bias { name, floats, scales: vec![], scale: None }));
    }
    let Producer::Node { node, .. } = after.values[id].producer else { return Ok(None) };
    let integers = after.input(node, 0);
    let proto = integers.and_then(|id| after.constant(id));
    let (Some(integers), Some(proto)) = (integers, proto) else { return Ok(None) };
    if after.nodes[node].op_type != "DequantizeLinear" {
        return Ok(None);
    }
    let scale = after.input(node, 1).filter(|id| after.constant_behind(*id).is_some());
    let (Some(scale), Some(qtype)) = (scale, qtype_of(proto)) else { return Ok(None) };
    let name = after.values[integers].name.to_owned();
    let tensor = after.model.tensor(proto)?;
    let scales = after.constant_behind(scale).map(float).transpose()?.flatten().unwrap_or_default();
    let zero_points = match after.input(node, 2).map(|id| after.constant_behind(id)) {
        Some(Some(proto)) => points(&after.model.tensor(proto)?, scales.len()),
        Some(None) => None,
        None => Some(vec![0; scales.len()]),
    };
    let codes = points(&tensor, tensor.elements());
    let (Some(codes), Some(zero_points)) = (codes, zero_points) else { return Ok(None) };
    let scale = after.values[scale].name.to_owned();
    if scales.len() != 1 && scales.len() != codes.len() {
        let what = format!("{} scales for {} integers in `{name}`", scales.len(), codes.len());
        found.problem(Check::Scale, scale, what);
        return Ok(None);
    }
    let one = |at: usize| if scales.len() == 1 { 0 } else { at };
    let back = |(at, code): (usize, &i32)| {
        let steps = f64::from(*code) - f64::from(zero_points[one(at)]);
        (steps * f64::from(scales[one(at)])) as f32
    };
    let floats = codes.iter().enumerate().map(back).collect();
    // The scale of an int32 bias must be the product of two other scales.
    let scale = (qtype.bits() == 32).then_some(scale);
    Ok(Some(Bias { name, floats, scales, scale }))
}

/// The constant integers that a node adds if they cannot be dequantized, and the reason.
fn unknown<'m>(graph: &Graph<'m>, node: usize, input: usize) -> Option<(&'m str, &'static str)> {
    let Producer::Node { node, .. } = graph.values[graph.input(node, input)?].producer else {
        return None;
    };
    let integers = graph.input(node, 0)?;
    let proto = graph.constant(integers)?;
    if graph.nodes[node].op_type != "DequantizeLinear" {
        return None;
    }
    let computed = |input: usize| {
        graph.input(node, input).is_some_and(|id| graph.constant_behind(id).is_none())
    };
    let why = if computed(1) {
        "its scale is not constant, and that of a bias has to be"
    } else if computed(2) {
        "its zero point is not constant, and that of a bias has to be"
    } else if qtype_of(proto).is_none() {
        "no bias is stored as integers of its type"
    } else {
        return None;
    };
    Some((graph.values[integers].name, why))
}

/// The node whose output a bias is added to.
fn product(after: &Graph<'_>, node: usize, input: usize) -> Option<usize> {
    if !matches!(&*after.nodes[node].op_type, "Add" | "Sub") {
        return Some(node);
    }
    let other = before_quantization(after, after.input(node, 1 - input.min(1))?);
    match after.values[other].producer {
        Producer::Node { node, .. } => Some(node),
        _ => None,
    }
}

/// The scale of a product of integers, for each channel.
fn scales_of_product(after: &Graph<'_>, product: usize) -> Option<Vec<f32>> {
    let ((input, _), (weight, _)) =
        (comes_back(after, product, 0)?, comes_back(after, product, 1)?);
    let [input] = input[..] else { return None };
    Some(weight.into_iter().map(|weight| input * weight).collect())
}

/// The scales of a dequantized input, and the largest magnitude that it can have.
fn comes_back(after: &Graph<'_>, node: usize, input: usize) -> Option<(Vec<f32>, f64)> {
    let (node, scale, zero_point) = match qlinear_of(after.nodes[node]) {
        Some(twin) => match twin.slot(input)? {
            Slot::Scaled { scale, zero_point, .. } => (node, scale, zero_point),
            Slot::Bias(_) | Slot::Plain(_) => return None,
        },
        None => (dequantizes(after, after.input(node, input)?)?, 1, 2),
    };
    let constant = |input: usize| {
        let proto = after.constant(after.input(node, input)?)?;
        Some((proto, after.model.tensor(proto).ok()?))
    };
    let scales = to_f32(&constant(scale)?.1)?;
    let Some((proto, zero)) = constant(zero_point) else { return Some((scales, f64::INFINITY)) };
    let zero_point = *points(&zero, scales.len())?.first()?;
    let spec = QSpec::new(qtype_of(proto)?, false, Granularity::PerTensor);
    let params = Params { scale: *scales.first()?, zero_point };
    Some((scales, f64::from(params.representable(&spec).absmax())))
}

/// The node that dequantizes a value.
fn dequantizes(after: &Graph<'_>, mut id: ValueId) -> Option<usize> {
    loop {
        let Producer::Node { node, .. } = after.values[id].producer else { return None };
        match after.nodes[node].op_type.as_str() {
            "DequantizeLinear" => return Some(node),
            "Reshape" | "Cast" => id = after.input(node, 0)?,
            _ => return None,
        }
    }
}

/// An int32 bias of a node that has scales as inputs.
fn integer_bias(after: &Graph<'_>, node: usize, id: ValueId) -> Option<Bias> {
    let tensor = after.model.tensor(after.constant(id)?).ok()?;
    let codes = points(&tensor, tensor.elements())?;
    let (input, _) = comes_back(after, node, 0)?;
    let (weight, _) = comes_back(after, node, 1)?;
    let factor = input.first()? * after.nodes[node].float("alpha", 1.0);
    let scales: Vec<f32> = weight.into_iter().map(|scale| scale * factor).collect();
    let back = |(index, code): (usize, &i32)| Some((f64::from(*code) * at(&scales, index)?) as f32);
    let floats = codes.iter().enumerate().map(back).collect::<Option<_>>()?;
    Some(Bias { name: after.values[id].name.to_owned(), floats, scales, scale: None })
}
