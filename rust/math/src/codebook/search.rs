//! Finds the codes of numbers, and the scales of blocks.

use super::{Codebook, CodebookSpec};
use crate::metrics::Sums;
use crate::simd::SimdLoop;

/// Parts of the largest magnitude that are tried as a scale.
pub(super) const PARTS: [f32; 9] = [1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75];

/// Blocks whose scales are searched side by side, so that the sums of each are in the order of its
/// elements.
const LANES: usize = 64;

type Lanes<T> = [T; LANES];

/// The codes in the order of their numbers, the numbers, and the limits between them.
pub(super) struct Search {
    codes: [u8; 16],
    values: [f32; 16],
    limits: [f32; 15],
}

impl Search {
    pub(super) fn of(codebook: Codebook) -> Search {
        let values = codebook.values();
        let mut codes: Vec<u8> = (0..16).collect();
        codes.sort_by(|a, b| values[usize::from(*a)].total_cmp(&values[usize::from(*b)]));
        // Of two codes for the same number only the first is used.
        codes.dedup_by(|next, kept| values[usize::from(*next)] == values[usize::from(*kept)]);
        let mut limits = [f32::INFINITY; 15];
        for (limit, pair) in limits.iter_mut().zip(codes.windows(2)) {
            let [low, high] = [pair[0], pair[1]].map(|code| values[usize::from(code)]);
            *limit = f32::midpoint(low, high);
        }
        let mut all = [*codes.last().unwrap_or(&0); 16];
        all[..codes.len()].copy_from_slice(&codes);
        Search { codes: all, values: all.map(|code| values[usize::from(code)]), limits }
    }

    /// The number of limits below `x`.
    #[inline(always)]
    fn above(&self, x: f32) -> u32 {
        self.limits.iter().map(|limit| u32::from(x > *limit)).sum()
    }

    pub(super) fn code(&self, x: f32) -> u8 {
        self.codes[self.above(x) as usize]
    }
}

/// The codes and scales of some blocks, and what they lose.
pub(super) struct Encode<'a> {
    pub(super) spec: &'a CodebookSpec,
    pub(super) values: &'a [f32],
    pub(super) search: &'a Search,
}

impl SimdLoop for Encode<'_> {
    type Output = (Vec<u8>, Vec<f32>, Sums);

    #[inline(always)]
    fn run(self) -> Self::Output {
        let Encode { spec, values, search } = self;
        let size = spec.block_size;
        let mut scales = Vec::with_capacity(values.len().div_ceil(size));
        let mut side_by_side = vec![[0.0_f32; LANES]; size];
        for blocks in values.chunks(LANES * size) {
            for (lane, block) in blocks.chunks(size).enumerate() {
                side_by_side.iter_mut().zip(block).for_each(|(row, x)| row[lane] = *x);
                // A 0 costs nothing and changes no sum.
                side_by_side[block.len()..].iter_mut().for_each(|row| row[lane] = 0.0);
            }
            let found = search.scales(&side_by_side, spec.least_error);
            scales.extend_from_slice(&found[..blocks.len().div_ceil(size)]);
        }
        let (mut codes, mut decoded) = (vec![0; values.len()], vec![0.0; values.len()]);
        let blocks = values.chunks(size).zip(codes.chunks_mut(size)).zip(decoded.chunks_mut(size));
        for (((x, codes), decoded), scale) in blocks.zip(&scales) {
            for ((x, code), decoded) in x.iter().zip(codes).zip(decoded) {
                let above = search.above(x / scale);
                *code = search.codes[above as usize];
                *decoded = search.values[above as usize] * scale;
            }
        }
        // A block has an even number of elements, so that a byte is of one block.
        let second = |pair: &[u8]| pair.get(1).copied().unwrap_or(0);
        let packed = codes.chunks(2).map(|pair| pair[0] << 4 | second(pair)).collect();
        (packed, scales, Sums::of(values, &decoded))
    }
}

/// The squared error of blocks with these scales.
struct Attempt {
    errors: Lanes<f64>,
    /// The scale that suits the codes best, by least squares.
    refits: Lanes<f32>,
}

impl Search {
    /// The scales of blocks side by side.
    #[inline(always)]
    fn scales(&self, rows: &[Lanes<f32>], least_error: bool) -> Lanes<f32> {
        let mut largest = [0.0_f32; LANES];
        for row in rows {
            for lane in 0..LANES {
                let x = row[lane].abs();
                largest[lane] = if x > largest[lane] { x } else { largest[lane] };
            }
        }
        let mut best = [(f64::INFINITY, 0.0_f32); LANES];
        for lane in 0..LANES {
            best[lane].1 = largest[lane];
        }
        let parts = if least_error { &PARTS[..] } else { &[] };
        for part in parts {
            let scales = largest.map(|largest| largest * part);
            let first = self.attempt(rows, &scales);
            let second = self.attempt(rows, &first.refits);
            for lane in 0..LANES {
                if first.errors[lane] < best[lane].0 {
                    best[lane] = (first.errors[lane], scales[lane]);
                }
                let refit = first.refits[lane];
                let usable = refit >= f32::MIN_POSITIVE && refit.is_finite();
                if usable && second.errors[lane] < best[lane].0 {
                    best[lane] = (second.errors[lane], refit);
                }
            }
        }
        let mut found = [f32::MIN_POSITIVE; LANES];
        for lane in 0..LANES {
            if largest[lane] >= f32::MIN_POSITIVE {
                found[lane] = best[lane].1;
            }
        }
        found
    }

    #[inline(always)]
    fn attempt(&self, rows: &[Lanes<f32>], scales: &Lanes<f32>) -> Attempt {
        let mut errors = [0.0_f64; LANES];
        let (mut products, mut squares) = (errors, errors);
        // The bits that change from a number to the next one: without a selection, which would
        // become a branch.
        let (limits, bits) = (self.limits, self.values.map(f32::to_bits));
        let mut changes = [0; 15];
        for at in 0..changes.len() {
            changes[at] = bits[at] ^ bits[at + 1];
        }
        for row in rows {
            for lane in 0..LANES {
                let steps = row[lane] / scales[lane];
                let mut value = bits[0];
                for at in 0..limits.len() {
                    value ^= u32::from(steps > limits[at]).wrapping_neg() & changes[at];
                }
                let (x, value) = (f64::from(row[lane]), f64::from(f32::from_bits(value)));
                let error = x - value * f64::from(scales[lane]);
                errors[lane] += error * error;
                products[lane] += x * value;
                squares[lane] += value * value;
            }
        }
        let mut refits = [0.0_f32; LANES];
        for lane in 0..LANES {
            refits[lane] = (products[lane] / squares[lane]) as f32;
        }
        Attempt { errors, refits }
    }
}
