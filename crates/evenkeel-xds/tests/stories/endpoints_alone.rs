//! An endpoints-only update has the result of a full update. Two channels follow one client, one of them with
//! endpoints-only updates wherever possible, and their configs are equal after every event.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_core::{Instant, PickArgs, Registry, Rng, Status};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, Resource as Wrapper, ResourceError, ResourceName,
};
use evenkeel_proto::google::rpc;
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types::{Any, Duration};
use evenkeel_xds::ads::{
    AdsClient, AdsEffect, AdsEvent, AdsStreamId, ChangedResources, SubscriberId, XdsVariant,
};
use evenkeel_xds::bootstrap::{Bootstrap, ServerFeatures};
use evenkeel_xds::dependency_manager::XdsConfig;
use evenkeel_xds::resolver::{XdsResolver, XdsResolverOutput, XdsResolverUpdate};
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use evenkeel_xds::routing::{ConfigSelector, SelectedRoute};
use proptest::prelude::*;
use testkit::resources::{
    aggregate_cluster, any as packed, cluster, dns_cluster, listener_with_rds, load_assignment, route,
    route_config, virtual_host,
};
use testkit::secs;

use ResourceType::{Cluster as Cds, Endpoints as Eds, Listener as Lds, RouteConfig as Rds};

use crate::script::{authority, bootstrap_with};

/// Two spellings of one resource name, the first of which is canonical.
const SPELLINGS: [&str; 2] = [
    "xdstp://far/envoy.config.endpoint.v3.ClusterLoadAssignment/e?a=1&b=2",
    "xdstp://far/envoy.config.endpoint.v3.ClusterLoadAssignment/e?b=2&a=1",
];

const CLUSTERS: &str = "abcdetuxy";

/// EDS resource names of the clusters.
const ENDPOINTS: [&str; 3] = ["a", "shared", SPELLINGS[0]];

/// Returns the cluster of a letter: `b` and `c` share one EDS service, as do `t` and `u` in two spellings. `d` and
/// `e` share one DNS name, and `x` and `y` are aggregates.
fn cluster_of(letter: char) -> Cluster {
    let of_service = |service: &str| {
        let mut cluster = cluster(&letter.to_string());
        service.clone_into(&mut cluster.eds_cluster_config.get_or_insert_default().service_name);
        cluster
    };
    match letter {
        'b' | 'c' => of_service("shared"),
        'd' | 'e' => dns_cluster(&letter.to_string(), "d.example", 443),
        't' => of_service(SPELLINGS[0]),
        'u' => of_service(SPELLINGS[1]),
        'x' => aggregate_cluster("x", &["a", "d", "t"]),
        'y' => aggregate_cluster("y", &["b", "x"]),
        _ => of_service(""),
    }
}

/// Event of a generated story.
#[derive(Clone, Debug)]
enum TestEvent {
    Routes(Vec<char>),
    /// A cluster is sent, with a connect timeout that distinguishes its versions.
    Cluster(char, i64),
    /// A resource that is NACKed, has an error from the server, or is deleted.
    Spoiled(ResourceType, String),
    Refused(ResourceType, String, i32),
    Deleted(ResourceType, String),
    /// EDS resources are sent: the index of each, with its number of endpoints.
    Endpoints(Vec<(usize, usize)>),
    Resolved(bool),
    /// Clusters that policies subscribe to dynamically.
    Dynamic(Vec<char>),
    /// The stream ends. If false, the next one is refused.
    Ends(bool),
    Later(u64),
    /// A call begins on each channel and retains its cluster, or the oldest call ends.
    CallBegins,
    CallEnds,
}

fn happenings() -> impl Strategy<Value = Vec<TestEvent>> {
    let letter = || prop::sample::select(CLUSTERS.chars().collect::<Vec<_>>());
    let resource = || {
        let clusters = letter().prop_map(|letter| (Cds, letter.to_string()));
        let endpoints = prop::sample::select(&ENDPOINTS[..]).prop_map(|name| (Eds, name.to_owned()));
        let roots = prop::sample::select(vec![(Lds, "orders".to_owned()), (Rds, "routes".to_owned())]);
        prop_oneof![2 => clusters, 6 => endpoints, 1 => roots]
    };
    let code = prop::sample::select(vec![5, 14]);
    let one = prop_oneof![
        2 => prop::collection::vec(letter(), 1..4).prop_map(TestEvent::Routes),
        2 => (letter(), 0..2_i64).prop_map(|(letter, seconds)| TestEvent::Cluster(letter, seconds)),
        2 => resource().prop_map(|(kind, name)| TestEvent::Spoiled(kind, name)),
        2 => (resource(), code).prop_map(|((kind, name), code)| TestEvent::Refused(kind, name, code)),
        1 => resource().prop_map(|(kind, name)| TestEvent::Deleted(kind, name)),
        12 => prop::collection::vec((0..ENDPOINTS.len(), 0..4_usize), 1..3).prop_map(TestEvent::Endpoints),
        1 => any::<bool>().prop_map(TestEvent::Resolved),
        1 => prop::collection::vec(letter(), 0..2).prop_map(TestEvent::Dynamic),
        1 => any::<bool>().prop_map(TestEvent::Ends),
        1 => (0..20_u64).prop_map(TestEvent::Later),
        1 => Just(TestEvent::CallBegins),
        1 => Just(TestEvent::CallEnds),
    ];
    prop::collection::vec(one, 0..60)
}

/// A resolver with the subscriptions and results of its channel.
struct TestChannel {
    id: SubscriberId,
    resolver: XdsResolver,
    wanted: BTreeSet<(ResourceType, String)>,
    hosts: BTreeSet<Arc<str>>,
    route: Option<Result<Arc<ConfigSelector>, Status>>,
    /// Last update as text.
    step: Option<String>,
}

impl TestChannel {
    fn new(client: &mut AdsClient) -> TestChannel {
        TestChannel {
            id: client.add_subscriber(),
            resolver: XdsResolver::new("orders", "orders", "me", 7, Arc::new(|| ())),
            wanted: BTreeSet::new(),
            hosts: BTreeSet::new(),
            route: None,
            step: None,
        }
    }

    fn take(&mut self, step: Option<XdsResolverUpdate>) {
        let Some(XdsResolverUpdate { update, route }) = step else { return };
        self.step = Some(format!("{update:?} {:?}", route.as_ref().err()));
        self.route = Some(route);
    }

    /// Updates until nothing further is needed. Returns true if the first update was limited to endpoints.
    fn follow(
        &mut self,
        changed: &ChangedResources,
        dynamic: &[Arc<str>],
        client: &mut AdsClient,
        now: Instant,
    ) -> bool {
        let mut changed = changed;
        loop {
            let XdsResolverOutput { watches, update } = self.resolver.update(changed, dynamic, client);
            self.take(update);
            let Some(watches) = watches else { return true };
            self.hosts = watches.hosts;
            if watches.resources == self.wanted {
                return false;
            }
            client.watch(self.id, watches.resources.clone(), now);
            self.wanted = watches.resources;
            changed = &ChangedResources::Anything;
        }
    }

    fn looks(&self) -> RetainedViews {
        let route = self.route.as_ref().and_then(|route| route.as_ref().ok());
        RetainedViews(self.resolver.config().cloned(), route.cloned())
    }

    fn select(&self) -> Option<SelectedRoute> {
        self.route.as_ref()?.as_ref().ok()?.select(&PickArgs::new("/s/m", 7)).ok()
    }
}

/// Balancing and routing config of a channel.
struct RetainedViews(Option<Arc<XdsConfig>>, Option<Arc<ConfigSelector>>);

/// One client with a channel that always runs full updates, and one that runs endpoints-only updates.
struct Story {
    client: AdsClient,
    now: Instant,
    stream: Option<AdsStreamId>,
    is_up: bool,
    whole: TestChannel,
    short: TestChannel,
    dynamic: Vec<Arc<str>>,
    calls: Vec<[Option<SelectedRoute>; 2]>,
    sent: u64,
    /// Number of endpoints-only updates.
    glances: usize,
}

impl Story {
    fn new(features: ServerFeatures) -> Story {
        let authorities = [("far".to_owned(), authority(&["one"]))].into();
        let bootstrap = Arc::new(Bootstrap { authorities, ..bootstrap_with(features) });
        let parser = ResourceParser::new(Registry::standard());
        let mut client = AdsClient::new(bootstrap, parser, XdsVariant::Delta, Rng::fixed(1));
        let (whole, short) = (TestChannel::new(&mut client), TestChannel::new(&mut client));
        let mut story = Story {
            client,
            now: Instant::ORIGIN,
            stream: None,
            is_up: true,
            whole,
            short,
            dynamic: Vec::new(),
            calls: Vec::new(),
            sent: 0,
            glances: 0,
        };
        story.follow(true);
        story.send(
            Lds,
            vec![("orders".to_owned(), packed(&listener_with_rds("orders", "routes")))],
            &[],
            &[],
        );
        story.happens(&TestEvent::Routes(vec!['a', 'b', 't']));
        for letter in CLUSTERS.chars() {
            story.happens(&TestEvent::Cluster(letter, 0));
        }
        story.happens(&TestEvent::Endpoints(vec![(0, 1), (1, 1), (2, 1)]));
        story
    }

    fn send(
        &mut self,
        kind: ResourceType,
        items: Vec<(String, Any)>,
        removed: &[&str],
        errors: &[(&str, i32)],
    ) {
        let Some(stream) = self.stream else { return };
        self.sent += 1;
        let version = self.sent.to_string();
        let wrap = |(name, any)| Wrapper {
            name,
            resource: Some(any),
            version: version.clone(),
            ..Wrapper::default()
        };
        let error = |(name, code): &(&str, i32)| ResourceError {
            resource_name: Some(ResourceName { name: (*name).to_owned() }),
            error_detail: Some(rpc::Status { code: *code, message: "no".to_owned(), details: Vec::new() }),
        };
        let response = DeltaDiscoveryResponse {
            resources: items.into_iter().map(wrap).collect(),
            type_url: kind.type_url().to_owned(),
            removed_resources: removed.iter().map(|name| (*name).to_owned()).collect(),
            resource_errors: errors.iter().map(error).collect(),
            nonce: version.clone(),
            ..DeltaDiscoveryResponse::default()
        };
        self.client.handle(AdsEvent::Message { stream, bytes: &response.encode_to_vec() }, self.now);
        self.follow(false);
    }

    /// Runs the driver until neither channel has an update left.
    fn follow(&mut self, at_everything: bool) {
        let mut changed = at_everything.then_some(ChangedResources::Anything);
        loop {
            while let Some(effect) = self.client.poll_effect() {
                match effect {
                    AdsEffect::Open { stream, .. } if self.is_up => {
                        self.stream = Some(stream);
                        self.client.handle(AdsEvent::Opened { stream }, self.now);
                    }
                    AdsEffect::Open { stream, .. } => {
                        let status = Status::unavailable("refused");
                        self.client.handle(AdsEvent::Closed { stream, status }, self.now);
                    }
                    AdsEffect::Send { stream, .. } => {
                        self.client.handle(AdsEvent::Written { stream }, self.now);
                    }
                    AdsEffect::Close { .. } => self.stream = None,
                    AdsEffect::Read { .. } | AdsEffect::Warn(_) | AdsEffect::Info(_) => {}
                }
            }
            while let Some((id, what)) = self.client.poll_changed() {
                if id == self.short.id {
                    match &mut changed {
                        Some(changed) => changed.add(what),
                        None => changed = Some(what),
                    }
                }
            }
            let Some(changed) = changed.take() else { return };
            let anything = ChangedResources::Anything;
            assert!(!self.whole.follow(&anything, &self.dynamic, &mut self.client, self.now));
            if self.short.follow(&changed, &self.dynamic, &mut self.client, self.now) {
                self.glances += 1;
            }
            self.client.processed(self.whole.id);
            self.client.processed(self.short.id);
        }
    }

    fn happens(&mut self, happening: &TestEvent) {
        match happening {
            TestEvent::Routes(letters) => {
                let mut table = route_config("routes", "");
                let routes = letters.iter().map(|c| route("", &c.to_string())).collect();
                table.virtual_hosts = vec![virtual_host("*", routes)];
                let listener = packed(&listener_with_rds("orders", "routes"));
                self.send(Lds, vec![("orders".to_owned(), listener)], &[], &[]);
                self.send(Rds, vec![("routes".to_owned(), packed(&table))], &[], &[]);
            }
            TestEvent::Cluster(letter, seconds) => {
                let mut cluster = cluster_of(*letter);
                cluster.connect_timeout = Some(Duration { seconds: *seconds, nanos: 0 });
                self.send(Cds, vec![(letter.to_string(), packed(&cluster))], &[], &[]);
            }
            TestEvent::Spoiled(kind, name) => {
                let nonsense = Any { type_url: kind.type_url().to_owned(), value: vec![0xff] };
                self.send(*kind, vec![(name.clone(), nonsense)], &[], &[]);
            }
            TestEvent::Refused(kind, name, code) => self.send(*kind, vec![], &[], &[(name, *code)]),
            TestEvent::Deleted(kind, name) => self.send(*kind, vec![], &[name], &[]),
            TestEvent::Endpoints(lists) => {
                let lists = lists.iter().map(|(which, n)| {
                    let list: Vec<String> = (0..*n).map(|i| format!("10.0.{which}.{i}:80")).collect();
                    let list: Vec<&str> = list.iter().map(String::as_str).collect();
                    let name = ENDPOINTS[*which];
                    (name.to_owned(), packed(&load_assignment(name, &list)))
                });
                self.send(Eds, lists.collect(), &[], &[]);
            }
            TestEvent::Resolved(is_well) => {
                for channel in [&mut self.whole, &mut self.short] {
                    let answer = if *is_well {
                        Ok(vec!["10.1.0.1:443".into()])
                    } else {
                        Err(Status::unavailable("no"))
                    };
                    channel.resolver.handle_resolved("d.example:443", answer);
                }
                self.follow(true);
            }
            TestEvent::Dynamic(letters) => {
                self.dynamic = letters.iter().map(|letter| letter.to_string().into()).collect();
                self.follow(true);
            }
            TestEvent::Ends(comes_back) => {
                self.is_up = *comes_back;
                if let Some(stream) = self.stream.take() {
                    let status = Status::unavailable("ends");
                    self.client.handle(AdsEvent::Closed { stream, status }, self.now);
                }
                self.follow(false);
                self.is_up = true;
            }
            TestEvent::Later(seconds) => {
                self.now += secs(*seconds);
                self.client.handle_time(self.now);
                self.follow(false);
            }
            TestEvent::CallBegins => self.calls.push([self.whole.select(), self.short.select()]),
            // No event is sent, so an endpoints-only update has to notice that a full update is due.
            TestEvent::CallEnds if !self.calls.is_empty() => drop(self.calls.remove(0)),
            TestEvent::CallEnds => {}
        }
    }
}

/// Returns every part of a config as text. Resources from the cache are the same allocation for both channels.
fn shown(config: &XdsConfig) -> Vec<String> {
    let XdsConfig { listener, route_config, virtual_host, clusters, resources, note } = config;
    let roots = (Arc::as_ptr(listener), Arc::as_ptr(route_config), Arc::as_ptr(virtual_host), note);
    let roots = format!("{roots:?}");
    let clusters_by_name = clusters.clusters().map(|(name, cluster)| format!("{name} {cluster:?}"));
    let endpoints = clusters.endpoint_sets().map(|(source, set)| format!("{source:?} {set:?}"));
    let resources = resources.iter().map(|(name, resource)| format!("{name} {:p}", Arc::as_ptr(resource)));
    std::iter::once(roots).chain(clusters_by_name).chain(endpoints).chain(resources).collect()
}

/// Returns the parts of a config that are the same allocation as before.
fn kept(before: &RetainedViews, after: &RetainedViews) -> Option<Vec<String>> {
    let (RetainedViews(Some(before), old_route), RetainedViews(Some(after), route)) = (before, after) else {
        return None;
    };
    let (old, new) = (&before.clusters, &after.clusters);
    let same_route = old_route.as_ref().map(Arc::as_ptr) == route.as_ref().map(Arc::as_ptr);
    let whole = [same_route, Arc::ptr_eq(before, after), Arc::ptr_eq(old, new)];
    let clusters = new.clusters().filter(|(name, cluster)| match (cluster, old.cluster(name)) {
        (Ok(new), Some(Ok(old))) => Arc::ptr_eq(old, new),
        _ => false,
    });
    let endpoints = new
        .endpoint_sets()
        .filter(|(source, set)| old.endpoint_set(source).is_some_and(|old| Arc::ptr_eq(old, set)));
    let names = clusters.map(|(name, _)| name.to_string());
    let names = names.chain(endpoints.map(|(source, _)| format!("{source:?}")));
    Some(whole.map(|is_same| is_same.to_string()).into_iter().chain(names).collect())
}

fn features() -> impl Strategy<Value = ServerFeatures> {
    any::<[bool; 3]>().prop_map(|[ignores, fails, transient]| ServerFeatures {
        ignore_resource_deletion: ignores,
        fail_on_data_errors: fails,
        resource_timer_is_transient_error: transient,
        ..ServerFeatures::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn endpoints_only_updates_equal_full_updates(features in features(), happenings in happenings()) {
        let mut story = Story::new(features);
        for happening in &happenings {
            let before = [&story.whole, &story.short].map(TestChannel::looks);
            story.happens(happening);
            let (whole, short) = (&mut story.whole, &mut story.short);
            prop_assert_eq!(&whole.wanted, &short.wanted);
            prop_assert_eq!(&whole.hosts, &short.hosts);
            // The second channel takes fewer intermediate updates, because resources that the first requested are
            // already cached.
            prop_assert_eq!(whole.step.take(), short.step.take());
            let after = [whole, short].map(|channel| channel.looks());
            prop_assert_eq!(after[0].0.as_deref().map(shown), after[1].0.as_deref().map(shown));
            let [whole, short] = [0, 1].map(|i| kept(&before[i], &after[i]));
            prop_assert_eq!(whole, short);
        }
    }
}

/// Endpoints-only updates happen in these stories, for every kind of resource name.
#[test]
fn endpoints_only_updates_happen() {
    let mut story = Story::new(ServerFeatures::default());
    // The channel first drops the clusters of its old routes, which takes one more full update.
    story.happens(&TestEvent::Endpoints(vec![(0, 2)]));
    for (which, name) in ENDPOINTS.iter().enumerate() {
        let before = story.glances;
        story.happens(&TestEvent::Endpoints(vec![(which, 3)]));
        assert_eq!(story.glances, before + 1, "{name}");
    }
    let before = story.glances;
    story.happens(&TestEvent::Deleted(Eds, "a".to_owned()));
    story.happens(&TestEvent::Spoiled(Eds, "shared".to_owned()));
    assert_eq!(story.glances, before + 2, "errors of endpoints too");
    story.happens(&TestEvent::Cluster('a', 1));
    assert_eq!(story.glances, before + 2, "a cluster takes a full update");
}
