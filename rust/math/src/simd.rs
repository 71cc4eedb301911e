//! The widest vectors that the processor has, for loops that the compiler turns into vectors.

use pulp::{Arch, Simd, WithSimd};

/// A loop over slices.
pub(crate) trait SimdLoop {
    /// What comes of it.
    type Output;

    /// Runs it. To be marked `#[inline(always)]`, and all that it calls: only what ends up inside of
    /// [`vectorized`] is compiled for wide vectors.
    fn run(self) -> Self::Output;
}

/// Runs a loop that was compiled for the vectors of this processor. The result is the same with any: what the loop
/// computes, and in which order, is for the loop to say.
pub(crate) fn vectorized<L: SimdLoop>(work: L) -> L::Output {
    Arch::new().dispatch(SimdDispatch(work))
}

struct SimdDispatch<L>(L);

impl<L: SimdLoop> WithSimd for SimdDispatch<L> {
    type Output = L::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> L::Output {
        self.0.run()
    }
}
