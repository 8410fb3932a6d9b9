//! A counting allocator, for tests that promise how much is allocated.
//!
//! Counts are per thread, so that tests may run beside each other. Install it in a test binary with
//! `#[global_allocator] static ALLOCATOR: Counting = Counting;`.
//!
//! The `unsafe` here is the allocator trait's own: every call is handed on to the system allocator unchanged, with the
//! caller's guarantees; what is added touches only plain thread-local numbers that need no allocation themselves.

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
    /// Bytes asked for, whether or not they were given back.
    pub bytes: u64,
    /// Bytes asked for less bytes given back.
    pub net_bytes: i64,
}

impl Counting {
    /// What this thread allocates while `work` runs, and what came of it.
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
    // A thread that is ending has no counters left; nobody asks it any more.
    let _ = ALLOCATIONS.try_with(|all| {
        let before = all.get();
        all.set(Allocations {
            count: before.count + u64::from(asked > 0),
            bytes: before.bytes + asked as u64,
            net_bytes: before.net_bytes + asked.cast_signed() as i64 - given_back.cast_signed() as i64,
        });
    });
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
