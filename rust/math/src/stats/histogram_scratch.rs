//! The working memory of counting, one for each thread.

use std::cell::RefCell;

use super::histogram::{BinIndex, Histogram};

/// Values that are looked at at once: they, their places and the counts stay in the second-level cache. So long that the
/// processor foresees what will be read: with a quarter of it, values from main memory took a third longer.
pub(super) const CHUNK: usize = 1 << 13;

/// Counts that are added up for a while: a value that comes again and again, as 0 does after a `Relu`, would make each
/// addition wait for the one before, were there but one counter for it.
const LANES: usize = 4;

/// The working memory of counting.
pub(super) struct Scratch {
    /// The places of a chunk.
    pub(super) places: Box<[BinIndex; CHUNK]>,
    /// Counts not yet in a histogram: all 0 in between.
    pub(super) tally: HistogramScratch,
    /// Room for the values of a chunk that are near, and for those that are far.
    pub(super) near: Box<[f32; CHUNK]>,
    pub(super) far: Box<[f32; CHUNK]>,
}

/// Counts not yet in a histogram.
pub(super) struct HistogramScratch {
    counts: Box<[[u32; LANES]; BinIndex::COUNT]>,
    /// How many values were counted.
    pending: usize,
}

/// Lends the working memory of this thread.
pub(super) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
            places: boxed(),
            tally: HistogramScratch { counts: boxed(), pending: 0 },
            near: boxed(),
            far: boxed(),
        });
    }
    SCRATCH.with_borrow_mut(work)
}

/// An array that never was on the stack.
fn boxed<T: Clone + Default, const N: usize>() -> Box<[T; N]> {
    let Ok(array) = vec![T::default(); N].try_into() else { unreachable!("as long as asked for") };
    array
}

impl HistogramScratch {
    /// Count values by their places, which are of this histogram until [`empty_into`](HistogramScratch::empty_into) it.
    pub(super) fn add(&mut self, places: &[BinIndex], histogram: &mut Histogram) {
        if self.pending + places.len() > u32::MAX as usize {
            self.empty_into(histogram);
        }
        self.pending += places.len();
        let (rows, rest) = places.as_chunks::<LANES>();
        for row in rows {
            for (lane, place) in row.iter().enumerate() {
                self.counts[place.0 as usize % BinIndex::COUNT][lane] += 1;
            }
        }
        for place in rest {
            self.counts[place.0 as usize % BinIndex::COUNT][0] += 1;
        }
    }

    /// Move what was counted into the histogram.
    pub(super) fn empty_into(&mut self, histogram: &mut Histogram) {
        if self.pending == 0 {
            return;
        }
        self.pending = 0;
        let lanes = self.counts.chunks_mut(Histogram::BINS);
        for (bins, lanes) in histogram.sides_mut().into_iter().zip(lanes) {
            for (bin, lanes) in bins.iter_mut().zip(lanes) {
                let sum: u64 = lanes.iter().map(|&count| u64::from(count)).sum();
                *bin = bin.saturating_add(sum);
                *lanes = [0; LANES];
            }
        }
    }
}
