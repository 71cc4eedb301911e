//! Second moments of the inputs of a layer, `XᵀX`, whose sums do not depend on the order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array1, Array2, ArrayView2, ArrayViewMut2, s};

use crate::rounding::round_ties_even;
use crate::simd::{SimdLoop, vectorized};

/// Binary digits of a sum of one sample, counted from the largest sum of squares of the sample.
const DIGITS: i32 = 36;

/// Samples whose sums of squares differ by less than this power of two share a unit.
const LEVEL: i32 = 16;

/// More samples would need more than the 53 digits of an f64: an entry of one sample is below
/// `2^DIGITS` units.
const MAX_SAMPLES: u64 = 1 << (52 - DIGITS);

/// The largest sum: integers up to it are exact in f64.
const MAX_SUM: f64 = (1_u64 << 53) as f64;

/// More rows than any samples have, so that sums of them do not overflow.
const MAX_ROWS: u64 = 1 << 48;

/// The largest exponent of a unit, of any sign: squares of f32 have at most 256.
const MAX_LEVEL: u32 = 1 << 9;

/// Rows up to this length are multiplied by a plain loop, which needs no memory.
const SHORT: usize = 16;

/// Rows of the matrix that are computed at a time.
const STRIP: usize = 64;

/// The second moments `XᵀX` of the rows that a layer multiplies by its weight, summed over samples.
///
/// Floating-point sums depend on the order of addition. So that threads, shards and the order of
/// the samples change no bit, each sample's `XᵀX` is rounded to a multiple of a unit, and the
/// multiples are added, which is exact in f64. The unit is 2⁻³⁶ of the largest sum of squares in
/// the sample, up to a factor of 2¹⁶: sums of samples with very different magnitudes are kept apart
/// and added at the end, in a fixed order. Products of f32 are accumulated in f32 within a sample.
///
/// ```
/// use quantize_rs_math::SecondMoments;
/// let mut moments = SecondMoments::new(2);
/// moments.add(&[1.0, 2.0, 3.0, -1.0])?; // two rows of two elements
/// moments.add(&[0.5, 0.0])?;
/// assert_eq!((moments.rows(), moments.diagonal()), (3, vec![10.25, 5.0]));
/// assert_eq!(moments.matrix()[[0, 1]], -1.0);
/// # Ok::<(), quantize_rs_math::TooManySamples>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SecondMoments {
    size: usize,
    /// Whether only the diagonal is summed.
    diagonal_only: bool,
    rows: u64,
    samples: u64,
    /// Whole multiples of units, by the exponent of the unit: the upper triangle, row by row, or
    /// the diagonal.
    levels: BTreeMap<i32, Vec<f64>>,
}

/// Too many samples for the sums of [`SecondMoments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySamples;

impl fmt::Display for TooManySamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "second moments of more than {MAX_SAMPLES} samples cannot be added exactly")
    }
}

impl std::error::Error for TooManySamples {}

impl SecondMoments {
    /// No rows yet, of `size` elements each.
    pub fn new(size: usize) -> SecondMoments {
        SecondMoments { size, diagonal_only: false, rows: 0, samples: 0, levels: BTreeMap::new() }
    }

    /// As [`new`](Self::new), but only the diagonal is summed, which takes little time and memory.
    /// The other entries of the matrix are 0.
    pub fn of_diagonal(size: usize) -> SecondMoments {
        SecondMoments { diagonal_only: true, ..SecondMoments::new(size) }
    }

    /// The number of elements of a row.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The number of rows seen.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The number of samples seen.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Whether only the diagonal is summed.
    pub fn is_diagonal(&self) -> bool {
        self.diagonal_only
    }

    /// The sums that are kept apart, in ascending order: the exponent of the unit, and whole
    /// multiples of it for the upper triangle, row by row, or for the diagonal.
    pub fn levels(&self) -> impl Iterator<Item = (i32, &[f64])> {
        self.levels.iter().map(|(level, sums)| (*level, &sums[..]))
    }

    /// Adds sums that [`levels`](Self::levels) showed to those of moments without samples, which
    /// then are of this many rows and samples. `None` if no moments have such sums.
    ///
    /// ```
    /// use quantize_rs_math::SecondMoments;
    /// let mut moments = SecondMoments::new(2);
    /// moments.add(&[1.0, 2.0, 3.0, -1.0])?;
    /// let levels = moments.levels().map(|(unit, sums)| (unit, sums.to_vec()));
    /// let empty = SecondMoments::new(2);
    /// assert_eq!(empty.with_levels(2, 1, levels).unwrap(), moments);
    /// # Ok::<(), quantize_rs_math::TooManySamples>(())
    /// ```
    pub fn with_levels(
        mut self,
        rows: u64,
        samples: u64,
        levels: impl IntoIterator<Item = (i32, Vec<f64>)>,
    ) -> Option<SecondMoments> {
        (self.rows, self.samples) = (rows, samples);
        let mut twice = false;
        for (level, sums) in levels {
            twice |= self.levels.insert(level, sums).is_some();
        }
        let entries = if self.diagonal_only { self.size } else { triangle(self.size) };
        let whole = |sum: &f64| sum.abs() <= MAX_SUM && sum.fract() == 0.0;
        let known = self.levels.iter().all(|(level, sums)| {
            level.unsigned_abs() <= MAX_LEVEL && sums.len() == entries && sums.iter().all(whole)
        });
        (known && !twice && samples <= MAX_SAMPLES && samples <= rows && rows <= MAX_ROWS)
            .then_some(self)
    }

    /// Adds the rows of one sample: `rows` × [`size`](Self::size) finite floats in C order.
    ///
    /// # Errors
    ///
    /// More than 65,536 samples.
    pub fn add(&mut self, x: &[f32]) -> Result<(), TooManySamples> {
        let size = self.size;
        let Some(rows) = x.len().checked_div(size).filter(|rows| *rows > 0) else { return Ok(()) };
        assert_eq!(x.len() % size, 0, "whole rows");
        if self.samples >= MAX_SAMPLES {
            return Err(TooManySamples);
        }
        (self.rows, self.samples) = (self.rows + rows as u64, self.samples + 1);
        if size <= SHORT {
            self.add_short(x);
            return Ok(());
        }
        let mut squares = vec![0.0_f64; size];
        for row in x.chunks_exact(size) {
            for (sum, x) in squares.iter_mut().zip(row) {
                *sum += f64::from(*x) * f64::from(*x);
            }
        }
        let Some(level) = level(&squares) else { return Ok(()) };
        let per_unit = 2_f64.powi(-level);
        let sums = sums_of(&mut self.levels, level, size, self.diagonal_only);
        if self.diagonal_only {
            for (sum, square) in sums.iter_mut().zip(squares) {
                *sum += round_ties_even(square * per_unit);
            }
            return Ok(());
        }
        let (x, shift) = in_range_of_f32(x, level);
        let per_unit = per_unit * 2_f64.powi(2 * shift);
        let x = ArrayView2::from_shape((rows, size), &x).expect("whole rows");
        let mut strip = vec![0.0_f32; STRIP.min(size) * size];
        let mut at = 0;
        for first in (0..size).step_by(STRIP) {
            let (height, width) = (STRIP.min(size - first), size - first);
            let products = &mut strip[..height * width];
            let target = ArrayViewMut2::from_shape((height, width), &mut *products);
            let left = x.slice(s![.., first..first + height]);
            let right = x.slice(s![.., first..]);
            general_mat_mul(1.0, &left.t(), &right, 0.0, &mut target.expect("whole rows"));
            for (row, products) in products.chunks_exact(width).enumerate() {
                let products = &products[row..];
                let sums = &mut sums[at..at + products.len()];
                at += products.len();
                vectorized(AddRounded { sums, products, per_unit });
            }
        }
        Ok(())
    }

    /// Adds rows of up to [`SHORT`] elements, with products in f64.
    fn add_short(&mut self, x: &[f32]) {
        let size = self.size;
        let mut products = [0.0_f64; SHORT * SHORT];
        for row in x.chunks_exact(size) {
            for (at, a) in row.iter().enumerate() {
                let a = f64::from(*a);
                for (product, b) in products[at * SHORT + at..].iter_mut().zip(&row[at..]) {
                    *product += a * f64::from(*b);
                }
            }
        }
        let mut squares = [0.0_f64; SHORT];
        for (at, square) in squares.iter_mut().enumerate() {
            *square = products[at * (SHORT + 1)];
        }
        let Some(level) = level(&squares) else { return };
        let per_unit = 2_f64.powi(-level);
        let sums = sums_of(&mut self.levels, level, size, self.diagonal_only);
        let mut sums = sums.iter_mut();
        for row in 0..size {
            let last = if self.diagonal_only { row + 1 } else { size };
            let products = &products[row * SHORT + row..row * SHORT + last];
            for (product, sum) in products.iter().zip(&mut sums) {
                *sum += round_ties_even(product * per_unit);
            }
        }
    }

    /// Adds the moments of other samples.
    ///
    /// # Errors
    ///
    /// More than 65,536 samples together.
    pub fn merge(&mut self, other: &SecondMoments) -> Result<(), TooManySamples> {
        let kind = |moments: &SecondMoments| (moments.size, moments.diagonal_only);
        assert_eq!(kind(self), kind(other), "elements of a row");
        let samples = self.samples + other.samples;
        if samples > MAX_SAMPLES {
            return Err(TooManySamples);
        }
        (self.rows, self.samples) = (self.rows + other.rows, samples);
        for (level, more) in &other.levels {
            let sums = self.levels.entry(*level).or_insert_with(|| vec![0.0; more.len()]);
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        Ok(())
    }

    /// The sums of squares of each element of a row.
    pub fn diagonal(&self) -> Vec<f64> {
        let mut diagonal = vec![0.0; self.size];
        for (level, sums) in &self.levels {
            let (unit, mut at) = (2_f64.powi(*level), 0);
            for (row, diagonal) in diagonal.iter_mut().enumerate() {
                *diagonal += sums[at] * unit;
                at += if self.diagonal_only { 1 } else { self.size - row };
            }
        }
        diagonal
    }

    /// The whole symmetric matrix.
    pub fn matrix(&self) -> Array2<f64> {
        if self.diagonal_only {
            return Array2::from_diag(&Array1::from_vec(self.diagonal()));
        }
        let mut matrix = Array2::zeros((self.size, self.size));
        for (level, sums) in &self.levels {
            let (unit, mut at) = (2_f64.powi(*level), 0);
            for row in 0..self.size {
                let mut to = matrix.slice_mut(s![row, row..]);
                let sums = &sums[at..at + to.len()];
                at += to.len();
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum * unit);
            }
        }
        mirror(&mut matrix);
        matrix
    }
}

/// Copies the upper triangle to the lower one, tile by tile.
fn mirror(matrix: &mut Array2<f64>) {
    let size = matrix.nrows();
    for top in (0..size).step_by(STRIP) {
        for left in (0..=top).step_by(STRIP) {
            for row in top..(top + STRIP).min(size) {
                for column in left..(left + STRIP).min(row) {
                    matrix[[row, column]] = matrix[[column, row]];
                }
            }
        }
    }
}

/// The number of entries on and above the diagonal.
const fn triangle(size: usize) -> usize {
    size * (size + 1) / 2
}

/// The sums of a level.
fn sums_of(
    levels: &mut BTreeMap<i32, Vec<f64>>,
    level: i32,
    size: usize,
    diagonal_only: bool,
) -> &mut [f64] {
    let entries = if diagonal_only { size } else { triangle(size) };
    levels.entry(level).or_insert_with(|| vec![0.0; entries])
}

/// The exponent of the unit for a sample with these sums of squares. No other entry of `XᵀX` is
/// larger than the largest of them (Cauchy-Schwarz).
fn level(squares: &[f64]) -> Option<i32> {
    let largest = squares.iter().copied().fold(0.0, f64::max);
    if !(largest > 0.0 && largest.is_finite()) {
        return None;
    }
    // The smallest multiple of LEVEL above the exponent; a product in f32 may exceed the exact sum
    // by a rounding error.
    let exponent = largest.log2().floor() as i32 + 2;
    Some(exponent.div_euclid(LEVEL) * LEVEL + LEVEL - DIGITS)
}

/// A sample whose products are numbers of f32, and the exponent of the power of two that it is
/// divided by: 0 unless its elements are very large or small.
fn in_range_of_f32(x: &[f32], level: i32) -> (Cow<'_, [f32]>, i32) {
    let exponent = level + DIGITS;
    if (-64..=120).contains(&exponent) {
        return (Cow::Borrowed(x), 0);
    }
    let shift = exponent / 2;
    let factor = 2_f64.powi(-shift);
    (x.iter().map(|x| (f64::from(*x) * factor) as f32).collect(), shift)
}

/// Adds products to sums, rounded to whole units.
struct AddRounded<'a> {
    sums: &'a mut [f64],
    products: &'a [f32],
    per_unit: f64,
}

impl SimdLoop for AddRounded<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let AddRounded { sums, products, per_unit } = self;
        for (sum, product) in sums.iter_mut().zip(products) {
            *sum += round_ties_even(f64::from(*product) * per_unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, size: usize, seed: u64, magnitude: f32) -> Vec<f32> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            ((state >> 40) as f32 / (1 << 24) as f32 - 0.4) * magnitude
        };
        (0..count * size).map(next).collect()
    }

    #[test]
    fn the_sums_equal_those_of_f64() {
        for (size, count) in [(1, 5), (7, 3), (16, 9), (17, 9), (64, 100), (130, 40)] {
            let mut moments = SecondMoments::new(size);
            let mut exact = Array2::<f64>::zeros((size, size));
            for (seed, magnitude) in [(1, 1.0), (2, 3e4), (3, 1e-6), (4, 1.0)] {
                let x = rows(count, size, seed, magnitude);
                moments.add(&x).unwrap();
                let x = Array2::from_shape_vec((count, size), x).unwrap().mapv(f64::from);
                exact += &x.t().dot(&x);
            }
            assert_eq!(moments.rows(), 4 * count as u64);
            let found = moments.matrix();
            for ((row, column), found) in found.indexed_iter() {
                let scale = (exact[[row, row]] * exact[[column, column]]).sqrt();
                assert!((found - exact[[row, column]]).abs() < 1e-5 * scale, "{row} {column}");
            }
            assert_eq!(found.diag().to_vec(), moments.diagonal());
        }
    }

    #[test]
    fn products_beyond_f32_are_summed() {
        let mut moments = SecondMoments::new(20);
        for power in [70, -75, 127, -120] {
            let factor = 2_f32.powi(power);
            let plain = rows(5, 20, 4, 1.0);
            let x: Vec<f32> = plain.iter().map(|x| x * factor).collect();
            let mut alone = SecondMoments::new(20);
            alone.add(&x).unwrap();
            let mut usual = SecondMoments::new(20);
            usual.add(&plain).unwrap();
            let square = f64::from(factor) * f64::from(factor);
            for (found, usual) in alone.matrix().iter().zip(&usual.matrix()) {
                assert!((found / square - usual).abs() < 1e-6, "{power}: {found} {usual}");
            }
            let levels = alone.levels().map(|(unit, sums)| (unit, sums.to_vec()));
            assert_eq!(SecondMoments::new(20).with_levels(5, 1, levels).unwrap(), alone);
            moments.merge(&alone).unwrap();
        }
        assert_eq!(moments.samples(), 4);
    }

    #[test]
    fn no_order_and_no_partition_changes_a_bit() {
        let samples: Vec<Vec<f32>> =
            (0..12).map(|seed| rows(9, 33, seed, 10_f32.powi(seed as i32 % 5 - 2))).collect();
        let of = |order: &[usize]| {
            let mut all = SecondMoments::new(33);
            for at in order {
                all.add(&samples[*at]).unwrap();
            }
            all
        };
        let whole = of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(of(&[11, 3, 2, 9, 10, 0, 1, 8, 7, 6, 5, 4]), whole);
        let mut merged = of(&[7, 2, 11]);
        for part in [&[0, 1, 3][..], &[4, 5, 6, 8], &[], &[10, 9]] {
            merged.merge(&of(part)).unwrap();
        }
        assert_eq!(merged, whole);
        assert!(whole.levels.len() > 1);
    }

    #[test]
    fn sums_that_no_samples_have_are_refused() {
        let mut moments = SecondMoments::new(20);
        moments.add(&rows(3, 20, 1, 5.0)).unwrap();
        moments.add(&rows(4, 20, 2, 5e6)).unwrap();
        let levels: Vec<(i32, Vec<f64>)> =
            moments.levels().map(|(level, sums)| (level, sums.to_vec())).collect();
        let again = |rows, samples, levels: &[(i32, Vec<f64>)]| {
            SecondMoments::new(20).with_levels(rows, samples, levels.to_vec())
        };
        assert_eq!(again(7, 2, &levels), Some(moments));
        assert_eq!(again(1, 2, &levels), None);
        assert_eq!(again(1 << 20, MAX_SAMPLES + 1, &levels), None);
        assert_eq!(again(u64::MAX, 2, &levels), None);
        assert_eq!(again(7, 2, &[levels[0].clone(), levels[0].clone()]), None);
        assert_eq!(again(7, 2, &[(i32::MIN, levels[0].1.clone())]), None);
        assert_eq!(again(7, 2, &[(0, levels[0].1[1..].to_vec())]), None);
        for wrong in [f64::NAN, f64::INFINITY, 0.5, 2.0 * MAX_SUM] {
            let mut levels = levels.clone();
            levels[1].1[3] = wrong;
            assert_eq!(again(7, 2, &levels), None, "{wrong}");
        }
    }

    #[test]
    fn the_diagonal_alone_has_the_same_sums_but_for_the_precision_of_f32() {
        let (mut whole, mut alone) = (SecondMoments::new(50), SecondMoments::of_diagonal(50));
        for seed in 0..5 {
            let x = rows(20, 50, seed, 2.0);
            whole.add(&x).unwrap();
            alone.add(&x).unwrap();
        }
        for (whole, alone) in whole.diagonal().iter().zip(alone.diagonal()) {
            assert!((whole - alone).abs() <= 1e-5 * alone);
        }
        assert_eq!(alone.matrix().diag().to_vec(), alone.diagonal());
        assert_eq!(alone.matrix()[[3, 4]], 0.0);
    }

    #[test]
    fn zeros_count_as_rows_and_too_many_samples_are_refused() {
        let mut moments = SecondMoments::new(2);
        moments.add(&[0.0; 8]).unwrap();
        moments.add(&[]).unwrap();
        assert_eq!((moments.rows(), moments.diagonal()), (4, vec![0.0, 0.0]));
        moments.samples = MAX_SAMPLES;
        assert_eq!(moments.add(&[1.0, 1.0]), Err(TooManySamples));
        assert_eq!(moments.clone().merge(&moments), Err(TooManySamples));
    }
}
