//! Operators that change the shape or order of elements, or join and split tensors.

use super::{ANY, Call, SAME, Shape, ShapeRule, all, as_first, one};
use crate::graph::infer::call::Given;
use crate::graph::infer::dim::Dim;
use crate::util::axes::axis_of;

pub(super) const ALL: &[ShapeRule] = &[
    one("Reshape", SAME, reshape),
    one("Transpose", SAME, transpose),
    one("Concat", ANY, concat),
    all("Split", SAME, split),
    one("Squeeze", SAME, squeeze),
    one("Unsqueeze", SAME, unsqueeze),
    one("Flatten", SAME, flatten),
    one("Expand", SAME, expand),
    one("Tile", SAME, tile),
    one("Pad", SAME, pad),
    one("CenterCropPad", SAME, center_crop_pad),
    one("DepthToSpace", SAME, depth_to_space),
    one("SpaceToDepth", SAME, space_to_depth),
];

/// The elements of an input that specifies a shape; unknown elements are `None`.
pub(super) fn wanted(call: &Call<'_, '_>, input: usize) -> Option<Vec<Option<Dim>>> {
    if let Some(elements) = call.elements(input) {
        return Some(elements.to_vec());
    }
    let length = match call.shape(input)?[..] {
        [length] => usize::try_from(length.fixed()?).ok()?,
        _ => return None,
    };
    // A longer vector would exceed the maximum rank.
    (length <= crate::graph::infer::fact::MAX_AXES).then(|| vec![None; length])
}

/// A requested dimension, if it is known to be non-negative.
fn length(call: &Call<'_, '_>, wanted: Option<Dim>) -> Dim {
    let sure = |dim: &Dim| call.state.dims.borrow().is_length(*dim);
    wanted.filter(sure).unwrap_or_else(|| call.unknown())
}

fn reshape(call: &Call<'_, '_>) -> Option<Shape> {
    let wanted = match call.ints("shape") {
        Some(ints) => ints.iter().map(|length| Some(Dim::Fixed(*length))).collect(),
        None => wanted(call, 1)?,
    };
    reshaped(call, call.shape(0), &wanted, call.int("allowzero", 0) == 0)
}

/// The output shape of a `Reshape`.
///
/// Dynamic dimensions are assumed not to be 0, which would copy the dimension of the input. If one
/// is 0, the tensor has no elements.
fn reshaped(
    call: &Call<'_, '_>,
    from: Option<&Shape>,
    wanted: &[Option<Dim>],
    zero_copies: bool,
) -> Option<Shape> {
    let mut open = None;
    let mut shape = Shape::new();
    for (axis, one) in wanted.iter().enumerate() {
        shape.push(match one {
            Some(Dim::Fixed(0)) if zero_copies => {
                from.and_then(|from| from.get(axis).copied()).unwrap_or_else(|| call.unknown())
            }
            Some(Dim::Fixed(-1)) if open.is_none() => {
                open = Some(axis);
                call.unknown()
            }
            Some(Dim::Fixed(length)) if *length < 0 => return None,
            one => length(call, *one),
        });
    }
    let Some(from) = from else { return Some(shape) };
    let unsure: Vec<usize> = (0..wanted.len()).filter(|axis| wanted[*axis].is_none()).collect();
    let all_fixed = |open: usize| {
        let others = shape.iter().enumerate().filter(|(axis, _)| *axis != open);
        others.into_iter().all(|(_, length)| length.fixed().is_some_and(|length| length > 0))
    };
    match (open, &unsure[..]) {
        (Some(open), []) => shape[open] = remaining(call, from, &shape, open),
        // The number of elements is unchanged, so the unknown dimension follows.
        (None, [open]) if all_fixed(*open) => shape[*open] = remaining(call, from, &shape, *open),
        _ => {}
    }
    Some(shape)
}

/// The dimension of one axis when all others are known.
fn remaining(call: &Call<'_, '_>, from: &[Dim], shape: &[Dim], open: usize) -> Dim {
    let mut left = from.to_vec();
    let mut others = Shape::new();
    for (_, length) in shape.iter().enumerate().filter(|(axis, _)| *axis != open) {
        match left.iter().position(|own| own == length) {
            Some(at) if *length != Dim::Fixed(0) => drop(left.remove(at)),
            _ => others.push(*length),
        }
    }
    match (call.product(&left), call.product(&others)) {
        (_, Dim::Fixed(0)) => call.unknown(),
        (left, others) => call.over(left, others),
    }
}

fn transpose(call: &Call<'_, '_>) -> Option<Shape> {
    let Some(perm) = call.ints("perm") else {
        return call.shape(0).map(|shape| shape.iter().rev().copied().collect());
    };
    match call.shape(0) {
        Some(shape) if shape.len() == perm.len() => {
            perm.iter().map(|axis| shape.get(usize::try_from(*axis).ok()?).copied()).collect()
        }
        Some(_) => None,
        None => Some(call.unknowns(perm.len())),
    }
}

fn concat(call: &Call<'_, '_>) -> Option<Shape> {
    let inputs = 0..call.inputs.len();
    let known: Vec<&Shape> = inputs.clone().filter_map(|input| call.shape(input)).collect();
    let mut shape = Shape::clone(known.first()?);
    let axis = axis_of(call.int("axis", 1), shape.len())?;
    for other in &known[1..] {
        for (at, (length, other)) in shape.iter_mut().zip(*other).enumerate() {
            if at != axis && length.fixed().is_none() {
                *length = *other;
            }
        }
    }
    let all = known.len() == call.inputs.len();
    if known.iter().any(|other| other.len() != shape.len()) {
        return None;
    }
    shape[axis] = if all {
        known.iter().fold(Dim::Fixed(0), |sum, own| call.plus(sum, own[axis]))
    } else {
        call.unknown()
    };
    Some(shape)
}

fn split(call: &Call<'_, '_>) -> Vec<Option<Shape>> {
    let parts = call.node.output.len();
    let (Some(shape), Some(axis)) = (call.shape(0), call.axis(call.int("axis", 0), 0)) else {
        return Vec::new();
    };
    let lengths = match call.given("split", 1) {
        Given::Ints(lengths) if lengths.len() == parts => {
            lengths.into_iter().map(|length| length_or_unknown(call, length)).collect()
        }
        Given::Nothing => equal_parts(call, shape[axis], parts),
        _ => call.unknowns(parts),
    };
    let part = |length| {
        let mut shape = shape.clone();
        shape[axis] = length;
        Some(shape)
    };
    lengths.into_iter().map(part).collect()
}

fn length_or_unknown(call: &Call<'_, '_>, length: i64) -> Dim {
    if length < 0 { call.unknown() } else { Dim::Fixed(length) }
}

/// Equal parts. Since opset 18, the last part may be smaller.
fn equal_parts(call: &Call<'_, '_>, length: Dim, parts: usize) -> Shape {
    let Ok(count) = i64::try_from(parts) else { return Shape::new() };
    match length {
        Dim::Fixed(length) if count > 0 => {
            let each = length / count + i64::from(length % count > 0);
            let part = |at: i64| length.saturating_sub(each.saturating_mul(at)).clamp(0, each);
            (0..count).map(|at| Dim::Fixed(part(at))).collect()
        }
        Dim::Fixed(_) => Shape::new(),
        Dim::Varies(_) if call.opset() < 18 => vec![call.over(length, Dim::Fixed(count)); parts],
        Dim::Varies(_) => call.unknowns(parts),
    }
}

fn squeeze(call: &Call<'_, '_>) -> Option<Shape> {
    let shape = call.shape(0)?;
    let Given::Ints(axes) = call.given("axes", 1) else {
        if call.has(1) {
            let count = usize::try_from(call.shape(1)?.first()?.fixed()?).ok()?;
            return Some(call.unknowns(shape.len().checked_sub(count)?));
        }
        // Removes all axes of dimension 1, so all dimensions must be constant.
        let fixed = shape.iter().all(|length| length.fixed().is_some());
        return fixed.then(|| shape.iter().copied().filter(|it| *it != Dim::Fixed(1)).collect());
    };
    let axes: Vec<usize> = axes.iter().map(|axis| call.axis(*axis, 0)).collect::<Option<_>>()?;
    // Runtimes read an empty list of axes as all axes of length 1, or as none.
    let has_ones = || shape.iter().any(|length| length.fixed().is_none_or(|it| it == 1));
    if axes.is_empty() && has_ones() {
        return None;
    }
    let left = shape.iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
    Some(left.map(|(_, length)| *length).collect())
}

fn unsqueeze(call: &Call<'_, '_>) -> Option<Shape> {
    let shape = call.shape(0)?;
    let Given::Ints(axes) = call.given("axes", 1) else {
        let count = usize::try_from(call.shape(1)?.first()?.fixed()?).ok()?;
        return (count <= crate::graph::infer::fact::MAX_AXES)
            .then(|| call.unknowns(shape.len() + count));
    };
    let rank = shape.len() + axes.len();
    let axes: Vec<usize> = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Option<_>>()?;
    let mut own = shape.iter();
    let length =
        |axis| if axes.contains(&axis) { Some(Dim::Fixed(1)) } else { own.next().copied() };
    let made: Shape = (0..rank).map(length).collect::<Option<_>>()?;
    own.next().is_none().then_some(made)
}

fn flatten(call: &Call<'_, '_>) -> Option<Shape> {
    let Some(shape) = call.shape(0) else { return Some(call.unknowns(2)) };
    let axis = call.int("axis", 1);
    let end = i64::try_from(shape.len()).ok()?;
    let axis = if axis == end { shape.len() } else { axis_of(axis, shape.len())? };
    Some(vec![call.product(&shape[..axis]), call.product(&shape[axis..])])
}

fn expand(call: &Call<'_, '_>) -> Option<Shape> {
    let wanted: Shape = wanted(call, 1)?.into_iter().map(|wanted| length(call, wanted)).collect();
    call.broadcast(call.shape(0)?, &wanted)
}

/// Before opset 6, `Tile` repeated one axis. That form is not supported.
fn tile(call: &Call<'_, '_>) -> Option<Shape> {
    let shape = call.shape(0)?;
    if call.opset() < 6 {
        return Some(call.unknowns(shape.len()));
    }
    let Some(repeats) = call.elements(1).filter(|repeats| repeats.len() == shape.len()) else {
        return Some(call.unknowns(shape.len()));
    };
    let repeated = |(own, times): (&Dim, &Option<Dim>)| match times {
        Some(_) => call.times(*own, length(call, *times)),
        None => call.unknown(),
    };
    Some(shape.iter().zip(repeats).map(repeated).collect())
}

fn pad(call: &Call<'_, '_>) -> Option<Shape> {
    let shape = call.shape(0)?;
    let named = ["pads", "paddings"].iter().find_map(|name| call.ints(name));
    let pads: Option<Vec<Option<Dim>>> = match named {
        Some(pads) => Some(pads.iter().map(|pad| Some(Dim::Fixed(*pad))).collect()),
        None => call.elements(1).map(<[Option<Dim>]>::to_vec),
    };
    let axes = match call.given("axes", 3) {
        Given::Ints(axes) => axes.iter().map(|axis| call.axis(*axis, 0)).collect(),
        Given::Nothing => Some((0..shape.len()).collect::<Vec<usize>>()),
        Given::Unknown => None,
    };
    let (Some(pads), Some(axes)) = (pads, axes) else { return Some(call.unknowns(shape.len())) };
    if pads.len() != 2 * axes.len() {
        return None;
    }
    let mut shape = shape.clone();
    for (at, axis) in axes.iter().enumerate() {
        shape[*axis] = match (pads[at], pads[at + axes.len()]) {
            (Some(before), Some(after)) => {
                let both = call.sum(before, after);
                both.map_or_else(|| call.unknown(), |both| call.plus(shape[*axis], both))
            }
            _ => call.unknown(),
        };
    }
    Some(shape)
}

fn center_crop_pad(call: &Call<'_, '_>) -> Option<Shape> {
    let mut shape = as_first(call)?;
    let axes: Vec<usize> = match call.ints("axes") {
        Some(axes) => axes.iter().map(|axis| call.axis(*axis, 0)).collect::<Option<_>>()?,
        None => (0..shape.len()).collect(),
    };
    let wanted = wanted(call, 1).filter(|wanted| wanted.len() == axes.len());
    for (at, axis) in axes.into_iter().enumerate() {
        shape[axis] = length(call, wanted.as_ref().and_then(|wanted| wanted[at]));
    }
    Some(shape)
}

fn depth_to_space(call: &Call<'_, '_>) -> Option<Shape> {
    let block = Dim::Fixed(call.int("blocksize", 0));
    let [batch, channels, height, width] = call.shape(0)?[..] else { return None };
    let fewer = call.over(channels, call.times(block, block));
    Some(vec![batch, fewer, call.times(height, block), call.times(width, block)])
}

fn space_to_depth(call: &Call<'_, '_>) -> Option<Shape> {
    let block = Dim::Fixed(call.int("blocksize", 0));
    let [batch, channels, height, width] = call.shape(0)?[..] else { return None };
    let more = call.times(channels, call.times(block, block));
    Some(vec![batch, more, call.over(height, block), call.over(width, block)])
}
