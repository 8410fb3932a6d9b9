//! The consumer half: many threads draw from one order without a lock, and no draw is lost or repeated.
//!
//! The order is a run of slots. They are produced in blocks, under the lock, and do not change once the
//! watermark has passed them; a pick is one `fetch_add` on the shared counter, a look at the watermark and
//! one read. Because every thread takes its place from the same counter, the picks of all threads together
//! are the order itself, whatever their interleaving (EDF-11).
//!
//! | run | slots | what follows the last slot |
//! |---|---|---|
//! | cyclic | whole periods of the order | the first slot again, lap after lap |
//! | open | a stretch of a long order | the tail: exact, but under the lock, until a successor takes over |
//!
//! The counter holds the position in its low bits and the laps in its high bits, so that position and lap
//! change in one step and the whole word may overflow without a jump in the order (WRR-12).

use super::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, OnceLock, Ordering, PoisonError};

/// Where the order comes from; asked under the lock, once for each slot, in order.
pub(super) trait SlotSource {
    /// The index at the next slot.
    fn next(&mut self) -> u32;
}

/// A run of slots over `S`, produced in blocks of `BLOCK` slots.
pub(super) struct ScheduleCell<S, const BLOCK: usize> {
    counter: CacheAligned<AtomicU64>,
    /// Allocated for the first pick: many cells of a storm of updates never see one.
    run: OnceLock<Box<[AtomicU32]>>,
    /// The watermark: slots below it are final.
    produced: AtomicUsize,
    slots: usize,
    cyclic: bool,
    start: usize,
    filling: Mutex<FillState<S>>,
}

/// How far a cell has come. Picks that race with the question may or may not be counted.
pub(super) struct CellProgress {
    /// Whole laps before the present one.
    pub(super) laps: u64,
    /// Slots of the present lap that were handed out, the skipped ones before the start included.
    pub(super) taken: usize,
    /// Slots that exist.
    pub(super) produced: usize,
    /// Picks past the end of an open run.
    pub(super) tail: u64,
}

impl<S: SlotSource, const BLOCK: usize> ScheduleCell<S, BLOCK> {
    /// A run of `slots` slots (at least 1, at most 2^20) whose first pick takes slot `start`. Nothing is
    /// produced yet.
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

    /// The next index of the order.
    #[inline]
    pub(super) fn pick(&self) -> u32 {
        let slot = (self.counter.0.fetch_add(1, Ordering::Relaxed) & POSITION) as usize;
        match self.read(slot) {
            Some(index) => index,
            None => self.pick_unproduced(slot),
        }
    }

    #[inline]
    fn read(&self, slot: usize) -> Option<u32> {
        if slot >= self.produced.load(Ordering::Acquire) {
            return None;
        }
        Some(self.run.get()?.get(slot)?.load(Ordering::Relaxed))
    }

    /// A slot past the end of the run, or one that nobody has produced.
    #[cold]
    #[inline(never)]
    fn pick_unproduced(&self, mut slot: usize) -> u32 {
        if slot >= self.slots {
            if !self.cyclic {
                return self.pick_tail();
            }
            // Exactly one thread draws each multiple of the length; it alone takes the lap off the position.
            // Until it has, the others see positions past the end and divide.
            if slot.is_multiple_of(self.slots) {
                self.counter.0.fetch_add(LAP.wrapping_sub(self.slots as u64), Ordering::Relaxed);
            }
            slot %= self.slots;
            if let Some(index) = self.read(slot) {
                return index;
            }
        }
        self.produce(&mut self.lock(), slot + 1);
        self.read(slot).unwrap_or_default()
    }

    fn pick_tail(&self) -> u32 {
        let mut filling = self.lock();
        // A thread that drew one of the last slots may still be waiting for the lock.
        self.produce(&mut filling, self.slots);
        // The draw was past the end; taking it back keeps the position from growing into the laps.
        self.counter.0.fetch_sub(1, Ordering::Relaxed);
        filling.tail += 1;
        filling.source.next()
    }

    /// Produces ahead until `slots` slots exist, leaving the lock between blocks: a pick that needs a slot
    /// meanwhile waits for one block, not for all.
    pub(super) fn prefill(&self, slots: usize) {
        let slots = slots.min(self.slots);
        loop {
            let mut filling = self.lock();
            if filling.produced >= slots {
                return;
            }
            let one = filling.produced + 1;
            self.produce(&mut filling, one);
        }
    }

    fn produce(&self, filling: &mut FillState<S>, slots: usize) {
        let run = self.run.get_or_init(|| (0..self.slots).map(|_| AtomicU32::new(0)).collect());
        while filling.produced < slots {
            let end = self.slots.min(filling.produced + BLOCK);
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

    /// Looks at the source while nobody can produce. Everything handed out has been produced by then.
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
            // The end of a lap counts as its last slot, not as the next lap's start.
            let before = taken.saturating_sub(1);
            laps = word / LAP + (before / self.slots) as u64;
            taken = before % self.slots + 1;
        }
        CellProgress { laps, taken: taken.min(self.slots), produced: filling.produced, tail: filling.tail }
    }

    /// Slots `from..to` as far as they exist.
    pub(super) fn slots(&self, from: usize, to: usize) -> impl Iterator<Item = u32> {
        let to = to.min(self.produced.load(Ordering::Acquire));
        let run = self.run.get().and_then(|run| run.get(from..to)).unwrap_or_default();
        run.iter().map(|index| index.load(Ordering::Relaxed))
    }

    /// Slots of one lap.
    pub(super) fn len(&self) -> usize {
        self.slots
    }

    /// Whether the run repeats.
    pub(super) fn is_cyclic(&self) -> bool {
        self.cyclic
    }

    /// The slot of the first pick.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Returns a number that differs after each pick.
    pub(super) fn position(&self) -> u64 {
        // Picks past the end of an open run leave the counter where it is.
        let tail = self.lock().tail;
        self.counter.0.load(Ordering::Relaxed).wrapping_add(tail)
    }

    /// Slots handed out of an open run, without waiting for the lock.
    pub(super) fn taken(&self) -> usize {
        (self.counter.0.load(Ordering::Relaxed) & POSITION) as usize
    }

    /// A source that panicked half-way left an order that is odd but whole; picks go on.
    fn lock(&self) -> MutexGuard<'_, FillState<S>> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct FillState<S> {
    source: S,
    produced: usize,
    tail: u64,
}

/// Keeps the counter, which every pick writes, off the line of what every pick only reads. Two lines, since
/// processors fetch them in pairs.
#[repr(align(128))]
struct CacheAligned<T>(T);

/// Positions have 28 bits: a run has at most 2^20 slots, and 255 threads may be held up between drawing a
/// multiple of the length and taking it off before a position would touch the laps.
const LAP: u64 = 1 << 28;
const POSITION: u64 = LAP - 1;
