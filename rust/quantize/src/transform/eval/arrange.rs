//! Operators that rearrange, select or repeat elements of any type.

use quantize_rs_onnx::{DataType, Tensor};

use super::elements::{tensor, values, width};
use super::views::{View, common, spread};
use super::{Call, Evaluate, axis_of};
use crate::graph::constants::ints;
use crate::util::axes::span;

pub(super) const ALL: &[(&str, Evaluate)] = &[
    ("Reshape", reshape),
    ("Flatten", flatten),
    ("Squeeze", squeeze),
    ("Unsqueeze", unsqueeze),
    ("Transpose", transpose),
    ("Slice", slice),
    ("Gather", gather),
    ("Concat", concat),
    ("Expand", expand),
    ("Tile", tile),
    ("Where", choose),
    ("ConstantOfShape", constant_of_shape),
    ("Range", range),
];

/// The same elements with another shape. The bytes are shared.
fn with_shape(source: &Tensor, shape: Vec<usize>) -> Option<Tensor> {
    let elements = shape.iter().try_fold(1usize, |all, one| all.checked_mul(*one))?;
    (elements == source.elements()).then(|| Tensor { shape, ..source.clone() })
}

fn reshape(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    let wanted = call.ints("shape", 1)?;
    let zero_copies = call.node.int("allowzero", 0) == 0;
    let mut shape = Vec::new();
    let mut open = None;
    for (axis, length) in wanted.iter().enumerate() {
        shape.push(match length {
            0 if zero_copies => *source.shape.get(axis)?,
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            length => usize::try_from(*length).ok()?,
        });
    }
    if let Some(axis) = open {
        let others = shape.iter().try_fold(1usize, |all, one| all.checked_mul(*one))?;
        shape[axis] = source.elements().checked_div(others)?;
    }
    with_shape(source, shape)
}

fn flatten(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    let rank = source.shape.len();
    let axis = call.node.int("axis", 1);
    let axis = if usize::try_from(axis) == Ok(rank) { rank } else { axis_of(axis, rank)? };
    let (rows, columns) = source.shape.split_at(axis);
    with_shape(source, vec![rows.iter().product(), columns.iter().product()])
}

fn squeeze(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    let rank = source.shape.len();
    let ones = || (0..).zip(&source.shape).filter(|(_, length)| **length == 1);
    let gone = call.ints_or("axes", 1, || ones().map(|(axis, _)| axis).collect())?;
    let gone: Vec<usize> = gone.iter().map(|axis| axis_of(*axis, rank)).collect::<Option<_>>()?;
    // Runtimes read an empty list of axes as all axes of length 1, or as none.
    let open = gone.is_empty() && ones().next().is_some();
    if open || gone.iter().any(|axis| source.shape[*axis] != 1) {
        return None;
    }
    let left = (0..rank).filter(|axis| !gone.contains(axis)).map(|axis| source.shape[axis]);
    with_shape(source, left.collect())
}

fn unsqueeze(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    let axes = call.ints("axes", 1)?;
    let rank = source.shape.len().checked_add(axes.len())?;
    let axes: Vec<usize> = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Option<_>>()?;
    let mut old = source.shape.iter().copied();
    let shape = (0..rank).map(|axis| if axes.contains(&axis) { Some(1) } else { old.next() });
    with_shape(source, shape.collect::<Option<_>>()?)
}

fn transpose(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    let rank = source.shape.len();
    let perm: Vec<usize> = match call.node.attribute("perm") {
        Some(perm) => perm.ints.iter().map(|axis| axis_of(*axis, rank)).collect::<Option<_>>()?,
        None => (0..rank).rev().collect(),
    };
    let mut seen = perm.clone();
    seen.sort_unstable();
    if seen != (0..rank).collect::<Vec<_>>() {
        return None;
    }
    let view = View::of(&source.shape)?;
    let shape = perm.iter().map(|axis| view.shape[*axis]).collect();
    let strides = perm.iter().map(|axis| view.strides[*axis]).collect();
    View { shape, strides, offset: 0 }.copy(call.limit, source)
}

fn slice(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    let rank = source.shape.len();
    let (starts, ends) = (call.ints("starts", 1)?, call.ints("ends", 2)?);
    let along = call.ints_or("axes", 3, || (0..).zip(&starts).map(|(axis, _)| axis).collect())?;
    let steps = call.ints_or("steps", 4, || vec![1; starts.len()])?;
    if [ends.len(), along.len(), steps.len()].iter().any(|count| *count != starts.len()) {
        return None;
    }
    let mut view = View::of(&source.shape)?;
    let mut offset = 0i64;
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&along).zip(&steps) {
        let axis = axis_of(*axis, rank)?;
        let length = i64::try_from(source.shape[axis]).ok()?;
        if length == 0 {
            continue;
        }
        let count = span(length, *start, *end, *step)?;
        let from_end = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
        let (first, last) = if *step > 0 { (0, length) } else { (-1, length - 1) };
        let start = from_end(*start).clamp(first.max(0), last.max(0));
        let stride = view.strides[axis];
        offset += start * i64::try_from(stride).ok()?;
        view.shape[axis] = usize::try_from(count).ok()?;
        view.strides[axis] = stride.checked_mul(isize::try_from(*step).ok()?)?;
    }
    view.offset = usize::try_from(offset).ok()?;
    view.copy(call.limit, source)
}

/// The outputs of a `Split` of `source` into `count` parts with these lengths. Without lengths,
/// parts are equal, and the last one is shorter if they cannot be.
pub(in crate::transform) fn split(
    source: &Tensor,
    axis: usize,
    count: usize,
    lengths: Option<&[i64]>,
) -> Option<Vec<Tensor>> {
    let whole = *source.shape.get(axis)?;
    let lengths: Vec<usize> = if let Some(lengths) = lengths {
        lengths.iter().map(|it| usize::try_from(*it)).collect::<Result<_, _>>().ok()?
    } else {
        let each = whole.div_ceil(count.max(1));
        let rest = whole.checked_sub(each.checked_mul(count.checked_sub(1)?)?)?;
        (1..count).map(|_| each).chain([rest]).collect()
    };
    if lengths.len() != count
        || lengths.iter().try_fold(0_usize, |sum, it| sum.checked_add(*it))? != whole
    {
        return None;
    }
    let mut view = View::of(&source.shape)?;
    let mut part = |length: usize| {
        view.shape[axis] = length;
        let tensor = view.copy(source.data.len(), source);
        view.offset += length * usize::try_from(view.strides[axis]).ok()?;
        tensor
    };
    lengths.into_iter().map(&mut part).collect()
}

fn gather(call: &Call<'_>) -> Option<Tensor> {
    let (source, indices) = (call.input(0)?, call.input(1)?);
    let axis = axis_of(call.node.int("axis", 0), source.shape.len())?;
    let (before, after) = (&source.shape[..axis], &source.shape[axis + 1..]);
    let length = source.shape[axis];
    let picked: Vec<usize> =
        ints(indices)?.iter().map(|index| axis_of(*index, length)).collect::<Option<_>>()?;
    let width = width(source.dtype)?;
    let shape = [before, &indices.shape, after].concat();
    let elements = call.fits(&shape, width)?;
    let row = after.iter().product::<usize>() * width;
    let mut data = Vec::with_capacity(elements * width);
    for outer in 0..before.iter().product::<usize>() {
        for index in &picked {
            let from = (outer * length + index) * row;
            data.extend_from_slice(source.data.get(from..from + row)?);
        }
    }
    Some(Tensor { dtype: source.dtype, shape, data: data.into() })
}

fn concat(call: &Call<'_>) -> Option<Tensor> {
    let parts: Vec<&Tensor> = call.inputs.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let first = parts.first()?;
    let axis = axis_of(call.node.attribute("axis")?.i?, first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[axis] = 0;
    for part in &parts {
        let mut same = part.shape.clone();
        shape[axis] = shape[axis].checked_add(*same.get(axis)?)?;
        same[axis] = first.shape[axis];
        if same != first.shape || part.dtype != first.dtype {
            return None;
        }
    }
    let width = width(first.dtype)?;
    let elements = call.fits(&shape, width)?;
    let mut data = Vec::with_capacity(elements * width);
    for outer in 0..shape[..axis].iter().product::<usize>() {
        for part in &parts {
            let row = part.shape[axis..].iter().product::<usize>() * width;
            data.extend_from_slice(part.data.get(outer * row..(outer + 1) * row)?);
        }
    }
    Some(Tensor { dtype: first.dtype, shape, data: data.into() })
}

fn lengths(tensor: &Tensor) -> Option<Vec<usize>> {
    ints(tensor)?.iter().map(|length| usize::try_from(*length).ok()).collect()
}

fn expand(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    let wanted = lengths(call.input(1)?)?;
    spread(call, source, &common(&[&source.shape, &wanted])?)
}

fn tile(call: &Call<'_>) -> Option<Tensor> {
    let source = call.input(0)?;
    let repeats = lengths(call.input(1)?)?;
    if repeats.len() != source.shape.len() || call.node.input.len() != 2 {
        return None;
    }
    let view = View::of(&source.shape)?;
    let pairs = |first: &[usize], second: &[usize]| -> Vec<usize> {
        first.iter().zip(second).flat_map(|(first, second)| [*first, *second]).collect()
    };
    let strides = view.strides.iter().flat_map(|stride| [0, *stride]).collect();
    let doubled = View { shape: pairs(&repeats, &source.shape), strides, offset: 0 };
    let copied = doubled.copy(call.limit, source)?;
    let shape = repeats.iter().zip(&source.shape).map(|(by, length)| by * length).collect();
    with_shape(&copied, shape)
}

/// `Where`: selects elements of the second input where the condition is true, otherwise of the
/// third.
fn choose(call: &Call<'_>) -> Option<Tensor> {
    let (condition, yes, no) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let shape = common(&[&condition.shape, &yes.shape, &no.shape])?;
    let width = width(yes.dtype).filter(|_| yes.dtype == no.dtype)?;
    call.fits(&shape, width)?;
    let condition: Vec<bool> = values(&spread(call, condition, &shape)?)?;
    let (yes, no) = (spread(call, yes, &shape)?, spread(call, no, &shape)?);
    let both = yes.data.chunks_exact(width).zip(no.data.chunks_exact(width));
    let picked = condition.iter().zip(both).map(|(yes, both)| if *yes { both.0 } else { both.1 });
    let data: Vec<u8> = picked.flatten().copied().collect();
    Some(Tensor { dtype: yes.dtype, shape, data: data.into() })
}

fn constant_of_shape(call: &Call<'_>) -> Option<Tensor> {
    let shape = lengths(call.input(0)?)?;
    let (dtype, element) = match call.node.attribute("value") {
        Some(value) => {
            let proto = value.t.as_deref()?;
            (proto.dtype()?, proto.raw_data.clone().filter(|data| !data.is_empty())?)
        }
        None => (DataType::Float, 0f32.to_le_bytes().to_vec().into()),
    };
    let width = width(dtype).filter(|width| element.len() == *width)?;
    let elements = call.fits(&shape, width)?;
    Some(Tensor { dtype, shape, data: element.repeat(elements).into() })
}

/// `Range` of integers. Runtimes accumulate floats differently.
fn range(call: &Call<'_>) -> Option<Tensor> {
    let of = |at| call.input(at).filter(|found| found.elements() == 1);
    let (start, limit, delta) = (of(0)?, of(1)?, of(2)?);
    let dtype = start.dtype;
    let number = |tensor: &Tensor| {
        let fits = tensor.dtype == dtype;
        fits.then(|| ints(tensor)?.first().copied()).flatten()
    };
    let (start, limit, delta) = (number(start)?, number(limit)?, number(delta)?);
    let way = i128::from(limit) - i128::from(start);
    let step = i128::from(delta);
    let count = match step {
        0 => return None,
        1.. => (way + step - 1).max(0) / step,
        _ => (way + step + 1).min(0) / step,
    };
    let count = usize::try_from(count).ok()?;
    call.fits(&[count], 8)?;
    let values =
        (0..i64::try_from(count).ok()?).map(|at| start.wrapping_add(at.wrapping_mul(delta)));
    if dtype == DataType::Int64 {
        return Some(tensor(vec![count], values));
    }
    let narrow: Option<Vec<i32>> = values.map(|value| i32::try_from(value).ok()).collect();
    Some(tensor(vec![count], narrow?))
}
