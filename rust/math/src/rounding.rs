//! Rounding half to even by adding and taking away, where a call for each element would cost more than all else: without
//! SSE4.1, which nobody may assume, `round_ties_even` is one.

/// 1.5 · 2²³. From 2²³ to 2²⁴ neighbouring f32 are 1 apart, so adding this to a number of less than 2²² rounds it to
/// an integer, half to even, and leaves the integer in the low bits: those of this number itself are 0. Taking it away
/// again gives the integer as f32.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// `f64::round_ties_even` of numbers below 2⁵¹.
#[inline]
pub(crate) fn round_ties_even(x: f64) -> f64 {
    /// 1.5 · 2⁵², above which there are no fractions.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    (x + MAGIC) - MAGIC
}
