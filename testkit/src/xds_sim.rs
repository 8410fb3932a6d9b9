//! Simulated environment of one xDS channel: ADS client, resolver and core, connected without sockets.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_core::{Core, Instant, LbEvent, Registry, Rng, RootPicker};
use evenkeel_xds::ads::{
    AdsClient, AdsEffect, AdsEvent, AdsStreamId, ChangedResources, SubscriberId, XdsVariant,
};
use evenkeel_xds::bootstrap::Bootstrap;
use evenkeel_xds::resolver::{XdsResolver, XdsResolverOutput, XdsResolverUpdate};
use evenkeel_xds::resource::{ResourceParser, ResourceType};

use crate::dialled;

const BOOTSTRAP: &str =
    r#"{"xds_servers": [{"server_uri": "control:1", "channel_creds": [{"type": "insecure"}]}]}"#;

/// xDS client with one channel for a listener. Every endpoint connects at once, and time stands still.
pub struct XdsSim {
    client: AdsClient,
    channel: SubscriberId,
    stream: Option<AdsStreamId>,
    resolver: XdsResolver,
    wanted: BTreeSet<(ResourceType, String)>,
    core: Core,
    picker: Option<RootPicker>,
}

impl XdsSim {
    /// Starts a channel for this listener. Its stream to the control plane is open.
    pub fn new(listener: &str, variant: XdsVariant) -> XdsSim {
        let bootstrap = Arc::new(Bootstrap::from_json(BOOTSTRAP).expect("the bootstrap is valid"));
        let parser = ResourceParser::new(Registry::standard());
        let mut client = AdsClient::new(bootstrap, parser, variant, Rng::fixed(1));
        let channel = client.add_subscriber();
        let mut sim = XdsSim {
            client,
            channel,
            stream: None,
            resolver: XdsResolver::new(listener, listener, listener, 7, Arc::new(|| ())),
            wanted: BTreeSet::new(),
            core: Core::builder(Rng::fixed(1)).build(),
            picker: None,
        };
        sim.resolve(&ChangedResources::Anything);
        sim.settle();
        sim
    }

    /// Handles a response, and runs passes until all endpoints are connected. Returns the number of dialled endpoints;
    /// `None` if the config did not change.
    pub fn receive(&mut self, bytes: &[u8]) -> Option<usize> {
        let stream = self.stream.expect("the client opens a stream when the channel starts");
        self.client.handle(AdsEvent::Message { stream, bytes }, Instant::ORIGIN);
        self.settle().map(|update| self.apply(update))
    }

    /// Returns the channel's core.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the latest picker.
    pub fn picker(&self) -> Option<&RootPicker> {
        self.picker.as_ref()
    }

    /// Performs the client's effects until there are none left.
    fn settle(&mut self) -> Option<XdsResolverUpdate> {
        let mut last = None;
        loop {
            while let Some(effect) = self.client.poll_effect() {
                match effect {
                    AdsEffect::Open { stream, .. } => {
                        self.stream = Some(stream);
                        self.client.handle(AdsEvent::Opened { stream }, Instant::ORIGIN);
                    }
                    AdsEffect::Send { stream, .. } => {
                        self.client.handle(AdsEvent::Written { stream }, Instant::ORIGIN);
                    }
                    AdsEffect::Read { .. }
                    | AdsEffect::Close { .. }
                    | AdsEffect::Warn(_)
                    | AdsEffect::Info(_) => {}
                }
            }
            let Some((id, changed)) = self.client.poll_changed() else { return last };
            last = self.resolve(&changed).or(last);
            self.client.processed(id);
        }
    }

    /// Passes changed resources to the resolver, and its subscriptions to the client.
    fn resolve(&mut self, changed: &ChangedResources) -> Option<XdsResolverUpdate> {
        let (mut changed, mut last) = (changed, None);
        loop {
            let XdsResolverOutput { watches, update } = self.resolver.update(changed, [], &self.client);
            last = update.or(last);
            let Some(watches) = watches.filter(|watches| watches.resources != self.wanted) else {
                return last;
            };
            self.client.watch(self.channel, watches.resources.clone(), Instant::ORIGIN);
            self.wanted = watches.resources;
            changed = &ChangedResources::Anything;
        }
    }

    /// Runs passes until all dialled endpoints are connected. Returns their number.
    fn apply(&mut self, update: XdsResolverUpdate) -> usize {
        let now = Instant::ORIGIN;
        let mut count = 0;
        self.core.update(update.update);
        loop {
            let pass = self.core.reconcile(now);
            let dialled = dialled(&pass);
            self.picker = pass.picker.or(self.picker.take());
            if dialled.is_empty() && pass.wake_at.is_none_or(|at| at > now) {
                return count;
            }
            count += dialled.len();
            for id in dialled {
                self.core.handle(LbEvent::Connected(id), now);
            }
        }
    }
}
