//! Constants in 16 bits: what they hold, and the masks among them whose values are too large.

use std::collections::HashSet;

use half::{bf16, f16};
use quantize_rs_onnx::{
    AttributeProto, Buffer, DataType, Edit, GraphProto, NodeProto, Raw, Tensor, TensorProto,
};
use rayon::prelude::*;

use super::operators as ops;
use super::scope::Scope;
use crate::QuantizeError;
use crate::graph::constants;
use crate::graph::elements::to_f32;
use crate::graph::masks::{is_softmax, passes_masks_on};
use crate::graph::try_with_subgraphs;
use crate::options::HalfType;

/// How many elements a thread takes at a time.
const CHUNK: usize = 1 << 16;

/// Positive constants from here on are masks; smaller ones may be factors.
const LEAST_MASK: f32 = 1e6;

/// The magnitudes of the elements of a constant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Magnitudes {
    /// The largest one that is finite.
    pub(super) largest: f32,
    /// The least one that is not 0; 0 if there is none.
    pub(super) least: f32,
}

impl Magnitudes {
    /// The magnitudes of the elements of a float32 tensor; `None` for one of another type.
    pub(super) fn of(tensor: &Tensor) -> Option<Magnitudes> {
        if tensor.dtype != DataType::Float {
            return None;
        }
        let of_chunk = |bytes: &[[u8; 4]]| {
            let sizes = bytes.iter().map(|bytes| f32::from_le_bytes(*bytes).abs());
            let sizes = sizes.filter(|size| size.is_finite() && *size > 0.0);
            sizes.fold((0.0, f32::INFINITY), |(most, least): (f32, f32), size| {
                (most.max(size), least.min(size))
            })
        };
        let chunks = tensor.data.as_chunks::<4>().0.par_chunks(CHUNK).map(of_chunk);
        let both = |a: (f32, f32), b: (f32, f32)| (a.0.max(b.0), a.1.min(b.1));
        let (largest, least) = chunks.reduce(|| (0.0, f32::INFINITY), both);
        Some(Magnitudes { largest, least: if least.is_finite() { least } else { 0.0 } })
    }
}

/// A float32 tensor in 16 bits, each element rounded to the nearest.
pub(super) fn narrowed(tensor: &Tensor, half: HalfType) -> Tensor {
    let floats = tensor.data.as_chunks::<4>().0;
    let mut data = Buffer::zeroed(2 * floats.len());
    let (halves, _) = data.as_mut().as_chunks_mut::<2>();
    halves.par_chunks_mut(CHUNK).zip(floats.par_chunks(CHUNK)).for_each(|(to, from)| {
        let floats = from.iter().map(|bytes| f32::from_le_bytes(*bytes));
        match half {
            HalfType::Float16 => {
                to.iter_mut().zip(floats).for_each(|(to, x)| *to = f16::from_f32(x).to_le_bytes());
            }
            HalfType::BFloat16 => {
                to.iter_mut().zip(floats).for_each(|(to, x)| *to = bf16::from_f32(x).to_le_bytes());
            }
        }
    });
    Tensor { dtype: half.data_type(), shape: tensor.shape.clone(), data: data.into_bytes() }
}

/// The edits that clip the constants of masks to half of the largest number of the type, and a
/// description of each: their sum with a score is then finite, too.
pub(super) fn clip_masks(
    scope: &Scope<'_>,
    half: HalfType,
) -> Result<(Vec<Edit>, Vec<String>), QuantizeError> {
    let mut clipped = Vec::new();
    let (tensors, nodes) = clipped_in(scope, half, &mut clipped)?;
    let mut edits: Vec<Edit> = tensors.into_iter().map(Edit::ReplaceInitializer).collect();
    edits.extend(nodes.into_iter().map(|(node, with)| Edit::ReplaceNode { node, with }));
    Ok((edits, clipped))
}

type Replaced = (Vec<TensorProto>, Vec<(usize, NodeProto)>);

fn clipped_in(
    scope: &Scope<'_>,
    half: HalfType,
    did: &mut Vec<String>,
) -> Result<Replaced, QuantizeError> {
    let (mut tensors, mut nodes) = (Vec::new(), Vec::new());
    for tensor in &scope.graph.initializer {
        if let Some(clipped) = clip(scope, &tensor.name, half, did) {
            let name = tensor.name.clone();
            tensors.push(TensorProto::new(name, &clipped));
        }
    }
    for (index, node) in scope.graph.node.iter().enumerate() {
        let made = node.output.first().map_or("", String::as_str);
        if node.is_onnx() && matches!(node.op_type.as_str(), "Constant" | "ConstantOfShape") {
            if let Some(clipped) = clip(scope, made, half, did) {
                nodes.push((index, holding(node, &clipped)));
            }
            continue;
        }
        if let Some(with) = try_with_subgraphs(node, |body| {
            let (tensors, nodes) = clipped_in(&scope.body(body)?, half, did)?;
            let nothing = tensors.is_empty() && nodes.is_empty();
            Ok::<_, QuantizeError>((!nothing).then(|| replaced(body, tensors, nodes)))
        })? {
            nodes.push((index, with));
        }
    }
    Ok((tensors, nodes))
}

fn replaced(
    body: &GraphProto,
    tensors: Vec<TensorProto>,
    nodes: Vec<(usize, NodeProto)>,
) -> GraphProto {
    let mut body = body.clone();
    for tensor in tensors {
        if let Some(old) = body.initializer.iter_mut().find(|old| old.name == tensor.name) {
            *old = Raw::new(tensor);
        }
    }
    for (index, with) in nodes {
        body.node[index] = Raw::new(with);
    }
    body
}

/// The clipped elements of a constant, if it is that of a mask and too large.
fn clip(scope: &Scope<'_>, name: &str, half: HalfType, did: &mut Vec<String>) -> Option<Tensor> {
    let producer = scope.producer(name).map(|node| &scope.graph.node[node]);
    let of_shape = producer.filter(|node| node.op_type == "ConstantOfShape");
    let tensor = match of_shape {
        Some(node) => scope.model.tensor(node.attribute("value")?.t.as_deref()?).ok()?,
        None => scope.constant(name)?,
    };
    if tensor.dtype != DataType::Float {
        return None;
    }
    let values = to_f32(&tensor)?;
    let largest = values
        .iter()
        .copied()
        .filter(|x| is_too_large(*x, half))
        .max_by(|a, b| a.abs().total_cmp(&b.abs()))?;
    if !leads_to_softmax(scope, name) {
        return None;
    }
    let fitting = |x: &f32| if is_too_large(*x, half) { clipped(*x, half) } else { *x };
    let values: Vec<f32> = values.iter().map(fitting).collect();
    let now = clipped(largest, half);
    did.push(format!(
        "constant `{name}`: {largest:e} is {now:e}, which masks as well and fits {}",
        half.name()
    ));
    Some(Tensor::from_f32_vec(tensor.shape, values))
}

/// Whether a number of a mask is too large for a type.
pub(super) fn is_too_large(number: f32, half: HalfType) -> bool {
    let least = if number < 0.0 { half.largest() } else { half.largest().max(LEAST_MASK) };
    number.is_finite() && number.abs() >= least
}

/// Half of the largest number of a type, with the sign of this one.
pub(super) fn clipped(number: f32, half: HalfType) -> f32 {
    (half.largest() / 2.0).copysign(number)
}

/// Whether a softmax reads a value, or what a mask is made of it.
fn leads_to_softmax(scope: &Scope<'_>, name: &str) -> bool {
    let mut seen: HashSet<&str> = HashSet::new();
    let mut pending = vec![name];
    while let Some(name) = pending.pop() {
        for (index, _) in scope.consumers(name) {
            let node = &scope.graph.node[*index];
            if is_softmax(node) {
                return true;
            }
            if passes_masks_on(node) {
                let made = node.output.iter().map(String::as_str);
                pending.extend(made.filter(|made| seen.insert(made)));
            }
        }
    }
    false
}

/// A `Constant` or `ConstantOfShape` with other elements.
pub(super) fn holding(node: &NodeProto, tensor: &Tensor) -> NodeProto {
    let value = AttributeProto::tensor("value", TensorProto::new("", tensor));
    let mut node = node.clone();
    node.attribute = vec![Raw::new(value)];
    node
}

/// The elements of a `Constant`, or the one of a `ConstantOfShape`, if they are float32.
pub(super) fn held(scope: &Scope<'_>, node: &NodeProto) -> Option<Tensor> {
    let tensor = match node.op_type.as_str() {
        "Constant" => constants::constant(scope.model, node)?,
        "ConstantOfShape" => match node.attribute("value") {
            Some(attribute) => scope.model.tensor(attribute.t.as_deref()?).ok()?,
            None => Tensor::from_f32(vec![1], &[0.0]),
        },
        _ => return None,
    };
    (tensor.dtype == DataType::Float).then_some(tensor)
}

/// The floats of a constant, or of a value that has the elements of one in another shape or type.
pub(super) fn elements(scope: &Scope<'_>, name: &str) -> Option<Tensor> {
    if let Some(tensor) = scope.constant(name) {
        let floats = || match constants::ints(&tensor) {
            #[allow(clippy::cast_precision_loss)] // for a magnitude, float32 will do
            Some(ints) => Some(ints.into_iter().map(|x| x as f32).collect()),
            None => to_f32(&tensor),
        };
        return match tensor.dtype {
            DataType::Float => Some(tensor),
            _ => floats().map(|floats| Tensor::from_f32_vec(tensor.shape.clone(), floats)),
        };
    }
    let (scope, node) = scope.producing(name)?;
    match held(scope, node) {
        None if ops::has_same_elements(node) => elements(scope, node.input.first()?),
        found => found,
    }
}
