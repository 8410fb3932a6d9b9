//! What nobody needs any more and is yet to be dropped.
//!
//! Where thousands of endpoints go at once, giving back what was known of them takes as long as taking in those that come: it lies
//! all over the memory. Calls wait for those that come and for nothing else, so it is put off.

use std::fmt;
use std::vec::IntoIter;

/// Fewer than this are dropped where they are.
const MIN_BATCH: usize = 64;

/// From so many passes it is kept.
const MAX_BATCHES: usize = 16;

/// How many are dropped at once.
const BATCH_SIZE: usize = 256;

/// What passes let go of. It may be dropped at any time; where it is much, that takes a while, and [`DeferredDrop::drop_some`] does it bit
/// by bit.
#[derive(Default)]
pub struct DeferredDrop(Vec<Box<dyn DropBatch>>);

trait DropBatch: Send {
    /// Drops some; answers whether there are more.
    fn drop_some(&mut self) -> bool;
}

impl<T: Send> DropBatch for IntoIter<T> {
    fn drop_some(&mut self) -> bool {
        self.by_ref().take(BATCH_SIZE).for_each(drop);
        self.len() > 0
    }
}

impl DeferredDrop {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops a part of it that takes little time.
    pub fn drop_some(&mut self) {
        if let Some(batch) = self.0.last_mut()
            && !batch.drop_some()
        {
            self.0.pop();
        }
    }

    /// Takes in more of it. What has gathered for too long is dropped here.
    pub fn append(&mut self, mut other: DeferredDrop) {
        self.0.append(&mut other.0);
        self.0.drain(..self.0.len().saturating_sub(MAX_BATCHES));
    }

    /// Keeps these for later if they are many.
    pub(crate) fn add<T: Send + 'static>(&mut self, items: Vec<T>) {
        if items.len() >= MIN_BATCH {
            self.0.push(Box::new(items.into_iter()));
        }
    }
}

impl fmt::Debug for DeferredDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeferredDrop({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Many are dropped a part at a time, few at once, and all in the end.
    #[test]
    fn what_is_put_off_is_dropped_bit_by_bit() {
        let one = Arc::new(());
        let mut rubbish = DeferredDrop::default();
        rubbish.add(vec![one.clone(); MIN_BATCH - 1]);
        assert!(rubbish.is_empty());
        rubbish.add(vec![one.clone(); BATCH_SIZE + 1]);
        let mut more = DeferredDrop::default();
        more.add(vec![one.clone(); MIN_BATCH]);
        rubbish.append(more);
        for left in [BATCH_SIZE + 1, 1, 0] {
            rubbish.drop_some();
            assert_eq!(Arc::strong_count(&one) - 1, left);
        }
        assert!(rubbish.is_empty());
        rubbish.drop_some();
        for _ in 0..2 * MAX_BATCHES {
            let mut more = DeferredDrop::default();
            more.add(vec![one.clone(); MIN_BATCH]);
            rubbish.append(more);
        }
        assert_eq!(Arc::strong_count(&one) - 1, MAX_BATCHES * MIN_BATCH, "it does not grow without end");
        drop(rubbish);
        assert_eq!(Arc::strong_count(&one), 1);
    }
}
