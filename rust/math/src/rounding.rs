//! Rounding half to even by an addition and a subtraction. Without SSE4.1, which is not part of
//! every x86-64, `round_ties_even` is a function call per element.

/// 1.5 · 2²³. From 2²³ to 2²⁴ neighbouring f32 values are 1 apart. Adding this to a number below
/// 2²² in magnitude rounds it to an integer, half to even, and leaves the integer in the low bits,
/// which are 0 in this constant. Subtracting it again gives the integer as f32.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// `f64::round_ties_even` for magnitudes below 2⁵¹.
#[inline(always)]
pub(crate) fn round_ties_even(x: f64) -> f64 {
    /// 1.5 · 2⁵²: f64 values of this size have no fraction.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    (x + MAGIC) - MAGIC
}
