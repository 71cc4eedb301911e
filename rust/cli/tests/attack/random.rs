//! Numbers that look random and can be made again.

/// A linear congruential generator, so that an input can be made again from its number.
pub(crate) struct Random(u64);

/// Numbers at which arithmetic ends.
pub(crate) const EDGES: [u64; 14] = [
    0,
    1,
    2,
    3,
    16,
    127,
    255,
    65_535,
    1 << 31,
    1 << 32,
    (1 << 62) + 1,
    u64::MAX,
    1 << 63,
    (1 << 63) - 1,
];

impl Random {
    /// The numbers of an input.
    pub(crate) fn of(input: u64) -> Random {
        let mut random = Random(input.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        self.0 >> 20
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next()).unwrap_or(0) % end.max(1)
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    #[allow(clippy::cast_possible_truncation)] // the lowest bits
    pub(crate) fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    pub(crate) fn edge(&mut self) -> u64 {
        EDGES[self.below(EDGES.len())]
    }

    pub(crate) fn of_all<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }
}
