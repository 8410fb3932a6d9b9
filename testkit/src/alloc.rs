//! A counting allocator, for tests that promise how much is allocated.
//!
//! Counts are per thread, so that tests may run beside each other. Install it in a test binary with
//! `#[global_allocator] static ALLOCATOR: Counting = Counting;`.
//!
//! The `unsafe` here is the allocator trait's own: every call is handed on to the system allocator unchanged, with the
//! caller's guarantees; what is added touches only two plain thread-local numbers that need no allocation themselves.

#![expect(unsafe_code, reason = "an allocator cannot be written without; see the head comment")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system allocator, counting.
#[derive(Debug)]
pub struct Counting;

/// What a thread allocated in some stretch of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocations {
    /// How often memory was asked for, growing included.
    pub count: u64,
    /// Bytes asked for less bytes given back.
    pub net_bytes: i64,
}

impl Counting {
    /// What this thread allocates while `work` runs, and what came of it.
    pub fn during<T>(work: impl FnOnce() -> T) -> (Allocations, T) {
        let (count, bytes) = (COUNT.get(), BYTES.get());
        let result = work();
        (Allocations { count: COUNT.get() - count, net_bytes: BYTES.get() - bytes }, result)
    }
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(asked: usize, given_back: usize) {
    let change = asked.cast_signed() as i64 - given_back.cast_signed() as i64;
    // A thread that is ending has no counters left; nobody asks it any more.
    let _ = COUNT.try_with(|count| count.set(count.get() + u64::from(asked > 0)));
    let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + change));
}

// SAFETY: every method hands its arguments to the system allocator and returns what that returned.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise about `layout` is the one that `System` needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the block came from `System` with this layout, since every block here does.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as for `dealloc`; the caller promises that `size` fits the layout's alignment.
        unsafe { System.realloc(block, layout, size) }
    }
}
