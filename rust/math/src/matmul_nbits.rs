//! Block-wise quantized matrices in the layout of `MatMulNBits`: one row per output column, divided
//! into blocks. Each block is padded to whole bytes and has a scale and a zero point.

use rayon::prelude::*;

use crate::float_source::Element;
use crate::group_ranges::first_non_finite;
use crate::kernels::pack::pack_into;
use crate::metrics::Sums;
use crate::rounding::MAGIC;
use crate::simd::{SimdLoop, vectorized};
use crate::weight::{FloatZeroParams, fit_float_zero, fit_group};
use crate::{
    FloatSource, Granularity, MathError, Metrics, Params, QSpec, QType, Range, WeightMethod, params,
};

/// How a `depth` × `width` weight matrix (the right operand of a `MatMul`) is quantized: in blocks
/// of `block_size` elements along the axis of length `depth`. The last block may be shorter.
///
/// ```
/// use quantize_rs_math::{BlockParamTypes, MatMulNBitsSpec, QType, WeightMethod};
/// let spec = MatMulNBitsSpec {
///     depth: 40,
///     width: 3,
///     transposed: false,
///     block_size: 32,
///     qtype: QType::UInt4,
///     used_bits: 0,
///     symmetric: true,
///     method: WeightMethod::Mse,
///     params: BlockParamTypes::Plain,
/// };
/// assert_eq!((spec.blocks(), spec.blob_len()), (2, 16));
/// let (blobs, columns) = spec.quantize(&vec![0.5; 120])?;
/// assert_eq!((blobs.len(), columns.scales.len()), (3 * 2 * 16, 3 * 2));
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatMulNBitsSpec {
    /// Length of the reduction axis (K).
    pub depth: usize,
    /// Number of output columns (N).
    pub width: usize,
    /// Whether the data is `width` × `depth`.
    pub transposed: bool,
    /// Elements per block, a multiple of 8.
    pub block_size: usize,
    /// An unsigned type of 2, 4 or 8 bits.
    pub qtype: QType,
    /// How many of its bits are used; 0 stands for all.
    pub used_bits: u32,
    /// Whether all zero points are the midpoint of the grid; scales of up to 4 bits may then be
    /// negative.
    pub symmetric: bool,
    /// How the scale and the zero point of a block are chosen.
    pub method: WeightMethod,
    /// The types of scales and zero points.
    pub params: BlockParamTypes,
}

/// The types of the scales and the zero points of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockParamTypes {
    /// float32 scales, integer zero points.
    Plain,
    /// float32 scales, and float zero points if the method
    /// [finds](WeightMethod::has_float_zero_points) them.
    FloatZeroPoints,
    /// Scales that float16 can represent, for weights that are dequantized to float16; integer zero
    /// points.
    HalfScales,
}

/// The zero points of a matrix, block by block, in the order of the columns.
#[derive(Clone, Debug, PartialEq)]
pub enum ZeroPoints {
    /// Those of a column are packed like its integers.
    Packed(Vec<u8>),
    /// One float per block: an integer `q` represents `(q - zero_point) · scale`.
    Floats(Vec<f32>),
}

/// The scales, zero points and metrics of a quantized matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnParams {
    /// One scale per block, in the order of the columns.
    pub scales: Vec<f32>,
    /// The zero points.
    pub zero_points: ZeroPoints,
    /// The dequantized matrix, compared with the original.
    pub metrics: Metrics,
}

impl ColumnParams {
    fn none() -> ColumnParams {
        let metrics = Sums::default().metrics(0);
        ColumnParams { scales: Vec::new(), zero_points: ZeroPoints::Packed(Vec::new()), metrics }
    }
}

/// Columns whose metrics are added before those of others.
const TILE: usize = 128;

/// Tiles that are read at once from a row of a wide matrix: where rows are many pages apart, short
/// pieces of them would mean waiting for the memory.
const TILES_AT_ONCE: usize = 8;

/// A matrix with fewer tiles is divided into more tasks instead.
const MANY_TILES: usize = 4 * TILES_AT_ONCE;

impl MatMulNBitsSpec {
    /// Blocks per column.
    pub fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block_size.max(1))
    }

    /// Bytes per block.
    pub fn blob_len(&self) -> usize {
        self.qtype.packed_len(self.block_size)
    }

    /// Bytes of the zero points of one column.
    pub fn zero_points_len(&self) -> usize {
        self.qtype.packed_len(self.blocks())
    }

    /// Whether the zero points are floats.
    fn has_float_zero_points(&self) -> bool {
        self.params == BlockParamTypes::FloatZeroPoints
            && self.method.has_float_zero_points(&self.spec())
    }

    fn spec(&self) -> QSpec {
        let spec = QSpec::new(self.qtype, self.symmetric, Granularity::PerTensor);
        QSpec { allows_negative_scale: self.symmetric, used_bits: self.used_bits, ..spec }
    }

    /// The integers, `width` × [`blocks`](Self::blocks) × [`blob_len`](Self::blob_len), with their
    /// scales, zero points and metrics.
    ///
    /// # Errors
    ///
    /// As [`quantize_into`](Self::quantize_into).
    pub fn quantize<'a>(
        &self,
        data: impl Into<FloatSource<'a>>,
    ) -> Result<(Vec<u8>, ColumnParams), MathError> {
        let mut blobs = vec![0; self.width * self.blocks() * self.blob_len()];
        let columns = self.quantize_into(data, &mut blobs)?;
        Ok((blobs, columns))
    }

    /// [`quantize`](Self::quantize) into `blobs`, whose bytes must all be 0.
    ///
    /// # Errors
    ///
    /// An element is NaN or infinite, or the length of a slice differs from the shape.
    pub fn quantize_into<'a>(
        &self,
        data: impl Into<FloatSource<'a>>,
        blobs: &mut [u8],
    ) -> Result<ColumnParams, MathError> {
        let data = data.into();
        if self.block_size == 0 {
            return Err(MathError::BlockSize);
        }
        for (what, found, expected) in [
            ("elements", data.len(), self.depth * self.width),
            ("bytes", blobs.len(), self.width * self.blocks() * self.blob_len()),
        ] {
            if found != expected {
                return Err(MathError::Length { what, found, expected });
            }
        }
        let columns = match data {
            FloatSource::Slice(values) => self.encode(values, blobs),
            FloatSource::LittleEndian(values) => self.encode(values, blobs),
        };
        if let Some(columns) = columns {
            return Ok(columns);
        }
        match first_non_finite(data) {
            Some(index) => Err(MathError::NonFinite { index, value: data.get(index).to_string() }),
            None => Ok(ColumnParams::none()),
        }
    }

    /// A matrix with integer zero points, quantized by the caller: `shape` is its depth and width.
    pub fn plain(
        spec: &QSpec,
        block_size: usize,
        (depth, width): (usize, usize),
        transposed: bool,
    ) -> MatMulNBitsSpec {
        MatMulNBitsSpec {
            depth,
            width,
            transposed,
            block_size,
            qtype: spec.qtype,
            used_bits: spec.used_bits,
            symmetric: spec.symmetric,
            method: WeightMethod::MinMax,
            params: BlockParamTypes::Plain,
        }
    }

    /// Stores integers that were found otherwise: one byte for each element of the matrix in C
    /// order, and the parameters of each block in the order of a [`Layout`](crate::Layout). The
    /// metrics are those of no elements.
    pub fn pack_columns(&self, integers: &[u8], params: &[Params]) -> (Vec<u8>, ColumnParams) {
        let (blocks, blob, points_len) = (self.blocks(), self.blob_len(), self.zero_points_len());
        assert_eq!(integers.len(), self.depth * self.width, "integers of the matrix");
        assert_eq!(params.len(), blocks * self.width, "parameters of the blocks");
        let bits = self.qtype.bits();
        let mut blobs = vec![0; self.width * blocks * blob];
        let mut scales = Vec::with_capacity(self.width * blocks);
        let mut packed = vec![0; self.width * points_len];
        let middle = QSpec { symmetric: true, ..self.spec() }.zero_point_midpoint() as u8;
        let mut points = Vec::new();
        let mut codes = vec![0; self.block_size];
        for column in 0..self.width {
            points.clear();
            for block in 0..blocks {
                let first = block * self.block_size;
                codes.fill(0);
                for (code, row) in codes.iter_mut().zip(first..self.depth) {
                    let (row, column, along) = if self.transposed {
                        (column, row, self.depth)
                    } else {
                        (row, column, self.width)
                    };
                    *code = integers[row * along + column];
                }
                let at = column * blocks + block;
                pack_into(&codes, bits, &mut blobs[at * blob..][..blob]);
                let group = if self.transposed { at } else { block * self.width + column };
                scales.push(params[group].scale);
                points.push(params[group].zero_point as u8);
            }
            // Unused bits of the last byte have the midpoint of the grid.
            points.resize(blocks.next_multiple_of(4), middle);
            pack_into(&points, bits, &mut packed[column * points_len..][..points_len]);
        }
        let metrics = Sums::default().metrics(0);
        (blobs, ColumnParams { scales, zero_points: ZeroPoints::Packed(packed), metrics })
    }

    /// `None` when an element is not finite.
    fn encode<X: Element>(&self, data: &[X], blobs: &mut [u8]) -> Option<ColumnParams> {
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
    fn fit(&self, x: &[f32], range: Range, spec: &QSpec) -> Params {
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
fn finite_range(x: &[f32]) -> Option<Range> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::reference;

    fn numbers(len: usize) -> Vec<f32> {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next() * next()).collect()
    }

    fn cut(depth: usize, width: usize, qtype: QType, symmetric: bool) -> MatMulNBitsSpec {
        let method = WeightMethod::Mse;
        let (transposed, params) = (false, BlockParamTypes::Plain);
        let block_size = 16;
        let used_bits = 0;
        MatMulNBitsSpec {
            depth,
            width,
            transposed,
            block_size,
            qtype,
            used_bits,
            symmetric,
            method,
            params,
        }
    }

    /// The layout computed step by step from the definition.
    fn by_definition(cut: &MatMulNBitsSpec, data: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<i32>) {
        let spec = cut.spec();
        let bits = cut.qtype.bits() as usize;
        let (mut blobs, mut scales, mut points) = (Vec::new(), Vec::new(), Vec::new());
        for column in 0..cut.width {
            for block in 0..cut.blocks() {
                let rows = block * cut.block_size..((block + 1) * cut.block_size).min(cut.depth);
                let x: Vec<f32> = rows.map(|row| data[row * cut.width + column]).collect();
                let found = cut.fit(&x, finite_range(&x).unwrap(), &spec);
                let mut blob = vec![0_u8; cut.blob_len()];
                for (i, x) in x.iter().enumerate() {
                    let code = reference::quantize_one(*x, found, &spec) as u8;
                    blob[i * bits / 8] |= code << (i * bits % 8);
                }
                blobs.extend(blob);
                scales.push(found.scale);
                points.push(found.zero_point);
            }
        }
        (blobs, scales, points)
    }

    #[test]
    fn blobs_are_those_of_the_definition() {
        for qtype in [QType::UInt2, QType::UInt4, QType::UInt8] {
            for (depth, width) in
                [(16, 1), (32, 130), (40, 3), (5, 4), (1, 257), (40, MANY_TILES * TILE + 5)]
            {
                for symmetric in [false, true] {
                    let cut = cut(depth, width, qtype, symmetric);
                    let data = numbers(depth * width);
                    let (blobs, columns) = cut.quantize(&data).unwrap();
                    let (expected, scales, points) = by_definition(&cut, &data);
                    assert_eq!(blobs, expected, "{cut:?}");
                    assert_eq!(columns.scales, scales, "{cut:?}");
                    let ZeroPoints::Packed(packed) = columns.zero_points else { panic!("{cut:?}") };
                    for (column, points) in points.chunks(cut.blocks()).enumerate() {
                        let bytes = &packed[column * cut.zero_points_len()..];
                        let found = crate::pack::unpack(bytes, qtype.bits(), false, points.len());
                        let found: Vec<i32> =
                            found.iter().map(|point| i32::from(*point as u8)).collect();
                        assert_eq!(found, points, "{cut:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn each_block_has_its_float_zero_point() {
        for qtype in [QType::UInt2, QType::UInt4] {
            for (depth, width) in [(16, 1), (32, 130), (40, 3), (5, 4)] {
                let method = WeightMethod::Hqq;
                let cut = MatMulNBitsSpec {
                    method,
                    params: BlockParamTypes::FloatZeroPoints,
                    ..cut(depth, width, qtype, false)
                };
                let data = numbers(depth * width);
                let (blobs, columns) = cut.quantize(&data).unwrap();
                let ZeroPoints::Floats(points) = columns.zero_points else { panic!("{cut:?}") };
                let mut error = 0.0;
                for index in 0..data.len() {
                    let (row, column) = (index / width, index % width);
                    let block = column * cut.blocks() + row / 16;
                    let x: Vec<f32> = (row / 16 * 16..depth.min(row / 16 * 16 + 16))
                        .map(|row| data[row * width + column])
                        .collect();
                    let found = fit_float_zero(&x, finite_range(&x).unwrap(), &cut.spec());
                    assert_eq!(
                        (columns.scales[block], points[block]),
                        (found.scale, found.zero_point)
                    );
                    let blob = &blobs[block * cut.blob_len()..][..cut.blob_len()];
                    let bit = row % 16 * qtype.bits() as usize;
                    let code = f32::from(blob[bit / 8] >> (bit % 8) & (qtype.max() as u8));
                    let steps = x[row % 16] / found.scale + found.zero_point;
                    assert_eq!(code, steps.round_ties_even().clamp(0.0, qtype.max() as f32));
                    let back = (code - found.zero_point) * found.scale;
                    error += f64::from(x[row % 16] - back).powi(2);
                }
                let mse = error / data.len() as f64;
                assert!((columns.metrics.mse - mse).abs() <= 1e-6 * mse, "{cut:?}");
            }
        }
    }

    #[test]
    fn zero_points_stay_integers_where_floats_gain_nothing() {
        let floats = MatMulNBitsSpec {
            params: BlockParamTypes::FloatZeroPoints,
            ..cut(32, 3, QType::UInt4, false)
        };
        let hqq = MatMulNBitsSpec { method: WeightMethod::Hqq, ..floats };
        for cut in [floats, MatMulNBitsSpec { symmetric: true, ..hqq }] {
            let (_, columns) = cut.quantize(&numbers(96)).unwrap();
            assert!(matches!(columns.zero_points, ZeroPoints::Packed(_)), "{cut:?}");
        }
    }

    #[test]
    fn a_transposed_matrix_has_the_same_blobs() {
        for (depth, width) in [(48, 200), (40, 3)] {
            let plain = cut(depth, width, QType::UInt4, false);
            let data = numbers(depth * width);
            let turned: Vec<f32> =
                (0..depth * width).map(|i| data[i % depth * width + i / depth]).collect();
            let transposed = MatMulNBitsSpec { transposed: true, ..plain };
            let (blobs, columns) = plain.quantize(&data).unwrap();
            let (other, turned) = transposed.quantize(&turned).unwrap();
            assert_eq!((blobs, columns.scales), (other, turned.scales));
            assert_eq!(columns.zero_points, turned.zero_points);
        }
    }

    #[test]
    fn the_largest_magnitude_is_exact_on_either_side() {
        for sign in [1.0, -1.0] {
            let data: Vec<f32> = (0..16).map(|i| sign * (4.0 - i as f32 / 4.0)).collect();
            let method = WeightMethod::MinMax;
            let cut = MatMulNBitsSpec { method, ..cut(16, 1, QType::UInt4, true) };
            let (blobs, columns) = cut.quantize(&data).unwrap();
            assert_eq!(columns.scales, [-sign * 0.5]);
            assert_eq!(blobs[0] & 0xf, 0);
        }
    }

    #[test]
    fn non_finite_elements_are_reported() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut data = numbers(40 * 3);
            data[77] = odd;
            let found = cut(40, 3, QType::UInt4, false).quantize(&data);
            assert!(matches!(found, Err(MathError::NonFinite { index: 77, .. })), "{found:?}");
        }
    }

    #[test]
    fn empty_and_zero_matrices_are_quantized() {
        let (blobs, columns) = cut(0, 3, QType::UInt4, false).quantize(&[]).unwrap();
        assert!(blobs.is_empty() && columns.scales.is_empty());
        let (blobs, columns) = cut(16, 1, QType::UInt4, true).quantize(&[0.0; 16]).unwrap();
        assert_eq!((blobs, columns.scales), (vec![0x88; 8], vec![1.0]));
        assert!(cut(16, 2, QType::UInt4, true).quantize(&[0.0; 16]).is_err());
    }
}
