//! Encodes the columns of a matrix, many at a time.

use std::ops::Range;

use rayon::prelude::*;

use super::blocks::{Grids, LaneSums, finite_ends};
use super::{BlockParamTypes, ColumnParams, MatMulNBitsSpec, ZeroPoints};
use crate::float_source::Element;
use crate::kernels::pack::pack_into;
use crate::metrics::Sums;
use crate::simd::{SimdLoop, vectorized};
use crate::weight::lanes::{Ends, LANES, LaneParams, Row};
use crate::weight::{fit_float_zeros, fit_lanes};
use crate::{QSpec, WeightMethod};

/// Columns per task.
pub(super) const COLUMNS: usize = 128;

/// As many times more columns of a wide matrix: where rows are many pages apart, short pieces of
/// them would mean waiting for the memory.
const TILES_AT_ONCE: usize = 8;

/// A matrix with fewer tiles is divided into more tasks instead.
pub(super) const MANY_TILES: usize = 4 * TILES_AT_ONCE;

/// Elements that are read at once: they fit into the second-level cache of any processor.
const ELEMENTS_AT_ONCE: usize = 1 << 15;

impl MatMulNBitsSpec {
    /// `None` when an element is not finite.
    pub(super) fn encode<X: Element>(&self, data: &[X], blobs: &mut [u8]) -> Option<ColumnParams> {
        if data.is_empty() {
            return Some(ColumnParams::none());
        }
        let (blocks, packed) = (self.blocks(), self.zero_points_len());
        let wide = !self.transposed && self.width >= MANY_TILES * COLUMNS;
        let columns = if wide { TILES_AT_ONCE * COLUMNS } else { COLUMNS };
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
        let sums: Option<Vec<Sums>> = tasks
            .map_init(Scratch::default, |scratch, (task, ((blobs, scales), zero_points))| {
                let (cut, first) = (self, task * columns);
                vectorized(Columns { cut, data, first, scratch, blobs, scales, zero_points })
            })
            .collect();
        let metrics = Sums::total(sums?).metrics(data.len());
        let zero_points = if shifts {
            ZeroPoints::Floats(float_points)
        } else {
            ZeroPoints::Packed(packed_points)
        };
        Some(ColumnParams { scales, zero_points, metrics })
    }

    /// Quantizes the columns from `first` on, one per set of scales; `None` when an element is not
    /// finite.
    #[inline(always)]
    fn columns<X: Element>(
        &self,
        data: &[X],
        first: usize,
        scratch: &mut Scratch,
        blobs: &mut [u8],
        scales: &mut [f32],
        mut zero_points: Points<'_>,
    ) -> Option<Sums> {
        let (blocks, blob, spec) = (self.blocks(), self.blob_len(), self.spec());
        let width = scales.len() / blocks;
        let tiles = width.div_ceil(LANES);
        let deepest = self.block_size.min(self.depth);
        let at_once =
            if self.transposed { 1 } else { (ELEMENTS_AT_ONCE / (deepest * LANES)).max(1) };
        let parts = tiles.div_ceil(at_once);
        let Scratch { rows, words, points, codes } = scratch;
        points.clear();
        points.resize(width * blocks, 0);
        let mut sums = LaneSums::default();
        for step in 0..blocks * parts {
            // In the order of the memory.
            let (block, part) = if self.transposed {
                (step % blocks, step / blocks)
            } else {
                (step / parts, step % parts)
            };
            let start = block * self.block_size;
            let depth = self.block_size.min(self.depth - start);
            let from = part * at_once * LANES;
            let to = width.min(from + at_once * LANES);
            self.load(data, start..start + depth, first + from..first + to, rows);
            for (rows, column) in rows.chunks(depth).zip((from..to).step_by(LANES)) {
                let count = LANES.min(to - column);
                let ends = finite_ends(rows)?;
                let (found, grids) = self.fit(rows, count, &ends, &spec);
                match self.qtype.bits() {
                    2 => grids.round::<8, 2>(rows, &ends, words, &mut sums),
                    4 => grids.round::<8, 4>(rows, &ends, words, &mut sums),
                    _ => grids.round::<4, 4>(rows, &ends, words, &mut sums),
                }
                let at = column * blocks + block;
                for lane in 0..count {
                    scales[at + lane * blocks] = found.scale[lane];
                }
                for lane in 0..count {
                    match &mut zero_points {
                        Points::Floats(points) => points[at + lane * blocks] = found.zero[lane],
                        Points::Packed(_) => points[at + lane * blocks] = found.zero[lane] as u8,
                    }
                }
                let blobs = blobs[at * blob..].chunks_mut(blob).step_by(blocks).take(count);
                match self.qtype.bits() {
                    2 => store::<2>(words, blobs),
                    _ => store::<4>(words, blobs),
                }
            }
        }
        let Points::Packed(zero_points) = zero_points else { return Some(sums.total()) };
        // Unused bits of the last byte have the midpoint of the grid, as in ONNX Runtime's tool.
        let middle = QSpec { symmetric: true, ..spec }.zero_point_midpoint() as u8;
        let packed = zero_points.chunks_exact_mut(self.zero_points_len());
        for (bytes, points) in packed.zip(points.chunks_exact(blocks)) {
            codes.clear();
            codes.extend(points);
            codes.resize(blocks.next_multiple_of(4), middle);
            pack_into(codes, self.qtype.bits(), bytes);
        }
        Some(sums.total())
    }

    /// The scales and zero points of blocks, and their grids. An 8-bit symmetric grid also has one
    /// more step below its midpoint: when the element of the largest magnitude is positive, the
    /// scale is negative, as in ONNX Runtime's tool.
    #[inline(always)]
    fn fit(&self, x: &[Row], count: usize, ends: &Ends, spec: &QSpec) -> (LaneParams, Grids) {
        if self.has_float_zero_points() {
            let found = fit_float_zeros(x, count, ends, spec);
            return (found, Grids::of(&found, true, spec));
        }
        let turns = spec.symmetric && self.qtype.bits() == 8 && self.method == WeightMethod::MinMax;
        let mut found = if turns {
            let mut found = fit_lanes(x, count, &ends.turned(), spec, self.method);
            for lane in 0..LANES {
                let turned = ends.max[lane] > -ends.min[lane];
                found.scale[lane] = if turned { -found.scale[lane] } else { found.scale[lane] };
            }
            found
        } else {
            fit_lanes(x, count, ends, spec, self.method)
        };
        if self.params == BlockParamTypes::HalfScales {
            (0..count).for_each(|lane| found.set(lane, found.lane(lane).in_halves(spec)));
        }
        (found, Grids::of(&found, false, spec))
    }

    /// Reads some rows of some columns: [`LANES`] columns after the other. Missing columns are 0.
    #[inline(always)]
    fn load<X: Element>(
        &self,
        data: &[X],
        depths: Range<usize>,
        columns: Range<usize>,
        rows: &mut Vec<Row>,
    ) {
        let depth = depths.len();
        rows.resize(depth * columns.len().div_ceil(LANES), [0.0; LANES]);
        if !columns.len().is_multiple_of(LANES) {
            rows[columns.len() / LANES * depth..].fill([0.0; LANES]);
        }
        if self.transposed {
            for (at, column) in columns.enumerate() {
                let from = &data[column * self.depth..][depths.clone()];
                let rows = &mut rows[at / LANES * depth..][..depth];
                for row in 0..depth {
                    rows[row][at % LANES] = from[row].value();
                }
            }
            return;
        }
        for (at, row) in depths.enumerate() {
            let (whole, rest) = data[row * self.width..][columns.clone()].as_chunks::<LANES>();
            for tile in 0..whole.len() {
                let (from, mut floats) = (whole[tile], [0.0; LANES]);
                for lane in 0..LANES {
                    floats[lane] = from[lane].value();
                }
                rows[tile * depth + at] = floats;
            }
            for lane in 0..rest.len() {
                rows[whole.len() * depth + at][lane] = rest[lane].value();
            }
        }
    }
}

/// Copies the words of each lane, of which `BYTES` bytes are used, to the bytes of its block.
#[inline(always)]
fn store<'a, const BYTES: usize>(
    words: &[[u32; LANES]],
    blobs: impl Iterator<Item = &'a mut [u8]>,
) {
    for (lane, bytes) in blobs.enumerate() {
        let (whole, rest) = bytes.as_chunks_mut::<BYTES>();
        for at in 0..whole.len().min(words.len()) {
            whole[at].copy_from_slice(&words[at][lane].to_le_bytes()[..BYTES]);
        }
        if let Some(word) = words.get(whole.len()) {
            let word = word[lane].to_le_bytes();
            rest.iter_mut().zip(word).for_each(|(to, byte)| *to = byte);
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
    type Output = Option<Sums>;

    #[inline(always)]
    fn run(self) -> Option<Sums> {
        let Columns { cut, data, first, scratch, blobs, scales, zero_points } = self;
        cut.columns(data, first, scratch, blobs, scales, zero_points)
    }
}

/// Working memory of a thread.
#[derive(Default)]
struct Scratch {
    /// The elements of blocks side by side.
    rows: Vec<Row>,
    /// Their integers.
    words: Vec<[u32; LANES]>,
    /// The zero points of all blocks, and those of a column.
    points: Vec<u8>,
    codes: Vec<u8>,
}
