//! Subscription of one channel to the resources of its target.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use evenkeel_xds::resolver::XdsResolverUpdate;
use tokio::sync::watch;

use super::XdsClient;
use super::worker::WorkerCommand;
use crate::resolver::progress::XdsProgress;

/// Subscription of one channel. Dropping it ends the subscription.
pub(crate) struct XdsSubscription {
    /// Authority of the channel's calls.
    pub(crate) authority: String,
    pub(super) key: u64,
    pub(crate) progress: Arc<XdsProgress>,
    pub(super) steps: watch::Receiver<Option<XdsResolverUpdate>>,
    /// Clusters of the last [`XdsSubscription::watch_clusters`].
    pub(super) dynamic: BTreeSet<Arc<str>>,
    pub(super) client: XdsClient,
}

impl XdsSubscription {
    /// Returns the latest update that was not returned before, or waits for one. Returns `None` if the client has
    /// ended. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> Option<XdsResolverUpdate> {
        self.steps.changed().await.ok()?;
        self.steps.borrow_and_update().clone()
    }

    /// Replaces the set of clusters that policies request beside the routes. Cheap if it is unchanged.
    pub(crate) fn watch_clusters(&mut self, dynamic: BTreeSet<Arc<str>>) {
        if dynamic != self.dynamic {
            self.dynamic.clone_from(&dynamic);
            self.send(WorkerCommand::WatchClusters { key: self.key, dynamic });
        }
    }

    /// Requests that DNS names are resolved again, because connections to their addresses fail. The rate is limited.
    pub(crate) fn reresolve(&self) {
        self.send(WorkerCommand::Reresolve { key: self.key });
    }

    /// Ignores a failure: the client has ended then, which [`XdsSubscription::changed`] reports.
    fn send(&self, command: WorkerCommand) {
        let _ = self.client.shared.commands.send(command);
    }
}

impl Drop for XdsSubscription {
    fn drop(&mut self) {
        self.send(WorkerCommand::Unsubscribe { key: self.key });
    }
}

impl fmt::Debug for XdsSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsSubscription").field("authority", &self.authority).finish_non_exhaustive()
    }
}
