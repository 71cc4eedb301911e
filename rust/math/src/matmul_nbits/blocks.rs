//! Rounds blocks that lie side by side, one per lane of a vector.

use crate::QSpec;
use crate::metrics::Sums;
use crate::rounding::MAGIC;
use crate::weight::lanes::{Ends, LANES, LaneParams, Row};

/// The smallest and the largest element of each lane; `None` when one is not finite.
#[inline(always)]
pub(super) fn finite_ends(x: &[Row]) -> Option<Ends> {
    let (mut min, mut max) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    // 0 · x is NaN if x is not finite, and NaN propagates.
    let mut odd = [0.0_f32; LANES];
    let (whole, rest) = x.as_chunks::<8>();
    for rows in whole {
        for lane in 0..LANES {
            for row in rows {
                let x = row[lane];
                min[lane] = if x < min[lane] { x } else { min[lane] };
                max[lane] = if x > max[lane] { x } else { max[lane] };
                odd[lane] += x * 0.0;
            }
        }
    }
    for row in rest {
        for lane in 0..LANES {
            let x = row[lane];
            min[lane] = if x < min[lane] { x } else { min[lane] };
            max[lane] = if x > max[lane] { x } else { max[lane] };
            odd[lane] += x * 0.0;
        }
    }
    odd.iter().all(|odd| *odd == 0.0).then_some(Ends { min, max })
}

/// The grid of each lane.
pub(super) struct Grids {
    scale: Row,
    /// The zero points.
    zero: Row,
    /// Whether these are floats, which are added before rounding.
    floats: bool,
    lo: f32,
    hi: f32,
}

impl Grids {
    pub(super) fn of(found: &LaneParams, floats: bool, spec: &QSpec) -> Grids {
        let (lo, hi) = spec.grid();
        Grids { scale: found.scale, zero: found.zero, floats, lo: lo as f32, hi: hi as f32 }
    }

    /// Packs the codes of each `ROWS` rows into words, of which the `BYTES` lowest bytes are used,
    /// and adds to the sums.
    #[inline(always)]
    pub(super) fn round<const ROWS: usize, const BYTES: usize>(
        &self,
        x: &[Row],
        ends: &Ends,
        words: &mut Vec<[u32; LANES]>,
        sums: &mut LaneSums,
    ) {
        if self.floats {
            self.round_with::<ROWS, BYTES, true>(x, ends, words, sums);
        } else {
            self.round_with::<ROWS, BYTES, false>(x, ends, words, sums);
        }
    }

    #[inline(always)]
    fn round_with<const ROWS: usize, const BYTES: usize, const FLOATS: bool>(
        &self,
        x: &[Row],
        ends: &Ends,
        words: &mut Vec<[u32; LANES]>,
        sums: &mut LaneSums,
    ) {
        let (whole, rest) = x.as_chunks::<ROWS>();
        let mut block = BlockSums::of(ends);
        words.clear();
        for rows in whole {
            words.push(self.word::<ROWS, BYTES, FLOATS>(rows, ROWS, &mut block));
        }
        if !rest.is_empty() {
            let mut rows = [[0.0; LANES]; ROWS];
            rows[..rest.len()].copy_from_slice(rest);
            words.push(self.word::<ROWS, BYTES, FLOATS>(&rows, rest.len(), &mut block));
        }
        sums.add(&block);
    }

    /// The codes of the first `len` rows, as [`reference::quantize_one`] computes them. Codes are
    /// the low bits of rounded numbers; those of [`MAGIC`] are subtracted from the whole word.
    ///
    /// [`reference::quantize_one`]: crate::kernels::reference::quantize_one
    #[inline(always)]
    fn word<const ROWS: usize, const BYTES: usize, const FLOATS: bool>(
        &self,
        rows: &[Row; ROWS],
        len: usize,
        block: &mut BlockSums,
    ) -> [u32; LANES] {
        let bits = 8 * BYTES / ROWS;
        let mut ones = 0_u32;
        for at in 0..len {
            ones |= 1 << (at * bits);
        }
        let mut words = [0_u32; LANES];
        for lane in 0..LANES {
            let (scale, zero) = (self.scale[lane], self.zero[lane]);
            let shift = if FLOATS { 0.0 } else { zero };
            let (lo, hi) = (self.lo - shift, self.hi - shift);
            let (mut word, mut seen) = (0_u32, Seen::default());
            for (at, row) in rows.iter().enumerate() {
                let x = row[lane];
                let steps = if FLOATS { x / scale + zero } else { x / scale };
                let steps = if steps > lo { steps } else { lo };
                let steps = if steps < hi { steps } else { hi };
                let rounded = steps + MAGIC;
                let inside = rounded - MAGIC;
                let back = (if FLOATS { inside - zero } else { inside }) * scale;
                let code = rounded.to_bits() << (at * bits);
                word = word.wrapping_add(if at < len { code } else { 0 });
                seen.add(x, if at < len { back } else { x }, block.per_unit[lane]);
            }
            let shift = (MAGIC + shift).to_bits().wrapping_sub(2_u32.wrapping_mul(MAGIC.to_bits()));
            words[lane] = word.wrapping_add(ones.wrapping_mul(shift));
            block.add(lane, &seen);
        }
        words
    }
}

/// The sums over a few elements of a lane, in units of the block.
#[derive(Default)]
struct Seen {
    signal: f32,
    cross: f32,
    noise: f32,
    max_abs: f32,
}

impl Seen {
    #[inline(always)]
    fn add(&mut self, x: f32, back: f32, per_unit: f32) {
        let off = x - back;
        let size = off.abs();
        self.max_abs = if size > self.max_abs { size } else { self.max_abs };
        let (x, off) = (x * per_unit, off * per_unit);
        self.signal += x * x;
        self.cross += x * off;
        self.noise += off * off;
    }
}

/// The sums of a block in each lane. Errors are squared in units of its largest element, so that no
/// f32 overflows.
struct BlockSums {
    unit: Row,
    per_unit: Row,
    sums: LaneSums,
}

impl BlockSums {
    #[inline(always)]
    fn of(ends: &Ends) -> BlockSums {
        let (mut unit, mut per_unit) = ([0.0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            unit[lane] = ends.lane(lane).absmax().max(f32::MIN_POSITIVE);
            per_unit[lane] = 1.0 / unit[lane];
        }
        BlockSums { unit, per_unit, sums: LaneSums::default() }
    }

    #[inline(always)]
    fn add(&mut self, lane: usize, seen: &Seen) {
        let sums = &mut self.sums;
        sums.signal[lane] += f64::from(seen.signal);
        sums.cross[lane] += f64::from(seen.cross);
        sums.noise[lane] += f64::from(seen.noise);
        let max = sums.max_abs[lane];
        sums.max_abs[lane] = if seen.max_abs > max { seen.max_abs } else { max };
    }
}

/// The sums of each lane.
#[derive(Default)]
pub(super) struct LaneSums {
    signal: [f64; LANES],
    cross: [f64; LANES],
    noise: [f64; LANES],
    max_abs: Row,
}

impl LaneSums {
    /// Adds those of a block.
    #[inline(always)]
    fn add(&mut self, block: &BlockSums) {
        let sums = &block.sums;
        for lane in 0..LANES {
            let unit = f64::from(block.unit[lane]);
            let square = unit * unit;
            self.signal[lane] += sums.signal[lane] * square;
            self.cross[lane] += sums.cross[lane] * square;
            self.noise[lane] += sums.noise[lane] * square;
            let (size, max) = (sums.max_abs[lane], self.max_abs[lane]);
            self.max_abs[lane] = if size > max { size } else { max };
        }
    }

    /// The sums over all lanes, added in order.
    pub(super) fn total(&self) -> Sums {
        let [signal, cross, noise] =
            [&self.signal, &self.cross, &self.noise].map(|lanes| lanes.iter().sum());
        Sums::new(signal, cross, noise, f64::from(self.max_abs.into_iter().fold(0.0, f32::max)))
    }
}
