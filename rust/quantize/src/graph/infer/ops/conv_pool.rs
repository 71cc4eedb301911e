//! Operators that slide a window over an image: convolutions and pooling.

use quantize_rs_onnx::DataType;

use super::{Call, SAME, Shape, ShapeRule, Type, all, one};
use crate::graph::infer::dim::Dim;

pub(super) const ALL: &[ShapeRule] = &[
    one("Conv", SAME, |call| conv(call, 1)),
    one("ConvInteger", &[Type::Is(DataType::Int32)], |call| conv(call, 1)),
    one("DeformConv", SAME, |call| conv(call, 1)),
    one("QLinearConv", &[Type::Input(7)], |call| conv(call, 3)),
    one("ConvTranspose", SAME, conv_transpose),
    one("AveragePool", SAME, pool),
    one("LpPool", SAME, pool),
    all("MaxPool", &[Type::Input(0), Type::Is(DataType::Int64)], |call| vec![pool(call); 2]),
    one("GlobalAveragePool", SAME, global),
    one("GlobalLpPool", SAME, global),
    one("GlobalMaxPool", SAME, global),
    one("MaxUnpool", SAME, unpool),
];

/// A sliding window along one axis.
struct Window {
    /// The step between window positions.
    stride: i64,
    /// The extent of the window, including dilation.
    covers: Option<i64>,
    before: i64,
    after: i64,
}

/// The windows along all axes. `taps` holds the kernel sizes, where they are known.
fn windows(call: &Call<'_, '_>, axes: usize, taps: &[Option<i64>]) -> Option<Vec<Window>> {
    let of = |name: &str, axis: usize, default: i64| match call.ints(name) {
        Some(all) if !all.is_empty() => all.get(axis).copied(),
        _ => Some(default),
    };
    let valid = call.string("auto_pad") == Some("VALID");
    let window = |axis: usize| {
        let dilation = of("dilations", axis, 1)?;
        let taps = taps.get(axis).copied().flatten();
        let covers = match taps {
            Some(taps) => Some(taps.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?),
            None => None,
        };
        let pad = |axis| if valid { Some(0) } else { of("pads", axis, 0) };
        let (before, after) = (pad(axis)?, pad(axis + axes)?);
        let stride = of("strides", axis, 1).filter(|stride| *stride > 0)?;
        Some(Window { stride, covers, before, after })
    };
    (0..axes).map(window).collect()
}

fn is_same(call: &Call<'_, '_>) -> bool {
    matches!(call.string("auto_pad"), Some("SAME_UPPER" | "SAME_LOWER"))
}

impl Window {
    /// The number of window positions.
    fn places(&self, call: &Call<'_, '_>, length: Dim, same: bool, ceil: bool) -> Option<Dim> {
        let up = self.stride - 1;
        if same {
            return Some(call.floor_over(call.plus(length, Dim::Fixed(up)), self.stride));
        }
        let free = self.before.checked_add(self.after)?.checked_sub(self.covers?)?;
        let free = free.checked_add(if ceil { up } else { 0 })?;
        let Dim::Fixed(length) = length else {
            // Whether the last position starts beyond the image depends on the dimension.
            let sure = !ceil || self.after.checked_add(self.stride)? <= self.covers?;
            let free = call.sum(length, Dim::Fixed(free)).filter(|_| sure)?;
            return call.sum(call.floor(free, self.stride)?, Dim::Fixed(1));
        };
        let free = length.checked_add(free).filter(|free| *free >= 0)?;
        let places = free / self.stride + 1;
        let behind =
            ceil && (places - 1).checked_mul(self.stride)? >= length.checked_add(self.before)?;
        Some(Dim::Fixed(places - i64::from(behind)))
    }
}

fn conv(call: &Call<'_, '_>, weight: usize) -> Option<Shape> {
    let filters = call.shape(weight);
    let rank = call.rank(0).or(filters.map(Vec::len)).filter(|rank| *rank > 2)?;
    let x = call.shape(0).cloned().unwrap_or_else(|| call.unknowns(rank));
    let taps = taps(call, filters.filter(|filters| filters.len() == rank), rank - 2);
    let channels = filters.and_then(|filters| filters.first().copied());
    let mut shape = vec![x[0], channels.unwrap_or_else(|| call.unknown())];
    shape.extend(moved(call, &x[2..], &taps));
    Some(shape)
}

/// The kernel sizes: from the attribute, otherwise from the shape of the weight.
fn taps(call: &Call<'_, '_>, filters: Option<&Shape>, axes: usize) -> Vec<Option<i64>> {
    match (call.ints("kernel_shape"), filters) {
        (Some(taps), _) if taps.len() == axes => taps.iter().copied().map(Some).collect(),
        (_, Some(filters)) => filters[2..].iter().map(|length| length.fixed()).collect(),
        _ => vec![None; axes],
    }
}

/// The number of window positions along each axis.
fn moved(call: &Call<'_, '_>, lengths: &[Dim], taps: &[Option<i64>]) -> Shape {
    let Some(windows) = windows(call, lengths.len(), taps) else {
        return call.unknowns(lengths.len());
    };
    let (same, ceil) = (is_same(call), call.int("ceil_mode", 0) != 0);
    let places = windows.iter().zip(lengths);
    let places = places.map(|(window, length)| window.places(call, *length, same, ceil));
    places.map(|places| places.unwrap_or_else(|| call.unknown())).collect()
}

fn pool(call: &Call<'_, '_>) -> Option<Shape> {
    pooled(call, call.shape(0)?)
}

/// The output shape of pooling, which slides a window over each channel.
pub(super) fn pooled(call: &Call<'_, '_>, x: &[Dim]) -> Option<Shape> {
    let axes = x.len().checked_sub(2).filter(|axes| *axes > 0)?;
    let taps = taps(call, None, axes);
    Some([&x[..2], &moved(call, &x[2..], &taps)].concat())
}

fn global(call: &Call<'_, '_>) -> Option<Shape> {
    let x = call.shape(0).filter(|x| x.len() > 2)?;
    Some([&x[..2], &vec![Dim::Fixed(1); x.len() - 2]].concat())
}

fn conv_transpose(call: &Call<'_, '_>) -> Option<Shape> {
    let filters = call.shape(1);
    let rank = call.rank(0).or(filters.map(Vec::len)).filter(|rank| *rank > 2)?;
    let x = call.shape(0).cloned().unwrap_or_else(|| call.unknowns(rank));
    let filters = filters.filter(|filters| filters.len() == rank);
    let channels = filters.map(|filters| call.times(filters[1], Dim::Fixed(call.int("group", 1))));
    let mut shape = vec![x[0], channels.unwrap_or_else(|| call.unknown())];
    if let Some(given) = call.ints("output_shape").filter(|given| !given.is_empty()) {
        // The attribute may cover all axes or only the spatial ones.
        let given = given.get(given.len().checked_sub(rank - 2)?..)?;
        shape.extend(given.iter().copied().map(Dim::Fixed));
        return Some(shape);
    }
    let windows = windows(call, rank - 2, &taps(call, filters, rank - 2))?;
    for (axis, (window, length)) in windows.iter().zip(&x[2..]).enumerate() {
        let more = call.ints("output_padding").and_then(|all| all.get(axis)).copied().unwrap_or(0);
        let grown = || {
            let grown = call.times(*length, Dim::Fixed(window.stride));
            let fixed = window.covers?.checked_add(more)?.checked_sub(window.stride)?;
            let fixed = fixed.checked_sub(window.before)?.checked_sub(window.after)?;
            Some(call.plus(grown, Dim::Fixed(fixed)))
        };
        let length = if is_same(call) {
            Some(call.times(*length, Dim::Fixed(window.stride)))
        } else {
            grown()
        };
        shape.push(length.unwrap_or_else(|| call.unknown()));
    }
    Some(shape)
}

/// The shape before pooling, unless an input specifies the output shape.
fn unpool(call: &Call<'_, '_>) -> Option<Shape> {
    let x = call.shape(0)?;
    let axes = x.len().checked_sub(2)?;
    if call.has(2) {
        let given = call.fixed(2).filter(|given| given.len() == x.len());
        let length = |length: i64| if length < 0 { call.unknown() } else { Dim::Fixed(length) };
        return Some(match given {
            Some(given) => given.into_iter().map(length).collect(),
            None => call.unknowns(x.len()),
        });
    }
    let windows = windows(call, axes, &taps(call, None, axes))?;
    let mut shape = x[..2].to_vec();
    for (window, length) in windows.iter().zip(&x[2..]) {
        let grown = call.times(*length, Dim::Fixed(window.stride));
        let fixed = window.covers?.checked_sub(window.stride)?;
        let fixed = fixed.checked_sub(window.before)?.checked_sub(window.after)?;
        shape.push(call.plus(grown, Dim::Fixed(fixed)));
    }
    Some(shape)
}
