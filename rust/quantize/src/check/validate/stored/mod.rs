//! Finds the weights of a quantized file: integers, scales and zero points, in every format.

mod decode;

use std::collections::{HashMap, HashSet};

use quantize_rs_math::{CodebookSpec, Granularity, QType};
use quantize_rs_onnx::{NodeProto, TensorProto};

use super::{Validation, experts, products};
use crate::graph::elements;
use crate::graph::granularity::granularity;
use crate::graph::uses;
use crate::graph::{Consumer, Graph, Producer, ValueId};
use crate::options::HalfType;

/// The constants that store a weight.
pub(super) struct Stored {
    /// The names that it may have in the original, the most likely first.
    pub(super) originals: Vec<String>,
    /// The constant with the integers.
    pub(super) integers: ValueId,
    /// The constant with its scales.
    pub(super) scale: Option<ValueId>,
    /// A float32 factor of all scales.
    pub(super) whole: Option<ValueId>,
    pub(super) zero_point: Option<ValueId>,
    /// The values that consumers multiply by: the dequantized value, or the integers. Some
    /// operators may read one of them, and other operators another.
    pub(super) reads: Vec<ValueId>,
    /// Whether a `MatMulInteger` reads the integers.
    pub(super) multiplied: bool,
    pub(super) form: Form,
}

/// The integers, the scale and the zero point of a weight; the same integers with another scale are
/// another weight.
pub(super) type Key = (ValueId, Option<ValueId>, Option<ValueId>);

/// The layout of the integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the shape says, with scales of this granularity.
    Plain(Granularity),
    /// As 16-bit floats, which have no scale.
    Cast,
    /// A row of blocks for each column of a matrix, or for each row of a table.
    Blocks { bits: u32, block_size: usize, depth: usize, signed: bool },
    /// Codes of a matrix, a column after another.
    Codes(CodebookSpec),
    /// A transposed matrix for each direction of a sequence.
    Directions,
    /// A row of blocks for each row of each expert.
    Experts { bits: u32, block_size: usize, depth: usize },
}

/// The quantized type of an element type.
pub(super) fn qtype_of(tensor: &TensorProto) -> Option<QType> {
    elements::qtype_of(tensor.dtype()?)
}

/// Every weight that `after` stores as integers and `before` does not.
pub(super) fn all(before: &Graph<'_>, after: &Graph<'_>, found: &mut Validation) -> Vec<Stored> {
    let mut all: Vec<Stored> = Vec::new();
    let mut seen: HashMap<Key, usize> = HashMap::new();
    for (index, node) in after.nodes.iter().enumerate() {
        let at = match node.op_type.as_str() {
            "DequantizeLinear" => dequantized(after, index, node),
            "Gather" => looked_up(after, index, node),
            "Cast" => cast(before, after, index),
            _ => None,
        };
        let inputs: Vec<_> = (0..node.input.len()).map(|input| after.input(index, input)).collect();
        let scale = products::scales_of(after, index).map(|(scale, _)| scale);
        let read = products::stored(after, scale, node, &inputs);
        let others = [products::recurrent(after, index, node), experts::stored(after, index, node)];
        for stored in at.into_iter().chain(read).chain(others.into_iter().flatten()) {
            let stored = match stored {
                Ok(stored) => stored,
                Err((name, why)) => {
                    found.skip_weight(name, why);
                    continue;
                }
            };
            let there = before.value(after.values[stored.integers].name);
            let same = there.is_some_and(|id| before.constant(id).is_some());
            if !same {
                stored.add_to(&mut all, &mut seen);
            }
        }
    }
    super::subgraphs::weights(before, after, &mut all, &mut seen, found);
    let seen: HashSet<ValueId> = all.iter().map(|stored| stored.integers).collect();
    for (id, value) in after.values.iter().enumerate().filter(|(id, _)| !seen.contains(id)) {
        let integers = after.constant(id).and_then(qtype_of).is_some_and(QType::is_scaled);
        let original = base_of(value.name, "quantized").and_then(|name| before.value(&name));
        let unseen = integers && original.is_some_and(|id| before.constant(id).is_some());
        let bias = after.constant(id).and_then(qtype_of) == Some(QType::Int32);
        if unseen && !bias && !found.not_compared.iter().any(|other| other.name == value.name) {
            found.skip_weight(value.name, "its consumer is not known to dequantize integers");
        }
    }
    all
}

/// A weight, or the name of a constant that could not be interpreted, with the reason.
pub(super) type Found = Result<Stored, (String, String)>;

/// `base` of a constant called `base_suffix` or `base_suffix_2`.
pub(super) fn base_of(name: &str, suffix: &str) -> Option<String> {
    let numbered = name.rsplit_once('_').filter(|(_, end)| end.parse::<u32>().is_ok());
    let plain = numbered.map_or(name, |(start, _)| start);
    let base = |name: &str| Some(name.strip_suffix(suffix)?.strip_suffix('_')?.to_owned());
    base(name).or_else(|| base(plain))
}

fn dequantized(after: &Graph<'_>, index: usize, node: &NodeProto) -> Option<Found> {
    let integers = after.input(index, 0)?;
    let constant = uses::rearranged_from(after, integers)?;
    let proto = after.constant(constant)?;
    // Biases are compared separately.
    if qtype_of(proto)? == QType::Int32 {
        return None;
    }
    let output = after.output(index, 0)?;
    // Scales that are dequantized from narrow floats are not weights.
    if is_scale(after, output) {
        return None;
    }
    let name = after.values[constant].name.to_owned();
    let (scale, whole) = levels(after, after.input(index, 1)?);
    let Some(scales) = after.constant(scale) else {
        return Some(Err((name, "its scale is computed when the model runs".to_owned())));
    };
    let shape = lengths(proto);
    let groups: usize = lengths(scales).iter().product();
    let form = match form_of(node, &shape, scales) {
        form if constant == integers || !matches!(form, Granularity::PerAxis { .. }) => form,
        // A constant that is reshaped after storage has its channels along another axis.
        _ => {
            let mut fitting = shape.iter().enumerate().filter(|(_, length)| **length == groups);
            let (Some((axis, _)), None) = (fitting.next(), fitting.next()) else {
                let why = "it is reshaped at run time, its channels cannot be distinguished";
                return Some(Err((name, why.to_owned())));
            };
            Granularity::PerAxis { axis }
        }
    };
    let mut originals = vec![after.values[output].name.to_owned()];
    let mut read = output;
    // The dequantized value may be cast or reshaped.
    while let [consumer] = after.values[read].consumers[..]
        && matches!(after.nodes[consumer.node].op_type.as_str(), "Cast" | "Reshape")
        && let Some(next) = after.output(consumer.node, 0)
    {
        read = next;
        originals.push(after.values[next].name.to_owned());
    }
    originals.extend(base_of(&name, "quantized"));
    let zero_point = after.input(index, 2).filter(|id| after.constant(*id).is_some());
    let form = Form::Plain(form);
    let (integers, scale, reads, multiplied) = (constant, Some(scale), vec![read], false);
    Some(Ok(Stored { originals, integers, scale, whole, zero_point, reads, multiplied, form }))
}

/// The constant with the scales and their factor, if they are dequantized from narrow floats; else
/// the scales themselves.
fn levels(after: &Graph<'_>, scale: ValueId) -> (ValueId, Option<ValueId>) {
    let come_back = || {
        let Producer::Node { node, .. } = after.values[scale].producer else { return None };
        let one = after.input(node, 1)?;
        let found = after.nodes[node].op_type == "DequantizeLinear"
            && after.nodes[node].input.len() == 2
            && after.constant(one)?.dims.is_empty();
        Some((after.input(node, 0).filter(|_| found)?, Some(one)))
    };
    come_back().unwrap_or((scale, None))
}

/// Whether a value is used as scales only.
fn is_scale(after: &Graph<'_>, value: ValueId) -> bool {
    let found = &after.values[value];
    let scale =
        |node: usize, input: usize| input == 1 && after.nodes[node].op_type == "DequantizeLinear";
    !found.consumers.is_empty()
        && found.consumers.iter().all(|consumer| scale(consumer.node, consumer.input))
}

/// A table of integers whose rows are dequantized after Gather.
fn looked_up(after: &Graph<'_>, index: usize, node: &NodeProto) -> Option<Found> {
    let integers = after.input(index, 0)?;
    let proto = after.constant(integers)?;
    qtype_of(proto).filter(|qtype| qtype.bits() <= 8)?;
    let taken = after.output(index, 0)?;
    let [consumer] = after.values[taken].consumers[..] else { return None };
    let name = after.values[integers].name;
    let originals: Vec<String> = base_of(name, "quantized").into_iter().collect();
    let (scale, zero_point) = match after.nodes[consumer.node].op_type.as_str() {
        "DequantizeLinear" => (after.input(consumer.node, 1)?, after.input(consumer.node, 2)),
        "Cast" => {
            // The scale of each row is gathered like the row.
            let float = after.output(consumer.node, 0)?;
            let [product] = after.values[float].consumers[..] else { return None };
            let other = after.input(product.node, 1 - product.input.min(1))?;
            let Producer::Node { node: gather, .. } = after.values[other].producer else {
                return None;
            };
            let same = after.nodes[gather].op_type == "Gather"
                && after.nodes[gather].input.get(1) == node.input.get(1);
            (after.input(gather, 0).filter(|_| same)?, None)
        }
        _ => return None,
    };
    let groups: usize = lengths(after.constant(scale)?).iter().product();
    let granularity =
        if groups == 1 { Granularity::PerTensor } else { Granularity::PerAxis { axis: 0 } };
    let form = Form::Plain(granularity);
    let scale = Some(scale);
    let (whole, reads, multiplied) = (None, vec![integers], false);
    Some(Ok(Stored { originals, integers, scale, whole, zero_point, reads, multiplied, form }))
}

/// A weight that is stored as 16-bit floats.
fn cast(before: &Graph<'_>, after: &Graph<'_>, index: usize) -> Option<Found> {
    let integers = after.input(index, 0)?;
    let read = after.output(index, 0)?;
    let qtype = qtype_of(after.constant(integers)?)?;
    // A model that computes in 16 bits reads `W` as `W_float16`, and widened it has a `Cast` more.
    let halves = HalfType::ALL.iter().map(|half| half.data_type().name());
    let name = after.values[read].name;
    let bases = halves.filter_map(|half| base_of(name, half));
    let (name, original) = std::iter::once(name.to_owned()).chain(bases).find_map(|name| {
        let original = before.value(&name).and_then(|id| before.constant_behind(id))?;
        Some((name, original))
    })?;
    let narrower = original.dtype() != after.constant(integers)?.dtype();
    if qtype.is_scaled() || !narrower {
        return None;
    }
    let originals = vec![name];
    let (scale, whole, zero_point, form) = (None, None, None, Form::Cast);
    let (reads, multiplied) = (vec![read], false);
    Some(Ok(Stored { originals, integers, scale, whole, zero_point, reads, multiplied, form }))
}

/// The granularity of the scales of a weight. Those along an axis that it does not have fit none.
pub(super) fn form_of(node: &NodeProto, shape: &[usize], scales: &TensorProto) -> Granularity {
    granularity(node, shape.len(), &lengths(scales))
        .unwrap_or(Granularity::PerAxis { axis: shape.len() })
}

pub(super) fn lengths(proto: &TensorProto) -> Vec<usize> {
    proto.dims.iter().filter_map(|dim| usize::try_from(*dim).ok()).collect()
}

impl Stored {
    pub(super) fn key(&self) -> Key {
        (self.integers, self.scale, self.zero_point)
    }

    /// Adds the weight to `all`, unless it is there already: then only what is read of it. `seen`
    /// holds the places of all.
    pub(super) fn add_to(self, all: &mut Vec<Stored>, seen: &mut HashMap<Key, usize>) {
        let place = *seen.entry(self.key()).or_insert(all.len());
        match all.get_mut(place) {
            None => all.push(self),
            Some(known) if known.form == self.form => {
                let new = self.reads.into_iter().filter(|id| !known.reads.contains(id));
                let new: Vec<ValueId> = new.collect();
                known.reads.extend(new);
            }
            Some(_) => {}
        }
    }

    /// The nodes that read the weight, and their inputs.
    pub(super) fn consumers<'a>(
        &'a self,
        after: &'a Graph<'_>,
    ) -> impl Iterator<Item = &'a Consumer> {
        self.reads.iter().flat_map(|read| &after.values[*read].consumers)
    }
}
