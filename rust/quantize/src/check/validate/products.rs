//! Weights that nodes read as integers: `MatMulInteger`, `ConvInteger`, `QLinearConv` and similar
//! operators, and the blocks of `MatMulNBits` and `GatherBlockQuantized`.

use quantize_rs_math::Granularity;
use quantize_rs_onnx::{DataType, NodeProto, Tensor};

use super::stored::{Form, Found, Stored, base_of, lengths, qtype_of};
use crate::encode::codes::codes_of;
use crate::graph::qlinear::{QLinear, Slot};
use crate::graph::quantized_ops::{Blocks, WeightForm, quantized_op};
use crate::graph::{Graph, Producer, ValueId};

/// Whether a node reads integers.
pub(super) fn reads_integers(node: &NodeProto) -> bool {
    let form = quantized_op(node).and_then(|row| row.weight);
    !matches!(form, None | Some(WeightForm::Experts(_) | WeightForm::Recurrent))
}

/// The weights of a node that reads integers. `inputs` are the values of the main graph that it
/// reads; `scale` is the scale of its weight that was found after an integer multiplication.
pub(super) fn stored(
    after: &Graph<'_>,
    scale: Option<ValueId>,
    node: &NodeProto,
    inputs: &[Option<ValueId>],
) -> Vec<Found> {
    match quantized_op(node).and_then(|row| row.weight) {
        Some(WeightForm::Integers) => integers(after, scale, node, inputs).into_iter().collect(),
        Some(WeightForm::WithScales(twin)) => with_scales(after, node, twin, inputs),
        Some(WeightForm::Blocks(place)) => blocks(after, node, inputs, place).into_iter().collect(),
        Some(WeightForm::Codes) => coded(after, node, inputs).into_iter().collect(),
        // They are read by `recurrent` and by `experts::stored`.
        Some(WeightForm::Experts(_) | WeightForm::Recurrent) | None => Vec::new(),
    }
}

/// A weight as codes.
fn coded(after: &Graph<'_>, node: &NodeProto, inputs: &[Option<ValueId>]) -> Option<Found> {
    let at = |input: usize| inputs.get(input).copied().flatten();
    let integers = at(1).filter(|id| after.constant(*id).is_some())?;
    let name = after.values[integers].name;
    let Some(spec) = codes_of(node) else {
        return Some(Err((name.to_owned(), "its attributes are not known".to_owned())));
    };
    Some(Ok(Stored {
        originals: base_of(name, "quantized").into_iter().collect(),
        integers,
        scale: Some(at(2)?),
        whole: None,
        zero_point: None,
        reads: vec![integers],
        multiplied: false,
        form: Form::Codes(spec),
    }))
}

fn integers(
    after: &Graph<'_>,
    scale: Option<ValueId>,
    node: &NodeProto,
    inputs: &[Option<ValueId>],
) -> Option<Found> {
    let at = |input: usize| inputs.get(input).copied().flatten();
    let integers = at(1)?;
    let proto = after.constant(integers)?;
    qtype_of(proto)?;
    let Some(scale) = scale else {
        let why = "its scale was not found after the multiplication".to_owned();
        return Some(Err((after.values[integers].name.to_owned(), why)));
    };
    let axis = if node.op_type == "ConvInteger" { 0 } else { proto.dims.len().saturating_sub(1) };
    let multiplied = node.op_type == "MatMulInteger";
    Some(Ok(Stored { multiplied, ..held(after, integers, scale, at(3), axis) }))
}

/// The constants of an operator with scales as inputs, except its bias.
fn with_scales(
    after: &Graph<'_>,
    node: &NodeProto,
    twin: &QLinear,
    inputs: &[Option<ValueId>],
) -> Vec<Found> {
    let at = |input: usize| inputs.get(input).copied().flatten();
    let slots = (0..).map_while(|input| twin.slot(input));
    let constant = |slot: Slot| {
        let Slot::Scaled { at: place, scale, zero_point } = slot else { return None };
        let integers = at(place)?;
        let proto = after.constant(integers)?;
        qtype_of(proto)?;
        let axis = match twin.float {
            "Conv" => 0,
            "Gemm" => usize::from(node.int("transB", 0) == 0),
            _ => proto.dims.len().saturating_sub(1),
        };
        let scale = at(scale).filter(|id| after.constant(*id).is_some());
        let Some(scale) = scale else {
            let why = "its scale is computed at run time".to_owned();
            return Some(Err((after.values[integers].name.to_owned(), why)));
        };
        Some(Ok(held(after, integers, scale, at(zero_point), axis)))
    };
    slots.take_while(|slot| slot.at() < inputs.len()).filter_map(constant).collect()
}

fn held(
    after: &Graph<'_>,
    integers: ValueId,
    scale: ValueId,
    zero_point: Option<ValueId>,
    axis: usize,
) -> Stored {
    let groups: usize = after.constant(scale).map(lengths).unwrap_or_default().iter().product();
    let granularity =
        if groups == 1 { Granularity::PerTensor } else { Granularity::PerAxis { axis } };
    let originals = base_of(after.values[integers].name, "quantized").into_iter().collect();
    let zero_point = zero_point.filter(|id| after.constant(*id).is_some());
    let (scale, form) = (Some(scale), Form::Plain(granularity));
    let (whole, reads, multiplied) = (None, vec![integers], false);
    Stored { originals, integers, scale, whole, zero_point, reads, multiplied, form }
}

/// Both weights of an LSTM on integers.
pub(super) fn recurrent(after: &Graph<'_>, index: usize, node: &NodeProto) -> Vec<Found> {
    let Some(WeightForm::Recurrent) = quantized_op(node).and_then(|row| row.weight) else {
        return Vec::new();
    };
    let weight = |(input, scale): (usize, usize)| {
        let integers = after.input(index, input)?;
        after.constant(integers)?;
        let originals = base_of(after.values[integers].name, "quantized").into_iter().collect();
        let (scale, zero_point) = (after.input(index, scale), after.input(index, scale + 1));
        let (whole, reads, form) = (None, vec![integers], Form::Directions);
        let multiplied = false;
        Some(Ok(Stored { originals, integers, scale, whole, zero_point, reads, multiplied, form }))
    };
    [(1, 8), (2, 10)].into_iter().filter_map(weight).collect()
}

/// The transposed weight of an LSTM, with as many rows as there are scales.
pub(super) fn rows_of(integers: &Tensor, scales: usize) -> Option<Tensor> {
    let [directions, columns, rows] = integers.shape[..] else { return None };
    let elements = directions.checked_mul(columns)?.checked_mul(rows)?;
    let fits = integers.data.len() == elements
        && elements > 0
        && (scales == directions || scales == directions * rows);
    if !fits {
        return None;
    }
    let at = |index: usize| {
        let (direction, row, column) =
            (index / (rows * columns), index / columns % rows, index % columns);
        integers.data[(direction * columns + column) * rows + row]
    };
    let data: Vec<u8> = (0..elements).map(at).collect();
    Some(Tensor {
        dtype: integers.dtype,
        shape: vec![scales, elements / scales],
        data: data.into(),
    })
}

/// The scale of the weight of an integer multiplication, and that of its input: the result is cast,
/// and multiplied by the product of both.
pub(super) fn scales_of(after: &Graph<'_>, product: usize) -> Option<(ValueId, Option<ValueId>)> {
    let only = |id: ValueId| match after.values[id].consumers[..] {
        [consumer] => Some(consumer.node),
        _ => None,
    };
    let cast = only(after.output(product, 0)?)?;
    let mul = only(after.output(cast, 0)?)?;
    let fits = after.nodes[cast].op_type == "Cast" && after.nodes[mul].op_type == "Mul";
    let scales = (0..2).filter_map(|input| after.input(mul, input)).find_map(|id| {
        let Producer::Node { node, .. } = after.values[id].producer else { return None };
        (after.nodes[node].op_type == "Mul" && fits).then_some(node)
    })?;
    let both = [after.input(scales, 0), after.input(scales, 1)];
    let constant = |id: &Option<ValueId>| id.is_some_and(|id| after.constant(id).is_some());
    let at = both.iter().position(constant)?;
    Some((both[at]?, both[1 - at]))
}

fn blocks(
    after: &Graph<'_>,
    node: &NodeProto,
    inputs: &[Option<ValueId>],
    place: Blocks,
) -> Option<Found> {
    let at = |input: usize| inputs.get(input).copied().flatten();
    let [(first, scales)] = *place.weights else { return None };
    let read = at(first)?;
    // A table that is also multiplied by is read in another shape.
    let integers = crate::graph::uses::rearranged_from(after, read)?;
    let name = after.values[integers].name.to_owned();
    if first == 1 && at(4).is_some() {
        return Some(Err((name, "its rows are in an order of their own (g_idx)".to_owned())));
    }
    let scale = at(scales)?;
    let zero_point = at(place.zero_points).filter(|id| after.constant(*id).is_some());
    let number = |name: &str, default| usize::try_from(node.int(name, default)).ok();
    let bits = u32::try_from(number(place.bits, 4)?).ok()?;
    let block_size = number("block_size", 128)?;
    let proto = after.constant(integers)?;
    let row: usize = lengths(proto).get(1..)?.iter().product();
    let depth = match number("K", 0)? {
        0 => (row * 8).checked_div(bits as usize)?,
        depth => depth,
    };
    let signed = proto.dtype() == Some(DataType::Int4);
    // The last one is that of onnxruntime's quantizer.
    let suffixes = ["quantized".to_owned(), "rows".to_owned(), format!("Q{bits}")];
    let originals = suffixes.iter().find_map(|suffix| base_of(&name, suffix)).into_iter().collect();
    let form = Form::Blocks { bits, block_size, depth, signed };
    Some(Ok(Stored {
        originals,
        integers,
        scale: Some(scale),
        whole: None,
        zero_point,
        reads: vec![read],
        multiplied: false,
        form,
    }))
}
