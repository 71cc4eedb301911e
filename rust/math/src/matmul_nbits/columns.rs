//! Encodes the columns of a matrix, many at a time.

use rayon::prelude::*;

use super::{BlockParamTypes, ColumnParams, MatMulNBitsSpec, ZeroPoints};
use crate::float_source::Element;
use crate::kernels::pack::pack_into;
use crate::metrics::Sums;
use crate::rounding::MAGIC;
use crate::simd::{SimdLoop, vectorized};
use crate::weight::{FloatZeroParams, fit_float_zero, fit_group};
use crate::{Params, QSpec, Range, WeightMethod, params};

/// Columns whose metrics are added before those of others.
pub(super) const TILE: usize = 128;

/// Tiles that are read at once from a row of a wide matrix: where rows are many pages apart, short
/// pieces of them would mean waiting for the memory.
const TILES_AT_ONCE: usize = 8;

/// A matrix with fewer tiles is divided into more tasks instead.
pub(super) const MANY_TILES: usize = 4 * TILES_AT_ONCE;

impl MatMulNBitsSpec {
    /// `None` when an element is not finite.
    pub(super) fn encode<X: Element>(&self, data: &[X], blobs: &mut [u8]) -> Option<ColumnParams> {
        if data.is_empty() {
            return Some(ColumnParams::none());
        }
        let (blocks, packed) = (self.blocks(), self.zero_points_len());
        let wide = !self.transposed && self.width >= MANY_TILES * TILE;
        let columns = if wide { TILES_AT_ONCE * TILE } else { TILE };
        let mut scales = vec![0.0; self.width * blocks];
        let shifts = self.has_float_zero_points();
        let mut packed_points = vec![0; if shifts { 0 } else { self.width * packed }];
        let mut float_points = vec![0.0; if shifts { self.width * blocks } else { 0 }];
        let zero_points: Vec<Points<'_>> = if shifts {
            float_points.chunks_mut(columns * blocks).map(Points::Floats).collect()
        } else {
            packed_points.chunks_mut(columns * packed).map(Points::Packed).collect()
        };
        let tasks = blobs
            .par_chunks_mut(columns * blocks * self.blob_len())
            .zip(scales.par_chunks_mut(columns * blocks))
            .zip(zero_points)
            .enumerate();
        let sums: Option<Vec<Vec<Sums>>> = tasks
            .map_init(Scratch::default, |scratch, (task, ((blobs, scales), zero_points))| {
                let (cut, first) = (self, task * columns);
                vectorized(Columns { cut, data, first, scratch, blobs, scales, zero_points })
            })
            .collect();
        let metrics = Sums::total(sums?.into_iter().flatten()).metrics(data.len());
        let zero_points = if shifts {
            ZeroPoints::Floats(float_points)
        } else {
            ZeroPoints::Packed(packed_points)
        };
        Some(ColumnParams { scales, zero_points, metrics })
    }

    /// Quantizes the columns from `first` on, one per set of scales. The sums are those of each
    /// tile.
    #[inline(always)]
    fn columns<X: Element>(
        &self,
        data: &[X],
        first: usize,
        scratch: &mut Scratch,
        blobs: &mut [u8],
        scales: &mut [f32],
        mut zero_points: Points<'_>,
    ) -> Option<Vec<Sums>> {
        let (blocks, blob) = (self.blocks(), self.blob_len());
        let width = scales.len() / blocks;
        let spec = self.spec();
        let points = &mut scratch.zero_points;
        points.clear();
        points.resize(width * blocks, 0);
        let mut totals = vec![Sums::default(); width.div_ceil(TILE)];
        for block in 0..blocks {
            let start = block * self.block_size;
            let len = self.block_size.min(self.depth - start);
            scratch.floats.resize(width * len, 0.0);
            scratch.back.resize(width * len, 0.0);
            self.gather(data, first, start, len, &mut scratch.floats);
            let rows = scratch.floats.chunks_exact(len).zip(scratch.back.chunks_exact_mut(len));
            for (column, (x, back)) in rows.enumerate() {
                let range = finite_range(x)?;
                scratch.codes.clear();
                scratch.codes.resize(self.block_size, 0);
                let (codes, at) = (&mut scratch.codes[..len], column * blocks + block);
                if let Points::Floats(points) = &mut zero_points {
                    let found = fit_float_zero(x, range, &spec);
                    round_shifted(x, found, &spec, codes, back);
                    (scales[at], points[at]) = (found.scale, found.zero_point);
                } else {
                    let mut found = self.fit(x, range, &spec);
                    if self.params == BlockParamTypes::HalfScales {
                        found = found.in_halves(&spec);
                    }
                    round(x, found, &spec, codes, back);
                    (scales[at], points[at]) = (found.scale, found.zero_point as u8);
                }
                pack_into(&scratch.codes, self.qtype.bits(), &mut blobs[at * blob..][..blob]);
            }
            let tiles = scratch.floats.chunks(TILE * len).zip(scratch.back.chunks(TILE * len));
            for (total, (x, back)) in totals.iter_mut().zip(tiles) {
                *total = Sums::total([*total, Sums::of(x, back)]);
            }
        }
        let Points::Packed(zero_points) = zero_points else { return Some(totals) };
        // Unused bits of the last byte have the midpoint of the grid, as in ONNX Runtime's tool.
        let middle = QSpec { symmetric: true, ..spec }.zero_point_midpoint() as u8;
        let packed = zero_points.chunks_exact_mut(self.zero_points_len());
        for (bytes, points) in packed.zip(points.chunks_exact(blocks)) {
            scratch.codes.clear();
            scratch.codes.extend(points);
            scratch.codes.resize(blocks.next_multiple_of(4), middle);
            pack_into(&scratch.codes, self.qtype.bits(), bytes);
        }
        Some(totals)
    }

    /// The scale and zero point of a block. An 8-bit symmetric grid also has one more step below
    /// its midpoint: when the element of the largest magnitude is positive, the scale is negative,
    /// as in ONNX Runtime's tool.
    #[inline(always)]
    pub(super) fn fit(&self, x: &[f32], range: Range, spec: &QSpec) -> Params {
        let wide = spec.symmetric && spec.qtype.bits() == 8;
        if !wide || self.method != WeightMethod::MinMax || range.max <= -range.min {
            return fit_group(x, range, spec, self.method);
        }
        let Params { scale, zero_point } = params(Range { min: -range.max, max: -range.min }, spec);
        Params { scale: -scale, zero_point }
    }

    /// Reads `len` elements from `start` on of each column from `first` on, column by column.
    #[inline(always)]
    fn gather<X: Element>(
        &self,
        data: &[X],
        first: usize,
        start: usize,
        len: usize,
        floats: &mut [f32],
    ) {
        if self.transposed {
            for (column, floats) in floats.chunks_exact_mut(len).enumerate() {
                let from = &data[(first + column) * self.depth + start..][..len];
                floats.iter_mut().zip(from).for_each(|(float, x)| *float = x.value());
            }
            return;
        }
        let width = floats.len() / len;
        for row in 0..len {
            let from = &data[(start + row) * self.width + first..][..width];
            for (column, x) in from.iter().enumerate() {
                floats[column * len + row] = x.value();
            }
        }
    }
}

/// Columns that are processed together, and their outputs.
struct Columns<'a, X> {
    cut: &'a MatMulNBitsSpec,
    data: &'a [X],
    first: usize,
    scratch: &'a mut Scratch,
    blobs: &'a mut [u8],
    scales: &'a mut [f32],
    zero_points: Points<'a>,
}

/// The output for the zero points of some columns.
enum Points<'a> {
    Packed(&'a mut [u8]),
    Floats(&'a mut [f32]),
}

impl<X: Element> SimdLoop for Columns<'_, X> {
    type Output = Option<Vec<Sums>>;

    #[inline(always)]
    fn run(self) -> Option<Vec<Sums>> {
        let Columns { cut, data, first, scratch, blobs, scales, zero_points } = self;
        cut.columns(data, first, scratch, blobs, scales, zero_points)
    }
}

/// Working memory of a thread.
#[derive(Default)]
struct Scratch {
    floats: Vec<f32>,
    back: Vec<f32>,
    codes: Vec<u8>,
    zero_points: Vec<u8>,
}

/// The smallest and the largest element; `None` when one is not finite.
#[inline(always)]
pub(super) fn finite_range(x: &[f32]) -> Option<Range> {
    const LANES: usize = 8;
    let (mut min, mut max) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    // 0 · x is NaN if x is not finite, and NaN propagates.
    let mut odd = [0.0_f32; LANES];
    let mut see = |lane: usize, x: f32| {
        min[lane] = if x < min[lane] { x } else { min[lane] };
        max[lane] = if x > max[lane] { x } else { max[lane] };
        odd[lane] += x * 0.0;
    };
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        (0..LANES).for_each(|lane| see(lane, x[lane]));
    }
    rest.iter().enumerate().for_each(|(lane, x)| see(lane, *x));
    let range = Range {
        min: min.into_iter().fold(f32::INFINITY, f32::min),
        max: max.into_iter().fold(f32::NEG_INFINITY, f32::max),
    };
    odd.iter().all(|odd| *odd == 0.0).then_some(range)
}

/// The codes of a block and their dequantized values.
#[inline(always)]
fn round(x: &[f32], found: Params, spec: &QSpec, codes: &mut [u8], back: &mut [f32]) {
    let (lo, hi) = spec.grid();
    let zero = found.zero_point as f32;
    let (lo, hi) = (lo as f32 - zero, hi as f32 - zero);
    for ((x, code), back) in x.iter().zip(codes).zip(back) {
        let steps = x / found.scale;
        let steps = if steps > lo { steps } else { lo };
        let steps = if steps < hi { steps } else { hi };
        let rounded = steps + MAGIC;
        *code = (rounded + zero).to_bits() as u8;
        *back = (rounded - MAGIC) * found.scale;
    }
}

/// [`round`] with a float zero point: `q = saturate(round_half_even(x / scale + zero_point))`.
#[inline(always)]
fn round_shifted(
    x: &[f32],
    found: FloatZeroParams,
    spec: &QSpec,
    codes: &mut [u8],
    back: &mut [f32],
) {
    let (lo, hi) = spec.grid();
    let (lo, hi) = (lo as f32, hi as f32);
    for ((x, code), back) in x.iter().zip(codes).zip(back) {
        let steps = x / found.scale + found.zero_point;
        let steps = if steps > lo { steps } else { lo };
        let steps = if steps < hi { steps } else { hi };
        let rounded = steps + MAGIC;
        *code = rounded.to_bits() as u8;
        *back = ((rounded - MAGIC) - found.zero_point) * found.scale;
    }
}
