//! Error metrics between two tensors, as printed in reports.

use crate::float_source::Element;
use crate::simd::{SimdLoop, vectorized};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The difference between a tensor and a reference.
///
/// In JSON, values that are not finite are null; reading restores them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Serialized")]
pub struct Metrics {
    /// The mean of the squared differences.
    pub mse: f64,
    /// The largest absolute difference.
    pub max_abs: f64,
    /// Signal to quantization noise ratio, `10·log10(Σx² / Σ(x-y)²)`, in decibels; `inf` when there
    /// is no difference.
    pub sqnr_db: f64,
    /// Cosine similarity; 1 when both tensors are all zero, 0 when only one is.
    pub cosine: f64,
}

/// The metrics of `other` relative to `reference`, which has the same length.
///
/// Sums are computed in f64 over chunks of a fixed size and added in the order of the chunks: the
/// result does not depend on the number of threads.
pub fn metrics(reference: &[f32], other: &[f32]) -> Metrics {
    assert_eq!(reference.len(), other.len(), "elements of the two tensors");
    let sums: Vec<Sums> = reference
        .par_chunks(CHUNK)
        .zip(other.par_chunks(CHUNK))
        .map(|(x, y)| Sums::of(x, y))
        .collect();
    Sums::total(sums).metrics(reference.len())
}

/// An accumulator of metrics over parts of a tensor. The result depends on the division into parts
/// and on their order only in the last digits.
///
/// ```
/// use quantize_rs_math::Deviation;
/// let whole = Deviation::of(&[3.0, 4.0], &[3.0, 3.0]).metrics();
/// let parts = Deviation::of(&[3.0], &[3.0]).and(Deviation::of(&[4.0], &[3.0])).metrics();
/// assert_eq!(whole, parts);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Deviation {
    sums: Sums,
    elements: usize,
}

impl Deviation {
    /// The deviation of `other` from `reference`, which has the same length. Infinity, NaN and
    /// numbers beyond 2²⁴ that both have are left out: they are masks, as −10⁹ in the logits of
    /// forbidden tokens, and their squares would hide the errors of all others.
    pub fn of(reference: &[f32], other: &[f32]) -> Deviation {
        assert_eq!(reference.len(), other.len(), "elements of the two tensors");
        let mut elements = 0;
        let chunks = reference.chunks(CHUNK).zip(other.chunks(CHUNK));
        let sums = Sums::total(chunks.map(|(x, y)| {
            // No early exit, so that the loop compiles to vector code.
            let is_usual = |x: f32| x.abs() < LARGEST;
            if x.iter().fold(true, |all, x| all & is_usual(*x)) {
                elements += x.len();
                return Sums::of(x, y);
            }
            let alike = |x: f32, y: f32| x == y || (x.is_nan() && y.is_nan());
            let apart = x.iter().zip(y).filter(|(x, y)| is_usual(**x) || !alike(**x, **y));
            let (x, y): (Vec<f32>, Vec<f32>) = apart.unzip();
            elements += x.len();
            Sums::of(&x[..], &y)
        }));
        Deviation { sums, elements }
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Deviation) -> Deviation {
        Deviation {
            sums: Sums::total([self.sums, other.sums]),
            elements: self.elements + other.elements,
        }
    }

    /// The metrics of everything accumulated.
    pub fn metrics(&self) -> Metrics {
        self.sums.metrics(self.elements)
    }
}

/// Beyond this magnitude, float32 represents no fractions, and numbers that are equal in both
/// tensors are left out.
const LARGEST: f32 = 16_777_216.0;

/// Elements per chunk: two chunks of floats and one of bytes fit into the second-level cache of any
/// processor, and no packed byte spans two chunks.
pub(crate) const CHUNK: usize = 1 << 14;

/// The sums from which all metrics are computed, with `e = x - y`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// `Σ x²`
    signal: f64,
    /// `Σ x·e`
    cross: f64,
    /// `Σ e²`
    noise: f64,
    /// `max |e|`
    max_abs: f64,
}

impl Sums {
    /// The sums over a chunk.
    pub(crate) fn of(x: &[f32], y: &[f32]) -> Sums {
        vectorized(Chunk { x, y })
    }

    /// The sums over a chunk, in lanes that are added in a fixed order.
    #[inline(always)]
    fn within(x: &[impl Element], y: &[f32]) -> Sums {
        // Four sums in four lanes, two per register: with the intermediate values they fit the 16
        // registers of every x86-64.
        const LANES: usize = 4;
        let mut lanes = [[0.0_f64; LANES]; 4];
        let mut add = |lane: usize, x: f32, y: f32| {
            let (x, y) = (f64::from(x), f64::from(y));
            let difference = x - y;
            lanes[0][lane] += x * x;
            lanes[1][lane] += x * difference;
            lanes[2][lane] += difference * difference;
            let (size, max) = (difference.abs(), lanes[3][lane]);
            lanes[3][lane] = if size > max { size } else { max };
        };
        let ((x_rows, x_rest), (y_rows, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
        for (x, y) in x_rows.iter().zip(y_rows) {
            for lane in 0..LANES {
                add(lane, x[lane].value(), y[lane]);
            }
        }
        for (lane, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
            add(lane, x.value(), *y);
        }
        let [signal, cross, noise] = [0, 1, 2].map(|sum| lanes[sum].iter().sum());
        Sums { signal, cross, noise, max_abs: lanes[3].into_iter().fold(0.0, f64::max) }
    }

    /// Sums that were computed otherwise: `Σ x²`, `Σ x·e`, `Σ e²` and `max |e|`.
    pub(crate) fn new(signal: f64, cross: f64, noise: f64, max_abs: f64) -> Sums {
        Sums { signal, cross, noise, max_abs }
    }

    /// The sums over all chunks, added in order.
    pub(crate) fn total(chunks: impl IntoIterator<Item = Sums>) -> Sums {
        chunks.into_iter().fold(Sums::default(), |total, chunk| Sums {
            signal: total.signal + chunk.signal,
            cross: total.cross + chunk.cross,
            noise: total.noise + chunk.noise,
            max_abs: total.max_abs.max(chunk.max_abs),
        })
    }

    /// Updates the sums after the dequantized value of `x` changed from `was` to `is`.
    pub(crate) fn replace(&mut self, x: f32, was: f32, is: f32) {
        let [x, was, is] = [x, was, is].map(f64::from);
        let (before, after) = (x - was, x - is);
        self.cross += x * (after - before);
        self.noise += after * after - before * before;
        self.max_abs = self.max_abs.max(after.abs());
    }

    /// The metrics over `elements` differences; perfect when there are none.
    pub(crate) fn metrics(&self, elements: usize) -> Metrics {
        // If either value is NaN, the error is infinite.
        let [noise, max_abs] = [self.noise, self.max_abs]
            .map(|it| if self.noise.is_nan() { f64::INFINITY } else { it });
        // For 0, kernels may leave numbers below the normal ones, which processors take for 0.
        let is_zero = self.signal == 0.0 && max_abs < f64::from(f32::MIN_POSITIVE);
        let noise = if is_zero { 0.0 } else { noise };
        let sqnr_db = match noise {
            0.0 => f64::INFINITY,
            f64::INFINITY => f64::NEG_INFINITY,
            noise => 10.0 * (self.signal / noise).log10(),
        };
        // With y = x - e: Σ x·y = Σ x² - Σ x·e and Σ y² = Σ x² - 2 Σ x·e + Σ e².
        let dot = self.signal - self.cross;
        let other = dot - self.cross + self.noise;
        let cosine = match (self.signal == 0.0, other <= 0.0) {
            _ if noise == 0.0 => 1.0,
            (true, _) | (_, true) => 0.0,
            // Rounding can raise the quotient of two parallel tensors above 1.
            (false, false) => (dot / (self.signal.sqrt() * other.sqrt())).clamp(-1.0, 1.0),
        };
        Metrics { mse: noise / elements.max(1) as f64, max_abs, sqnr_db, cosine }
    }
}

/// What is measured of a chunk and its dequantized values, inside the quantization loop.
pub(crate) trait Measure<X> {
    /// The result.
    type Output: Send;

    /// Measures. Implementations must be `#[inline(always)]`: a closure passed by reference is not
    /// inlined, so it is not compiled for wide vectors.
    fn measured(x: &[X], y: &[f32]) -> Self::Output;
}

impl<X: Element> Measure<X> for Sums {
    type Output = Sums;

    #[inline(always)]
    fn measured(x: &[X], y: &[f32]) -> Sums {
        Sums::within(x, y)
    }
}

/// Measures nothing.
impl<X> Measure<X> for () {
    type Output = ();

    #[inline(always)]
    fn measured(_: &[X], _: &[f32]) {}
}

/// A chunk and its dequantized values.
struct Chunk<'a> {
    x: &'a [f32],
    y: &'a [f32],
}

impl SimdLoop for Chunk<'_> {
    type Output = Sums;

    #[inline(always)]
    fn run(self) -> Sums {
        Sums::within(self.x, self.y)
    }
}

/// The JSON form of [`Metrics`].
#[derive(Deserialize)]
struct Serialized {
    mse: Option<f64>,
    max_abs: Option<f64>,
    sqnr_db: Option<f64>,
    cosine: Option<f64>,
}

impl From<Serialized> for Metrics {
    fn from(written: Serialized) -> Self {
        let lost_sqnr = match written.mse {
            Some(0.0) => f64::INFINITY,
            _ => f64::NEG_INFINITY,
        };
        Metrics {
            mse: written.mse.unwrap_or(f64::INFINITY),
            max_abs: written.max_abs.unwrap_or(f64::INFINITY),
            sqnr_db: written.sqnr_db.unwrap_or(lost_sqnr),
            cosine: written.cosine.unwrap_or(f64::NAN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_metrics() {
        let found = metrics(&[3.0, 4.0], &[3.0, 3.0]);
        assert_eq!((found.mse, found.max_abs), (0.5, 1.0));
        assert!((found.sqnr_db - 10.0 * 25_f64.log10()).abs() < 1e-12);
        assert!((found.cosine - 21.0 / (5.0 * 18_f64.sqrt())).abs() < 1e-12);
    }

    #[test]
    fn edge_cases_have_metrics() {
        let same = metrics(&[1.0, -2.0], &[1.0, -2.0]);
        assert_eq!((same.mse, same.sqnr_db), (0.0, f64::INFINITY));
        assert!((same.cosine - 1.0).abs() < 1e-15);
        assert_eq!(metrics(&[], &[]), metrics(&[0.0], &[0.0]));
        assert_eq!(metrics(&[0.0], &[1.0]).sqnr_db, f64::NEG_INFINITY);
        assert_eq!(metrics(&[1.0], &[0.0]).cosine, 0.0);
        for far in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let found = metrics(&[1.0, 2.0], &[far, 2.0]);
            let infinite = (f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY);
            assert_eq!((found.mse, found.max_abs, found.sqnr_db), infinite, "{far}");
        }
        assert!(metrics(&[f32::MAX], &[-f32::MAX]).mse.is_finite());
    }

    #[test]
    fn masks_hide_no_error() {
        for mask in [f32::MIN, -1e9, -f32::INFINITY, f32::NAN] {
            let found = Deviation::of(&[mask, 3.0, 4.0], &[mask, 3.0, 3.0]).metrics();
            assert!((found.sqnr_db - 10.0 * 25_f64.log10()).abs() < 1e-12, "{mask}");
        }
        let other = Deviation::of(&[-1e9, 3.0, 4.0], &[-2e9, 3.0, 4.0]).metrics();
        assert!((other.sqnr_db - 0.0).abs() < 1e-6);
    }

    #[test]
    fn numbers_that_are_left_out_do_not_count() {
        let masked = |last: f32| [-1e9, f32::NEG_INFINITY, -1e9, last];
        let found = Deviation::of(&masked(1.0), &masked(0.2)).metrics();
        let alone = Deviation::of(&[1.0], &[0.2]).metrics();
        assert_eq!((found.mse, found.max_abs), (alone.mse, alone.max_abs));
        assert_eq!(Deviation::of(&[-1e9; 3], &[-1e9; 3]).metrics().mse, 0.0);
    }

    #[test]
    fn equal_elements_have_no_deviation() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let found = Deviation::of(&[-inf, nan, 3.0, 4.0], &[-inf, nan, 3.0, 3.0]).metrics();
        assert_eq!(
            (found.max_abs, found.sqnr_db),
            (1.0, metrics(&[3.0, 4.0], &[3.0, 3.0]).sqnr_db)
        );
        assert_eq!(Deviation::of(&[-inf, 1.0], &[0.0, 1.0]).metrics().sqnr_db, f64::NEG_INFINITY);
        let long: Vec<f32> = (0..40_000_u16).map(|x| f32::from(x % 97)).collect();
        let near: Vec<f32> = long.iter().map(|x| x + 0.25).collect();
        assert_eq!(Deviation::of(&long, &near).metrics(), metrics(&long, &near));
    }

    #[test]
    fn non_finite_decibels_round_trip_through_json() {
        let written =
            |mse, sqnr_db| Serialized { mse, max_abs: Some(0.0), sqnr_db, cosine: Some(1.0) };
        assert_eq!(Metrics::from(written(Some(0.0), None)).sqnr_db, f64::INFINITY);
        assert_eq!(Metrics::from(written(Some(1.0), None)).sqnr_db, f64::NEG_INFINITY);
        assert_eq!(Metrics::from(written(None, None)).sqnr_db, f64::NEG_INFINITY);
        assert_eq!(Metrics::from(written(Some(1.0), Some(3.0))).sqnr_db, 3.0);
    }
}
