//! Consumer half of a schedule: threads draw from one sequence without a lock, and no draw is lost or
//! repeated.
//!
//! The sequence is a run of slots. Slots are produced in blocks, under the lock, and are final once the
//! watermark has passed them. A pick is one `fetch_add` on the shared counter, one load of the watermark and
//! one read. All threads take their position from the same counter, so their picks together are the sequence,
//! whatever their interleaving (EDF-11).
//!
//! | run | slots | what follows the last slot |
//! |---|---|---|
//! | cyclic | whole periods of the order | the first slot again, lap after lap |
//! | open | a stretch of a long order | the tail: exact, but under the lock, until a successor takes over |
//!
//! The counter holds the position in its low bits and the lap in its high bits. Both change in one step, and
//! the word may overflow without a jump in the sequence (WRR-12).

use super::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, OnceLock, Ordering, PoisonError};

/// Source of the sequence, called under the lock once per slot, in order.
pub(super) trait SlotSource {
    /// Returns the index for the next slot.
    fn next(&mut self) -> u32;
}

/// Run of slots from source `S`, produced in blocks of `BLOCK` slots.
pub(super) struct ScheduleCell<S, const BLOCK: usize> {
    counter: CacheAligned<AtomicU64>,
    /// Slots, allocated on the first pick: in a burst of updates, many cells are replaced unused.
    run: OnceLock<Box<[AtomicU32]>>,
    /// Watermark: slots below it are final.
    produced: AtomicUsize,
    slots: usize,
    cyclic: bool,
    start: usize,
    filling: Mutex<FillState<S>>,
}

/// Progress of a cell. Concurrent picks may or may not be included.
pub(super) struct CellProgress {
    /// Number of complete laps.
    pub(super) laps: u64,
    /// Number of slots consumed in the current lap, including the skipped ones before the start.
    pub(super) taken: usize,
    /// Number of slots produced.
    pub(super) produced: usize,
    /// Number of picks past the end of an open run.
    pub(super) tail: u64,
}

impl<S: SlotSource, const BLOCK: usize> ScheduleCell<S, BLOCK> {
    /// Creates a run of `slots` slots (1 to 2^20) whose first pick takes slot `start`. Produces nothing.
    pub(super) fn new(source: S, slots: usize, cyclic: bool, start: usize) -> Self {
        Self {
            counter: CacheAligned(AtomicU64::new(start as u64)),
            run: OnceLock::new(),
            produced: AtomicUsize::new(0),
            slots,
            cyclic,
            start,
            filling: Mutex::new(FillState { source, produced: 0, tail: 0 }),
        }
    }

    /// Returns the next index of the sequence.
    #[inline]
    pub(super) fn pick(&self) -> u32 {
        // Relaxed is enough: the counter only assigns positions. The watermark publishes the slots.
        let slot = (self.counter.0.fetch_add(1, Ordering::Relaxed) & POSITION) as usize;
        match self.read(slot) {
            Some(index) => index,
            None => self.pick_unproduced(slot),
        }
    }

    #[inline]
    fn read(&self, slot: usize) -> Option<u32> {
        // Acquire pairs with the Release in `produce`: slots below the watermark are visible.
        if slot >= self.produced.load(Ordering::Acquire) {
            return None;
        }
        // A slot below the watermark is final, so a relaxed load returns its value.
        Some(self.run.get()?.get(slot)?.load(Ordering::Relaxed))
    }

    /// Picks a slot past the end of the run, or one that is not produced yet.
    #[cold]
    #[inline(never)]
    fn pick_unproduced(&self, mut slot: usize) -> u32 {
        if slot >= self.slots {
            if !self.cyclic {
                return self.pick_tail();
            }
            // Exactly one thread draws each multiple of the length, and it alone subtracts the lap. Until
            // then, other threads see positions past the end and take the remainder.
            if slot.is_multiple_of(self.slots) {
                self.counter.0.fetch_add(LAP.wrapping_sub(self.slots as u64), Ordering::Relaxed);
            }
            slot %= self.slots;
            if let Some(index) = self.read(slot) {
                return index;
            }
        }
        self.produce(&mut self.lock(), slot + 1);
        // `produce` has filled the slot, so the default is never used.
        self.read(slot).unwrap_or_default()
    }

    fn pick_tail(&self) -> u32 {
        let mut filling = self.lock();
        // A thread that drew one of the last slots may still wait for the lock; its slots precede the tail.
        self.produce(&mut filling, self.slots);
        // The draw was past the end. Undoing it keeps the position from overflowing into the laps.
        self.counter.0.fetch_sub(1, Ordering::Relaxed);
        filling.tail += 1;
        filling.source.next()
    }

    /// Produces ahead until `slots` slots exist. Releases the lock between blocks, so that a concurrent pick
    /// waits for one block only.
    pub(super) fn prefill(&self, slots: usize) {
        let slots = slots.min(self.slots);
        loop {
            let mut filling = self.lock();
            if filling.produced >= slots {
                return;
            }
            // One more slot means one block. The guard is dropped before the next block.
            let one = filling.produced + 1;
            self.produce(&mut filling, one);
        }
    }

    fn produce(&self, filling: &mut FillState<S>, slots: usize) {
        let run = self.run.get_or_init(|| (0..self.slots).map(|_| AtomicU32::new(0)).collect());
        while filling.produced < slots {
            let end = self.slots.min(filling.produced + BLOCK);
            // An empty block ends the loop at the end of the run.
            let Some(block) = run.get(filling.produced..end).filter(|block| !block.is_empty()) else {
                return;
            };
            for index in block {
                index.store(filling.source.next(), Ordering::Relaxed);
            }
            filling.produced = end;
            self.produced.store(end, Ordering::Release);
        }
    }

    /// Calls `look` with the source while the lock is held. All consumed slots are produced before.
    pub(super) fn inspect<R>(&self, look: impl FnOnce(&S, CellProgress) -> R) -> R {
        let mut filling = self.lock();
        let mut progress = self.progress(&filling);
        self.produce(&mut filling, progress.taken);
        progress.produced = filling.produced;
        look(&filling.source, progress)
    }

    fn progress(&self, filling: &FillState<S>) -> CellProgress {
        let word = self.counter.0.load(Ordering::Relaxed);
        let (mut laps, mut taken) = (0, (word & POSITION) as usize);
        if self.cyclic && word > 0 {
            // The end of a lap counts as its last slot, not as the start of the next lap.
            let before = taken.saturating_sub(1);
            laps = word / LAP + (before / self.slots) as u64;
            taken = before % self.slots + 1;
        }
        CellProgress { laps, taken: taken.min(self.slots), produced: filling.produced, tail: filling.tail }
    }

    /// Returns the slots `from..to`, as far as they are produced.
    pub(super) fn slots(&self, from: usize, to: usize) -> impl Iterator<Item = u32> {
        let to = to.min(self.produced.load(Ordering::Acquire));
        let run = self.run.get().and_then(|run| run.get(from..to)).unwrap_or_default();
        run.iter().map(|index| index.load(Ordering::Relaxed))
    }

    /// Returns the number of slots per lap.
    pub(super) fn len(&self) -> usize {
        self.slots
    }

    /// Returns true if the run repeats.
    pub(super) fn is_cyclic(&self) -> bool {
        self.cyclic
    }

    /// Returns the slot of the first pick.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Returns a number that differs after each pick.
    pub(super) fn position(&self) -> u64 {
        // Picks past the end of an open run leave the counter unchanged, so they are added here.
        let tail = self.lock().tail;
        self.counter.0.load(Ordering::Relaxed).wrapping_add(tail)
    }

    /// Returns the number of slots consumed of an open run, without taking the lock.
    pub(super) fn taken(&self) -> usize {
        (self.counter.0.load(Ordering::Relaxed) & POSITION) as usize
    }

    /// Locks the producer. A poisoned lock is safe: a panicking source leaves an inexact but complete
    /// sequence.
    fn lock(&self) -> MutexGuard<'_, FillState<S>> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct FillState<S> {
    source: S,
    produced: usize,
    tail: u64,
}

/// Separates the counter, which every pick writes, from the cache line of data that picks only read. The
/// alignment is two lines, since processors prefetch lines in pairs.
#[repr(align(128))]
struct CacheAligned<T>(T);

/// Increment of the lap; positions have 28 bits below it. A run has at most 2^20 slots. So 255 threads may
/// stall between drawing a multiple of the length and subtracting it before a position reaches the laps.
const LAP: u64 = 1 << 28;
const POSITION: u64 = LAP - 1;
