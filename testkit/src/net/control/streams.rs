//! The control plane's side of its streams.
//!
//! A stream is a task that looks at what is held and what it has told its client, and sends the difference; it looks
//! again when a request comes or the state changes. Both variants of ADS share all but their messages ([`Variant`]).

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use evenkeel_proto::envoy::service::load_stats::v3::{LoadStatsRequest, LoadStatsResponse};
use evenkeel_proto::google::rpc;
use evenkeel_proto::prost::Name;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::Stream;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Kind, Shared, State};
use crate::net::discovery::aggregated_discovery_service_server::AggregatedDiscoveryService;
use crate::net::load_stats::load_reporting_service_server::LoadReportingService;

#[derive(Clone)]
pub(super) struct Streams {
    pub(super) shared: Arc<Shared>,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Streams {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        requests: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses<DiscoveryResponse>>, Status> {
        self.ads(requests)
    }

    async fn delta_aggregated_resources(
        &self,
        requests: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Responses<DeltaDiscoveryResponse>>, Status> {
        self.ads(requests)
    }
}

impl Streams {
    fn ads<V: Variant>(
        &self,
        requests: Request<Streaming<V>>,
    ) -> Result<Response<Responses<V::Response>>, Status> {
        let ads = Ads::open(&self.shared)?;
        let (responses, stream) = unbounded_channel();
        tokio::spawn(ads.run::<V>(requests.into_inner(), responses));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(stream))))
    }
}

/// An open ADS stream.
struct Ads {
    shared: Arc<Shared>,
    number: usize,
    subscriptions: BTreeMap<String, Subscription>,
    nonces: u64,
}

impl Ads {
    fn open(shared: &Arc<Shared>) -> Result<Ads, Status> {
        let mut state = shared.lock();
        state.streams += 1;
        shared.changed.notify_waiters();
        if state.only_one_stream && state.open_streams > 0 {
            return Err(Status::unavailable("the control plane serves one stream only"));
        }
        state.open_streams += 1;
        Ok(Ads {
            shared: Arc::clone(shared),
            number: state.streams,
            subscriptions: BTreeMap::new(),
            nonces: 0,
        })
    }

    async fn run<V: Variant>(
        mut self,
        mut requests: Streaming<V>,
        responses: UnboundedSender<Result<V::Response, Status>>,
    ) {
        let shared = Arc::clone(&self.shared);
        loop {
            let change = shared.changed.notified();
            tokio::pin!(change);
            // From here on no change is missed.
            change.as_mut().enable();
            if shared.lock().closed >= self.number {
                return;
            }
            for response in self.news::<V>() {
                let _ = responses.send(Ok(response));
            }
            tokio::select! {
                () = change => {}
                () = responses.closed() => return,
                request = requests.message() => match request {
                    Ok(Some(request)) => self.handle(request),
                    Ok(None) | Err(_) => return,
                },
            }
        }
    }

    fn handle(&mut self, request: impl Variant) {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let (type_url, error) = request.said();
        let subscription = self.subscriptions.entry(type_url.to_owned()).or_default();
        if let Some(error) = error {
            state.nacks.push((type_url.to_owned(), error.message.clone()));
        } else if let Some(version) = request.accepts(subscription) {
            let acked = state.acked.entry(type_url.to_owned()).or_default();
            *acked = version.max(*acked);
        }
        request.subscribe(subscription);
        state.subscribed.insert((self.number, type_url.to_owned()), subscription.names.clone());
        request.record(state);
        self.shared.changed.notify_waiters();
    }

    fn news<V: Variant>(&mut self) -> Vec<V::Response> {
        let state = self.shared.lock();
        if state.silent {
            return Vec::new();
        }
        let mut responses = Vec::new();
        // By type URL is clusters, endpoints, listeners, routes: routes lead to nothing that was not sent.
        for (type_url, subscription) in &mut self.subscriptions {
            let kind = state.resources.kind(type_url);
            let news = subscription.news(kind);
            let nonce = (self.nonces + 1).to_string();
            if let Some(response) = V::response(type_url, kind, subscription, &news, &nonce) {
                self.nonces += 1;
                subscription.nonce = nonce;
                subscription.sent = Some(kind.version);
                responses.push(response);
            }
        }
        responses
    }
}

impl Drop for Ads {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.open_streams -= 1;
        state.subscribed.retain(|(number, _), _| *number != self.number);
        self.shared.changed.notify_waiters();
    }
}

/// What a stream wants of one type, and what it was told.
#[derive(Default)]
struct Subscription {
    names: BTreeSet<String>,
    /// The version of each resource; none for one that does not exist.
    told: BTreeMap<String, Option<u64>>,
    /// That of the last response, and the version in it.
    nonce: String,
    sent: Option<u64>,
}

impl Subscription {
    /// The names about which there is something to tell. They count as told.
    fn news(&mut self, kind: &Kind) -> BTreeSet<String> {
        let now: BTreeMap<_, _> = self
            .names
            .iter()
            .map(|name| (name.clone(), kind.held.get(name).map(|held| held.version)))
            .collect();
        let told = std::mem::replace(&mut self.told, now);
        self.told
            .iter()
            .filter(|(name, version)| told.get(*name) != Some(*version))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

/// The requests of a variant of ADS.
trait Variant: Sized + Send + 'static {
    type Response: Send + 'static;

    /// The type that it is about, and what is wrong with the last response.
    fn said(&self) -> (&str, Option<&rpc::Status>);
    /// The version that a request without an error accepts.
    fn accepts(&self, subscription: &Subscription) -> Option<u64>;
    fn subscribe(&self, subscription: &mut Subscription);
    fn record(self, state: &mut State);
    fn response(
        type_url: &str,
        kind: &Kind,
        subscription: &Subscription,
        news: &BTreeSet<String>,
        nonce: &str,
    ) -> Option<Self::Response>;
}

impl Variant for DiscoveryRequest {
    type Response = DiscoveryResponse;

    fn said(&self) -> (&str, Option<&rpc::Status>) {
        (&self.type_url, self.error_detail.as_ref())
    }

    fn accepts(&self, _: &Subscription) -> Option<u64> {
        self.version_info.parse().ok()
    }

    fn subscribe(&self, subscription: &mut Subscription) {
        // A request that answers an older response than the last is outdated; the answer to the last is under way.
        if self.response_nonce == subscription.nonce {
            subscription.names = self.resource_names.iter().cloned().collect();
        }
    }

    fn record(self, state: &mut State) {
        state.requests.push(self);
    }

    /// Listeners and clusters come all at once, and what is missing does not exist. Others come one by one.
    fn response(
        type_url: &str,
        kind: &Kind,
        subscription: &Subscription,
        news: &BTreeSet<String>,
        nonce: &str,
    ) -> Option<DiscoveryResponse> {
        let whole = type_url == Listener::type_url() || type_url == Cluster::type_url();
        let names = if whole && !news.is_empty() { &subscription.names } else { news };
        let held = names.iter().filter_map(|name| kind.held.get(name));
        let resources: Vec<_> = held.map(|held| held.resource.clone()).collect();
        if names.is_empty() || (resources.is_empty() && !whole) {
            return None;
        }
        Some(DiscoveryResponse {
            version_info: kind.version.to_string(),
            resources,
            type_url: type_url.to_owned(),
            nonce: nonce.to_owned(),
            ..DiscoveryResponse::default()
        })
    }
}

impl Variant for DeltaDiscoveryRequest {
    type Response = DeltaDiscoveryResponse;

    fn said(&self) -> (&str, Option<&rpc::Status>) {
        (&self.type_url, self.error_detail.as_ref())
    }

    fn accepts(&self, subscription: &Subscription) -> Option<u64> {
        subscription.sent.filter(|_| self.response_nonce == subscription.nonce)
    }

    fn subscribe(&self, subscription: &mut Subscription) {
        for name in &self.resource_names_unsubscribe {
            subscription.names.remove(name);
        }
        for name in &self.resource_names_subscribe {
            subscription.names.insert(name.clone());
            // Who subscribes again is told again.
            subscription.told.remove(name);
        }
        for (name, version) in &self.initial_resource_versions {
            subscription.told.insert(name.clone(), version.parse().ok());
        }
    }

    fn record(self, state: &mut State) {
        state.delta_requests.push(self);
    }

    fn response(
        type_url: &str,
        kind: &Kind,
        _: &Subscription,
        news: &BTreeSet<String>,
        nonce: &str,
    ) -> Option<DeltaDiscoveryResponse> {
        if news.is_empty() {
            return None;
        }
        let (held, missing): (Vec<_>, Vec<_>) =
            news.iter().cloned().partition(|name| kind.held.contains_key(name));
        let resource = |name: String| {
            let held = &kind.held[&name];
            Resource {
                name,
                version: held.version.to_string(),
                resource: Some(held.resource.clone()),
                ..Resource::default()
            }
        };
        Some(DeltaDiscoveryResponse {
            system_version_info: kind.version.to_string(),
            resources: held.into_iter().map(resource).collect(),
            removed_resources: missing,
            type_url: type_url.to_owned(),
            nonce: nonce.to_owned(),
            ..DeltaDiscoveryResponse::default()
        })
    }
}

#[tonic::async_trait]
impl LoadReportingService for Streams {
    type StreamLoadStatsStream = Responses<LoadStatsResponse>;

    async fn stream_load_stats(
        &self,
        requests: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<Response<Responses<LoadStatsResponse>>, Status> {
        let mut state = self.shared.lock();
        state.lrs_streams += 1;
        self.shared.changed.notify_waiters();
        if state.lrs_unimplemented {
            return Err(Status::unimplemented("the control plane takes no load reports"));
        }
        let (responses, stream) = unbounded_channel();
        tokio::spawn(take_reports(Arc::clone(&self.shared), requests.into_inner(), responses));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(stream))))
    }
}

/// Asks for reports on all clusters, and again when the interval is another.
async fn take_reports(
    shared: Arc<Shared>,
    mut requests: Streaming<LoadStatsRequest>,
    responses: UnboundedSender<Result<LoadStatsResponse, Status>>,
) {
    let mut asked = None;
    let mut greeted = false;
    loop {
        let change = shared.changed.notified();
        tokio::pin!(change);
        change.as_mut().enable();
        let interval = shared.lock().lrs_interval;
        if greeted && asked != Some(interval) {
            asked = Some(interval);
            let _ = responses.send(Ok(ask(interval)));
        }
        tokio::select! {
            () = change => {}
            () = responses.closed() => return,
            request = requests.message() => {
                let Ok(Some(request)) = request else { return };
                greeted = true;
                shared.lock().load_reports.extend(request.cluster_stats);
                shared.changed.notify_waiters();
            }
        }
    }
}

fn ask(interval: Duration) -> LoadStatsResponse {
    LoadStatsResponse {
        send_all_clusters: true,
        load_reporting_interval: interval.try_into().ok(),
        ..LoadStatsResponse::default()
    }
}
