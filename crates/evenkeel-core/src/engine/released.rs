//! Values that passes released and that are dropped later.
//!
//! When thousands of endpoints are removed at once, dropping their state takes as long as creating the state of the endpoints
//! that replace them. Calls wait only for the latter, so the driver drops the rest off the request path.

use std::fmt;
use std::vec::IntoIter;

/// Minimum number of values to keep; fewer are dropped at once.
const MIN_BATCH: usize = 64;

/// Maximum number of batches to keep.
const MAX_BATCHES: usize = 16;

/// Number of values that one step drops.
const BATCH_SIZE: usize = 256;

/// Values that a pass released, to be dropped off the request path.
///
/// Dropping it drops all values at once. [`ReleasedValues::drop_some`] drops a part that takes little time.
#[derive(Default)]
pub struct ReleasedValues(Vec<Box<dyn DropBatch>>);

trait DropBatch: Send {
    /// Drops some values. Returns true if there are more.
    fn drop_some(&mut self) -> bool;
}

impl<T: Send> DropBatch for IntoIter<T> {
    fn drop_some(&mut self) -> bool {
        self.by_ref().take(BATCH_SIZE).for_each(drop);
        self.len() > 0
    }
}

impl ReleasedValues {
    /// Returns true if there is nothing left to drop.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops a part of the values that takes little time.
    pub fn drop_some(&mut self) {
        // The newest batch first: removing it moves no other.
        if let Some(batch) = self.0.last_mut()
            && !batch.drop_some()
        {
            self.0.pop();
        }
    }

    /// Adds the values of another pass. If too many have gathered, the oldest are dropped here.
    pub fn append(&mut self, mut other: ReleasedValues) {
        self.0.append(&mut other.0);
        self.0.drain(..self.0.len().saturating_sub(MAX_BATCHES));
    }

    /// Keeps these values for later if they are many; drops them otherwise.
    pub(crate) fn add<T: Send + 'static>(&mut self, items: Vec<T>) {
        // Fewer items are dropped on return.
        if items.len() >= MIN_BATCH {
            self.0.push(Box::new(items.into_iter()));
        }
    }
}

impl fmt::Debug for ReleasedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleasedValues({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Many values are dropped in parts, few at once, and all of them eventually.
    #[test]
    fn released_values_are_dropped_in_parts() {
        let one = Arc::new(());
        let mut released = ReleasedValues::default();
        released.add(vec![one.clone(); MIN_BATCH - 1]);
        assert!(released.is_empty());
        released.add(vec![one.clone(); BATCH_SIZE + 1]);
        let mut more = ReleasedValues::default();
        more.add(vec![one.clone(); MIN_BATCH]);
        released.append(more);
        for left in [BATCH_SIZE + 1, 1, 0] {
            released.drop_some();
            assert_eq!(Arc::strong_count(&one) - 1, left);
        }
        assert!(released.is_empty());
        released.drop_some();
        for _ in 0..2 * MAX_BATCHES {
            let mut more = ReleasedValues::default();
            more.add(vec![one.clone(); MIN_BATCH]);
            released.append(more);
        }
        assert_eq!(Arc::strong_count(&one) - 1, MAX_BATCHES * MIN_BATCH, "it does not grow without end");
        drop(released);
        assert_eq!(Arc::strong_count(&one), 1);
    }
}
