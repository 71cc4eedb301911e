//! Thread-local working memory for histograms.

use std::cell::RefCell;

use super::histogram::{BinIndex, Histogram};

/// Values processed at once: they, their bin indices and the counts fit into the second-level
/// cache. With a quarter of this length, prefetching is less effective, and values from main memory
/// took a third longer.
pub(super) const CHUNK: usize = 1 << 13;

/// Interleaved counters: with a single counter, repeated values, such as the zeros after a `Relu`,
/// would make each addition wait for the one before.
const LANES: usize = 4;

/// The working memory of a thread.
pub(super) struct Scratch {
    /// The bin indices of a chunk.
    pub(super) places: Box<[BinIndex; CHUNK]>,
    /// Counts not yet added to a histogram: all 0 between uses.
    pub(super) tally: HistogramScratch,
    /// Buffers for the near and the far values of a chunk.
    pub(super) near: Box<[f32; CHUNK]>,
    pub(super) far: Box<[f32; CHUNK]>,
}

/// Counts not yet added to a histogram.
pub(super) struct HistogramScratch {
    counts: Box<[[u32; LANES]; BinIndex::COUNT]>,
    /// The number of values counted.
    pending: usize,
}

/// Calls a function with the working memory of this thread.
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

/// Allocates an array on the heap, without a copy on the stack.
fn boxed<T: Clone + Default, const N: usize>() -> Box<[T; N]> {
    let Ok(array) = vec![T::default(); N].try_into() else { unreachable!("as long as asked for") };
    array
}

impl HistogramScratch {
    /// Counts values by their bin indices. All calls until
    /// [`empty_into`](HistogramScratch::empty_into) must use the same histogram.
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

    /// Moves the counts into the histogram.
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
