//! Runs auto-vectorized loops with the widest vectors that the processor supports.

use pulp::{Arch, Simd, WithSimd};

/// A loop over slices.
pub(crate) trait SimdLoop {
    /// The result of the loop.
    type Output;

    /// Runs the loop. This function and everything it calls must be `#[inline(always)]`: only code
    /// inlined into [`vectorized`] is compiled for wide vectors.
    fn run(self) -> Self::Output;
}

/// Runs a loop that is compiled for the vectors of this processor. The result must not depend on
/// the vector width; the loop fixes the order of its operations.
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
