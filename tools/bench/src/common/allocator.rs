//! System allocator with totals of the process: number of allocations and bytes in use.
//!
//! The testkit's `Counting` counts per thread, which suits tests. A client may allocate on one thread and
//! free on another. Counting costs two atomic additions per block, so that the counted instructions stay
//! those of the client. Timed measurements turn counting off.

#![expect(unsafe_code, reason = "an allocator cannot be written without; every call is handed on unchanged")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

pub(crate) struct Totals;

static COUNT: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicI64 = AtomicI64::new(0);
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

impl Totals {
    /// Returns the number of allocations since the start, including reallocations, and the bytes in use.
    pub(crate) fn now() -> (u64, i64) {
        (COUNT.load(Ordering::Relaxed), HELD.load(Ordering::Relaxed))
    }

    /// Stops counting for the whole process.
    pub(crate) fn stop() {
        IS_STOPPED.store(true, Ordering::Relaxed);
    }
}

fn asked(bytes: usize) {
    if IS_STOPPED.load(Ordering::Relaxed) {
        return;
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    HELD.fetch_add(bytes.cast_signed() as i64, Ordering::Relaxed);
}

fn given_back(bytes: usize) {
    if IS_STOPPED.load(Ordering::Relaxed) {
        return;
    }
    HELD.fetch_sub(bytes.cast_signed() as i64, Ordering::Relaxed);
}

// SAFETY: every method passes its arguments to the system allocator and returns its result.
unsafe impl GlobalAlloc for Totals {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        // SAFETY: the caller's guarantees about `layout` are those that `System` needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: the block came from `System` with this layout, since every block here does.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        asked(size);
        given_back(layout.size());
        // SAFETY: as for `dealloc`; the caller guarantees that `size` fits the layout's alignment.
        unsafe { System.realloc(block, layout, size) }
    }
}
