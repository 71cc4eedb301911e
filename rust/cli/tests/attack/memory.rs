//! Counts the bytes that a thread holds, so that an input that takes too many is noticed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;

/// No input of less than a megabyte may hold more at a time.
pub(crate) const MOST: i64 = 1 << 30;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
    static INPUT: Cell<u64> = const { Cell::new(0) };
}

/// Begins to count for an input.
pub(crate) fn begin(input: u64) {
    HELD.set(0);
    PEAK.set(0);
    INPUT.set(input);
}

/// The most bytes that this thread held at a time since [`begin`].
pub(crate) fn peak() -> i64 {
    PEAK.get()
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn grown(bytes: usize) {
    let held = HELD.get().saturating_add_unsigned(bytes as u64);
    HELD.set(held);
    if held > PEAK.get() {
        // The system may refuse it, which ends the process: the input has to be known then.
        if held > 4 * MOST && PEAK.get() <= 4 * MOST {
            let _ = writeln!(std::io::stderr(), "input {} asks for {held} bytes", INPUT.get());
        }
        PEAK.set(held);
    }
}

fn shrunk(bytes: usize) {
    HELD.set(HELD.get().saturating_sub_unsigned(bytes as u64));
}

// SAFETY: all is left to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        shrunk(layout.size());
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        shrunk(layout.size());
        grown(size);
        unsafe { System.realloc(place, layout, size) }
    }
}
