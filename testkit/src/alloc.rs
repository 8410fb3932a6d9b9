//! Counting allocator, for tests that limit allocations.
//!
//! Counts are per thread, so tests may run concurrently. Install it in a test binary with
//! `#[global_allocator] static ALLOCATOR: Counting = Counting;`.
//!
//! The `unsafe` is that of the allocator trait. Every call passes to the system allocator unchanged, with the
//! caller's guarantees. The counters are plain thread-local numbers that allocate nothing.

#![expect(unsafe_code, reason = "an allocator cannot be written without; see the head comment")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// System allocator with counters.
#[derive(Debug)]
pub struct Counting;

/// Allocations of a thread during some work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocations {
    /// Number of allocations, including reallocations.
    pub count: u64,
    /// Number of allocated bytes, freed or not.
    pub bytes: u64,
    /// Number of allocated bytes minus freed bytes.
    pub net_bytes: i64,
}

impl Counting {
    /// Runs `work` and returns this thread's allocations meanwhile, and the result.
    pub fn during<T>(work: impl FnOnce() -> T) -> (Allocations, T) {
        let before = ALLOCATIONS.get();
        let result = work();
        let after = ALLOCATIONS.get();
        let allocations = Allocations {
            count: after.count - before.count,
            bytes: after.bytes - before.bytes,
            net_bytes: after.net_bytes - before.net_bytes,
        };
        (allocations, result)
    }
}

thread_local! {
    static ALLOCATIONS: Cell<Allocations> =
        const { Cell::new(Allocations { count: 0, bytes: 0, net_bytes: 0 }) };
}

fn count(asked: usize, given_back: usize) {
    // A thread that is exiting has no counters any more. They are not read either.
    let _ = ALLOCATIONS.try_with(|all| {
        let before = all.get();
        all.set(Allocations {
            count: before.count + u64::from(asked > 0),
            bytes: before.bytes + asked as u64,
            net_bytes: before.net_bytes + asked.cast_signed() as i64 - given_back.cast_signed() as i64,
        });
    });
}

// SAFETY: every method passes its arguments to the system allocator and returns its result.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's guarantees about `layout` are those that `System` needs.
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
        // SAFETY: as for `dealloc`; the caller guarantees that `size` fits the layout's alignment.
        unsafe { System.realloc(block, layout, size) }
    }
}
