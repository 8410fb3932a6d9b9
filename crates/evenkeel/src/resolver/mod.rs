//! Name resolution: target URIs, DNS, service configs, and the xDS client as a resolver.
//!
//! A resolver produces endpoints, a load balancing config and, with xDS, routes. The channel's driver applies them.

pub(crate) mod dns;
pub(crate) mod progress;
pub(crate) mod service_config;
pub(crate) mod xds;

use std::future;
use std::sync::Arc;

use evenkeel_core::{Core, Endpoints, LbConfig, LbUpdate, Status};
use evenkeel_xds::resolver::XdsResolverUpdate;

use self::dns::DnsResolver;
use self::progress::ResolutionProgress;
use self::xds::{XdsClient, XdsSubscription};

/// Source of a channel's endpoints.
#[derive(Clone)]
pub(crate) enum ResolverConfig {
    /// Endpoints and routes from a control plane.
    Xds { client: XdsClient, target: Arc<str>, authority: Option<Arc<str>>, channel_id: u64 },
    /// Endpoints from DNS, with the policy of the service config.
    Dns { host: Arc<str>, port: u16, config: LbConfig },
    /// Addresses that the target lists.
    Fixed { endpoints: Endpoints, config: LbConfig },
}

/// Source of updates while a channel is not IDLE.
pub(crate) enum Resolver {
    /// The endpoints never change.
    Fixed,
    Dns(DnsResolver),
    Xds {
        client: XdsClient,
        subscription: XdsSubscription,
    },
}

/// Update of endpoints, config or routes.
pub(crate) enum ResolverUpdate {
    Xds(XdsResolverUpdate),
    Resolved(LbUpdate),
    Failed(Status),
}

impl Resolver {
    /// Returns the progress of the first resolution.
    pub(crate) fn progress(&self) -> ResolutionProgress {
        match self {
            Resolver::Fixed => ResolutionProgress::Fixed,
            Resolver::Dns(dns) => dns.progress(),
            Resolver::Xds { subscription, .. } => ResolutionProgress::Xds(subscription.progress.clone()),
        }
    }

    /// Returns the next update. Cancel-safe: no update is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> ResolverUpdate {
        match self {
            Resolver::Fixed => future::pending().await,
            Resolver::Dns(dns) => dns.next().await,
            Resolver::Xds { subscription, .. } => match subscription.changed().await {
                Some(step) => ResolverUpdate::Xds(step),
                // The client's thread has ended. The channel keeps its last config.
                None => future::pending().await,
            },
        }
    }

    pub(crate) fn reresolve(&mut self) {
        match self {
            Resolver::Fixed => {}
            Resolver::Dns(dns) => dns.reresolve(),
            Resolver::Xds { subscription, .. } => subscription.reresolve(),
        }
    }

    /// Forwards the result of a pass: the clusters that policies subscribe to, and a hint that load reports changed.
    pub(crate) fn handle_pass(&mut self, core: &Core) {
        if let Resolver::Xds { client, subscription } = self {
            subscription.watch_clusters(core.subscribed_clusters().cloned().collect());
            client.notify_pass();
        }
    }
}
