//! Operators on images without a sliding window: resizing, regions, grids.

use super::{Call, SAME, Shape, ShapeRule, Type, one};
use crate::graph::infer::call::Given;
use crate::graph::infer::dim::Dim;

pub(super) const ALL: &[ShapeRule] = &[
    one("Resize", SAME, resize),
    one("Upsample", SAME, upsample),
    one("RoiAlign", SAME, |call| {
        let (height, width) = (call.int("output_height", 1), call.int("output_width", 1));
        regions(call, 1, &[height, width])
    }),
    one("MaxRoiPool", SAME, |call| regions(call, 1, call.ints("pooled_shape")?)),
    one("GridSample", SAME, |call| {
        let (x, grid) = (call.shape(0)?, call.shape(1)?);
        Some([x.get(..2)?, grid.get(1..grid.len().checked_sub(1)?)?].concat())
    }),
    one("AffineGrid", SAME, affine_grid),
    one("Col2Im", SAME, col2im),
    one(
        "MelWeightMatrix",
        &[Type::By(|call| match call.attribute("output_datatype") {
            Some(_) => call.dtype_named("output_datatype"),
            None => Some(quantize_rs_onnx::DataType::Float),
        })],
        |call| {
            let scalar = |input: usize| call.fixed(input).and_then(|it| it.first().copied());
            let length = |length: Option<i64>| {
                length.filter(|it| *it >= 0).map_or_else(|| call.unknown(), Dim::Fixed)
            };
            Some(vec![length(scalar(1).map(|it| it / 2 + 1)), length(scalar(0))])
        },
    ),
];

/// One image of this size per region.
fn regions(call: &Call<'_, '_>, rois: usize, size: &[i64]) -> Option<Shape> {
    let x = call.shape(0);
    let channels = x.and_then(|x| x.get(1).copied()).unwrap_or_else(|| call.unknown());
    let count = call.shape(rois).and_then(|rois| rois.first().copied());
    let mut shape = vec![count.unwrap_or_else(|| call.unknown()), channels];
    shape.extend(size.iter().copied().map(Dim::Fixed));
    Some(shape)
}

/// A resized dimension.
fn scaled(call: &Call<'_, '_>, length: Dim, scale: f32) -> Dim {
    match length {
        Dim::Fixed(length) => times_f32(length, scale).map_or_else(|| call.unknown(), Dim::Fixed),
        Dim::Varies(_) if scale == 1.0 => length,
        Dim::Varies(_) => call.unknown(),
    }
}

/// Computed as in runtimes: a float32 product, rounded down.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn times_f32(length: i64, scale: f32) -> Option<i64> {
    let product = (length as f32 * scale).floor();
    (scale > 0.0 && product < i64::MAX as f32).then_some(product as i64)
}

/// The scales of all axes: an attribute, before opset 7 two attributes for height and width, since
/// opset 9 an input.
fn upsample(call: &Call<'_, '_>) -> Option<Shape> {
    let x = call.shape(0)?;
    let scales = match (call.attribute("scales"), call.attribute("height_scale")) {
        (Some(scales), _) => Some(scales.floats.to_vec()),
        (None, Some(height)) => {
            let width = call.attribute("width_scale")?.f?;
            Some(vec![1.0, 1.0, height.f?, width])
        }
        (None, None) => call.floats(1).map(<[f32]>::to_vec),
    };
    let Some(scales) = scales.filter(|scales| scales.len() == x.len()) else {
        return Some(call.unknowns(x.len()));
    };
    Some(x.iter().zip(scales).map(|(length, scale)| scaled(call, *length, scale)).collect())
}

fn resize(call: &Call<'_, '_>) -> Option<Shape> {
    let x = call.shape(0)?;
    let unknown = || Some(call.unknowns(x.len()));
    let axes = match call.given("axes", usize::MAX) {
        Given::Ints(axes) => axes.iter().map(|axis| call.axis(*axis, 0)).collect::<Option<_>>()?,
        _ => (0..x.len()).collect::<Vec<usize>>(),
    };
    let crops = call.string("coordinate_transformation_mode") == Some("tf_crop_and_resize");
    let mut shape = x.clone();
    // Older models passed an empty vector instead of omitting the input.
    let is_given = |input: usize| {
        call.has(input) && call.shape(input).is_none_or(|shape| shape[..] != [Dim::Fixed(0)])
    };
    let scales = if call.opset() < 11 { 1 } else { 2 };
    if is_given(3) {
        let Some(sizes) = call.elements(3).filter(|sizes| sizes.len() == axes.len()) else {
            for axis in axes {
                shape[axis] = call.unknown();
            }
            return Some(shape);
        };
        return sized(call, shape, &axes, sizes);
    }
    let Some(scales) = call.floats(scales) else { return unknown() };
    if scales.len() != axes.len() || crops {
        return unknown();
    }
    for (axis, scale) in axes.into_iter().zip(scales) {
        shape[axis] = scaled(call, shape[axis], *scale);
    }
    Some(shape)
}

/// The output shape for given sizes, which the aspect ratio policy may change.
fn sized(
    call: &Call<'_, '_>,
    mut shape: Shape,
    axes: &[usize],
    sizes: &[Option<Dim>],
) -> Option<Shape> {
    let larger = match call.string("keep_aspect_ratio_policy") {
        None | Some("stretch") => {
            for (axis, size) in axes.iter().zip(sizes) {
                let size = size.filter(|size| call.state.dims.borrow().is_length(*size));
                shape[*axis] = size.unwrap_or_else(|| call.unknown());
            }
            return Some(shape);
        }
        Some("not_larger") => false,
        Some("not_smaller") => true,
        Some(_) => return None,
    };
    let ratio =
        |(axis, size): (&usize, &Option<Dim>)| ratio((*size)?.fixed()?, shape[*axis].fixed()?);
    let ratios: Option<Vec<f32>> = axes.iter().zip(sizes).map(ratio).collect();
    let pick = if larger { f32::max } else { f32::min };
    let scale = ratios.and_then(|ratios| ratios.into_iter().reduce(pick));
    for axis in axes {
        let rounded = scale.zip(shape[*axis].fixed()).and_then(|(scale, own)| rounded(own, scale));
        shape[*axis] = rounded.map_or_else(|| call.unknown(), Dim::Fixed);
    }
    Some(shape)
}

#[allow(clippy::cast_precision_loss)]
fn ratio(size: i64, length: i64) -> Option<f32> {
    (length > 0 && size >= 0).then(|| size as f32 / length as f32)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn rounded(length: i64, scale: f32) -> Option<i64> {
    let rounded = (length as f32 * scale + 0.5).floor();
    (rounded < i64::MAX as f32).then_some(rounded as i64)
}

fn affine_grid(call: &Call<'_, '_>) -> Option<Shape> {
    let size = super::shape_ops::wanted(call, 1)?;
    let axes = size.len().checked_sub(2).filter(|axes| matches!(axes, 2 | 3))?;
    let length = |one: Option<Dim>| {
        one.filter(|one| call.state.dims.borrow().is_length(*one)).unwrap_or_else(|| call.unknown())
    };
    let mut shape = vec![length(size[0])];
    shape.extend(size[2..].iter().map(|one| length(*one)));
    shape.push(Dim::Fixed(i64::try_from(axes).ok()?));
    Some(shape)
}

fn col2im(call: &Call<'_, '_>) -> Option<Shape> {
    let [batch, rows, _] = call.shape(0)?[..] else { return None };
    let image = super::shape_ops::wanted(call, 1)?;
    let block = call.elements(2).and_then(|block| block.iter().copied().collect::<Option<Shape>>());
    let channels =
        block.map_or_else(|| call.unknown(), |block| call.over(rows, call.product(&block)));
    let length = |one: Option<Dim>| {
        one.filter(|one| call.state.dims.borrow().is_length(*one)).unwrap_or_else(|| call.unknown())
    };
    let mut shape = vec![batch, channels];
    shape.extend(image.into_iter().map(length));
    Some(shape)
}
